"""Composers by hand: which episodes a group consists of, from made rollouts."""

from dataclasses import replace

import pytest

from hardwon.memory import Diagnosis, State, Step, Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.composers import COMPOSERS, ComposerParts, Played, open_composer
from hardwon.trainers.algorithms.composers.base import branch_off
from hardwon.trainers.algorithms.composers.spec import Spec
from hardwon.trainers.algorithms.samples import Rollout, Sample
from hardwon.trainers.algorithms.signals import Signals


def make_path(n, *, success=True, actions=None):
    """An episode of n steps, each in a place of its own."""
    names = actions or [f"act {t}" for t in range(n)]
    steps = tuple(Step(State(f"place {t}"), names[t], State(f"place {t + 1}"), Diagnosis(True), t=t) for t in range(n))
    return Trajectory("task", steps, success, float(success))


def end(spec, outcome, n=3, *, entropy=None, failed="", actions=None):
    """An episode of a spec that ended with an outcome, after n own steps with these entropies."""
    start = len(spec.prefix)
    trajectory = make_path(start + n, success=bool(outcome), actions=actions)
    steps = spec.prefix + trajectory.steps[start:]
    trajectory = replace(
        trajectory, steps=steps, success=None if failed else bool(outcome), arm=spec.arm, id=spec.session
    )
    rows = tuple(
        Sample((1,), (2,), (-1.0,), (True,), (None,), "policy", 0, spec.arm, "", "a", spec.session, start + t)
        for t in range(n)
    )
    signals = Signals({"entropy": tuple(entropy)}) if entropy is not None else Signals()
    return Played(
        spec,
        Rollout(
            trajectory,
            () if failed else rows,
            spec.group,
            failed,
            signals=signals,
            start=start,
            parent=spec.parent,
            root=spec.root,
            label=spec.label,
        ),
    )


def specs(n=4, seeds=(0,), arm="control"):
    return [Spec("", seed, arm, copy, salt="s") for seed in seeds for copy in range(n)]


def test_no_composer_is_the_default():
    assert open_composer({}, ComposerParts()) is None


@pytest.mark.parametrize("name", [*COMPOSERS])
def test_a_composer_that_finds_nothing_to_do_plays_every_episode_once(name):
    """Without a demonstration, a failure or a signal: the plain episodes, at most."""
    composer = COMPOSERS[name](ComposerParts())
    begun = composer.begin(specs())
    assert {spec.group for spec in begun} == {"#0"}
    assert 0 < len(begun) <= 4


@pytest.mark.parametrize("name", [*COMPOSERS])
def test_a_state_in_plain_types_restores_a_composer(name):
    import json

    composer = COMPOSERS[name](ComposerParts(demonstrate=lambda task, seed: make_path(8)))
    done = [end(spec, 1) for spec in composer.begin(specs())]
    composer.observe(composer.finish(done))
    state = json.loads(json.dumps(composer.state_dict()))
    other = COMPOSERS[name](ComposerParts(demonstrate=lambda task, seed: make_path(8)))
    other.load_state_dict(state)
    assert other.state_dict() == composer.state_dict()
    assert other.begin(specs(), 1) == composer.begin(specs(), 1)


def test_a_branch_keeps_the_steps_of_its_parent():
    parent = end(specs()[0], 1, 4)
    own = branch_off(parent, 2, 9)
    assert (len(own.prefix), own.parent, own.copy) == (2, parent.spec.session, 9)
    assert own.root
    assert branch_off(parent, 0, 9).root == ""


class TestPrefixed:
    def make(self, **settings):
        return COMPOSERS["prefixed"](
            ComposerParts(demonstrate=lambda task, seed: make_path(8)), **{"groups": 1.0, **settings}
        )

    def test_three_quarters_of_eight_steps_are_six(self):
        """n = 8, f = 0.75: 6 replayed, 2 left."""
        begun = self.make(shares="0.75").begin(specs())
        assert [len(spec.prefix) for spec in begun] == [6] * 4
        assert len({spec.root for spec in begun}) == 1

    def test_a_full_prefix_never_begins_an_episode(self):
        """It would be over: at least one step is left."""
        assert {len(spec.prefix) for spec in self.make(shares="0.99").begin(specs())} == {7}

    def test_without_a_demonstration_the_group_is_plain(self):
        composer = COMPOSERS["prefixed"](ComposerParts(), groups=1.0)
        assert composer.begin(specs()) == specs()
        assert composer.drain_metrics()["compose/without_prefix"] == 1

    def test_the_share_follows_the_success_nearest_to_a_half(self):
        composer = self.make()
        for outcomes in ((1, 1, 1, 1), (1, 0, 1, 0), (0, 0, 0, 0)):  # at 0.75, 0.5 and 0.25
            begun = composer.begin(specs())
            composer.observe([end(spec, out).rollout for spec, out in zip(begun, outcomes, strict=True)])
        assert composer.choose_share(3) == 0.5

    def test_the_order_of_the_episodes_does_not_matter(self):
        one, other = self.make(), self.make()
        begun = one.begin(specs())
        other.begin(specs())
        done = [end(spec, out).rollout for spec, out in zip(begun, (1, 0, 0, 1), strict=True)]
        one.observe(done)
        other.observe(done[::-1])
        assert one.state_dict() == other.state_dict()

    def test_a_falling_share_reaches_the_plain_task(self):
        composer = self.make(falling=10)
        assert [composer.choose_share(n) for n in (0, 4, 7, 10)] == [0.75, 0.25, 0.0, 0.0]

    def test_some_groups_stay_plain(self):
        composer = self.make(groups=0.5)
        begun = composer.begin(specs(2, seeds=range(40)))
        assert 10 < sum(bool(spec.prefix) for spec in begun) / 2 < 30

    @pytest.mark.parametrize("shares", ["", "0.5, 0.25", "0, 0.5", "1", "half"])
    def test_wrong_shares_are_refused(self, shares):
        with pytest.raises(ConfigError, match="shares is"):
            self.make(shares=shares)
