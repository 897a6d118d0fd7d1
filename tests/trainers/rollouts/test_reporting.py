"""An environment that notes what its steps report is still the environment that it wraps."""

import inspect

from hardwon.runtime.interfaces.types import Described, Environment
from hardwon.trainers.rollouts.reporting import Reporting


def test_the_protocols_of_the_environment_are_seen_without_getattr(rooms):
    """As `isinstance` looks from Python 3.12 on."""

    world = rooms()
    world.describe = lambda: "Go east."
    told, plain = Reporting(world), Reporting(rooms())
    assert inspect.getattr_static(told, "describe")() == "Go east."
    assert isinstance(told, Described)
    assert isinstance(plain, Environment)
    assert not isinstance(plain, Described)
    assert all(inspect.getattr_static(plain, name, None) for name in ("reset", "admissible", "close", "name"))


def test_what_was_reported_is_noted_for_all_clones(rooms):
    world = Reporting(rooms())
    clone = world.clone()
    clone.reset()
    clone.step("go east")
    assert world.reported.steps == 1
    assert world.reported.names == {"success", "score"}
