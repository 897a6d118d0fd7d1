import asyncio
import pickle
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hardwon.memory import Diagnosis, Recollection, State, Step
from hardwon.memory.errors import PolicyFailure
from hardwon.runtime.interfaces.types import Context, Decision, Policy, Usage
from hardwon.runtime.interfaces.working_memory import WorkingMemory
from hardwon.runtime.policies.chat import ChatPolicy

pytest.importorskip("langchain_core", reason="needs the chat extra")
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda
from pydantic import Field

ACTIONS = ("eat apple", "go north", "go south", "open the blue door")


class Scripted(BaseChatModel):
    """Answers with the next reply: a text, a message, an exception to raise, or a function to call."""

    replies: list[Any]
    seen: list[Any] = Field(default_factory=list)
    options: list[Any] = Field(default_factory=list)

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> ChatResult:
        self.seen.append(messages)
        self.options.append(options)
        reply = self.replies.pop(0)
        reply = reply() if callable(reply) else reply
        if isinstance(reply, BaseException):
            raise reply
        message = reply if isinstance(reply, AIMessage) else AIMessage(reply)
        return ChatResult(generations=[ChatGeneration(message=message)])

    _llm_type = "scripted"


class Awaiting(Scripted):
    """The same for a model that awaits by itself."""

    async def _agenerate(self, messages, stop=None, run_manager=None, **options):
        if self.replies[0] == "hang":
            await asyncio.sleep(60)
        return self._generate(messages)


class Structured(Scripted):
    """Has structured output, which answers with `structured`."""

    structured: list[Any]
    schemas: list[Any] = Field(default_factory=list)

    def with_structured_output(self, schema, *, include_raw=False, **options):
        self.schemas.append(schema)
        constrained = Scripted(replies=[self.structured.pop(0)])
        return constrained | RunnableLambda(lambda raw: {"raw": raw, "parsed": None})


class Refused(Exception):
    """An error of a provider, with its HTTP status."""

    def __init__(self, status_code: int, headers: dict[str, str] | None = None):
        super().__init__(f"status {status_code}")
        self.status_code = status_code
        self.response = type("Response", (), {"headers": headers or {}})


def context(**changes) -> Context:
    state = State("You are in a kitchen.", task="find the map")
    made = Context(state, ACTIONS, Recollection(), None, {}, (), WorkingMemory(), random.Random(0))
    return replace(made, **changes)


def policy(*replies, model=Scripted, **options) -> ChatPolicy:
    return ChatPolicy(model(replies=list(replies)), sleep=options.pop("sleep", lambda seconds: None), **options)


def asked(chat: ChatPolicy, n: int = -1) -> str:
    return str(chat._model.seen[n][-1].content)


def action_of(reply, **changes) -> str:
    return policy(reply, max_retries=0).decide(context(**changes)).action


def test_it_is_a_policy_that_reads_text():
    chat = policy()
    assert isinstance(chat, Policy)
    assert chat.reads == "text"


# ---- answers


@pytest.mark.parametrize(
    "answer",
    [
        "go north",
        "  GO   North. ",
        "2",
        "2.",
        "#2",
        "(2)",
        "2. go north",
        '"go north"',
        "`go north`",
        "**go north**",
        "```\ngo north\n```",
        "“go north”",
        "Action: go north",
        "action: 2",
        "**Action:** `go north`",
        "Thought: the map is north.\nAction: go north\nObservation: you win",
        '{"action": "go north"}',
        '{"action": 2}',
        '{"thought": "eat apple later", "action": "go north"}',
        '```json\n{"action": "go north"}\n```',
        "The map must be to the north.\n\ngo north",
        "<think>Should I eat apple?\neat apple\n</think>go north",
    ],
)
def test_an_action_of_the_list_is_understood(answer):
    assert action_of(answer) == "go north"


@pytest.mark.parametrize("answer", ["", "north", "0", "5", "3 apples lie here", "go north\ngo south", "go north or 3"])
def test_an_answer_that_names_no_single_action_of_the_list_is_not_guessed(answer):
    with pytest.raises(PolicyFailure):
        action_of(answer)


def test_an_action_that_is_a_number_comes_before_the_place_in_the_list():
    assert action_of("1", actions=("0", "1", "2")) == "1"


def test_actions_that_differ_only_in_case_are_told_apart():
    assert action_of("press a", actions=("press A", "press a")) == "press a"


def test_a_list_of_content_blocks_is_read():
    assert action_of(AIMessage([{"type": "text", "text": "go north"}])) == "go north"


def test_a_tool_call_is_an_action():
    call = {"name": "search", "args": {"query": "map", "limit": 2}, "id": "1"}
    assert action_of(AIMessage("", tool_calls=[call]), actions=()) == 'search(query="map", limit=2)'


def test_a_tool_call_with_an_object_in_it_stays_whole():
    call = {"name": "book", "args": {"who": {"name": "Ann"}}, "id": "1"}
    assert action_of(AIMessage("", tool_calls=[call]), actions=()) == 'book(who={"name": "Ann"})'


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        ("look under the bed\nbecause it may be there", "look under the bed"),
        ("Action: look", "look"),
        ('{"name": "search", "arguments": {"q": "map"}}', 'search(q="map")'),
        ('{"name": "search", "arguments": "{\\"q\\": \\"map\\"}"}', 'search(q="map")'),
        ('<tool_call>\n{"name": "search", "arguments": {"q": "map"}}\n</tool_call>', 'search(q="map")'),
        ('{"action": {"name": "look", "args": {}}}', "look()"),
        ('book(who={"name": "Ann"})', 'book(who={"name": "Ann"})'),
        ("I can't help the goblin alone", "I can't help the goblin alone"),
    ],
)
def test_any_text_is_an_action_where_none_are_listed(answer, action):
    assert action_of(answer, actions=()) == action


@pytest.mark.parametrize("answer", ["", "   \n ", '{"name": "search", "argum', '{"thought": "hm"}'])
def test_a_call_that_was_cut_off_is_no_action(answer):
    with pytest.raises(PolicyFailure):
        action_of(answer, actions=())


# ---- repair


def test_an_invalid_answer_is_shown_again_with_numbers():
    chat = policy("dance", "2")
    decision = chat.decide(context())
    assert (decision.action, decision.why.extra["repaired"], decision.why.extra["attempts"]) == ("go north", True, 2)
    repeated, problem = chat._model.seen[-1][-2:]
    assert (repeated.type, repeated.content) == ("ai", "dance")
    assert "cannot be used" in problem.content
    assert "Answer with one number from 1 to 4" in asked(chat)


def test_the_repair_is_shorter_than_the_request():
    step = Step(State("a"), "go south", State("b", feedback="You walk. " * 20), Diagnosis(True))
    chat = policy("dance", "2")
    chat.decide(context(history=(step,) * 6))
    assert len(asked(chat)) < len(asked(chat, 0))


def test_an_answer_that_needed_no_repair_says_so():
    assert policy("go north").decide(context()).why == {
        "answer": "go north",
        "repaired": False,
        "attempts": 1,
        "tokens_estimated": True,
    }


def test_structured_output_is_constrained_to_the_actions():
    chat = policy("dance", model=lambda replies: Structured(replies=replies, structured=['{"action": "go south"}']))
    assert chat.decide(context()).action == "go south"
    assert chat._model.schemas[0]["properties"]["action"]["enum"] == list(ACTIONS)


def test_structured_output_through_a_tool_call_is_read():
    message = AIMessage("", tool_calls=[{"name": "choose_action", "args": {"action": "go south"}, "id": "1"}])
    chat = policy("dance", model=lambda replies: Structured(replies=replies, structured=[message]))
    assert chat.decide(context()).action == "go south"


def test_a_provider_without_structured_output_gets_numbers_from_then_on():
    make = lambda replies: Structured(replies=replies, structured=[Refused(400)])  # noqa: E731
    chat = policy("dance", "2", "dance", "3", model=make)
    assert [chat.decide(context()).action for _ in range(2)] == ["go north", "go south"]
    assert len(chat._model.schemas) == 1


def test_structured_choice_is_what_vllm_understands():
    chat = policy("dance", "go south", structured="choice")
    assert chat.decide(context()).action == "go south"
    assert chat._model.options == [{}, {"extra_body": {"structured_outputs": {"choice": list(ACTIONS)}}}]


def test_structured_never_is_never_constrained():
    chat = policy("dance", "2", structured="never", model=lambda replies: Structured(replies=replies, structured=[]))
    assert chat.decide(context()).action == "go north"


def test_the_nearest_action_is_taken_only_at_the_end_and_says_so():
    decision = policy("open blue door", "open blue door", max_retries=1).decide(context())
    assert (decision.action, decision.why.extra["nearest"]) == ("open the blue door", True)


def test_two_near_actions_are_not_guessed_between():
    with pytest.raises(PolicyFailure):
        action_of("open red blue door", actions=("open red door", "open blue door"))


# ---- refused actions


def test_refused_actions_are_told_with_their_cause_and_not_listed():
    chat = policy("go north")
    chat.decide(context(forbidden={"eat apple": "it is poisoned"}))
    assert "<refused>\neat apple: it is poisoned\n</refused>" in asked(chat)
    assert "1. go north\n2. go south" in asked(chat)


def test_a_refused_action_cannot_be_chosen():
    chat = policy("eat apple", "eat apple", "Eat Apple")
    with pytest.raises(PolicyFailure, match="3 × the action was refused"):
        chat.decide(context(forbidden={"eat apple": "it is poisoned"}))


def test_a_refused_free_action_is_asked_for_again():
    chat = policy("shout", "whisper")
    assert chat.decide(context(actions=(), forbidden={"shout": "too loud"})).action == "whisper"


def test_the_nearest_action_is_never_that_of_a_refused_one():
    with pytest.raises(PolicyFailure):
        action_of("eat appl", actions=("eat apple", "eat apples"), forbidden={"eat apple": "poison"})


def test_when_everything_was_refused_the_choice_is_between_all_again():
    chat = policy("wait")
    assert (
        chat.decide(context(actions=("jump", "wait"), forbidden={"wait": "no time", "jump": "lava"})).action == "wait"
    )
    assert "Every admissible action was refused; choose the one that does the least harm:" in asked(chat)
    assert "1. jump\n2. wait" in asked(chat)


# ---- what goes wrong


def test_retries_are_bounded_and_the_failure_says_what_was_seen():
    chat = policy("dance", "", "sing", "go north")
    with pytest.raises(PolicyFailure) as caught:
        chat.decide(context())
    assert "2 × it is not one action of the list ('sing'), 1 × the answer was empty" in str(caught.value)
    assert chat._model.replies == ["go north"]


def test_a_model_that_hangs_is_left_in_time():
    release = threading.Event()
    chat = policy(lambda: release.wait(60) and "go north", timeout_s=0.05, max_retries=0)
    began = time.monotonic()
    with pytest.raises(PolicyFailure, match=r"1 × no answer within 0\.05 s"):
        chat.decide(context())
    assert time.monotonic() - began < 30
    release.set()


@pytest.mark.parametrize("model", [Scripted, Awaiting])
def test_an_awaited_model_that_hangs_is_left_in_time(model):
    release = threading.Event()
    hang = "hang" if model is Awaiting else lambda: release.wait(60) and "go north"
    began = time.monotonic()
    with pytest.raises(PolicyFailure, match="no answer within"):
        asyncio.run(policy(hang, model=model, timeout_s=0.05, max_retries=0).adecide(context()))
    assert time.monotonic() - began < 30
    release.set()


def test_a_failing_provider_is_asked_again_after_growing_pauses():
    pauses: list[float] = []
    chat = policy(Refused(429), ConnectionError("reset"), "go north", sleep=pauses.append)
    assert chat.decide(context()).action == "go north"
    assert 0.25 <= pauses[0] <= 0.75 <= 1.5 / 2 <= pauses[1] * 2 <= 3


def test_the_pause_is_the_one_the_provider_asks_for():
    pauses: list[float] = []
    policy(Refused(429, {"retry-after": "7"}), "go north", sleep=pauses.append).decide(context())
    assert pauses == [7.0]


def test_a_wrong_key_is_not_tried_twice():
    chat = policy(Refused(401), "go north")
    with pytest.raises(PolicyFailure, match=r"in 1 of at most 3 requests: 1 × Refused \('status 401'\)"):
        chat.decide(context())


def test_a_refusal_is_asked_again():
    refusal = AIMessage("", additional_kwargs={"refusal": "I can't help with that."})
    assert policy(refusal, "go north").decide(context()).action == "go north"


@pytest.mark.parametrize(
    "reply",
    [
        "I'm sorry, but I can't assist with that request.",
        AIMessage("half a sent", response_metadata={"finish_reason": "content_filter"}),
        AIMessage([{"type": "refusal", "refusal": "no"}]),
    ],
)
def test_a_refusal_is_no_free_action(reply):
    with pytest.raises(PolicyFailure, match="the model declined to answer"):
        action_of(reply, actions=())


def test_a_script_that_ran_dry_is_a_failure_not_a_hang():
    chat = policy(StopIteration(), max_retries=0)
    with pytest.raises(PolicyFailure, match="raised StopIteration"):
        asyncio.run(chat.adecide(context()))


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_never_swallowed(interrupt):
    with pytest.raises(interrupt):
        policy(interrupt(), "go north").decide(context())


# ---- tokens and cost


def counted(text: str, prompt: int, completion: int) -> AIMessage:
    usage = {"input_tokens": prompt, "output_tokens": completion, "total_tokens": prompt + completion}
    return AIMessage(text, usage_metadata=usage)


def test_tokens_and_cost_add_up_over_repairs():
    chat = policy(counted("dance", 100, 10), counted("2", 50, 1), price_usd_per_million=(2.0, 10.0))
    decision = chat.decide(context())
    assert decision.usage == Usage(150, 11, (150 * 2 + 11 * 10) / 1e6, 2)
    assert "tokens_estimated" not in decision.why.extra


def test_tokens_are_estimated_when_the_model_does_not_tell():
    chat = policy("go north")
    decision = chat.decide(context())
    asked_characters = sum(len(message.content) for message in chat._model.seen[0])
    assert decision.usage == Usage(-(-asked_characters // 4), 2, 0.0, 1)
    assert decision.why.extra["tokens_estimated"] is True


def test_a_failure_carries_its_usage_across_processes():
    with pytest.raises(PolicyFailure) as caught:
        policy(counted("dance", 100, 10), TimeoutError(), max_retries=1).decide(context())
    assert pickle.loads(pickle.dumps(caught.value)).usage == Usage(100, 10, 0.0, 2)


def test_a_long_answer_is_kept_short_in_the_reasons():
    assert len(policy("go north" + " " * 5000 + "\n" + "x" * 5000).decide(context()).why.extra["answer"]) == 500


# ---- async


@pytest.mark.parametrize("model", [Scripted, Awaiting])
@pytest.mark.parametrize(
    "script",
    [("go north",), ("dance", "2"), (ConnectionError("x"), "", "3"), ("sing", "sing", "sing"), (Refused(401),)],
)
def test_async_equals_sync(model, script):
    def outcome(decide: Callable[[], Decision]) -> object:
        try:
            return decide()
        except PolicyFailure as failure:
            return str(failure), failure.usage  # type: ignore[attr-defined]

    awaited, called = policy(*script, model=model), policy(*script, model=Scripted)
    expected = outcome(lambda: called.decide(context()))
    awaited.name = called.name
    got = outcome(lambda: asyncio.run(awaited.adecide(context())))
    assert got == expected
    assert awaited._model.seen == called._model.seen


def test_many_episodes_wait_at_the_same_time():
    async def together() -> list[Decision]:
        chats = [policy("go north", model=Awaiting) for _ in range(50)]
        return await asyncio.gather(*(chat.adecide(context()) for chat in chats))

    assert {decision.action for decision in asyncio.run(together())} == {"go north"}


def test_lists_of_changes_are_answered_in_words():
    """A number could only mean a place in a list that the model never saw; after it, the list has numbers."""
    chat = policy("2", "2", actions="changes")
    assert chat.decide(context()).action == "go north"
    assert "1. eat apple" not in asked(chat, 0)
    assert "1. eat apple" in asked(chat)
    assert len(chat._model.seen) == 2
    assert policy("go south", actions="changes").decide(context()).why.extra["attempts"] == 1


def test_later_messages_have_the_changes_of_the_list():
    chat = policy("eat apple", "go north", actions="changes")
    first = context(thread="t")
    chat.decide(first)
    after = context(
        thread="t", actions=ACTIONS[1:], history=(Step(first.state, "eat apple", first.state, Diagnosis(True)),)
    )
    assert chat.decide(after).action == "go north"
    assert "No longer admissible:\n<gone>\neat apple\n</gone>" in asked(chat)
