"""Mean returns and failures of past steps by key, from general keys to specific ones.

The table is a derived index. It can be rebuilt from the library's steps at any time; they are added in the order of
their ids, so every process gets the same numbers. A large table is stored as arrays in a cache file (see
`storage.cache_files`). Each cell is decoded on first access, bit for bit the same.
"""

import zlib
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardwon.memory.records import Estimate
from hardwon.memory.situations.keys import CONTEXT_KEY, KEYS_VERSION, NOTHING_TOLD, TOLD

MEMORY = 50
"""Number of steps in the moving mean; older steps fade, so returns of a weaker policy do not linger."""
GENERALITY = 0.6
"""Weight of a key relative to the next more specific one, at equal evidence."""
SPREAD = 0.02
"""Prior variance of every key, worth two steps, so that two equal returns do not count as certain."""
SAMPLES = 8
"""Step ids kept as evidence for a key."""
CONDITION = (3, 0.75, 0.4)
"""When a word that notes tell of a thing is a condition of an action: the least number of good steps with the word,
their least share of all good steps, and the least share of bad steps among those without the word."""
ABSENT = 16_384
"""Keys remembered as absent from the stored table; at most about 3 MB."""
MADE = f"cells 6 {MEMORY} {SPREAD} {SAMPLES} keys {KEYS_VERSION}"
"""Identifies the parameters that cells depend on; cache files with another value are stale."""


@dataclass(slots=True)
class Cell:
    """Statistics of the steps filed under one key."""

    n: int = 0
    mean: float = 0.0
    variance: float = 0.0
    precision: float = 0.0
    """Number of remembered steps over their variance, smoothed by SPREAD."""
    bad: int = 0
    """Steps that are evidence against the action."""
    lost: int = 0
    """Bad steps that lost the task."""
    bad_action: str = ""
    several_bad: bool = False
    """Whether different actions failed; with one action, nothing follows for the others."""
    streak: int = 0
    """Bad steps since the last good one."""
    bad_episodes: int = 0
    """Number of episodes with bad steps."""
    bad_in: int = field(default=0, compare=False)
    """Episode of the last bad step; this suffices because episodes are filed whole, one after another."""
    steps: list[int] = field(default_factory=list)
    bad_steps: list[int] = field(default_factory=list)

    def add(
        self, value: float, step_id: int, action: str = "", *, bad: bool = False, lost: bool = False, episode: int = 0
    ) -> None:
        """Add one step.

        Args:
            value: Discounted return of the step.
            step_id: Id of the step.
            action: The action, to recognize whether different actions failed.
            bad: Whether the step is evidence against the action.
            lost: Whether the step lost the task.
            episode: A number that all steps of one episode share.
        """
        self.n += 1
        remembered = min(self.n, MEMORY)  # Welford's update, exponential once MEMORY steps are reached
        error = value - self.mean
        self.mean += error / remembered
        self.variance += (error * (value - self.mean) - self.variance) / remembered
        # The variance includes two prior steps of SPREAD, so the denominator is never 0.
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
    n, mean, variance, precision, bad, lost, several_bad, streak, bad_episodes = figures
    return Cell(n, mean, variance, precision, bad, lost, action, several_bad, streak, bad_episodes, 0, steps, bad_steps)


def _rank_rest(rest: Cell) -> tuple[float, ...]:
    """Return the rank of steps without a word, the same in every process, whatever the order of a set is there."""
    return rest.bad / rest.n, -rest.n, rest.mean, rest.lost


def _encoded(text: str) -> bytes:
    return text.encode(errors=_ODD)


def _starts(parts: Sequence[Sequence[Any]]) -> NDArray[np.int64]:
    """Return the offset of each part in their concatenation, and the total length, (n + 1,) int64."""
    return np.array([0, *accumulate(map(len, parts))], dtype=np.int64)


class ValueTable:
    """Mean discounted returns and failures of past steps, by key."""

    def __init__(self, stored: StoredCells | None = None) -> None:
        self._cells: dict[str, Cell] = {}
        self._stored = stored
        self._absent: set[str] = set()
        """Looked-up keys that are not stored; most keys of an action have no steps."""
        self._note_keys: dict[str, set[str]] | None = None if stored else {}
        """By the key of an action that notes are about: the keys of the words that they told; None if not listed."""
        # None stands for all keys: listing them here would decode the whole stored table.
        self._touched: dict[str, None] | None = None if stored else {}

    @property
    def cells(self) -> dict[str, Cell]:
        """Return all cells by key; this decodes the whole stored table."""
        if self._stored is not None:
            # Cells in memory win: they may have got steps since they were decoded.
            self._cells = {**self._stored.all(), **self._cells}
            self._stored = None
        return self._cells

    @property
    def touched(self) -> dict[str, None]:
        """Return the keys with new steps since evolution last ran, in order; after loading, all keys."""
        if self._touched is None:
            self._touched = dict.fromkeys(self.cells)
        return self._touched

    def touch_only(self, keys: Iterable[str]) -> None:
        """Set the keys with new steps since evolution last ran, because an earlier process has read the others."""
        self._touched = dict.fromkeys(sorted(keys))

    def cell(self, key: str) -> Cell | None:
        """Return the cell of a key, or None."""
        cell = self._cells.get(key)
        if cell is None and self._stored is not None and key not in self._absent:
            cell = self._stored.find(key)
            if cell is not None:
                self._cells[key] = cell
            else:
                if len(self._absent) >= ABSENT:
                    self._absent.clear()
                self._absent.add(key)
        return cell

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
        """File one step under all its keys.

        Args:
            keys: The keys of the step.
            value: Discounted return of the step.
            step_id: Id of the step.
            action: The action, to recognize whether different actions failed.
            bad: Whether the step is evidence against the action.
            lost: Whether the step lost the task.
            episode: A number that all steps of one episode share.
        """
        for key in keys:
            cell = self.cell(key)
            if cell is None:
                cell = self._cells[key] = Cell()
                self._list_word(key)
            cell.add(value, step_id, action, bad=bad, lost=lost, episode=episode)
            if self._touched is not None:
                self._touched[key] = None

    @property
    def note_keys(self) -> dict[str, set[str]]:
        """Return, by the key of an action that notes are about, the keys of the words that they told of it."""
        if self._note_keys is None:
            self._note_keys = {}
            for key in chain(self._stored.list_keys(TOLD) if self._stored is not None else (), self._cells):
                self._list_word(key)
        return self._note_keys

    def _list_word(self, key: str) -> None:
        """List a new key if it is that of a word of the notes."""
        action, _, word = key.rpartition(" | ")
        if self._note_keys is not None and word[:1].isdigit() and ":" not in word:
            self._note_keys.setdefault(action + TOLD, set()).add(key)

    def _find_lacking(self, action: str, keys: Collection[str]) -> Cell | None:
        """Return the steps without a word that is a condition of the action, if the notes do not tell it now.

        The words that go with a reward are not all its reason: something that is told to be cut and fried is rewarded
        for frying because of the word `fry`. Told only to be cut, it must not be fried.

        Args:
            action: The key of all steps with the action of which the notes tell something.
            keys: The keys of the action in the current state.
        """
        of_action = self.cell(action)
        if of_action is None or not of_action.bad:
            return None
        parts = (self._leave_out(of_action, key) for key in self.note_keys.get(action, ()) if key not in keys)
        return max(filter(None, parts), key=_rank_rest, default=None)

    def _leave_out(self, of_action: Cell, key: str) -> Cell | None:
        """Return the steps without a word if it is a condition of the action; see `CONDITION`."""
        word = self.cell(key)
        least, share, missing = CONDITION
        if word is None or word.n - word.bad < max(least, share * (of_action.n - of_action.bad)):
            return None
        rest, bad = of_action.n - word.n, of_action.bad - word.bad
        if not rest or bad < missing * rest:
            return None
        mean = min(of_action.mean, (of_action.n * of_action.mean - word.n * word.mean) / rest)
        precision, lost = rest * (rest + 2) / (2 * SPREAD), of_action.lost - word.lost
        return Cell(rest, mean, precision=precision, bad=bad, lost=lost, steps=of_action.steps)

    def _find_untold(self, keys: Sequence[str], prefix: str) -> Cell | None:
        """Return the steps without a condition that notes tell, for an action in a state that has no notes yet."""
        if len(keys) <= CONTEXT_KEY or not keys[CONTEXT_KEY].endswith(NOTHING_TOLD):
            return None
        for action in dict.fromkeys(key.partition(" | ")[0] for key in reversed(keys[CONTEXT_KEY:])):
            if (lacking := self._find_lacking(f"{prefix}{action}{TOLD}", ())) is not None:
                return lacking
        return None

    def estimate(self, keys: Sequence[str], context: str = "", *, prefix: str = "") -> Estimate:
        """Estimate the value of an action by a weighted mean over its keys.

            v = sum_k w_k m_k / sum_k w_k,   w_k = GENERALITY^(K - k) n_k / variance_k

        The probability of losing the task backs off from each key to the more general ones, as if these were one step:

            p_k = (lost_k + p_(k - 1)) / (n_k + 1),   p_0 = 0

        A key with consistent returns weighs more than a key with scattered ones, and a key without steps has no weight.
        If the notes lack a word that is a condition of the action, the steps that lacked it count instead of those that
        share other words; see `_find_lacking`. The common key of all steps of which notes told something counts only
        then: it pools what notes told of other things.

        Args:
            keys: The keys of the action, the most general first.
            context: The context of the action, copied into the estimate.
            prefix: Text before each key in this table; the estimate names its key without it.

        Returns:
            The estimate; its value is 0 if no key has steps.
        """
        total = weight = lost = 0.0
        most_specific = None
        key_of_cell = ""
        tried = 0
        # Every action of every step comes here: read cells are looked up without a call.
        read, find = self._cells.get, self.cell if self._stored is not None else None
        left_out: Collection[str] = ()
        for at, key in enumerate(keys):
            cell = read(prefix + key)
            if cell is None and (find is None or (cell := find(prefix + key)) is None):
                continue
            if key in left_out:
                continue
            if key.endswith(TOLD):
                if (lacking := self._find_lacking(prefix + key, [prefix + other for other in keys])) is None:
                    continue
                cell, left_out = lacking, {word.removeprefix(prefix) for word in self.note_keys[prefix + key]}
            precision = cell.precision
            # Horner's scheme: every more specific key with steps reduces the weight of the earlier ones.
            total = GENERALITY * total + precision * cell.mean
            weight = GENERALITY * weight + precision
            lost = (cell.lost + lost) / (cell.n + 1)
            most_specific, key_of_cell = cell, key
            if at == CONTEXT_KEY:
                tried = cell.n
        if self.note_keys and (lacking := self._find_untold(keys, prefix)) is not None:
            total = GENERALITY * total + lacking.precision * lacking.mean
            weight = GENERALITY * weight + lacking.precision
            lost = (lacking.lost + lost) / (lacking.n + 1)
        if most_specific is None:
            return Estimate(0.0, context=context)
        value = total / weight if weight else 0.0
        return Estimate(value, most_specific.n, key_of_cell, tried, tuple(most_specific.steps), context, lost)
