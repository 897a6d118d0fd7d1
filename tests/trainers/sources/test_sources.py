"""Sources of signals: who is read, what a run refuses, what it logs, and that it resumes bit for bit."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainers.test_trainer import assert_same, lines

from hardwon.memory import Diagnosis, State, Step, Trajectory
from hardwon.memory.errors import CannotLearn, ConfigError, UnknownName
from hardwon.trainers import metrics, train
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.samples import Rollout, Sample, to_trace
from hardwon.trainers.config.loading import of
from hardwon.trainers.evaluate import evaluate_checkpoint
from hardwon.trainers.models.tiny import TinyConfig, build_model
from hardwon.trainers.sources import SourceParts, Sources, open_source

HERE = str(Path(__file__).parent)
SCRIPTED = "scripted:Scripted"


def policy(source=SCRIPTED, settings=None, **fields):
    sources = {source: {"high": 1.0, "low": 0.0} if settings is None else settings}
    return {"policy": {"credit": {"name": "mrt", "settings": {"alpha": 1.0}}, "sources": sources, **fields}}


@pytest.fixture
def settings(corridor, monkeypatch):
    """Settings of a run in the corridor with a scripted source."""
    monkeypatch.syspath_prepend(HERE)

    def make(**sections):
        plain = {"arms": {"control": 2}, "warmstart": None, "roles": policy()}
        return corridor(**{**plain, **sections})

    return make


def test_what_nothing_feeds_is_refused_with_the_sources_that_would(corridor):
    with pytest.raises(CannotLearn, match=r"name=mrt needs the signal progress.*add roles\.policy\.sources\.progr"):
        of(corridor(roles={"policy": {"credit": {"name": "mrt"}}}))
    with pytest.raises(CannotLearn, match=r"shape\.redistribute needs the signal contribution"):
        of(corridor(roles={"policy": {"shape": {"redistribute": {}}}}))


def test_a_source_that_nothing_reads_is_refused(corridor):
    with pytest.raises(ConfigError, match=r"sources\.entropy gives entropy, which nothing reads"):
        of(corridor(roles={"policy": {"sources": {"entropy": {}}}}))


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ({"sources": {"entrpy": {}}}, "entrpy"),
        ({"sources": {"progress": {"off": "reward"}}}, "did you mean of"),
        ({"sources": {"nowhere:Nothing": {}}}, "cannot be imported"),
        ({"shape": {"densty": {}}}, "densty"),
        ({"shape": {"density": {"n": 2}}}, r"shape\.density\.n"),
        ({"shape": {"overlong": {}}}, r"shape\.overlong\.limit is missing"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_path(corridor, role, message):
    with pytest.raises((ConfigError, UnknownName), match=message):
        of(corridor(roles={"policy": role}))


def test_other_roles_have_no_sources(corridor):
    roles: dict[str, Any] = {"policy": {}, "guide": {"shape": {"density": {}}}}
    with pytest.raises(ConfigError, match=r"roles\.guide has sources, shapers, extra or loss terms"):
        of(corridor(arms={"control": 2, "guided": 2}, roles=roles))


def test_settings_of_an_estimator_have_its_types(corridor):
    """YAML `history: 1` stays a whole number: range(history + 1) refused a float."""
    credit = {"name": "hgpo", "settings": {"history": 1, "alpha": 2}}
    config = of(corridor(roles={"policy": {"credit": credit}}))
    assert config.roles["policy"].credit.settings == {"history": 1, "alpha": 2.0}
    assert isinstance(config.roles["policy"].credit.settings["history"], int)
    earlier = of(corridor(roles={"policy": {"credit": {"name": "gigpo", "settings": {"std": 1.0}}}}))
    assert earlier.roles["policy"].credit.settings == {"std": True}


def test_a_signal_moves_only_the_rows_of_its_traces(settings):
    """Turn 2 of one copy has 1 and that of its sibling 0: the two get opposite advantages, and a group is wanted."""
    out = train(settings(run={"iterations": 2, "rerolls": 0})).out
    logged = metrics.read(Path(out))
    assert all(line[f"signal/{SCRIPTED}/missing"] == 0 for line in logged)
    assert all(line["groups_without_signal"] == 0 for line in logged)
    assert all(line["policy/grad_norm"] > 0 for line in logged)
    assert logged[0][f"signal/{SCRIPTED}/groups"] == 3


def test_where_nothing_is_known_no_group_is_wanted(settings):
    """Two copies with equal outcomes and no signal: `wants` is false, and every turn is counted as missing."""
    environment = {"name": "corridor:Corridor", "max_steps": 1}  # nobody reaches an end in one step
    roles = policy("scripted:Silent", {})
    out = train(settings(environment=environment, roles=roles, run={"iterations": 1, "rerolls": 0})).out
    (line,) = metrics.read(Path(out))
    assert line["signal/scripted:Silent/missing"] == 1.0
    assert line["signal/scripted:Silent/missing_turns"] == 6.0
    assert line["groups_without_signal"] == 3


def test_a_run_with_a_source_resumes_bit_for_bit(settings, tmp_path):
    straight = train(settings(run={"iterations": 4, "out": str(tmp_path / "a")})).out
    train(settings(run={"iterations": 2, "out": str(tmp_path / "b")}))
    resumed = train(settings(run={"iterations": 4, "out": str(tmp_path / "b")}), resume=True).out
    assert_same(straight, resumed)
    assert lines(straight) == lines(resumed)
    files = [Path(one) / "checkpoints/000004/sources.state" for one in (straight, resumed)]
    states = [torch.load(file, weights_only=True) for file in files]
    assert states[0] == states[1]


def test_an_evaluation_calls_no_source(settings, monkeypatch):
    out = train(settings(run={"iterations": 1})).out

    async def refuse(self, rollouts):
        raise AssertionError("read")

    monkeypatch.setattr(Sources, "read", refuse)
    assert asyncio.run(evaluate_checkpoint(Path(out) / "checkpoints/000001"))


def step(t, action, *, reward=0.0, success=True, progress=0.0, after=None):
    post = State(f"room {t + 1}" if after is None else f"room {after}")
    return Step(State(f"room {t}"), action, post, Diagnosis(success, progress=progress), reward, t)


def rollout(name, steps, rows=None, failed=""):
    sampled = [Sample((1,), (2,), (-0.1,), (True,), (None,), "policy", 1, "control", "", "", name, s.t) for s in steps]
    return Rollout(Trajectory("task", tuple(steps), True, id=name), tuple(rows or sampled), "g", failed)


def parts_of(model=None, prompts: Any = None, engine: Any = None, environment: Any = None, **fields):
    return SourceParts(model, prompts, engine, environment, **fields)


def read(name, settings, *rollouts, **fields):
    """Read rollouts with one source; return them and the sources."""
    sources = Sources({name: open_source(name, settings, parts_of(**fields))})
    return asyncio.run(sources.read(rollouts)), sources


def test_progress_is_the_reward_or_what_the_diagnosis_saw():
    one = rollout("a", [step(0, "x", reward=0.25, progress=0.5), step(1, "y", reward=0.75)])
    (found,), _ = read("progress", {}, one)
    assert to_trace(found).signals == {"progress": (0.25, 0.75)}
    (found,), _ = read("progress", {"of": "diagnosis"}, one)
    assert to_trace(found).signals == {"progress": (0.5, 0.0)}


def test_failed_rollouts_are_not_read():
    whole, broken = rollout("a", [step(0, "x")]), rollout("b", [step(0, "x")], failed="policy_error")
    found, _ = read("progress", {}, whole, broken)
    assert [bool(one.signals.turns) for one in found] == [True, False]


def test_a_circle_and_a_refused_step_are_redundant():
    steps = [step(0, "go", after=1), step(1, "back", after=0), step(0, "open", success=False, after=0), step(0, "go")]
    numbered = [replace(one, t=t) for t, one in enumerate(steps)]
    (found,), _ = read("redundant", {}, rollout("a", numbered))
    assert found.signals.turns["redundant"] == (1.0, 1.0, 1.0, 0.0)


def test_forced_tokens_do_not_change_the_entropy_of_a_choice():
    """The same choice, once with three forced tokens behind it: the same entropy, and the same EMPG advantages."""
    model = build_model(16, TinyConfig(hidden=16, layers=1, heads=2, kv_heads=1, intermediate=16))

    def choice(name, forced):
        allowed = ((4, 5, 6), *((7,) for _ in range(forced)))
        mask = (True, *(False,) * forced)
        fields = ("policy", 1, "control", "", "", name, 0)
        return Sample((1, 2), (4, *(7,) * forced), (-1.0, *(0.0,) * forced), mask, allowed, *fields)

    steps = [step(0, "x")]
    rollouts = [rollout("a", steps, [choice("a", 0)]), rollout("b", steps, [choice("b", 3)])]
    found, sources = read("entropy", {}, *rollouts, model=model)
    plain, forced = (one.signals.turns["entropy"][0] for one in found)
    assert plain == pytest.approx(forced)
    assert 0 < plain <= torch.log(torch.tensor(3.0))
    advantages = PARTS.get("estimator", "empg")([to_trace(one) for one in found])
    assert advantages["a"] == pytest.approx(advantages["b"])
    assert sources.drain_metrics()["signal/entropy/tokens"] == 9


def test_a_turn_without_a_choice_has_no_entropy():
    fields = ("policy", 1, "control", "", "", "a", 0)
    row = Sample((1, 2), (4,), (0.0,), (False,), ((4,),), *fields)
    model = build_model(16, TinyConfig(hidden=16, layers=1, heads=2, kv_heads=1, intermediate=16))
    (found,), sources = read("entropy", {}, rollout("a", [step(0, "x")], [row]), model=model)
    assert found.signals.turns["entropy"] == (None,)
    assert sources.drain_metrics()["signal/entropy/missing"] == 1.0
