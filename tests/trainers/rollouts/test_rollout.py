"""Transcripts and rollouts: exact tokens out of the runtime's own loop."""

import asyncio

import pytest

from hardwon.memory import Diagnosis, State, Step, Trajectory
from hardwon.memory.errors import EnvironmentCrashed
from hardwon.runtime import Agent
from hardwon.trainers.algorithms.samples import pack_samples, to_trace
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.methods.gigpo import gigpo
from hardwon.trainers.models.tiny import TinyConfig, build_model, build_tokenizer
from hardwon.trainers.prompting.compact import CompactFormat, compact
from hardwon.trainers.rollouts.rollout import GivenGuidance, Spec, TokenPolicy, collect

TEXTS = ["go east go west wait . red blue green white golden find prize east is best"]
TOKENIZER = build_tokenizer(TEXTS)
TRANSCRIPT = CompactFormat(TOKENIZER)
SHAPE = TinyConfig(hidden=16, layers=1, heads=2, kv_heads=1, intermediate=16, context=512)


def words(ids):
    return " ".join(TOKENIZER.convert_ids_to_tokens(list(ids)))


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("You are in the kitchen. You see a fridge, that is closed.", "kitchen . see fridge closed ."),
        ("In one part of the room you also see a red-brick wall!", "part room also see red-brick wall ."),
        ("", ""),
    ],
)
def test_observations_are_shortened_to_what_they_say(text, short):
    assert compact(text) == short


def episode(memory=None):
    fine = Diagnosis(True)
    states = [State(f"You are in the {name} room.", task="find the prize") for name in ("red", "blue", "green")]
    steps = tuple(Step(states[n], "go east", states[n + 1], fine, t=n) for n in range(2))
    return Trajectory("find the prize", steps, True, id="e")


def test_a_turn_s_prompt_extends_the_turn_before():
    """Rows of an episode are one stream: prompt, completion, what was shown next."""
    rows = TRANSCRIPT.rows(episode(), "east is best")
    assert words(rows[0].prompt) == "<task> find prize . <memory> east is best <see> red <unk> . <act>"
    assert rows[1].prompt[: len(rows[0].prompt) + len(rows[0].completion)] == rows[0].prompt + rows[0].completion
    (one,) = pack_samples(rows, {"e": [1.0, 1.0]})
    assert sum(one.mask) == 2 * len(TRANSCRIPT.text("go east"))


def test_admissible_actions_are_the_only_completions():
    trie, said = TRANSCRIPT.actions(["go east", "wait"])
    assert {said[ids] for ids in map(TRANSCRIPT.text, ["go east", "wait"])} == {"go east", "wait"}
    assert len(trie.allowed(())) == 2


@pytest.fixture
def collected(library, rooms):
    """Runs specs with a random tiny policy in a corridor of rooms."""

    def run(specs, faults=None, seed=0):
        model = build_model(len(TOKENIZER), SHAPE)
        engine = LocalEngine(model, TOKENIZER)
        policy = TokenPolicy(engine, TRANSCRIPT, snapshot="s1")
        world = rooms(faults=faults)
        agents = {
            arm: Agent(policy, library, world, arm=arm, learn=False, guidance=GivenGuidance(), max_steps=6, retries=0)
            for arm in ("control", "given")
        }
        return asyncio.run(collect(agents, engine, specs)), engine

    return run


def specs(n=3, **fields):
    return [
        Spec("", seed, arm, copy, memory="east is best" if arm == "given" else None, **fields)
        for seed in range(2)
        for arm in ("control", "given")
        for copy in range(n)
    ]


def test_every_row_says_where_it_is_from(collected):
    """Role, version, arm, snapshot, and an anchor that holds the memory shown."""
    rollouts, _ = collected(specs())
    row = rollouts[3].rows[0]
    assert (row.role, row.version, row.arm, row.snapshot) == ("policy", 0, "given", "s1")
    assert "|" in row.anchor
    assert "|" not in rollouts[0].rows[0].anchor


def test_a_group_has_the_same_world_in_every_arm(collected):
    """systems.md §5: each group has both kinds; its control episodes saw no memory."""
    rollouts, _ = collected(specs())
    groups: dict[str, list[str]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, []).append(rollout.trajectory.arm)
    assert {group: sorted(arms) for group, arms in groups.items()} == {
        "#0": ["control"] * 3 + ["given"] * 3,
        "#1": ["control"] * 3 + ["given"] * 3,
    }
    memory = TRANSCRIPT._ids("<memory>")[0]
    assert all((memory in rollout.rows[0].prompt) == (rollout.trajectory.arm == "given") for rollout in rollouts)


def test_rollouts_are_the_same_for_the_same_specs(collected):
    """Chance is drawn from the episode's name: bit for bit."""
    first, _ = collected(specs())
    second, _ = collected(specs())
    assert [rollout.rows for rollout in first] == [rollout.rows for rollout in second]


def test_copies_and_salts_differ(collected):
    one, _ = collected(specs())
    other, _ = collected(specs(salt="1"))
    said = [[row.completion for row in rollout.rows] for rollout in one]
    assert said[0] != said[1] or said[0] != said[2]
    assert said != [[row.completion for row in rollout.rows] for rollout in other]


def test_rows_of_an_episode_are_read_once(collected):
    """The engine reads no token twice: what it read is at most what the streams hold."""
    rollouts, engine = collected(specs())
    held = unchosen = 0
    for rollout in rollouts:
        (one,) = pack_samples(rollout.rows, {rollout.trajectory.id: [0.0] * len(rollout.rows)})
        held += len(one)
        unchosen += sum(step.action == "wait" for step in rollout.trajectory.steps)  # `go` was read beside it
    assert engine.tokens_read <= held + unchosen


def test_logprobs_of_a_rollout_are_those_of_its_stream(collected):
    rollouts, engine = collected(specs(1))
    for rollout in rollouts:
        made = pack_samples(rollout.rows, {rollout.trajectory.id: [0.0] * len(rollout.rows)})
        (values,) = asyncio.run(engine.logprobs(made, "policy"))
        assert values == pytest.approx(
            [p if m else 0.0 for p, m in zip(made[0].logprobs, made[0].mask, strict=True)], abs=1e-4
        )


def test_a_broken_environment_is_excluded_and_typed(collected):
    """Never a zero reward; the others go on."""
    rollouts, _ = collected(specs(), faults={4: EnvironmentCrashed("the lights went out")})
    failed = [rollout for rollout in rollouts if rollout.failed]
    assert [(rollout.failed, rollout.rows) for rollout in failed] == [("environment_crash", ())]
    assert len(rollouts) == 12


def test_a_rollout_can_be_credited(collected):
    rollouts, _ = collected(specs())
    found = gigpo([to_trace(rollout) for rollout in rollouts])
    assert {rollout.trajectory.id: len(rollout.rows) for rollout in rollouts} == {k: len(v) for k, v in found.items()}
