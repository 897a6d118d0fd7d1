"""Statistics of the steps under one key, and their storage as arrays."""

import zlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardwon.memory.situations.keys import KEYS_VERSION

from .tuning import TUNING

_PRIOR = 2 * TUNING.prior_variance
MADE = f"cells 16 {TUNING.memory} {TUNING.prior_variance} {TUNING.evidence_steps} keys {KEYS_VERSION}"
"""Identifies the parameters that cells depend on; cache files with another value are stale."""
CONDITION = (3, 0.75, 0.4)
"""When a word that notes tell of a thing is a condition of an action: the least number of good steps with the word,
their least share of all good steps, and the least share of bad steps among those without the word."""


@dataclass(slots=True)
class Cell:
    """Statistics of the steps filed under one key."""

    n: int = 0
    mean: float = 0.0
    variance: float = 0.0
    precision: float = 0.0
    """Number of remembered steps over their variance, smoothed by `prior_variance`."""
    bad: int = 0
    """Steps that are evidence against the action."""
    lost: int = 0
    """Bad steps that lost the task."""
    bad_action: str = ""
    several_bad: bool = False
    """Whether different actions failed; with one action, nothing follows for the others."""
    episodes: int = 0
    """Number of episodes with any step."""
    failed: int = 0
    """Number of episodes in which every step was bad. The steps of an episode depend on each other, so an episode is
    one piece of evidence."""
    streak: int = 0
    """Failed episodes since the last one that was not."""
    last_in: int = field(default=0, compare=False)
    """Episode of the last step; this suffices because episodes are filed whole, one after another."""
    steps: list[int] = field(default_factory=list)
    bad_steps: list[int] = field(default_factory=list)
    """The last step of each of the newest failed episodes."""
    total: float = 0.0
    """Sum of the returns of all steps, also of those that the moving mean has left behind."""
    squares: float = 0.0
    """Sum of their squares."""

    def add(
        self, value: float, step_id: int, action: str = "", *, bad: bool = False, lost: bool = False, episode: int = 0
    ) -> None:
        """Add one step."""
        is_new = episode != self.last_in or not self.episodes
        if is_new:
            self.episodes += 1
            self.last_in = episode
        # every key of every step comes here, so a mean and its spread have no function of their own
        n = self.n = self.n + 1
        n = n if n < TUNING.memory else TUNING.memory  # Welford's update, exponential once memory steps are reached
        error = value - self.mean
        mean = self.mean = self.mean + error / n
        variance = self.variance + (error * (value - mean) - self.variance) / n
        self.variance = variance
        self.precision = n * (n + 2) / (variance * n + _PRIOR)
        self.total += value
        self.squares += value * value
        steps = self.steps
        steps.append(step_id)
        if len(steps) > TUNING.evidence_steps:
            del steps[0]
        if bad:
            self.bad += 1
            self.lost += lost
            self.several_bad |= self.bad_action not in ("", action)
            self.bad_action = action
        if bad or self.streak:
            self._count_episode(step_id, bad, is_new)

    def add_best(self, value: float, step_id: int, episode: int) -> None:
        """Add one step to a cell whose mean is the best return of its steps."""
        best = max(self.mean, value) if self.n else value
        self.add(value, step_id, episode=episode)
        self.mean = best

    def _count_episode(self, step_id: int, bad: bool, is_new: bool) -> None:
        """Count the episode of a step as failed for as long as each of its steps is bad."""
        is_failed = self.streak > 0 and not is_new
        if bad and is_new:
            self.failed += 1
            self.streak += 1
            self.bad_steps.append(step_id)
            del self.bad_steps[: -TUNING.evidence_steps]
        elif bad and is_failed:
            self.bad_steps[-1] = step_id
        elif not bad:
            self.failed -= is_failed
            self.streak = 0
            if is_failed:
                self.bad_steps.pop()


def compute_precision(n: int, variance: float) -> float:
    """Return the number of steps over their variance, which has two prior steps of `prior_variance`, so never 0."""
    return n * (n + 2) / (variance * n + _PRIOR)


def leave_out(of_action: Cell, word: Cell) -> Cell | None:
    """Return the steps without a word if it is a condition of the action; see `CONDITION`."""
    least, share, missing = CONDITION
    if word.n - word.bad < max(least, share * (of_action.n - of_action.bad)):
        return None
    rest, bad = of_action.n - word.n, of_action.bad - word.bad
    if rest <= 0 or bad < missing * rest:
        return None
    # The moving means of two keys are about different steps, so only sums can be subtracted.
    mean = (of_action.total - word.total) / rest
    variance = max(0.0, (of_action.squares - word.squares) / rest - mean * mean)
    precision = compute_precision(min(rest, TUNING.memory), variance)
    steps = [step for step in of_action.steps if step not in word.steps]
    lost = of_action.lost - word.lost
    return Cell(rest, min(mean, of_action.mean), precision=precision, bad=bad, lost=lost, steps=steps)


def rank_rest(rest: Cell) -> tuple[float, ...]:
    """Return the rank of steps without a word, the same in every process, whatever the order of a set is there."""
    return rest.bad / rest.n, -rest.n, rest.mean, rest.lost


_NUMBERS: Mapping[str, type] = {
    "n": np.int64,
    "mean": np.float64,
    "variance": np.float64,
    "precision": np.float64,
    "bad": np.int64,
    "lost": np.int64,
    "several_bad": np.bool_,
    "episodes": np.int64,
    "failed": np.int64,
    "streak": np.int64,
    "total": np.float64,
    "squares": np.float64,
}
_TEXTS = ("key", "bad_action")
_STEPS = ("steps", "bad_steps")
_ODD = "surrogatepass"
"""Error handler of the text codec: lone surrogates from broken input must not fail."""


class StoredCells:
    """Cells stored as arrays, sorted by the checksums of their keys for binary search."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = arrays
        # A memoryview yields plain integers, which `bisect` compares faster than numpy scalars.
        self._sums: memoryview[int] = memoryview(arrays["sum"].data)

    @staticmethod
    def arrays(cells: Mapping[str, Cell]) -> dict[str, NDArray[Any]]:
        """Return the arrays that represent cells in a file."""
        ordered = sorted((zlib.crc32(_encoded(key)), key) for key in cells)
        values = [cells[key] for _, key in ordered]
        arrays: dict[str, NDArray[Any]] = {"sum": np.array([number for number, _ in ordered], dtype=np.uint32)}
        for name, dtype in _NUMBERS.items():
            arrays[name] = np.array([getattr(cell, name) for cell in values], dtype=dtype)
        for name, texts in zip(
            _TEXTS, ([key for _, key in ordered], [cell.bad_action for cell in values]), strict=True
        ):
            encoded = [text.encode() for text in texts]
            arrays[name] = np.frombuffer(b"".join(encoded), dtype=np.uint8)
            arrays[f"{name}_at"] = _starts(encoded)
        for name in _STEPS:
            lists = [getattr(cell, name) for cell in values]
            arrays[name] = np.array(list(chain.from_iterable(lists)), dtype=np.int64)
            arrays[f"{name}_at"] = _starts(lists)
        return arrays

    def __len__(self) -> int:
        return len(self._sums)

    def find(self, key: str) -> Cell | None:
        """Return the cell of a key, or None; every call decodes a new cell."""
        encoded = _encoded(key)
        number = zlib.crc32(encoded)
        at = bisect_left(self._sums, number)
        while at < len(self._sums) and self._sums[at] == number:
            if self._part("key", at).tobytes() == encoded:  # checksums can collide
                return self._cell(at)
            at += 1
        return None

    def list_keys(self, part: str) -> list[str]:
        """Return the keys of all cells, without decoding these, or none if no key contains a text."""
        return self._texts("key") if part.encode() in self._arrays["key"].tobytes() else []

    def all(self) -> dict[str, Cell]:
        """Return all cells by key."""
        arrays = self._arrays
        numbers = zip(*(arrays[name].tolist() for name in _NUMBERS), strict=True)
        keys, actions = (self._texts(name) for name in _TEXTS)
        steps, bad_steps = (self._lists(name) for name in _STEPS)
        return {
            key: _cell(figures, action, step_ids, bad_ids)
            for key, figures, action, step_ids, bad_ids in zip(keys, numbers, actions, steps, bad_steps, strict=True)
        }

    def _cell(self, at: int) -> Cell:
        figures = [self._arrays[name][at].item() for name in _NUMBERS]
        action = self._part("bad_action", at).tobytes().decode(errors=_ODD)
        return _cell(figures, action, self._part("steps", at).tolist(), self._part("bad_steps", at).tolist())

    def _part(self, name: str, at: int) -> NDArray[Any]:
        starts = self._arrays[f"{name}_at"]
        part: NDArray[Any] = self._arrays[name][starts[at] : starts[at + 1]]
        return part

    def _texts(self, name: str) -> list[str]:
        content, starts = self._arrays[name].tobytes(), self._arrays[f"{name}_at"].tolist()
        return [content[begin:end].decode(errors=_ODD) for begin, end in pairwise(starts)]

    def _lists(self, name: str) -> list[list[int]]:
        content, starts = self._arrays[name].tolist(), self._arrays[f"{name}_at"].tolist()
        return [content[begin:end] for begin, end in pairwise(starts)]


def _cell(figures: Sequence[Any], action: str, steps: list[int], bad_steps: list[int]) -> Cell:
    """Build a cell from its decoded columns."""
    named = dict(zip(_NUMBERS, figures, strict=True))
    return Cell(**named, bad_action=action, steps=steps, bad_steps=bad_steps)


def _encoded(text: str) -> bytes:
    return text.encode(errors=_ODD)


def _starts(parts: Sequence[Sequence[Any]]) -> NDArray[np.int64]:
    """Return the offset of each part in their concatenation, and the total length, (n + 1,) int64."""
    return np.array([0, *accumulate(map(len, parts))], dtype=np.int64)


def weigh_part(own: tuple[int, int, float], kind: tuple[int, int, float, float]) -> float:
    """Return how far a part of some values counts apart from the rest, in [0, 1].

        f = max(0, 1 - doubt_of_thing s^2 / d^2),   s^2 = v (1 / n + 1 / m)

    d is the difference between the mean of the part and that of the rest, and v the variance within both, with a prior
    of two episodes of the variance of all. n and m are numbers of episodes, because the values of one episode depend on
    each other. This is the positive-part estimator of James and Stein (1961) with a larger constant. It leaves a
    difference out that chance explains: most names and numbers, such as those of drawers, tell nothing.

    Args:
        own: Number of values of the part, number of its episodes, and sum of its values.
        kind: The same of all values, and the sum of their squares.
    """
    (of_part, n, part), (count, episodes, total, squares) = own, kind
    of_rest, rest = count - of_part, total - part
    m = of_rest * episodes / count  # an episode may have steps of both
    if min(n, m) < TUNING.min_episodes_of_thing:
        return 0.0
    squared_difference = (part / of_part - rest / of_rest) ** 2
    if not squared_difference:
        return 0.0
    within = max(0.0, squares - part * part / of_part - rest * rest / of_rest) / count
    spread = max(0.0, squares - total * total / count) / count
    variance = within + 2 * spread / (n + m)
    return max(0.0, 1.0 - TUNING.doubt_of_thing * variance * (1 / n + 1 / m) / squared_difference)
