"""Changes of the world: forms of action that stopped to bring what they brought.

A step that ends its episode *fails* if its return is at most half of what such steps of its form brought on average. A
form has changed when a run of s failures, at least min_failures_of_change, has a probability below `chance_of_change`
after f failures in n episodes before it, by the rule of succession (Laplace 1774):

    (f + 1) / (n + 2) * (f + 2) / (n + 3) * ... * (f + s) / (n + s + 1)

So a form that worked once does not count as one that always works. A failure where the closest description of the step
failed before does not count: that is another situation. What was filed under the form before the change no longer
counts. This asks the few forms that end episodes, not each of thousands of keys, so false alarms are rare. Only
falls count: the moving means find what improves.
"""

from collections.abc import Callable
from math import prod

from .cells import Cell
from .tuning import TUNING

_ENDS = "^ends "
_SINCE = "^since "


class FormChanges:
    """The changes of the forms of action in one table of values."""

    def __init__(self, find: Callable[[str], Cell | None], create: Callable[[str], Cell]) -> None:
        """Keep the counts in cells that `find` returns, and that `create` adds to the table."""
        self._find = find
        self._create = create

    def find_last(self, form: str, prefix: str = "") -> int:
        """Return the step that showed the last change of a form, "" for any; 0 if there was none."""
        cell = self._find(f"{prefix}{_SINCE}")
        if cell is not None and form:
            cell = self._find(f"{prefix}{_SINCE}{form}")
        return cell.steps[-1] if cell is not None else 0

    def add(self, form: str, value: float, expected: float, step_id: int, episode: int, prefix: str = "") -> None:
        """Add the return of a step that ended an episode, given the mean under its closest description."""
        name = f"{prefix}{_ENDS}{form}"
        cell = self._find(name) or self._create(name)
        is_low = value <= max(0.0, cell.mean / 2)
        if is_low and expected <= cell.mean / 2:  # such steps failed before: this is another situation, no change
            return
        cell.add(value, step_id, bad=is_low, episode=episode)
        before, worked = cell.episodes - cell.streak, cell.episodes - cell.failed
        if cell.streak < TUNING.min_failures_of_change:
            return
        if prod((before - worked + 1 + i) / (before + 2 + i) for i in range(cell.streak)) < TUNING.chance_of_change:
            for changed in (form, ""):
                self._create(f"{prefix}{_SINCE}{changed}").steps.append(step_id)
            self._create(name)
