"""A chat policy and its provider: retries, pauses, refusals, costs and awaiting."""

import asyncio
import pickle
import threading
import time
from collections.abc import Callable

import pytest

from hardwon.memory.errors import PolicyFailure
from hardwon.runtime.interfaces.types import Decision
from hardwon.runtime.interfaces.usage import ModelUsage

pytest.importorskip("langchain_core", reason="needs the chat extra")
from langchain_core.messages import AIMessage

from .scripted_chat import Awaiting, Refused, Scripted, action_of, asked, context, policy

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


@pytest.mark.parametrize("own", [True, False])
def test_an_awaited_pause_does_not_block_the_loop(monkeypatch, own):
    """Unless the policy was given a way to wait, which is called instead."""
    waits: list[float] = []
    pauses: list[float] = []

    async def wait(seconds):
        waits.append(seconds)

    chat = policy(Refused(429, {"retry-after": "7"}), "go north", sleep=pauses.append if own else None)
    monkeypatch.setattr("hardwon.runtime.policies.chat.asyncio.sleep", wait)
    assert asyncio.run(chat.adecide(context())).action == "go north"
    assert (pauses, waits) == (([7.0], [0.0]) if own else ([], [7.0]))


def test_a_request_that_took_too_long_is_made_again():
    assert policy(TimeoutError(), "go north").decide(context()).why.extra["attempts"] == 2


def test_a_wrong_key_is_not_tried_twice():
    chat = policy(Refused(401), "go north")
    with pytest.raises(PolicyFailure, match=r"in 1 of at most 3 requests: 1 × Refused \('status 401'\)"):
        chat.decide(context())


def test_a_refusal_in_words_is_told_from_an_answer_that_names_no_action():
    with pytest.raises(PolicyFailure, match="the model declined to answer"):
        action_of("I'm sorry, but I can't help with that.")
    assert action_of("I'm sorry, but I can't see a map.\nAction: go north") == "go north"


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
    assert decision.usage == ModelUsage(150, 11, (150 * 2 + 11 * 10) / 1e6, 2)
    assert "tokens_estimated" not in decision.why.extra


def test_tokens_are_estimated_when_the_model_does_not_tell():
    chat = policy("go north")
    decision = chat.decide(context())
    asked_characters = sum(len(message.content) for message in chat._model.seen[0])
    assert decision.usage == ModelUsage(-(-asked_characters // 4), 2, 0.0, 1)
    assert decision.why.extra["tokens_estimated"] is True


def test_counted_tokens_are_not_called_estimated():
    assert "tokens_estimated" not in policy(counted("go north", 10, 2)).decide(context()).why.extra


def test_a_failure_carries_its_usage_across_processes():
    with pytest.raises(PolicyFailure) as caught:
        policy(counted("dance", 100, 10), TimeoutError(), max_retries=1).decide(context())
    assert pickle.loads(pickle.dumps(caught.value)).usage == ModelUsage(100, 10, 0.0, 2)


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
