"""Budgets: how many steps an episode may take.

A number is a `StepLimit`. `LearnedBudget` ends an episode where most successes of the library had ended, and extends it
once if the last steps made progress.
"""

import math
from collections import defaultdict
from collections.abc import Sequence

from hardwon.memory import ExperienceLibrary, State, Step
from hardwon.memory.errors import ConfigError
from hardwon.runtime.interfaces.extension import Budget
from hardwon.runtime.interfaces.methods import METHODS

from .episode_tally import EpisodeRow, EpisodeTally
from .tuning import TUNING


class StepLimit:
    """A fixed number of steps, which the policy is not told."""

    def __init__(self, steps: int) -> None:
        """Create a budget."""
        if steps < 1:
            raise ConfigError(f"max_steps is {steps}; an episode needs at least 1.")
        self._steps = steps

    def limit(self, steps: Sequence[Step], state: State) -> int:
        """Return the number of steps."""
        return self._steps

    def describe(self, steps: Sequence[Step], state: State) -> str:
        """Return nothing."""
        return ""


@METHODS.add(
    "More with less (dynamic turn limits)",
    "arXiv:2510.16786",
    evidence="A P",
    reach="`Agent(..., max_steps=LearnedBudget(library))`, `--budget learned`",
    reading="percentiles of successes only; one extension by half, granted for progress without a loop",
)
class LearnedBudget:
    """The steps that most successes took, with one extension for an episode that makes progress."""

    def __init__(
        self, library: ExperienceLibrary, *, most: int = 50, percentile: int = 75, extension: float = 0.5
    ) -> None:
        """Create a budget.

        Args:
            library: Its successes set the limit; failures end at a limit, so they would drive it up.
            most: The number of steps that is never exceeded, and that holds while there are few successes.
            percentile: Percentage of the successes that ended within the limit.
            extension: Share of the limit that is added once.

        Raises:
            ConfigError: A number is out of range.
        """
        if most < 1 or not 0 < percentile <= 100 or extension < 0:
            raise ConfigError(
                f"most is {most}, percentile is {percentile} and extension is {extension}; "
                "use at least 1, a percentage above 0, and 0 or more."
            )
        self._most, self._percentile, self._extension = most, percentile, extension
        self._lengths = EpisodeTally(library, lambda: defaultdict[str, list[int]](list), _add_length)

    def limit(self, steps: Sequence[Step], state: State) -> int:
        """Return the limit now; it is extended once it is reached, if the last steps made progress."""
        first = self._find_first(state.task)
        if len(steps) < first or not _makes_progress(steps[max(0, first - TUNING.progress_steps) : first]):
            return min(first, self._most)
        return min(first + math.ceil(self._extension * first), self._most)

    def describe(self, steps: Sequence[Step], state: State) -> str:
        """Return how many steps are used and left."""
        left = self.limit(steps, state) - len(steps)
        return f"{len(steps)} steps used, {left} left"

    def _find_first(self, task: str) -> int:
        """Return the limit without an extension: of the successes of this task, or else of all."""
        lengths = self._lengths.read()
        for which in (task, ""):
            if len(ends := lengths.get(which, ())) >= TUNING.min_successes:
                return compute_percentile(ends, self._percentile)
        return self._most


def _add_length(lengths: dict[str, list[int]], row: EpisodeRow) -> None:
    """Add the length of a success to those of its task, and to those of all tasks under the empty name."""
    if row["success"]:
        for which in ("", row["task"]):
            lengths[which].append(row["n_steps"])


def compute_percentile(lengths: Sequence[int], percentile: float) -> int:
    """Return the nearest-rank percentile: the smallest length that so many percent do not exceed."""
    return sorted(lengths)[max(0, math.ceil(percentile / 100 * len(lengths)) - 1)]


def _makes_progress(steps: Sequence[Step]) -> bool:
    """Return whether some of the last steps brought something, and none of them was part of a loop."""
    is_stuck = any(step.diagnosis.loop or step.diagnosis.stagnant for step in steps)
    return bool(steps) and not is_stuck and any(step.diagnosis.progress > 0 or step.reward > 0 for step in steps)


def as_budget(max_steps: "int | Budget") -> Budget:
    """Return a budget for a number of steps or a budget."""
    return StepLimit(max_steps) if isinstance(max_steps, int) else max_steps
