"""Schedules: settings that change at given iterations of a run, in steps and without interpolation.

    schedule: {environment.max_steps: [[0, 6], [100, 13], [200, 20]]}

A value is a function of the iteration alone, so a resumed run needs no state.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hardwon.memory.errors import ConfigError

from .parsing import nearest

SCHEDULED = ("environment.max_steps", "run.temperature", "roles.policy.loss.entropy")
"""Paths of the settings that can have a schedule."""


def look_up(entries: Sequence[Sequence[float]], iteration: int) -> float:
    """Return the value of the last entry that begins at or before an iteration."""
    return [value for begin, value in entries if begin <= iteration][-1]


def check_schedule(schedule: Mapping[str, Any]) -> None:
    """Check that every schedule is a list of rising iterations from 0 on, with numbers."""
    for path, entries in schedule.items():
        if path not in SCHEDULED:
            raise ConfigError(f"schedule.{path} is no setting: {nearest(path, SCHEDULED)}")
        is_list = isinstance(entries, Sequence) and not isinstance(entries, str)
        pairs = [tuple(entry) for entry in entries if isinstance(entry, Sequence)] if is_list else []
        numbers = all(len(pair) == 2 and all(isinstance(n, int | float) for n in pair) for pair in pairs)
        begins = [pair[0] for pair in pairs]
        if not pairs or len(pairs) != len(entries) or not numbers or begins != sorted({*begins}) or begins[0] != 0:
            raise ConfigError(
                f"schedule.{path} is {entries!r}; give pairs of an iteration and a value, the first at iteration 0, "
                "such as [[0, 6], [100, 13]]."
            )
