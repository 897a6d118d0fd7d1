from typing import Any

import pytest

from hardwon.memory import Diagnosis, State, Step
from hardwon.memory.errors import PolicyFailure
from hardwon.runtime.interfaces.types import Policy

pytest.importorskip("langchain_core", reason="needs the chat extra")
from langchain_core.messages import AIMessage

from .scripted_chat import ACTIONS, Refused, Structured, action_of, asked, context, policy


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
    reply = AIMessage([{"type": "text", "text": "go north"}])
    assert action_of(reply) == "go north"
    assert "nearest" not in policy(reply, max_retries=0).decide(context()).why.extra  # it is read, and not guessed


def test_a_tool_call_is_an_action():
    call = {"name": "search", "args": {"query": "map", "limit": 2}, "id": "1"}
    assert action_of(AIMessage("", tool_calls=[call]), actions=()) == 'search(query="map", limit=2)'


def test_of_several_tool_calls_the_first_is_the_action():
    calls: list[Any] = [{"name": name, "args": {}, "id": name} for name in ("look", "wait")]
    assert action_of(AIMessage("", tool_calls=calls), actions=()) == "look()"


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
    (schema,) = chat._model.schemas
    assert schema["properties"] == {"action": {"type": "string", "enum": list(ACTIONS)}}
    assert schema["additionalProperties"] is False


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
