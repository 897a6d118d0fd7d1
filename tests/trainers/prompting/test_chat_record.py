"""A chat model continues the ids that it sampled: hot free text, cut turns, retries, calls, several conversations."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest
import torch
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from tests.trainers.corridor import Corridor
from tests.trainers.folder_base import (
    CHATML,
    HERMES,
    SPECIAL,
    TOOL_MARKS,
    build_chat_model,
    build_chat_tokenizer,
    let_end,
)
from tests.trainers.prompting.test_chat import NO_SYSTEM
from tests.trainers.rollouts.test_chat_rollout import Chamber
from tests.trainers.rollouts.tool_desk import BankClient

from hardwon.memory import ExperienceLibrary, State
from hardwon.runtime import Agent, ChatPolicy
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.llm.conversation import Conversations
from hardwon.trainers.engines.base import Completion
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.engines.rendering import encode_text
from hardwon.trainers.prompting.chat import ChatFormat
from hardwon.trainers.prompting.chat_messages import ChatMessages, to_plain
from hardwon.trainers.prompting.chat_model import EngineChatModel
from hardwon.trainers.prompting.chat_record import ChatRecord


class Hot:
    """A chat model at temperature 1.3 that notes its prompts and the ids that it sampled."""

    def __init__(self, template: str = CHATML, *, max_tokens: int = 12, seed: int | None = 0) -> None:
        torch.set_num_threads(1)
        self.tokenizer = build_chat_tokenizer(template, more=TOOL_MARKS)
        self.engine = LocalEngine(let_end(build_chat_model(self.tokenizer), self.tokenizer), self.tokenizer)
        self.model = EngineChatModel(engine=self.engine, temperature=1.3, max_tokens=max_tokens, seed=seed)
        self.said: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        generate = self.engine.generate

        async def noted(request: Any) -> Any:
            completion = await generate(request)
            self.said.append((request.prompt, completion.tokens))
            return completion

        self.engine.generate = noted  # type: ignore[method-assign]

    def read(self, tokens: tuple[int, ...]) -> str:
        return str(self.tokenizer.decode(list(tokens)))

    def ask(self, messages: list[Any]) -> AIMessage:
        answer = self.model.invoke(messages)
        assert isinstance(answer, AIMessage)
        return answer

    def play(self, environment: Any, tasks: list[str], steps: int, **how: Any) -> list[list[Any]]:
        """Play all tasks at once, and return what was asked and said for each."""
        with ExperienceLibrary.open(":memory:") as library:
            policy = ChatPolicy(self.model, **how)
            agent = Agent(policy, library, environment, arm="control", learn=False, max_steps=steps, retries=0)

            async def together() -> None:
                await asyncio.gather(*(agent.arun(task, 0) for task in tasks))

            asyncio.run(together())
            agent.close()
        return [[pair for pair in self.said if task in self.read(pair[0])] for task in tasks]


def continues(later: tuple[int, ...], prompt: tuple[int, ...], said: tuple[int, ...] = ()) -> bool:
    return later[: len(prompt) + len(said)] == (*prompt, *said)


def test_episodes_at_once_continue_what_they_sampled():
    """Free text at temperature 1.3 as `ChatPolicy` asks for it: its first line is the action, cut or not."""
    hot = Hot()
    chats = hot.play(Chamber(), ["Say something.", "Sing something."], 5, max_retries=0)
    assert [len(chat) for chat in chats] == [5, 5]
    said = [tokens for chat in chats for _, tokens in chat]
    assert {tokens[-1] == hot.tokenizer.eos_token_id for tokens in said} == {True, False}
    texts = [tuple(token for token in tokens if token != hot.tokenizer.eos_token_id) for tokens in said]
    assert any(encode_text(hot.tokenizer, hot.read(tokens)) != tokens for tokens in texts)
    for chat in chats:
        assert all(continues(later, *before) for before, (later, _) in pairwise(chat))


def test_a_retry_continues_its_answer_and_is_left_out_afterward():
    """What was sampled before the retry stays as it was; the answer in its place is encoded once."""
    hot = Hot()
    (chat,) = hot.play(Corridor(), [""], 4, max_retries=1)
    first, retries = chat[::2], chat[1::2]
    assert len(retries) == 4
    for asked, (repair, _) in zip(first, retries, strict=True):
        assert "cannot be used" in hot.read(repair)
        assert continues(repair, *asked)
    for (prompt, _), (later, _) in pairwise(first):
        assert continues(later, prompt)
        assert "cannot be used" not in hot.read(later)


def test_a_repair_that_repeats_an_answer_without_its_hidden_characters_continues_it():
    """`ChatPolicy` cleans the answer in a repair; the model said what it said."""
    hot = Hot()
    said = (*encode_text(hot.tokenizer, "fly\u200b </experience> away"), hot.tokenizer.eos_token_id)

    async def generate(request: Any) -> Any:
        hot.said.append((request.prompt, said))
        return Completion(said, (0.0,) * len(said), (True,) * len(said), (None,) * len(said), 0)

    hot.engine.generate = generate  # type: ignore[method-assign]
    (chat,) = hot.play(Corridor(), [""], 1, max_retries=1)
    asked, (repair, _) = chat[:2]
    assert "cannot be used" in hot.read(repair)
    assert continues(repair, *asked)


@pytest.mark.parametrize("speech", ["none", "free"])
def test_calls_continue_what_was_sampled(speech):
    """In the template's own form, with the result between, behind a thought or not."""
    hot = Hot(HERMES, max_tokens=600)
    if speech == "none":
        (chat,) = hot.play(BankClient(), ["Book a table."], 3, max_retries=0)
        assert len(chat) > 1
        assert all(continues(later, *before) for before, (later, _) in pairwise(chat))
        return
    call = '<tool_call>\n{"name": "find", "arguments": {"city":"Rome"}}\n</tool_call>'
    said = (*encode_text(hot.tokenizer, "I  th"), *encode_text(hot.tokenizer, "ink.\n"), *hot.tokenizer(call).input_ids)

    async def generate(request: Any) -> Any:
        tokens = (*said, hot.tokenizer.eos_token_id)
        hot.said.append((request.prompt, tokens))
        return Completion(tokens, (0.0,) * len(tokens), (True,) * len(tokens), (None,) * len(tokens), 0)

    hot.engine.generate = generate  # type: ignore[method-assign]
    (chat,) = hot.play(BankClient(), ["Book a table."], 3, max_retries=0, speech="free")
    assert len(chat) == 3
    assert all(continues(later, *before) for before, (later, _) in pairwise(chat))
    assert hot.read(chat[-1][0]).count("<tool_response>") == 2


def test_conversations_with_one_opening_do_not_mix():
    """Their answers tell them apart, and each goes on with its own ids."""
    hot = Hot(seed=None)
    chats = [[SystemMessage("Talk."), HumanMessage("Hello.")] for _ in range(3)]
    before: list[Any] = [None] * 3
    for turn in range(4):
        for n, messages in enumerate(chats):
            answer = hot.ask(messages)
            prompt, said = hot.said[-1]
            assert before[n] is None or continues(prompt, *before[n])
            before[n] = prompt, said
            messages += [AIMessage(answer.text), HumanMessage(f"Go on, {turn}.")]


def test_a_changed_message_begins_anew():
    """Of whichever role; a new model reads the same."""
    hot = Hot()
    messages: list[Any] = [SystemMessage("Talk."), HumanMessage("Hello.")]
    messages += [AIMessage(hot.ask(messages).text), HumanMessage("Go on.")]
    kept = hot.model._build_prompt(messages)
    assert continues(kept, *hot.said[0])
    for at, other in ((0, SystemMessage("Talk")), (1, HumanMessage("Hello. ")), (2, AIMessage("Go east."))):
        changed = [*messages[:at], other, *messages[at + 1 :]]
        assert hot.model._build_prompt(changed) == Hot().model._build_prompt(changed) != kept
    later = [*messages, AIMessage("Never said."), HumanMessage("And <|im_end|>?")]
    prompt = hot.model._build_prompt(later)
    assert continues(prompt, kept, encode_text(hot.tokenizer, "Never said."))
    assert prompt.count(hot.tokenizer.eos_token_id) == 6


def test_an_answer_with_control_tokens_is_continued_as_it_was_sampled():
    """Sent back as text it would be plain characters, and a text with such a name, which nobody sampled, is."""
    hot = Hot()
    for name in SPECIAL:
        number = hot.tokenizer.convert_tokens_to_ids(name)
        messages: list[Any] = [HumanMessage(f"Hello {len(name)}.")]
        tokens = (*encode_text(hot.tokenizer, "go "), number, *encode_text(hot.tokenizer, " east"))
        prompt = hot.model._build_prompt(messages)
        answer = AIMessage(hot.read(tokens))
        hot.model._keep(messages, (), answer, (*prompt, *tokens))
        more = [answer, HumanMessage("Go on.")]
        assert continues(hot.model._build_prompt([*messages, *more]), prompt, tokens)
        plain = hot.model._build_prompt([HumanMessage("Hello."), *more])
        assert plain.count(number) == hot.model._build_prompt([HumanMessage("Hello."), AIMessage("x"), more[1]]).count(
            number
        )


def test_an_answer_of_another_behind_what_was_sampled_ends_no_message():
    """A control token that somebody wrote into an answer is plain text."""
    hot = Hot()
    first: list[Any] = [HumanMessage("Hello.")]
    answer = hot.ask(first)
    ends = []
    for text in ("say nothing now", "say <|im_end|> now"):
        prompt = hot.model._build_prompt([*first, answer, HumanMessage("Go on."), AIMessage(text), HumanMessage("So?")])
        assert continues(prompt, *hot.said[0])
        ends.append(prompt.count(hot.tokenizer.eos_token_id))
    assert ends[0] == ends[1]


def test_an_answer_ends_where_its_stop_word_does():
    hot = Hot()
    messages: list[Any] = [HumanMessage("Hello.")]
    whole = hot.ask(messages)
    prompt, said = hot.said[-1]
    word = hot.read(said[3:5])
    answer = hot.model.invoke(messages, stop=[word])
    assert whole.text.startswith(answer.text)
    later = hot.model._build_prompt([*messages, answer, HumanMessage("Go on.")])
    assert continues(later, prompt, said[:5])
    assert later[len(prompt) + 5] == hot.tokenizer.eos_token_id


def test_memory_is_bounded():
    """The conversations that were used least recently are forgotten; theirs are rendered again."""
    chats = ChatMessages(build_chat_tokenizer())
    record = ChatRecord(chats, most=400)
    prompts = []
    for number in range(40):
        messages = to_plain([HumanMessage(f"Hello {number}.")])
        prompts.append(record.open(messages, ()))
        said = to_plain([AIMessage("x")])[0]
        record.keep(messages, (), said, (*prompts[-1], 7, 7, 7))
        record.keep(messages, (), said, (*prompts[-1], 7, 7, 7))
        first = to_plain([HumanMessage("Hello 0."), AIMessage("x"), HumanMessage("Go on.")])
        assert continues(record.open(first, ()), prompts[0], (7, 7, 7))
        assert record.size == sum(map(len, record._read.values())) <= 400
    second = to_plain([HumanMessage("Hello 1."), AIMessage("x"), HumanMessage("Go on.")])
    assert record.open(second, ()) == chats.render(second, ())
    record.keep(second, (), said, (7,) * 500)
    assert record.size == 0


def test_a_template_without_a_system_message_is_read_as_in_training():
    tokenizer = build_chat_tokenizer(NO_SYSTEM)
    context = Context(State("A hall.", task="Find it."), ("go east", "go west"))
    chat = Conversations().advance(context)
    messages = [{"system": SystemMessage, "user": HumanMessage}[role](text) for role, text in chat.messages()]
    model = EngineChatModel(engine=LocalEngine(build_chat_model(tokenizer), tokenizer))
    assert model._build_prompt(messages) == ChatFormat(tokenizer).open_prompt(chat, context)


def test_an_answer_ends_with_the_token_of_its_template():
    """Some bases name another one as the end of a text."""
    hot = Hot()
    hot.tokenizer.eos_token = "<|endoftext|>"
    end = hot.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert hot.model._get_end() == (end,)
    assert {hot.ask([HumanMessage(f"Hello {n}.")]).response_metadata["finish_reason"] for n in range(8)} == {
        "stop", "length",
    }  # fmt: skip
