"""Episodes that begin with recorded steps: a branch is its parent's continuation, and nothing before it is trained."""

import asyncio
import random
from dataclasses import replace

import pytest

from hardwon.memory import ExperienceLibrary, Item
from hardwon.runtime import Agent
from hardwon.runtime.llm.conversation import Conversations
from hardwon.trainers.algorithms.advantages import group_siblings
from hardwon.trainers.algorithms.samples import pack_samples, to_trace
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.models.tiny import TinyConfig, build_model, build_tokenizer
from hardwon.trainers.prompting.compact import CompactFormat
from hardwon.trainers.rollouts.rollout import NO_START, GivenGuidance, Spec, TokenPolicy, collect

TEXTS = ["go east go west wait . red blue green white golden find prize east is best room hint :"]
TOKENIZER = build_tokenizer(TEXTS)
TRANSCRIPT = CompactFormat(TOKENIZER)
SHAPE = TinyConfig(hidden=16, layers=1, heads=2, kv_heads=1, intermediate=16, context=512)


class Player:
    """Plays specs in the rooms, each on a policy whose chance can be that of another session."""

    def __init__(self, world, *, arm="control", memory=None, policy=TokenPolicy):
        self.engine = LocalEngine(build_model(len(TOKENIZER), SHAPE), TOKENIZER)
        self.library = ExperienceLibrary.open(":memory:")
        guidance = GivenGuidance() if memory else None
        self.arm = arm
        self.agent = Agent(
            policy(self.engine, TRANSCRIPT),
            self.library,
            world,
            arm=arm,
            learn=False,
            guardrails=False,
            guidance=guidance,
            max_steps=6,
        )

    def play(self, *specs):
        return asyncio.run(collect({self.arm: self.agent}, self.engine, list(specs)))


class SameChance(TokenPolicy):
    """A policy whose branches draw the chance of their parent."""

    def _open_chance(self, spec, turn, attempt):
        return random.Random(f"{spec.parent or spec.session}:{turn}:{attempt}")


def plain(rollout):
    return [(step.action, step.post.observation) for step in rollout.trajectory.steps]


@pytest.fixture
def player(rooms):
    return Player(rooms(), policy=SameChance)


def branch(parent, keep, **fields):
    steps = parent.trajectory.steps[:keep]
    return replace(Spec("", 0, salt="s", copy=0), prefix=steps, parent=parent.trajectory.id, **{"copy": 5, **fields})


def test_a_branch_with_its_parents_chance_repeats_the_parent(player):
    """Prompts, completions, anchors, end and score; the rows are those after the prefix, numbered absolutely."""
    (parent,) = player.play(Spec("", 0, salt="s"))
    assert len(parent.rows) >= 4
    for keep in range(1, len(parent.trajectory.steps)):
        (own,) = player.play(branch(parent, keep))
        assert plain(own) == plain(parent)
        assert (own.trajectory.ending, own.trajectory.score) == (parent.trajectory.ending, parent.trajectory.score)
        expected = [(r.turn, r.prompt, r.completion, r.anchor) for r in parent.rows if r.turn >= keep]
        assert [(r.turn, r.prompt, r.completion, r.anchor) for r in own.rows] == expected
        for one, other in zip(own.rows, (r for r in parent.rows if r.turn >= keep), strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_a_branch_of_a_guided_episode_shows_what_was_shown(rooms):
    """The memory stands in the conversation as it was sent, and not a second time."""
    player = Player(rooms(), arm="given", memory="east is best", policy=SameChance)
    (parent,) = player.play(Spec("", 0, "given", salt="s", memory="east is best"))
    (own,) = player.play(branch(parent, 2, arm="given", memory="east is best"))
    assert [row.prompt for row in own.rows] == [row.prompt for row in parent.rows if row.turn >= 2]


def test_a_branch_with_its_own_chance_differs(rooms):
    player = Player(rooms())
    (parent,) = player.play(Spec("", 0, salt="s"))
    others = player.play(*(branch(parent, 1, copy=copy) for copy in range(5, 15)))
    assert {tuple(plain(own)[:1]) for own in others} == {tuple(plain(parent)[:1])}
    assert len({tuple(plain(own)) for own in others}) > 1


def test_no_trained_token_lies_in_the_prefix(player):
    (parent,) = player.play(Spec("", 0, salt="s"))
    (own,) = player.play(branch(parent, 2))
    trace = to_trace(own)
    assert [turn.step for turn in trace.turns] == list(range(2, 2 + len(trace.turns)))
    (packed,) = pack_samples(own.rows, {trace.id: [1.0] * len(trace.turns)})
    assert {turn for turn, trained in zip(packed.turns, packed.mask, strict=True) if trained} == {
        turn.step for turn in trace.turns
    }


def test_a_prefix_of_another_policy_begins_the_same_way(rooms, script):
    """A demonstration has no sampled tokens; its actions are encoded as text."""
    library = ExperienceLibrary.open(":memory:")
    walker = Agent(script("go east", "wait"), library, rooms(), arm="control", learn=False, max_steps=2)
    steps = walker.run().trajectory.steps
    (own,) = Player(rooms()).play(Spec("", 0, salt="s", prefix=steps))
    assert plain(own)[:2] == [(step.action, step.post.observation) for step in steps]
    assert own.rows[0].turn == 2
    wanted, prompt = TRANSCRIPT.text("go east"), own.rows[0].prompt
    assert any(prompt[at : at + len(wanted)] == wanted for at in range(len(prompt)))


def test_a_prefix_that_does_not_lead_back_is_an_exclusion_and_no_failure_of_the_policy(player, rooms):
    (parent,) = player.play(Spec("", 0, salt="s"))
    wrong = replace(parent.trajectory.steps[0], post=replace(parent.trajectory.steps[0].post, observation="elsewhere"))
    spec = replace(Spec("", 0, salt="s", copy=7), prefix=(wrong,))
    (own,) = player.play(spec)
    assert own.failed == NO_START
    assert own.outcome is None
    assert own.rows == ()
    assert "not deterministic" in own.trajectory.meta["failed"]


def test_the_horizon_is_absolute_and_can_be_set_for_one_episode(rooms):
    player = Player(rooms())
    (parent,) = player.play(Spec("", 0, salt="s"))
    (own,) = player.play(branch(parent, 2, max_steps=3))
    assert len(own.trajectory.steps) == 3
    assert len(own.rows) == 1


def test_an_episode_can_have_a_temperature_of_its_own(player):
    """Nearly greedy, every choice has nearly all the probability; others have that of the run."""
    (plain_one, cold) = player.play(Spec("", 0, salt="s"), Spec("", 0, copy=1, salt="s", temperature=1e-5))
    assert min(value for row in cold.rows for value in row.logprobs) > -0.01
    assert min(value for row in plain_one.rows for value in row.logprobs) < -0.1


def test_a_note_is_shown_once_at_the_first_own_step_of_any_arm(rooms):
    player = Player(rooms())
    (own,) = player.play(Spec("", 0, salt="s", note="hint : go east ."))
    tokens = [TOKENIZER.convert_ids_to_tokens(list(row.prompt)) for row in own.rows]
    assert all(text.count("hint") == 1 for text in tokens)
    assert own.root


def test_only_episodes_that_began_alike_are_siblings(player):
    (parent,) = player.play(Spec("", 0, salt="s"))
    specs = [branch(parent, 1, copy=5), branch(parent, 1, copy=6), branch(parent, 2, copy=7)]
    traces = [to_trace(rollout) for rollout in [parent, *player.play(*specs)]]
    assert [len(group) for group in group_siblings(traces)] == [1, 2, 1]


def test_a_forked_conversation_leaves_the_parent_as_it_was():
    log = Conversations()
    assert not log._open
    log.fork("missing", "own", 1)
    assert not log._open


def test_items_of_the_library_shown_in_the_prefix_stay_shown(rooms):
    """A retrieved arm: the hints of the prefix are those of the parent."""
    player = Player(rooms(), arm="retrieved", policy=SameChance)
    player.library.add(Item("insight", "go east to the golden room", score=1.0))
    (parent,) = player.play(Spec("", 0, "retrieved", salt="s"))
    assert parent.trajectory.steps[0].why.recalled
    (own,) = player.play(branch(parent, 2, arm="retrieved"))
    assert [row.prompt for row in own.rows] == [row.prompt for row in parent.rows if row.turn >= 2]
