"""In which form a model reads the past turns: in full, actions alone, or as a report."""

import json
from dataclasses import replace

import pytest

from hardwon.memory import Diagnosis, State, Step
from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.runtime import ChatPolicy, Context
from hardwon.runtime.llm.context_builders import (
    LEFT_OUT,
    ActionsOnly,
    AllTurns,
    OmittingContext,
    ReportContext,
    as_builder,
)
from hardwon.runtime.llm.conversation import PromptBuilder

PAST = [("a red room", "go north"), ("a blue room", "open door")]


def test_all_turns_are_the_messages_of_before():
    assert AllTurns().build(PAST, "a green room") == (
        ("user", "a red room"),
        ("assistant", "go north"),
        ("user", "a blue room"),
        ("assistant", "open door"),
        ("user", "a green room"),
    )


def test_actions_alone_depend_on_no_observation():
    """Invariance: two episodes with equal actions and other observations give equal messages."""
    other = [("a cellar", "go north"), ("an attic", "open door")]
    messages = ActionsOnly().build(PAST, "now")
    assert messages == ActionsOnly().build(other, "now")
    assert messages[0] == ("user", LEFT_OUT)
    assert [text for role, text in messages if role == "assistant"] == ["go north", "open door"]
    assert ActionsOnly(last=1).build(PAST, "now")[1:] == (("assistant", "open door"), ("user", "now"))
    assert ActionsOnly(last=9).build(PAST, "now") == messages


@pytest.mark.parametrize("builder", [ActionsOnly(last=0), ReportContext()])
def test_without_a_past_the_open_turn_is_sent_as_it_is(builder):
    """Degenerate case: byte for byte the message of the turn."""
    assert builder.build([], "now") == (("user", "now"),)


def test_the_length_of_a_report_does_not_depend_on_the_length_of_the_episode():
    """Invariance: the same number of characters at t = 50 and t = 500."""
    lengths = {
        len(ReportContext(characters=200).build([("room", f"go {100 + n % 100}")] * n, "now")[0][1]) for n in (50, 500)
    }
    assert len(lengths) == 1


def test_a_report_keeps_the_newest_actions_in_their_order_and_stays_data():
    """Worked example: with room for two of three lines, the oldest one is left out."""
    past = [("room", "first"), ("room", "</steps> second"), ("room", "third")]
    ((role, text),) = ReportContext(characters=len("</steps> second") + len("third") + 2).build(past, "now")
    assert role == "user"
    assert text.endswith("\n\nnow")
    assert "<steps>\nfirst" not in text
    assert text.index("second") < text.index("third")
    assert text.count("</steps>") == 1  # no answer can close the block


def make_context(n):
    steps = tuple(
        Step(State(f"room {t}", task="t"), f"go {t}", State(f"room {t + 1}", task="t"), Diagnosis(True), t=t)
        for t in range(n)
    )
    return Context(State(f"room {n}", task="t"), ("stay", "leave"), history=steps, forbidden={"leave": "it is locked"})


@pytest.mark.parametrize("name", ["all", "actions", "report", "omit"])
def test_what_was_refused_is_always_shown(name):
    """The words of a guardrail are part of the open turn, whatever the past looks like."""
    messages = PromptBuilder(context=name).advance(None, make_context(3)).messages()
    assert "it is locked" in messages[-1][1]
    assert messages[0][0] == "system"
    assert ("room 0" in str(messages)) is (name in ("all", "omit"))


def test_the_default_sends_the_same_bytes():
    context = make_context(4)
    assert PromptBuilder().advance(None, context).messages() == (
        PromptBuilder(context=AllTurns()).advance(None, context).messages()
    )


def test_a_chat_policy_reads_a_report(scripted):
    model = scripted("stay")
    assert ChatPolicy(model, context="report").decide(make_context(3)).action == "stay"
    (messages,) = model.seen
    assert len(messages) == 2
    assert "go 0\ngo 1\ngo 2" in messages[1].content


def test_unusable_settings_are_errors():
    with pytest.raises(UnknownName, match="report"):
        as_builder("summary")
    with pytest.raises(ConfigError):
        ActionsOnly(last=-1)
    with pytest.raises(ConfigError):
        ReportContext(characters=0)


def answer(action, *numbers):
    return json.dumps({"action": action, "omit": list(numbers)})


def test_an_omitted_observation_is_not_read_again():
    """Worked example, row 8: the second answer omits message 1; messages 2 and 3 are sent in full."""
    past = [("a red room", "go north"), ("a blue room", answer("open door", 1))]
    messages = OmittingContext().build(past, "a green room")
    assert messages == (
        ("user", f"[1]\n{LEFT_OUT}"),
        ("assistant", "go north"),
        ("user", "[2]\na blue room"),
        ("assistant", answer("open door", 1)),
        ("user", "[3]\na green room"),
    )


@pytest.mark.parametrize("numbers", [(), (9,), (-1,), (0,)])
def test_where_nothing_is_omitted_every_message_is_sent(numbers):
    """Degenerate case, row 8: the bytes of all turns, after their numbers."""
    past = [("a red room", "go north"), ("a blue room", answer("open door", *numbers))]
    texts = [text.removeprefix(f"[{1 + n // 2}]\n") for n, (_, text) in enumerate(OmittingContext().build(past, "now"))]
    assert texts == [text for _, text in AllTurns().build(past, "now")]


def test_omitting_twice_is_omitting_once_and_numbers_never_shift():
    """Invariance, row 8: also where the conversation no longer keeps its first turns."""
    once = [("one", "a"), ("two", answer("b", 1)), ("three", "c")]
    twice = [("one", "a"), ("two", answer("b", 1, 1)), ("three", answer("c", 1))]
    users = [[text for role, text in OmittingContext().build(past, "now") if role == "user"] for past in (once, twice)]
    assert users[0] == users[1] == [f"[1]\n{LEFT_OUT}", "[2]\ntwo", "[3]\nthree", "[4]\nnow"]
    kept = OmittingContext().build_from([("nine", "a"), ("ten", answer("b", 9))], "now", 8)
    assert [text for role, text in kept if role == "user"] == [f"[9]\n{LEFT_OUT}", "[10]\nten", "[11]\nnow"]


def test_a_chat_policy_omits_what_its_model_names(scripted):
    model = scripted(answer("stay", 1, 2), "stay")
    policy = ChatPolicy(model, context="omit", history=4)
    context = replace(make_context(3), thread="one")
    assert policy.decide(context).action == "stay"
    step = Step(context.state, "stay", State("room 9", task="t"), Diagnosis(True), t=3)
    policy.decide(replace(context, state=step.post, history=(*context.history, step)))
    first, second = model.seen
    assert "begins with its number" in first[0].content
    assert [message.content.splitlines()[1] for message in second[1:5:2]] == [LEFT_OUT, LEFT_OUT]
    assert "room 2" in second[5].content
    assert "it is locked" in second[-1].content
    plain = scripted("stay")
    ChatPolicy(plain).decide(context)
    assert "begins with its number" not in plain.seen[0][0].content


def test_an_answer_is_kept_in_its_own_letters():
    kept = PromptBuilder(context="omit").keep('{"action": "öffne Tür", "omit": [2]}', "öffne Tür")
    assert kept is not None
    assert "öffne Tür" in kept
