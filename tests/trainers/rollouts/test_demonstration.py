"""Demonstrations: recorded paths in the loop of production, as samples to imitate."""

import asyncio

import pytest
import yaml
from tests.trainers.folder_base import build_chat_model, build_chat_tokenizer

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import ConfigError, EnvironmentCrashed
from hardwon.runtime import Agent, RandomPolicy
from hardwon.runtime.guidance.base import RetrievalGuidance
from hardwon.trainers.algorithms.imitation import ask_all
from hardwon.trainers.algorithms.samples import pack_samples
from hardwon.trainers.config.loading import of
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.gating.other_worlds import OtherWorlds
from hardwon.trainers.prompting.chat import ChatFormat
from hardwon.trainers.rollouts.demonstration import DemonstrationPolicy, find_path, shorten_path
from hardwon.trainers.rollouts.rollout import Spec, TokenPolicy, collect

TOKENIZER = build_chat_tokenizer()
PROMPTS = ChatFormat(TOKENIZER)
WORLD = ("train", 3)
PATH = ("go east",) * 4


@pytest.fixture
def engine():
    return LocalEngine(build_chat_model(TOKENIZER), TOKENIZER)


def play(policy, engine, environment, library, *, recalls=False, steps=9):
    how = {"guidance": RetrievalGuidance()} if recalls else {"arm": "control"}
    agent = Agent(policy, library, environment, learn=False, guardrails=False, max_steps=steps, retries=0, **how)
    (rollout,) = asyncio.run(collect({"control": agent}, engine, [Spec(*WORLD)]))
    return rollout


def demonstrate(path, *where, **how):
    return play(DemonstrationPolicy(PROMPTS, {WORLD: path}), *where, **how)


def test_a_path_is_one_sequence_in_which_only_the_actions_are_trained(engine, rooms, library):
    rollout = demonstrate(PATH, engine, rooms(), library)
    assert rollout.trajectory.success
    rows = [ask_all(row) for row in rollout.rows]
    (sequence,) = pack_samples(rows, {rows[0].trace: [1.0] * 4})
    trained = [token for token, counts in zip(sequence.tokens, sequence.mask, strict=True) if counts]
    assert trained == [*PROMPTS.text("go east")] * 4


def test_the_prompts_are_those_of_a_rollout(engine, rooms, library):
    """What is imitated before one prompt must be found before the same prompt."""
    sampled = play(TokenPolicy(engine, PROMPTS), engine, rooms(), library, steps=3)
    actions = [step.action for step in sampled.trajectory.steps]
    shown = demonstrate((*actions, *PATH * 2), engine, rooms(), library, steps=20)
    assert [row.prompt for row in shown.rows[:3]] == [row.prompt for row in sampled.rows]
    assert [row.allowed for row in shown.rows[:3]] == [row.allowed for row in sampled.rows]


@pytest.mark.parametrize("actions", [PATH[:2], ("go east", "fly", "go east")])
def test_a_path_that_does_not_lead_to_the_end_is_not_imitated(engine, rooms, library, actions):
    rollout = demonstrate(actions, engine, rooms(), library)
    assert (rollout.failed, rollout.rows) == ("policy_error", ())


def test_the_hints_come_from_other_task_instances(engine, rooms, library):
    """Shown its own episode, the policy would learn to copy."""
    explorer = Agent(RandomPolicy(), library, rooms(), arm="control", guardrails=False, max_steps=60)
    own = explorer.run("train", WORLD[1])
    assert own.trajectory.success
    alone = demonstrate(PATH, engine, rooms(), OtherWorlds(library), recalls=True)
    assert not any("led to a return" in TOKENIZER.decode(row.prompt) for row in alone.rows)
    for seed in (10, 11):
        explorer.run("train", seed)
    hinted = demonstrate(PATH, engine, rooms(), OtherWorlds(library), recalls=True)
    assert any("led to a return" in TOKENIZER.decode(row.prompt) for row in hinted.rows)


SETTINGS = """
environment: {name: "tests.trainers.corridor:Corridor"}
tasks: {eval: {seeds: 900-929}}
arms: {control: 1, retrieved: 1}
guidance: {retrieved: library}
library: {explored: {more: {seeds: 200-210}}}
"""


def test_evaluated_instances_cannot_be_explored_for_the_library():
    settings = yaml.safe_load(SETTINGS)
    assert of(settings).library.explored["more"].seeds == "200-210"
    settings["library"]["explored"]["more"]["seeds"] = "200-905"
    with pytest.raises(ConfigError, match=r"library\.explored\.more and tasks\.eval share 6 worlds"):
        of(settings)


def test_the_library_starts_with_the_explored_episodes(tmp_path):
    from hardwon.trainers.session import Session

    config = of({**yaml.safe_load(SETTINGS), "explore": {"worlds": {"seeds": "0-3"}, "steps": 8}})
    session = Session.open(config, tmp_path)
    try:
        assert session.library.episodes.count() >= 11
        assert {session.library.episodes.get(ref).seed for ref in list_ids(session.library)} == {*range(200, 211)}
        assert session.start is not None
        assert session.start.episodes.count() == session.library.episodes.count()
    finally:
        session.close()


def list_ids(library: ExperienceLibrary) -> list[str]:
    return [str(row["id"]) for row in library.episodes.find(limit=100)]


def test_samples_of_a_demonstration_name_the_role_that_learns(engine, rooms, library):
    policy = DemonstrationPolicy(PROMPTS, {WORLD: PATH}, role="actor")
    assert {row.role for row in play(policy, engine, rooms(), library).rows} == {"actor"}


EAST = ("go east",) * 4


@pytest.mark.parametrize(
    ("path", "shorter"),
    [
        (EAST, EAST),
        (("wait", *EAST), EAST),
        (("go east", "wait", "wait", *EAST[1:]), EAST),
        ((*EAST[:2], "go west", "go east", *EAST[2:]), EAST),
        (("go west",), ("go west",)),
        ((), ()),
    ],
    ids=["shortest", "first", "middle", "there and back", "fails", "empty"],
)
def test_a_path_loses_each_action_that_it_succeeds_without(rooms, path, shorter):
    assert shorten_path(rooms(), WORLD, path) == shorter
    assert shorten_path(rooms(), WORLD, shorter) == shorter


def test_a_path_of_an_environment_that_must_not_be_repeated_stays(rooms):
    world = rooms()
    world.branches = None
    assert shorten_path(world, WORLD, ("wait", *EAST)) == ("wait", *EAST)


def test_a_crash_while_a_path_is_shortened_keeps_the_action(rooms):
    world = rooms(faults={5: EnvironmentCrashed("gone")})  # in the first path that is tried
    path = ("wait", *EAST, "wait")
    assert shorten_path(world, WORLD, path) == (*EAST, "wait")


def need_a_wait(world):
    """Change the world: only who has waited succeeds, and the states do not show who has."""
    reset, step = world.reset, world.step
    waited: list[str] = []

    def reset_hidden(*where):
        waited.clear()
        return reset(*where)

    def step_hidden(action):
        waited.extend([action] if action == "wait" else [])
        state, reward, over, info = step(action)
        return state, reward, over, {**info, "success": bool(info.get("success") and waited)}

    world.reset, world.step = reset_hidden, step_hidden
    return world


@pytest.mark.parametrize(
    ("clean", "whole", "path"),
    [
        (EAST, ("wait", "wait", *EAST), ("wait", *EAST)),
        (("wait", *EAST), (*EAST[:1], "wait", *EAST), ("wait", *EAST)),
        (EAST, EAST, EAST),
        ((), ("wait", *EAST), ("wait", *EAST)),
        ((), (), ()),
    ],
    ids=["the step that counts shows nothing", "clean is enough", "neither succeeds", "nothing is clean", "empty"],
)
def test_a_path_that_succeeds_is_preferred_to_a_clean_one(rooms, clean, whole, path):
    assert find_path(need_a_wait(rooms()), WORLD, clean, whole) == path


def test_a_path_that_must_not_be_repeated_is_the_clean_one(rooms):
    world = need_a_wait(rooms())
    world.branches = None
    assert find_path(world, WORLD, EAST, ("wait", *EAST)) == EAST


def test_an_action_that_makes_the_next_one_admissible_stays(rooms):
    """An environment may run what it does not list; an agent would be refused."""

    world = rooms()
    reset, step = world.reset, world.step
    waited: list[str] = []

    def reset_doors(*where):
        waited.clear()
        return reset(*where)

    def step_through(action):
        waited.extend([action] if action == "wait" else [])
        return step(action)

    world.reset, world.step = reset_doors, step_through
    world.admissible = lambda state: ["wait", "go east"] if waited else ["wait"]
    assert shorten_path(world, WORLD, ("wait", "wait", *EAST)) == ("wait", *EAST)
