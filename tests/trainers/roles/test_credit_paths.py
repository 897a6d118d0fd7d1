"""Who is paid for what: each test fails when one path of the credit is taken away."""

import math
from dataclasses import replace

import pytest
import torch

from hardwon.memory import State, Step, Trajectory
from hardwon.memory.bank import Bank
from hardwon.memory.records import Diagnosis
from hardwon.runtime.teams.sharing import BankClient
from hardwon.trainers.algorithms.learner import Learner, LearnerSettings, LossSettings
from hardwon.trainers.algorithms.samples import PackedSequence, Rollout, Sample, pack_samples, to_trace
from hardwon.trainers.models.tiny import TinyConfig, build_model
from hardwon.trainers.roles.guides.credit import Branch, guide_credit
from hardwon.trainers.roles.guides.role import rows_of
from hardwon.trainers.roles.guides.speech import GuideReply

from .test_admission import made, send

HALL = State("You are in the hall.", task="find the prize")


def sample(trace, *, prompt=(1, 2), completion=(3,), turn=0, role="guide"):
    n = len(completion)
    return Sample(prompt, completion, (-0.5,) * n, (True,) * n, (None,) * n, role, 1, "", "", "", trace, turn)


# -- the learner


def test_the_entropy_bonus_makes_choices_less_sure():
    """Without advantages, only the bonus has a gradient: the entropy rises with it and falls with its negative."""

    def entropy_after(bonus):
        model = build_model(12, TinyConfig(hidden=16, layers=1, heads=2, kv_heads=1, intermediate=16))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(6)
        learner = Learner(model, dict(model.named_parameters()), LearnerSettings(lr=3e-3))
        tokens = PackedSequence((1, 2, 3), (False, True, True), (-1.0,) * 3, (0.0,) * 3, (None,) * 3, "", "a", 0)
        found = [learner.step([tokens], LossSettings(entropy=bonus))["entropy"] for _ in range(15)]
        return found[-1] - found[0]

    assert entropy_after(0.5) > 0.05
    assert entropy_after(-0.5) < -0.05


# -- the outcome of an episode


@pytest.mark.parametrize(("success", "outcome"), [(True, 1.0), (False, 0.0)])
def test_a_failed_episode_has_the_outcome_0(success, outcome):
    assert to_trace(Rollout(Trajectory("find", (), success, id="a"), (), "g")).outcome == outcome
    assert Rollout(Trajectory("find", (), success, id="a"), (), "g").outcome == outcome


# -- the guide


def reply(n, *, text=True):
    content = sample(f"guide/{n}", prompt=(1, 2, 9), completion=(4 + n, 5), turn=1) if text else None
    decision, silent = sample(f"guide/{n}"), sample("guide/silent", completion=(8,))
    fields = {"text": f"hint {n}", "p_speaks": 0.25, "decision": decision, "silent": silent}
    return GuideReply(**fields, content=content)


def test_the_tokens_of_a_hint_receive_the_advantage_of_its_content_alone():
    """The decision has another one, and neither reaches the other's tokens."""
    said = [reply(0), reply(1)]
    credit = guide_credit(Branch((0.0,)), [Branch((1.0,)), Branch((0.5,))], cost=0.0)
    assert credit.decision == 0.75
    streams = pack_samples(*rows_of(said, credit))
    by_trace = {stream.trace: stream for stream in streams}
    for one, content in zip(said, credit.content, strict=True):
        stream = by_trace[f"{one.content.trace}/text"]
        trained = [value for value, counts in zip(stream.advantages, stream.mask, strict=True) if counts]
        assert trained == [content] * 2
    silent = [value for value in by_trace["guide/silent"].advantages if value]
    spoken = [value for value in by_trace["guide/0"].advantages if value]
    assert silent == []
    assert spoken == pytest.approx([0.75 * 3 * math.exp(-0.5)])  # of two texts and of silence, by its probability


def test_hints_without_a_signal_are_not_trained_on():
    said = [reply(0), reply(1)]
    rows, advantages = rows_of(said, guide_credit(Branch((0.0,)), [Branch((1.0,))] * 2, cost=0.0))
    assert [row.trace for row in rows] == ["guide/silent", "guide/0"]
    assert set(advantages) == {"guide/silent", "guide/0"}


# -- the admission


def finished(name, steps, success):
    step = Step(HALL, "wait", HALL, Diagnosis(True))
    trajectory = Trajectory("find", (step,) * steps, success, id=name)
    return Rollout(trajectory, (), "find#0")


def test_the_first_to_finish_adds_its_success_by_how_early_it_was():
    """R = best + first_weight * first * earliness; the member with the fewest steps is the first."""
    role, _, _ = made(steps=10, first_weight=0.5)
    early, late = finished("a", 2, True), finished("b", 8, False)
    assert role._reward([early, late]) == pytest.approx(1.0 + 0.5 * 0.8)
    assert role._reward([late, early]) == pytest.approx(1.0 + 0.5 * 0.8)
    failed_first = [finished("a", 2, False), finished("b", 8, True)]
    assert role._reward(failed_first) == 1.0
    assert role._reward([late]) == 0.0
    assert role._reward([replace(early, failed="environment"), late]) == 0.0


@pytest.mark.parametrize("own", [True, False])
def test_a_step_counts_as_used_when_another_member_pulled_it(monkeypatch, own):
    """A member that reads back what it shared itself earns nothing."""

    def entries(desk):
        return [entry for entry in desk._entries if (entry.team == desk.team) is own]

    monkeypatch.setattr(BankClient, "foreign_entries", property(entries))
    monkeypatch.setattr("hardwon.runtime.teams.reading.extract_words", lambda text: {"any"})  # all entries fit
    role, _, _ = made(teams=2, runs=2, steps=6)
    pulled, pulls = [], Bank.pulls

    def count(bank, *, own=False):
        pulled.append((len(pulls(bank, own=True)), len(pulls(bank, own=False))))
        return pulls(bank, own=own)

    monkeypatch.setattr(Bank, "pulls", count)
    metrics = [send(role, seed)["used"] for seed in range(6)]
    assert any(counted[0 if own else 1] for counted in pulled), "no member pulled anything; the test shows nothing"
    assert any(metrics) is not own
