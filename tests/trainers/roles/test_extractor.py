"""The extractor: paid by the paired difference, credited by verdict."""

import asyncio
import math
import random
from dataclasses import replace
from statistics import fmean
from typing import Any, cast

import pytest
import torch
from hardwon.trainers.roles.item_reward import Buffer, Use, is_gain, to_streams, worth
from hardwon.trainers.roles.note_generators import KeepOrSkip, ways
from tests.trainers.corridor import Corridor

from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.samples import Rollout, Sample
from hardwon.trainers.config.schema import RoleConfig
from hardwon.trainers.engines.base import Completion
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.models.tiny import TinyConfig, build_model, build_tokenizer
from hardwon.trainers.prompting.compact import CompactFormat
from hardwon.trainers.roles.base import Parts
from hardwon.trainers.roles.extractor import ExtractorRole, spread
from hardwon.trainers.roles.tuning import TUNING
from hardwon.trainers.rollouts.rollout import Spec

TOKENIZER = build_tokenizer(["find the coin . red blue green hall : go east west . take coin . you are in the room"])
TRANSCRIPT = CompactFormat(TOKENIZER)
SHAPE = TinyConfig(hidden=16, layers=1, heads=2, kv_heads=1, intermediate=16, context=256)


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def row(name, said=5):
    return Sample((1, 2, 3), (said,), (-0.7,), (True,), ((5, 6),), "extractor", 0, "", "", "", name, 0)


def flips(chance, p, n):
    return tuple(float(chance.random() < p) for _ in range(n))


# -- what an item is worth


@pytest.mark.parametrize("by", [0.0, 0.15, -0.15])
@pytest.mark.parametrize("base", [0.2, 0.5, 0.8])
def test_an_item_is_worth_its_effect_whatever_the_base(base, by):
    """One without an effect has a mean reward of 0 +- 0.05 over 1,000 pairs; what helps has more, what harms less."""
    chance = random.Random(f"{base}")
    pairs = [Use(flips(chance, base + by, 1), flips(chance, base, 1)) for _ in range(1000)]
    value = worth(pairs)
    assert value is not None
    if by:
        assert value * math.copysign(1.0, by) > 0.05
    else:
        assert fmean(worth([pair]) or 0.0 for pair in pairs) == pytest.approx(0.0, abs=0.05)
        assert value == pytest.approx(0.0, abs=0.05)


def test_the_reward_by_hand():
    """Two groups: mean difference over three consumers, shrunk 3 / 5, less 10 of 100 tokens at 0.2."""
    uses = [Use((1.0, 0.0), (0.0, 0.5)), Use((1.0,), (0.0,))]
    assert worth(uses, tokens=10, cost=0.2, length=100) == pytest.approx((0.75 - 0.25 + 1.0) / 3 * 0.6 - 0.02)


def test_without_a_control_sibling_nothing_can_be_said():
    assert worth([]) is None
    assert worth([Use((1.0,), ())]) is None
    assert worth([Use((), (1.0,))]) is None


def test_an_item_helped_if_it_gained_more_than_its_error():
    """Differences 1 and 0: mean 1/2, error 1/2; with another 1 the mean 2/3 is above the error 1/3."""
    helped, same, harmed = Use((1.0,), (0.0,)), Use((1.0,), (1.0,)), Use((0.0,), (1.0,))
    assert is_gain([helped])
    assert is_gain([helped, same, helped])
    for uses in ([same], [harmed], [helped, same], [Use((), (0.0,)), Use((1.0,), ())], []):
        assert not is_gain(uses)


# -- the buffer


def test_credit_reaches_only_the_verdict_about_the_item():
    buffer = Buffer(ready=1)
    for name in ("a", "b"):
        buffer.add(row(name, TRANSCRIPT.verdicts("keep").yes[0]), 1.0)
    buffer.settle("b", 0.5)
    buffer.settle("unknown", 9.0)
    batch = buffer.take()
    assert [(verdict.row.trace, reward) for verdict, reward in batch] == [("b", 0.5)]
    assert [stream.trace for stream in to_streams(batch, TRANSCRIPT.verdicts("keep"))] == ["b"]
    assert (len(buffer), buffer.take()) == (1, [])


def test_it_is_ready_when_enough_verdicts_are_rewarded():
    buffer = Buffer(ready=2)
    for name in "abc":
        buffer.add(row(name), 1.0)
    buffer.settle("a", 0.0)
    assert not buffer.ready()
    buffer.forget("b")
    buffer.forget("b")
    buffer.settle("b", 1.0)
    assert not buffer.ready()
    buffer.settle("c", 1.0)
    assert buffer.ready()


def test_a_buffer_goes_on_where_it_was():
    buffer = Buffer(ready=1)
    buffer.add(row("a"), 0.5)
    buffer.settle("a", 0.25)
    other = Buffer(ready=1)
    other.load_state_dict(buffer.state_dict())
    assert other.state_dict() == buffer.state_dict()
    assert other.take() == buffer.take()


def test_a_buffer_is_bounded():
    buffer = Buffer(ready=1)
    for n in range(TUNING.max_buffered + 1):
        buffer.add(row(f"{n}"), 1.0)
    buffer.settle("0", 1.0)
    assert len(buffer) == TUNING.max_buffered
    assert not buffer.ready()


# -- verdicts


def episode(success=True):
    fine = Diagnosis(True)
    names = ("red", "blue", "red", "green")
    states = [State(f"You are in the {name} room.", location=name, task="find the coin") for name in names]
    moves = ("go east", "go west", "go west")
    steps = tuple(Step(states[n], moves[n], states[n + 1], fine, t=n, id=n + 1) for n in range(3))
    return Trajectory("find the coin", steps, success, id="e")


def test_ways_lead_to_each_place_without_circles():
    found = ways(episode())
    assert [(one.text, one.seen.location, one.steps) for one in found] == [
        ("red : go east .", "blue", (1,)),
        ("red : go west .", "green", (3,)),
    ]


def test_each_candidate_is_one_sampled_token_with_a_name_of_its_own():
    engine = LocalEngine(build_model(len(TOKENIZER), SHAPE), TOKENIZER, roles=("extractor",))
    writer, names = KeepOrSkip(engine, TRANSCRIPT), set()
    for n in range(8):
        verdicts = asyncio.run(writer.read(episode(), salt=str(n)))
        for written, candidate in zip(verdicts, ways(episode()), strict=True):
            word = TOKENIZER.convert_ids_to_tokens(written.row.completion[0])
            assert written.row.mask == (True, False)
            assert word == ("<keep>" if written.is_kept else "<skip>")
            assert (written.item.title, written.item.provenance) == (candidate.text, candidate.steps)
            names.add(written.row.trace)
    assert len(names) == 16


@pytest.mark.parametrize(("keeps", "expected"), [(True, 0.8), (False, 0.2)])
def test_the_probability_of_keeping_is_that_of_the_verdict_or_of_its_opposite(keeps, expected):
    verdicts = TRANSCRIPT.verdicts("keep")
    tokens = verdicts.yes if keeps else verdicts.no
    n = len(tokens)

    class Engine:
        async def generate(self, request):
            logprobs = (math.log(0.8), *(0.0 for _ in tokens[1:]))
            return Completion(tokens, logprobs, (True,) * n, (None,) * n, 0)

    written = asyncio.run(KeepOrSkip(cast(Any, Engine()), TRANSCRIPT).read(episode()))
    assert [one.keeps for one in written] == pytest.approx([expected] * len(ways(episode())))
    assert all(one.is_kept is keeps for one in written)


# -- the role


def role(**settings):
    model = build_model(len(TOKENIZER), SHAPE)
    engine = LocalEngine(model, TOKENIZER, roles=("extractor",))
    library = ExperienceLibrary.open(":memory:")
    config = RoleConfig(settings={"ready": 4, **settings})
    return ExtractorRole(Parts(config, model, TRANSCRIPT, engine, library, environment=cast(Any, Corridor())))


def groups(salt, seeds=range(4)):
    return [Spec("find", seed, "memory", copy, salt=salt) for seed in seeds for copy in range(4)]


def ended(spec, success, arm="memory", name=None, meta=None):
    trajectory = Trajectory("find", (), success, arm=arm, id=name or spec.session, meta=meta or {})
    return Rollout(trajectory, (), spec.group)


def test_a_group_is_wanted_if_its_outcomes_differ_among_those_that_count():
    spec = groups("1")[0]
    broken = replace(ended(spec, True, name="c"), failed="environment_crash")
    assert role().wants([ended(spec, True, name="a"), ended(spec, False, name="b")])
    assert not role().wants([ended(spec, False, name="a"), ended(spec, False, name="b"), broken])


def test_episodes_are_read_one_of_each_group_first():
    def rollout(group, number, *, failed="", steps=True):
        trajectory = replace(episode(), id=f"{group}{number}", steps=episode().steps if steps else ())
        return Rollout(trajectory, (), group, failed)

    rollouts = [rollout("a", 1), rollout("a", 2), rollout("a", 3), rollout("b", 1), rollout("b", 2)]
    useless = [rollout("a", 4, failed="environment_crash"), rollout("c", 1, steps=False)]
    assert [one.trajectory.id for one in spread([*useless, *rollouts])] == ["a1", "b1", "a2", "b2", "a3"]


def test_settings_are_checked():
    with pytest.raises(ConfigError, match="did you mean ready"):
        role(redy=3)
