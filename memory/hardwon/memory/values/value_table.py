"""What past steps say about an action: mean returns under keys from general to special.

A derived index: rebuilt from the library's steps at any time, in the order of their ids, so that
the same steps give the same numbers in any process. A large table is kept as arrays in a file (see
`storage.cache_files`): opened, a cell is made when it is first asked for, to the same numbers bit by bit.
"""

import zlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardwon.memory.records import Estimate
from hardwon.memory.situations.keys import CONTEXT_KEY, KEYS_VERSION

MEMORY = 50
"""Steps a mean remembers: older ones fade, so that returns of a weaker policy do not linger."""
GENERALITY = 0.6
"""What a key weighs against the next more special one, at equal evidence."""
SPREAD = 0.02
"""Variance that two imagined steps bring to every key, so that two equal returns prove little."""
SAMPLES = 8
"""Step ids kept as evidence for a key."""
ABSENT = 16_384
"""Keys of which it is remembered that nothing is stored under them: some 3 MB at most."""
MADE = f"cells 4 {MEMORY} {SPREAD} {SAMPLES} keys {KEYS_VERSION}"
"""What the numbers of a cell depend on, for files that hold some."""


@dataclass(slots=True)
class Cell:
    """The steps filed under one key."""

    n: int = 0
    mean: float = 0.0
    variance: float = 0.0
    precision: float = 0.0
    """Remembered steps over their variance, smoothed by SPREAD: how firmly the mean is known."""
    bad: int = 0
    lost: int = 0
    """Of the bad ones, those that lost the task."""
    bad_action: str = ""
    several_bad: bool = False
    """Whether different actions failed: what one of them did says nothing of the others."""
    streak: int = 0
    """Of the bad ones, those since the last good one."""
    bad_episodes: int = 0
    """Episodes that the bad ones are of."""
    bad_in: int = field(default=0, compare=False)
    """The episode of the last bad one; episodes are filed whole, one after the other."""
    steps: list[int] = field(default_factory=list)
    bad_steps: list[int] = field(default_factory=list)

    def add(
        self, value: float, step_id: int, action: str = "", *, bad: bool = False, lost: bool = False, episode: int = 0
    ) -> None:
        self.n += 1
        remembered = min(self.n, MEMORY)
        error = value - self.mean
        self.mean += error / remembered
        self.variance += (error * (value - self.mean) - self.variance) / remembered
        self.precision = remembered * (remembered + 2) / (self.variance * remembered + 2 * SPREAD)
        self.steps.append(step_id)
        del self.steps[:-SAMPLES]
        self.streak = self.streak + 1 if bad else 0
        if bad:
            self.bad += 1
            self.bad_episodes += not self.bad_episodes or episode != self.bad_in
            self.bad_in = episode
            self.lost += lost
            self.several_bad |= self.bad_action not in ("", action)
            self.bad_action = action
            self.bad_steps.append(step_id)
            del self.bad_steps[:-SAMPLES]


_NUMBERS: Mapping[str, type] = {
    "n": np.int64,
    "mean": np.float64,
    "variance": np.float64,
    "precision": np.float64,
    "bad": np.int64,
    "lost": np.int64,
    "several_bad": np.bool_,
    "streak": np.int64,
    "bad_episodes": np.int64,
}
_TEXTS = ("key", "bad_action")
_STEPS = ("steps", "bad_steps")
_ODD = "surrogatepass"
"""Half a surrogate pair is no reason to fail."""


class StoredCells:
    """Cells as arrays, in the order of their keys' checksums, by which they are found."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = arrays
        self._sums: memoryview[int] = memoryview(arrays["sum"].data)

    @staticmethod
    def arrays(cells: Mapping[str, Cell]) -> dict[str, NDArray[Any]]:
        """What cells look like in a file."""
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
        """The cell of a key, made anew at every call."""
        encoded = _encoded(key)
        number = zlib.crc32(encoded)
        at = bisect_left(self._sums, number)
        while at < len(self._sums) and self._sums[at] == number:
            if self._part("key", at).tobytes() == encoded:
                return self._cell(at)
            at += 1
        return None

    def all(self) -> dict[str, Cell]:
        """Every cell."""
        arrays = self._arrays
        numbers = zip(*(arrays[name].tolist() for name in _NUMBERS), strict=True)
        keys, actions = (self._texts(name) for name in _TEXTS)
        steps, bad_steps = (self._lists(name) for name in _STEPS)
        return {
            key: _cell(figures, action, some, bad)
            for key, figures, action, some, bad in zip(keys, numbers, actions, steps, bad_steps, strict=True)
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
    n, mean, variance, precision, bad, lost, several_bad, streak, bad_episodes = figures
    return Cell(n, mean, variance, precision, bad, lost, action, several_bad, streak, bad_episodes, 0, steps, bad_steps)


def _encoded(text: str) -> bytes:
    return text.encode(errors=_ODD)


def _starts(parts: Sequence[Sequence[Any]]) -> NDArray[np.int64]:
    """Where each part begins, and where the last one ends."""
    return np.array([0, *accumulate(map(len, parts))], dtype=np.int64)


class ValueTable:
    """Mean discounted return and failures of past steps, by key."""

    def __init__(self, stored: StoredCells | None = None) -> None:
        self._cells: dict[str, Cell] = {}
        self._stored = stored
        self._absent: set[str] = set()
        """Keys that were asked for and are not stored: most keys of an action are of no step."""
        self._touched: dict[str, None] | None = None if stored else {}

    @property
    def cells(self) -> dict[str, Cell]:
        """Every cell, by its key."""
        if self._stored is not None:
            self._cells = {**self._stored.all(), **self._cells}
            self._stored = None
        return self._cells

    @property
    def touched(self) -> dict[str, None]:
        """Keys that got steps since evolution last looked, in order; after opening, all."""
        if self._touched is None:
            self._touched = dict.fromkeys(self.cells)
        return self._touched

    def cell(self, key: str) -> Cell | None:
        """The steps filed under a key, if there are any."""
        found = self._cells.get(key)
        if found is None and self._stored is not None and key not in self._absent:
            found = self._stored.find(key)
            if found is not None:
                self._cells[key] = found
            else:
                if len(self._absent) >= ABSENT:
                    self._absent.clear()
                self._absent.add(key)
        return found

    def add(
        self,
        keys: Iterable[str],
        value: float,
        step_id: int,
        *,
        action: str = "",
        bad: bool = False,
        lost: bool = False,
        episode: int = 0,
    ) -> None:
        """File one step under all its keys; `episode` is any number that the steps of one episode share."""
        for key in keys:
            cell = self.cell(key)
            if cell is None:
                cell = self._cells[key] = Cell()
            cell.add(value, step_id, action, bad=bad, lost=lost, episode=episode)
            if self._touched is not None:
                self._touched[key] = None

    def estimate(self, keys: Sequence[str], context: str = "") -> Estimate:
        """The value of an action with these keys, most general first.

            v = sum_k w_k m_k / sum_k w_k,   w_k = GENERALITY^(K - k) n_k / variance_k

        A key whose past returns agree speaks louder than one whose returns scatter; a key without
        steps says nothing. No key known: value 0.
        """
        total = weight = 0.0
        special = Cell()
        known = ""
        for key in keys:
            cell = self.cell(key)
            if cell is not None:
                total = GENERALITY * total + cell.precision * cell.mean
                weight = GENERALITY * weight + cell.precision
                special, known = cell, key
        familiar = self.cell(keys[CONTEXT_KEY]) if len(keys) > CONTEXT_KEY else None
        value = total / weight if weight else 0.0
        return Estimate(value, special.n, known, familiar.n if familiar else 0, tuple(special.steps), context)
