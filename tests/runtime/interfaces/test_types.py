from typing import Any

from hardwon.memory import Reasons, State
from hardwon.runtime.environments.babyai import BabyAI
from hardwon.runtime.environments.textworld import TextWorldExpress
from hardwon.runtime.environments.timeout import Watched
from hardwon.runtime.interfaces.extension import Imagined
from hardwon.runtime.interfaces.types import Decision, Environment, Policy, Resumable
from hardwon.runtime.interfaces.usage import ModelUsage
from hardwon.runtime.policies.episodic import EpisodicPolicy, RandomPolicy


def test_costs_add_up():
    """Tokens, money and calls of an episode's decisions."""
    assert ModelUsage(1, 2, 0.5, 1) + ModelUsage(10, 20, 0.25, 1) == ModelUsage(11, 22, 0.75, 2)
    assert ModelUsage() + ModelUsage() == ModelUsage()


def test_worlds_are_environments(rooms):
    """Built in or of ten lines, watched or not; none is taken for resumable by mistake."""
    for environment in (rooms(), Watched(rooms())):
        assert isinstance(environment, Environment)
        assert not isinstance(environment, Resumable)
    for kind in (TextWorldExpress, BabyAI):
        assert all(hasattr(kind, name) for name in ("reset", "step", "admissible", "clone", "close"))


def test_policies_are_policies(script):
    """Built in or of ten lines."""
    for policy in (EpisodicPolicy(), RandomPolicy(), script("wait")):
        assert isinstance(policy, Policy)


def test_what_is_none_is_none():
    """An object without the methods is neither."""
    assert not isinstance(object(), Environment)
    assert not isinstance(object(), Policy)


def test_the_reasons_of_a_decision_are_reasons_however_they_are_given():
    given = Reasons(planned=True)
    plain: Any = {"planned": True}
    assert Decision("wait", given).why is given
    assert Decision("wait", plain).why == given
    assert type(Decision("wait", plain).why) is Reasons


def test_what_is_imagined_is_not_over_unless_it_says_so():
    assert not Imagined(State("now")).done
