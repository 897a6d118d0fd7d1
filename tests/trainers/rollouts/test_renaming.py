"""Renamed things: other names everywhere in an episode, the same in the observation, the hint and the actions."""

import asyncio
import random
from dataclasses import replace
from itertools import pairwise
from unittest.mock import patch

import pytest
import torch
from tests.trainers.folder_base import build_chat_model, build_chat_tokenizer, save_base
from tests.trainers.rollouts.test_demonstration import PATH, PROMPTS, TOKENIZER, WORLD, engine, play  # noqa: F401

from hardwon.memory import Diagnosis, State, Step
from hardwon.memory.errors import ConfigError
from hardwon.runtime import Agent, RandomPolicy
from hardwon.runtime.interfaces.arms import Arm
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.llm.conversation import Conversation, Turn
from hardwon.runtime.llm.tool_messages import build_messages
from hardwon.trainers.algorithms.imitation import Examples
from hardwon.trainers.algorithms.samples import pack_samples
from hardwon.trainers.config.schema import of
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.gating.other_worlds import OtherWorlds
from hardwon.trainers.player import Player
from hardwon.trainers.prompting.chat import ChatFormat
from hardwon.trainers.rollouts.demonstration import DemonstrationPolicy
from hardwon.trainers.rollouts.renaming import (
    Names,
    list_actions,
    rename_choices,
    rename_conversation,
    restore_names,
    swap_names,
)
from hardwon.trainers.rollouts.rollout import _EPISODE, Spec, TokenPolicy, _Episode
from hardwon.trainers.session import Session
from hardwon.trainers.trainer import train

CHAT = build_chat_tokenizer()
MESSAGES = ChatFormat(CHAT)
DIRECTIONS = ("go east", "go west", "take coin")
SWAPPED = (("east", "west"), ("west", "east"))
CONTROL, RETRIEVED = Arm("control"), Arm("retrieved", "library")
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
    turns = [Turn("see coat", State("x"), "take coat", ids=(1, 2)), Turn("have coat", State("y"), hint="h")]
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
    first = Turn("see coat", State("x"), 'take(what="coat")', seen="see coat", calls=True)
    last = Turn("have coat", State("y"), seen="have coat", advice="wear coat", calls=True)
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


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_outside_of_0_to_1_is_refused(share):
    with pytest.raises(ConfigError, match=str(share)):
        Examples(renamed=share)


# -- rollouts with rewards


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def decide(names, *, turns=4, refused=()):
    """Decide by hand; return the rows and the actions that ran. The first choice of the `refused` turns is refused."""
    policy = TokenPolicy(LocalEngine(build_chat_model(CHAT), CHAT), MESSAGES)
    episode = _Episode(Spec("train", 0, names=names))
    _EPISODE.set(episode)
    history: list[Step] = []
    for n in range(turns):
        state = State(f"You came from the east {n} times.", task="Find the coin.")
        context = Context(state, DIRECTIONS, guidance="`go east` was rewarded", history=tuple(history), thread="e")
        action = policy.decide(context).action
        if n in refused:
            before, context = action, replace(context, forbidden={action: "it failed here before"})
            action = policy.decide(context).action
            assert action != before
        history.append(Step(state, action, state, Diagnosis(True), t=n, admissible=DIRECTIONS))
    chat = policy._log.advance(replace(context, history=tuple(history)))
    assert [text for role, text in chat.messages() if role == "assistant"] == [step.action for step in history]
    return episode.collect(history), [step.action for step in history]


def test_the_policy_reads_other_names_and_the_action_with_the_own_name_runs():
    rows, ran = decide(SWAPPED, refused=(1,))
    own_rows, _ = decide((), refused=(1,))
    assert len(rows) == len(ran)
    text = CHAT.decode(list(rows[-1].prompt))
    assert "You came from the west 3 times." in text
    assert "`go west` was rewarded" in text
    assert "from the east" not in text
    assert "from the east" in CHAT.decode(list(own_rows[-1].prompt))
    rename = swap_names(SWAPPED)
    answers = [CHAT.decode(list(row.completion[:-1])) for row in rows]
    assert answers == [rename(action) for action in ran]
    assert {*ran} & {"go east", "go west"}, "else nothing was renamed"


def test_an_episode_stays_one_sequence_of_what_was_sampled():
    """The answers in a prompt are the sampled tokens, in the other names."""
    rows, _ = decide(SWAPPED, refused=(0, 2))
    (sequence,) = pack_samples(rows, {rows[0].trace: [1.0] * len(rows)})
    trained = [token for token, counts in zip(sequence.tokens, sequence.mask, strict=True) if counts]
    assert trained == [t for row in rows for t, counts in zip(row.completion, row.mask, strict=True) if counts]
    for before, after in pairwise(rows):
        so_far = (*before.prompt, *before.completion)
        assert after.prompt[: len(so_far)] == so_far


def test_names_that_stay_change_no_token():
    same = tuple((name, name) for name in ("east", "west", "coin"))
    assert decide(same, refused=(1,)) == decide((), refused=(1,))


def test_names_are_restored_in_any_text():
    names = Names(
        [f"put {thing} in {place}" for thing in ("coat", "hat", "scarf") for place in ("coat hanger", "box", "bag")]
    )
    for seed in range(20):
        pairs = names.draw(random.Random(seed))
        for text in ("Coat on the coat hanger, hat in the BOX, a scarf.", "raincoat", ""):
            renamed = swap_names(pairs)(text)
            assert restore_names(pairs)(renamed).lower() == text.lower()


def test_a_refused_action_is_refused_under_its_other_name():
    context = Context(State("x"), DIRECTIONS, forbidden={"go east": "it failed"})
    offer, own = rename_choices(context, SWAPPED)
    assert offer.actions == ("go west", "go east", "take coin")
    assert offer.forbidden == {"go west": "it failed"}
    assert own["go west"] == "go east"


# -- in a run


@pytest.fixture
def settings(tmp_path):
    return {
        "environment": {"name": "tests.trainers.corridor:Corridor", "max_steps": 4},
        "tasks": {"train": {"seeds": "0-11"}, "eval": {"seeds": "100-103"}},
        "explore": {"worlds": {"seeds": "0-5"}, "steps": 20, "tries": 3},
        "model": {"base": str(save_base(tmp_path / "base")), "adapter": 2},
        "arms": {"control": 2, "retrieved": 3},
        "guidance": {"retrieved": "library"},
        "library": {"explored": {"": {"seeds": "20-29"}}, "recall": 3, "renamed": 1.0},
        "roles": {"policy": {"learner": {"lr": 0.001}}},
        "eval": {"every": 0},
        "run": {"iterations": 1, "groups": 2, "rerolls": 0, "out": str(tmp_path / "run")},
    }


def collect(settings, folder, *, learning=True, salt="a", seeds=range(12)):
    """Play both arms; return the names of each episode as pairs of arm and names, and the rollouts."""
    seen = {}
    session = Session.open(of(settings), folder)
    player = Player(session)
    draw = player._draw_names

    def keep(specs):
        drawn = draw(specs)
        seen.update({(spec.group, spec.arm, spec.copy): spec.names for spec in drawn})
        return drawn

    try:
        worlds = [("", seed) for seed in seeds]
        with patch.object(player, "_draw_names", keep):
            played = player.play(worlds, {CONTROL: 1, RETRIEVED: 2}, salt=salt, learning=learning)
            return seen, asyncio.run(played), session.tokenizer
    finally:
        player.close()
        session.close()


def test_all_arms_of_a_group_have_the_same_other_names_in_training_alone(settings, tmp_path):
    names, rollouts, tokenizer = collect(settings, tmp_path / "a")
    by_group = {
        f"#{seed}": {pairs for (group, _, _), pairs in names.items() if group == f"#{seed}"} for seed in range(12)
    }
    assert {len(pairs) for pairs in by_group.values()} == {1}, "a group is compared"
    assert all(names.values())
    assert len({*names.values()}) > 1, "groups draw apart"
    swapped = {group for group, (pairs,) in by_group.items() if dict(pairs)["east"] == "west"}
    for rollout in rollouts:
        (*_, last) = rollout.rows
        answer = tokenizer.decode(list(last.completion[:-1]))
        ran = rollout.trajectory.steps[last.turn].action
        assert (answer == ran) == (rollout.group not in swapped or ran == "wait")
        assert {step.action for step in rollout.trajectory.steps} <= {"go east", "go west", "wait"}
    evaluated, _, _ = collect(settings, tmp_path / "b", learning=False)
    assert {*evaluated.values()} <= {()}


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_the_share_is_one_of_groups(settings, tmp_path, share):
    settings["library"]["renamed"] = share
    names, _, _ = collect(settings, tmp_path / "a", seeds=range(24))
    renamed = {group for (group, arm, _), pairs in names.items() if arm == "retrieved" and pairs}
    assert len(renamed) == 0 if share == 0 else 4 <= len(renamed) <= 20


def test_a_run_trains_on_them(settings, tmp_path):
    train(settings)
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8")
    assert '"success/retrieved"' in metrics


@pytest.mark.parametrize(
    "change",
    [{"arms": {"control": 2, "told": 2}, "guidance": {"told": "experience"}}, {"model": {}}],
    ids=["no arm recalls", "content words"],
)
def test_where_it_does_nothing_it_is_refused(settings, change):
    library = {"renamed": 1.0}
    with pytest.raises(ConfigError, match=r"library\.renamed is 1\.0"):
        of({**settings, "library": library, **change})
