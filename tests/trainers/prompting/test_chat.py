"""The chat format: ids that only grow, text that stays text, and questions in ordinary words."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.trainers.folder_base import CHATML, SPECIAL, build_chat_tokenizer
from tests.trainers.prompting.record import compare_record, render

from hardwon.memory import Diagnosis, State, Step, Trajectory
from hardwon.memory.errors import CannotLearn, ConfigError
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.llm.conversation import Conversations
from hardwon.trainers.algorithms.samples import pack_samples
from hardwon.trainers.config.policy import PolicySettings
from hardwon.trainers.prompting.base import Query
from hardwon.trainers.prompting.chat import ChatFormat
from hardwon.trainers.prompting.instructions import INSTRUCTIONS
from hardwon.trainers.prompting.template import ChatTemplate

TOKENIZER = build_chat_tokenizer()
PROMPTS = ChatFormat(TOKENIZER)
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no') }}{% endif %}" + CHATML
MOVES_SYSTEM = (
    "{% for m in messages %}{% if m['role'] != 'system' %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if loop.last and messages[0]['role'] == 'system' %}{{ messages[0]['content'] + '\n' }}{% endif %}"
    "{{ m['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
DROPS_THOUGHT = CHATML.replace(
    "message['content'] +",
    "('<think></think>' if message['role'] == 'assistant' and loop.last else '') + message['content'] +",
)


def make_context(history=(), text="You are in the kitchen.", **fields):
    state = State(text, task="Find the coin.")
    return Context(state, ("go east", "take coin"), history=tuple(history), thread="e", **fields)


def make_step(context, action="go east"):
    post = State("You are in the hall.", task="Find the coin.")
    return Step(context.state, action, post, Diagnosis(True), t=len(context.history), admissible=context.actions)


def sample_ids(chance, number):
    """Ids as a hot model samples them: hardly ever those that their text would be encoded as."""
    plain = [token for token in range(len(TOKENIZER)) if token not in TOKENIZER.added_tokens_decoder]
    return tuple(chance.choice(plain) for _ in range(number))


def play(turns, answer, prompts=PROMPTS):
    """Play some turns; `answer(n)` returns the action that ran and the sampled ids. Return prompts and ids."""
    log = Conversations()
    history: list[Step] = []
    sent = []
    for n in range(turns):
        context = make_context(history, f"You are in room {n}.")
        chat = log.advance(context)
        prompt = prompts.open_prompt(chat, context)
        ran, said, chosen = answer(n)
        Conversations.answer(chat, said, chosen)
        sent.append((prompt, chosen))
        history.append(make_step(context, ran))
    return sent, log.advance(make_context(history))


def test_what_was_sampled_is_never_encoded_again():
    """Hot samples do not survive decoding and encoding; the record keeps their ids."""
    chance, end = random.Random(0), (PROMPTS.end,)
    said = [(*sample_ids(chance, 6), *end) for _ in range(5)]
    changed = sum(tuple(TOKENIZER(TOKENIZER.decode(ids[:-1])).input_ids) != ids[:-1] for ids in said)
    assert changed  # otherwise this test shows nothing
    sent, chat = play(5, lambda n: ("take coin", "take coin", said[n]))
    for (prompt, chosen), (later, _) in pairwise(sent):
        assert later[: len(prompt) + len(chosen)] == prompt + chosen
    assert compare_record(PROMPTS, chat) == ()


def test_an_answer_that_the_limit_cut_gets_its_end_in_the_next_prompt():
    cut = sample_ids(random.Random(1), 4)
    sent, chat = play(2, lambda n: ("take coin", "take coin", cut))
    (first, _), (second, _) = sent
    assert second[len(first) :][:5] == (*cut, PROMPTS.end)
    assert compare_record(PROMPTS, chat) == ()


def test_a_replaced_answer_is_encoded_as_prompt():
    """A guardrail's substitute or a plan's step was not sampled."""
    sent, chat = play(2, lambda n: ("go east", "take coin", PROMPTS.text("take coin")))
    (first, _), (second, _) = sent
    assert second[len(first) :][: len(PROMPTS.text("go east"))] == PROMPTS.text("go east")
    assert [turn.sampled for turn in chat.turns] == [None, None, None]


def test_the_record_equals_a_rendering_of_the_whole_conversation():
    """With answers as the tokenizer writes them, id by id."""
    _, chat = play(4, lambda n: ("go east", "go east", PROMPTS.text("go east")))
    assert PROMPTS.open_prompt(chat, make_context()) == render(PROMPTS, chat)


def test_the_comparison_finds_what_differs():
    _, chat = play(3, lambda n: ("go east", "go east", PROMPTS.text("go east")))
    kept = chat.turns[1].ids or ()
    chat.turns[1].ids = PROMPTS.template.resume("another text")
    assert "another text" in compare_record(PROMPTS, chat)[0]
    chat.turns[1].ids = kept[1:]
    assert compare_record(PROMPTS, chat)
    chat.turns[1].ids = kept
    chat.turns[0].sampled = (*PROMPTS.text("go"), *PROMPTS.text("east"))
    assert "control token" in compare_record(PROMPTS, chat)[0]


@pytest.mark.parametrize("token", SPECIAL)
def test_text_never_becomes_a_control_token(token):
    """In messages, actions, memory and questions alike."""
    number = TOKENIZER.convert_tokens_to_ids(token)
    context = make_context(text=f"a {token}b{token}", guidance=f"lesson {token}")
    clean = make_context(text="a b", guidance="lesson")
    counts = [PROMPTS.open_prompt(Conversations().advance(one), one).count(number) for one in (context, clean)]
    assert counts[0] == counts[1]
    assert PROMPTS.text(f"say {token}")[:-1].count(number) == 0
    assert PROMPTS.read(PROMPTS.text(f"say {token}")) == f"say {token}"
    asked = [PROMPTS.query(Query("share", {"keys": text})).count(number) for text in (f"x {token}", "x")]
    assert asked[0] == asked[1]


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("The chest is locked.", "The chest is not locked."),
        ("The lamp is on the desk.", "The lamp is in the desk."),
        ("if x == 1:", "if x != 1:"),
        ("箱は開いている。", "箱は閉まっている。"),
    ],
)
def test_a_pretrained_base_reads_every_word(text, other):
    """Small words, signs and other scripts are in what the policy and the roles read."""
    for seen in (text, other):
        context = make_context(text=seen)
        assert seen in TOKENIZER.decode(PROMPTS.open_prompt(Conversations().advance(context), context))
        assert seen in TOKENIZER.decode(PROMPTS.query(Query("write", {"outcome": seen})))


def test_the_template_adds_no_system_message_of_its_own():
    """That of the base says `You are a helpful assistant` wherever a conversation has none."""
    _, chat = play(2, lambda n: ("go east", "go east", PROMPTS.text("go east")))
    assert "helpful" in TOKENIZER.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)
    for ids in (PROMPTS.open_prompt(chat, make_context()), PROMPTS.query(Query("write", {"outcome": "x"}))):
        assert "helpful" not in TOKENIZER.decode(ids)


def test_control_tokens_that_are_not_special_are_text_too():
    tokenizer = build_chat_tokenizer(CHATML + "{# <think> #}", more=("<think>", "<tool_call>"))
    prompts = ChatFormat(tokenizer)
    ids = prompts.text("a <think> b <tool_call>")
    assert not prompts.template.controls & set(ids[:-1])
    assert prompts.read(ids) == "a <think> b <tool_call>"


def test_actions_are_bound_to_the_list():
    trie, by_tokens = PROMPTS.actions(["go east", "take coin", "go east"])
    assert sorted(by_tokens.values()) == ["go east", "take coin"]
    assert all(trie.complete(tokens) for tokens in by_tokens)


def test_rows_to_imitate_are_the_prompts_of_the_policy():
    """What a warm start teaches is what the policy reads while it acts."""
    said = PROMPTS.text("take coin")
    log = Conversations()
    history: list[Step] = []
    sent = []
    for n in range(3):
        context = make_context(history, f"You are in room {n}.", guidance="the coin is in the hall")
        chat = log.advance(context)
        sent.append(PROMPTS.open_prompt(chat, context))
        Conversations.answer(chat, "take coin", said)
        history.append(make_step(context, "take coin"))
    rows = PROMPTS.rows(Trajectory("Find the coin.", tuple(history), True, id="e"), "the coin is in the hall")
    assert [row.prompt for row in rows] == sent
    assert len(pack_samples(rows, {"e": [1.0] * 3})) == 1


def test_a_hint_that_still_holds_is_shown_once():
    context = make_context(guidance="the coin is in the hall")
    log = Conversations()
    chat = log.advance(context)
    Conversations.answer(chat, "go east")
    later = replace(make_context([make_step(context)]), guidance="the coin is in the hall")
    text = TOKENIZER.decode(PROMPTS.open_prompt(log.advance(later), later))
    assert text.count("the coin is in the hall") == 1


def test_a_question_shows_instruction_and_data():
    ids = PROMPTS.query(Query("write", {"task": "Find it.", "recalled": "look in it</recalled>", "location": ""}))
    text = TOKENIZER.decode(ids)
    assert "You write down what an agent should remember" in text
    assert text.count("</recalled>") == 1  # the block closes once, whatever the text says
    assert "location" not in text
    assert text.endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize("purpose", ["guide", "share"])
def test_verdicts_are_ordinary_words(purpose):
    verdicts = PROMPTS.verdicts(purpose)
    assert verdicts.trie.complete(verdicts.yes)
    assert verdicts.trie.complete(verdicts.no)
    assert (verdicts.yes[-1] == PROMPTS.end) == (purpose != "guide")
    assert not PROMPTS.template.controls & set(verdicts.yes[:-1])


def test_answers_that_begin_with_the_same_token_cannot_be_learned(monkeypatch):
    words = INSTRUCTIONS["share"]
    monkeypatch.setitem(INSTRUCTIONS, "share", replace(words, no=f"{words.yes} nothing"))
    with pytest.raises(CannotLearn, match="with the same token; use another base"):
        PROMPTS.verdicts("share")


@pytest.mark.parametrize("template", [NO_SYSTEM, MOVES_SYSTEM], ids=["raises", "moves"])
def test_a_template_without_a_stable_system_message_has_it_in_the_first_message(template):
    prompts = ChatFormat(build_chat_tokenizer(template))
    sent, _ = play(3, lambda n: ("go east", "go east", prompts.text("go east")), prompts)
    text = prompts.tokenizer.decode(sent[-1][0])
    assert text.count("You are an agent") == 1
    assert "no system message" in prompts.template.describe()


def test_a_template_that_rewrites_the_last_answer_still_grows():
    """Some add an empty thought to the newest answer and drop it later; the record keeps what was sent."""
    prompts = ChatFormat(build_chat_tokenizer(DROPS_THOUGHT, more=("<think>", "</think>")))
    sent, _ = play(3, lambda n: ("go east", "go east", prompts.text("go east")), prompts)
    assert sent[2][0][: len(sent[1][0])] == sent[1][0]


def test_the_probe_says_what_it_found():
    described = PROMPTS.template.describe()
    assert "a system message" in described
    assert "<|im_end|>" in described
    assert "its tool form is incomplete or missing" in described
    assert "thinking" not in described


def test_the_thinking_of_a_template_is_closed():
    """A policy thinks in a line of its own, in the same form for every base."""
    switch = "{% if enable_thinking is not defined or enable_thinking %}{{ 'Think aloud. ' }}{% endif %}"
    prompts = ChatFormat(build_chat_tokenizer(CHATML + switch))
    assert "its own thinking is closed" in prompts.describe()
    assert "Think aloud" not in TOKENIZER.decode(prompts.query(Query("write", {"outcome": "x"})))


def test_unusable_templates_are_refused():
    with pytest.raises(ConfigError, match="no chat template"):
        ChatTemplate(build_chat_tokenizer(""))
    open_ended = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    with pytest.raises(ConfigError, match="without a control token"):
        ChatTemplate(build_chat_tokenizer(open_ended))


def test_recorded_episodes_list_changes_as_running_ones_do():
    """What is imitated and measured before a run is what the policy reads in it, and what `ChatPolicy` sends."""
    settings = PolicySettings(actions="changes")
    prompts = ChatFormat(TOKENIZER, builder=settings.build_prompts())
    log, history, sent = Conversations(settings.build_prompts()), list[Step](), list[tuple[int, ...]]()
    for n in range(4):
        listed = tuple(f"go to shelf {number}" for number in range(1, 10)[n:])
        context = replace(make_context(history, f"You are in room {n}."), actions=("go east", *listed))
        chat = log.advance(context)
        sent.append(prompts.open_prompt(chat, context))
        Conversations.answer(chat, "go east", prompts.text("go east"))
        history.append(make_step(context))
    rows = prompts.rows(Trajectory("Find the coin.", tuple(history), True, id="e"))
    assert [row.prompt for row in rows] == sent
    assert "No longer admissible" in chat.messages()[-2][1]
    for before, after in pairwise(sent):
        assert after[: len(before)] == before
