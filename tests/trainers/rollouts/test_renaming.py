"""Renamed things: other names everywhere in an episode, the same in the observation, the hint and the actions."""

import random

import pytest
from tests.trainers.rollouts.test_demonstration import PATH, PROMPTS, TOKENIZER, WORLD, engine, play  # noqa: F401

from hardwon.memory import State
from hardwon.runtime import Agent, RandomPolicy
from hardwon.runtime.llm.conversation import ChatTurn, Conversation
from hardwon.runtime.llm.tool_messages import build_messages
from hardwon.trainers.gating.other_worlds import OtherWorlds
from hardwon.trainers.rollouts.demonstration import DemonstrationPolicy
from hardwon.trainers.rollouts.renaming import Names, list_actions, rename_conversation

ACTIONS = (
    "take dirty bra",
    "take coat",
    "put coat in coat hanger",
    "put dirty bra in washing machine",
    "open washing machine",
    "open door to north",
    "look around",
)


def test_names_of_one_role_are_a_group():
    """`take {1}` and `put {1} in {2}` share the things, `put {1} in {2}` and `open {1}` share the places."""
    groups = Names(ACTIONS).groups
    assert ("coat", "dirty bra") in groups
    assert ("coat hanger", "washing machine") in groups


def test_renaming_is_the_same_everywhere_and_no_two_names_become_one():
    names = Names(ACTIONS)
    for seed in range(20):
        rename = names.shuffle(random.Random(seed))
        renamed = [rename(action) for action in ACTIONS]
        assert len({*renamed}) == len(ACTIONS)
        assert rename("You see a dirty bra.") == f"You see a {renamed[0].removeprefix('take ')}."
        assert {rename(name) for group in names.groups for name in group} == {
            name for group in names.groups for name in group
        }


def test_a_longer_name_is_not_read_as_a_shorter_one():
    """A coat hanger is no coat: else `put coat in coat hanger` would show the thing as the place."""
    names = Names(ACTIONS)
    places = {"coat hanger", "washing machine"}
    for seed in range(20):
        rename = names.shuffle(random.Random(seed))
        assert rename("coat hanger") in places
        assert rename("raincoat") == "raincoat"
        assert rename("Coat") in {"Coat", "Dirty bra"}


@pytest.mark.parametrize("actions", [(), ("look", "wait"), ("take 7",), ("take coat",)])
def test_without_names_to_exchange_texts_stay_as_they_are(actions):
    rename = Names(actions).shuffle(random.Random(0))
    assert rename("You see a coat and a 7.") == "You see a coat and a 7."


def test_a_conversation_is_renamed_in_every_text_and_the_original_stays():
    rename = {"coat": "key"}.get
    turns = [ChatTurn("see coat", State("x"), "take coat", ids=(1, 2)), ChatTurn("have coat", State("y"), hint="h")]
    chat = Conversation("the task: coat", turns)
    other = rename_conversation(chat, lambda text: text.replace("coat", rename("coat") or ""))
    assert other.messages() == (
        ("system", "the task: key"),
        ("user", "see key"),
        ("assistant", "take key"),
        ("user", "have key"),
    )
    assert (chat.turns[0].user, chat.turns[0].ids, other.turns[0].ids) == ("see coat", (1, 2), None)


def test_a_conversation_of_calls_is_renamed_in_the_form_of_the_model_too():
    first = ChatTurn("see coat", State("x"), 'take(what="coat")', seen="see coat", calls=True)
    last = ChatTurn("have coat", State("y"), seen="have coat", advice="wear coat", calls=True)
    tools = {"take": {"type": "object"}}
    chat = Conversation("coat", [first, last], tools=tools, tool_system="the task: coat")
    messages = build_messages(rename_conversation(chat, lambda text: text.replace("coat", "key")))
    assert [message["content"] for message in messages] == ["the task: key", "see key", "", "have key", "wear key"]
    assert messages[2]["tool_calls"][0]["function"] == {"name": "take", "arguments": {"what": "key"}}


def test_samples_show_and_imitate_the_other_names(engine, rooms, library):  # noqa: F811
    """The environment gets the real action; prompt, listed actions and answer have the other names."""
    explorer = Agent(RandomPolicy(), library, rooms(), arm="control", guardrails=False, max_steps=60)
    for seed in (10, 11):
        explorer.run("train", seed)
    names = Names(list_actions(rooms(), {WORLD: PATH}))
    assert any({"east", "west"} <= {*group} for group in names.groups)

    def swap(spec):
        return lambda text: text.replace("east", "#").replace("west", "east").replace("#", "west")

    policy = DemonstrationPolicy(PROMPTS, {WORLD: PATH}, rename=swap)
    rollout = play(policy, engine, rooms(), OtherWorlds(library), recalls=True)
    assert rollout.trajectory.success
    assert [step.action for step in rollout.trajectory.steps] == [*PATH]
    plain = play(DemonstrationPolicy(PROMPTS, {WORLD: PATH}), engine, rooms(), OtherWorlds(library), recalls=True)
    for before, after in zip(plain.rows, rollout.rows, strict=True):
        assert TOKENIZER.decode(after.prompt) == swap(None)(TOKENIZER.decode(before.prompt))
        assert after.completion == tuple(PROMPTS.text("go west"))
    hints = [TOKENIZER.decode(row.prompt).rpartition("<experience>")[2] for row in rollout.rows]
    assert any("`go west`" in hint for hint in hints)
