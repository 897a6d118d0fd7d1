"""A chat policy that thinks in one line before each action."""

import pytest

from hardwon.memory import Diagnosis, State, Step
from hardwon.memory.errors import ConfigError
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.policies.chat import ChatPolicy

KITCHEN = State("You are in a kitchen.", task="find the map")
ACTIONS = ("eat apple", "go north")
LOOK = '{"name": "look", "arguments": {"at": "map"}}'


@pytest.fixture
def speaking(scripted):
    """Makes a policy that thinks, with a script of answers."""
    return lambda *replies, **options: ChatPolicy(scripted(*replies), speech="free", max_retries=0, **options)


def now(*taken, **fields):
    """The context after these actions."""
    history = tuple(Step(KITCHEN, action, KITCHEN, Diagnosis(True), t=t) for t, action in enumerate(taken))
    return Context(KITCHEN, fields.pop("actions", ACTIONS), history=history, thread="t", **fields)


def sent(chat, n=-1):
    """The messages of a request as pairs of role and text."""
    return [(message.type, str(message.content)) for message in chat._model.seen[n]]


@pytest.mark.parametrize("wrong", [{"speech": "loud"}, {"speech": "free", "speech_tokens": 0}])
def test_settings_out_of_range_are_errors(scripted, wrong):
    with pytest.raises(ConfigError, match="speech is"):
        ChatPolicy(scripted(), **wrong)


def test_only_a_policy_that_thinks_is_asked_for_a_thought(speaking, scripted):
    chat, plain = speaking("eat apple", speech_tokens=40), ChatPolicy(scripted("eat apple"))
    for policy in (chat, plain):
        policy.decide(now())
    assert "First think in one line of at most 30 words" in sent(chat)[0][1]
    assert "think" not in "".join(text for _, text in sent(plain)).lower()


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        ("I could go north.\neat apple", "eat apple"),
        ("I am hungry.\nAction: eat apple\nThat is all.", "eat apple"),
        ("eat apple\ngo north", "go north"),
        ("eat apple", "eat apple"),
    ],
)
def test_the_last_line_is_the_action_or_else_the_line_that_is_one(speaking, answer, action):
    decision = speaking(answer).decide(now())
    assert (decision.action, decision.why.extra.get("nearest")) == (action, None)


def test_the_conversation_keeps_the_thought_before_the_action(speaking):
    chat = speaking("I am hungry.\neat apple", "go north", "go north")
    chat.decide(now())
    chat.decide(now("eat apple"))
    assert ("ai", "I am hungry.\neat apple") in sent(chat)
    chat.decide(now("eat apple", "go north"))
    assert [text for role, text in sent(chat) if role == "ai"] == ["I am hungry.\neat apple", "go north"]


def test_the_conversation_keeps_a_call_with_its_thought(speaking):
    tools = {"look": {"type": "object", "properties": {"at": {"type": "string"}}}}
    chat = speaking(f"Where is it?\n{LOOK}", LOOK)
    first = chat.decide(now(actions=(), tools=tools))
    chat.decide(now(first.action, actions=(), tools=tools))
    assert ("ai", f"Where is it?\n{LOOK}") in sent(chat)


@pytest.mark.parametrize(
    "fields", [{"tools": {}, "actions": ()}, {"tools": {"look": {}}, "actions": ('look(at="map")',)}]
)
def test_without_tools_or_with_a_list_the_conversation_keeps_the_action(scripted, fields):
    chat = ChatPolicy(scripted(f"Action: {LOOK}", LOOK), max_retries=0)
    first = chat.decide(now(**fields))
    chat.decide(now(first.action, **fields))
    assert ("ai", first.action) in sent(chat)
