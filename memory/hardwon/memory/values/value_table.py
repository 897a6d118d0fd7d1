"""Mean returns and failures of past steps by key, from general keys to specific ones.

The table is a derived index. It can be rebuilt from the library's steps at any time; they are added in the order of
their ids, so every process gets the same numbers. A large table is stored as arrays in a cache file (see
`storage.cache_files`). Each cell is decoded on first access, bit for bit the same.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from math import log

from hardwon.memory.records import Estimate
from hardwon.memory.situations.actions import parse_action
from hardwon.memory.situations.keys import CONTEXT_KEY, GUARD_MARK, NOTHING_TOLD, TOLD
from hardwon.memory.situations.note_keys import find_told_action
from hardwon.memory.situations.refinements import BEST, REFINED

from .cells import Cell, StoredCells, leave_out, rank_rest
from .gains import Gains
from .tuning import TUNING

_ENDS = "^ends "
_SINCE = "^since "
_RUN = "^run "


def combine_means(cells: Sequence[Cell]) -> float:
    """Return the weighted mean of the means of cells, from general to specific.

    The mean of a more general key is known as precisely as its returns agree, but what is known that way differs from
    what the most specific key would bring, by `TUNING.key_spread` more with every key in between. Without this part, a
    form of action that hardly ever brings anything would hide the one situation in which it does. This is the weight of
    a study in a random-effects model (DerSimonian and Laird 1986) with a given variance between studies.
    """
    total = weight = spread = 0.0
    for cell in reversed(cells):
        precision = cell.precision / (1.0 + spread * cell.precision)
        total += precision * cell.mean
        weight += precision
        spread += TUNING.key_spread
    return total / weight if weight else 0.0


class FormChanges:
    """Changes of the world: forms of action that stopped to bring what they brought.

    A step that ends its episode *fails* if its return is at most half of what such steps of its form brought on
    average. A form has changed when a run of failures, at least `min_failures_of_change`, has a probability below
    `chance_of_change`. That of each is by the rule of succession (Laplace 1774), with the n steps of its closest
    description that counts in estimates, and their mean m:

        1 - (n m + 1) / (n + 2)

    So a form that worked once does not count as one that always works, nor one that works in every other such case. A
    failure where such steps failed before does not count: that is another situation. What was filed under the form
    before the change no longer counts. This asks the few forms that end episodes, not each of thousands of keys, so
    false alarms are rare. Only falls count: the moving means find what improves.
    """

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

    def add(self, form: str, value: float, expected: Cell, step_id: int, episode: int, prefix: str = "") -> None:
        """Add the return of a step that ended an episode, given the steps of its closest description."""
        name, run = f"{prefix}{_ENDS}{form}", f"{prefix}{_RUN}{form}"
        cell = self._find(name) or self._create(name)
        is_low = value <= max(0.0, cell.mean / 2)
        if is_low and expected.mean <= cell.mean / 2:  # such steps failed before: this is another situation, no change
            return
        cell.add(value, step_id, bad=is_low, episode=episode)
        failures = (is_low and self._find(run)) or self._create(run)
        if not is_low:
            return
        works = (expected.n * min(1.0, expected.mean) + 1) / (expected.n + 2)
        failures.add(log(1 - works), step_id, episode=episode)
        if failures.n >= TUNING.min_failures_of_change and failures.total < log(TUNING.chance_of_change):
            for changed in (form, ""):
                self._create(f"{prefix}{_SINCE}{changed}").steps.append(step_id)
            self._create(name)
            self._create(run)


class ValueTable:
    """Mean discounted returns and failures of past steps, by key."""

    def __init__(self, stored: StoredCells | None = None) -> None:
        self._cells: dict[str, Cell] = {}
        self._stored = stored
        self._absent: set[str] = set()
        """Looked-up keys that are not stored; most keys of an action have no steps."""
        self._note_keys: dict[str, set[str]] | None = None if stored else {}
        """By the key of an action that notes are about: the keys of the words that they told; None if not listed."""
        self._gains = Gains(self.cell, self._create)
        self._changes = FormChanges(self.cell, self._create)
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
                if len(self._absent) >= 16_384:
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
        prefix: str = "",
        ends: bool = False,
    ) -> None:
        """File one step under all its keys, each with the prefix; drop what is older than a change of its form.

        Only a step that ends its episode can show such a change; see `changes`.
        """
        keys = tuple(keys)
        if ends and action and keys:
            closest = (self.cell(prefix + key) for key in reversed(keys) if self._predicts(key, prefix))
            expected = next((cell for cell in closest if cell is not None), Cell())
            self._changes.add(parse_action(action).template, value, expected, step_id, episode, prefix)
        since = self.find_change(action, prefix)
        before: float | None = None
        find, touched = self._cells.get, self._touched
        for key in keys:
            name = prefix + key
            if (cell := find(name)) is None and self._stored is not None:
                cell = self.cell(name)
            if cell is None or (since and cell.steps[-1] < since and not key.startswith("*")):
                cell = self._create(name)
            elif not key.startswith(REFINED):
                before = cell.mean
            elif before is not None and cell.last_in != episode and not key.startswith(BEST):
                before = self._gains.learn(key, cell, before, value, prefix)  # an episode must not predict itself
            if key.startswith(BEST):
                cell.add_best(value, step_id, episode)
                continue
            cell.add(value, step_id, action, bad=bad, lost=lost, episode=episode)
            if touched is not None:
                touched[name] = None

    def _predicts(self, key: str, prefix: str) -> bool:
        """Return whether a key counts in estimates: it is none of a guardrail, nor a refinement without a gain."""
        if key.startswith(REFINED):
            return self._gains.find_prior(key, prefix) is not None
        return not key.startswith(GUARD_MARK)

    def find_change(self, action: str = "", prefix: str = "") -> int:
        """Return the step that showed the last change of an action's form, or of any; 0 if there was none."""
        last = self._changes.find_last("", prefix)
        return self._changes.find_last(parse_action(action).template, prefix) if last and action else last

    def _create(self, key: str) -> Cell:
        """Add an empty cell."""
        cell = self._cells[key] = Cell()
        self._list_word(key)
        return cell

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
        if self._note_keys is not None and (action := find_told_action(key)):
            self._note_keys.setdefault(action + TOLD, set()).add(key)

    def _find_lacking(self, action: str, keys: Collection[str]) -> Cell | None:
        """Return the statistics of steps that lacked a required note word, if it is missing now.

        Not every word beside a reward is its reason. If the notes say to cut and fry something, the word `fry` is the
        reason of the reward for frying; if they only say to cut it, frying it is wrong.
        """
        of_action = self.cell(action)
        if of_action is None or not of_action.bad:
            return None
        words = (self.cell(key) for key in self.note_keys.get(action, ()) if key not in keys)
        parts = (leave_out(of_action, word) for word in words if word is not None)
        return max(filter(None, parts), key=rank_rest, default=None)

    def _find_untold(self, keys: Sequence[str], prefix: str) -> Cell | None:
        """Return the steps without a condition that notes tell, for an action in a state that has no notes yet."""
        if len(keys) <= CONTEXT_KEY or not keys[CONTEXT_KEY].endswith(f" | {NOTHING_TOLD}"):
            return None
        for action in dict.fromkeys(key.partition(" | ")[0] for key in reversed(keys[CONTEXT_KEY:])):
            if (lacking := self._find_lacking(f"{prefix}{action}{TOLD}", ())) is not None:
                return lacking
        return None

    def estimate(self, keys: Sequence[str], context: str = "", *, prefix: str = "") -> Estimate:
        """Estimate the value of an action by a weighted mean over its keys.

            v = sum_k w_k m_k / sum_k w_k,   w_k = 1 / (variance_k / n_k + (K - k) spread)

        The probability of losing the task backs off from each key to the more general ones, as if these were one step:

            p_k = (lost_k + p_(k - 1)) / (n_k + 1),   p_0 = 0

        A key with consistent returns weighs more than a key with scattered ones, and a key without steps has no weight;
        see `combine_means`.
        A refinement moves the value towards its mean as far as it has predicted returns better; see `gains`.
        If the notes lack a word that is a condition of the action, the steps that lacked it count instead of those that
        share other words; see `_find_lacking`. The common key of all steps of which notes told something counts only
        then: it pools what notes told of other things. In a state without notes, those steps count as if they
        had been taken in this context, at most MEMORY of them.
        """
        lost = 0.0
        most_specific = None
        key_of_cell = ""
        tried, tried_here = 0, 0
        cells: list[Cell] = []
        refined: list[tuple[str, Cell, float]] = []
        # Every action of every step comes here: read cells are looked up without a call.
        read, find = self._cells.get, self.cell if self._stored is not None else None
        left_out: Collection[str] = ()
        since = self._changes.find_last(keys[1], prefix) if len(keys) > 1 else 0  # the second key is the form
        for at, key in enumerate(keys):
            cell = read(name := prefix + key)
            if cell is None and (find is None or (cell := find(name)) is None):
                continue
            if (left_out and key in left_out) or (since and at and cell.steps[-1] < since):
                continue
            if key.startswith(BEST):
                tried_here = cell.n
                continue
            if key.startswith(REFINED):
                if (prior := self._gains.find_prior(key, prefix)) is not None:
                    refined.append((key, cell, cell.episodes / (cell.episodes + prior)))
                continue
            if key.endswith(TOLD):
                if (lacking := self._find_lacking(prefix + key, {prefix + other for other in keys})) is None:
                    continue
                cell, left_out = lacking, {word.removeprefix(prefix) for word in self.note_keys[prefix + key]}
            cells.append(cell)
            lost = (cell.lost + lost) / (cell.n + 1)
            most_specific, key_of_cell = cell, key
            if at == CONTEXT_KEY:
                tried = cell.n
        if most_specific is None:
            return Estimate(0.0, context=context)
        value = combine_means(cells)
        for key, cell, share in refined:
            value += share * (cell.mean - value)
            lost += share * (cell.lost / cell.n - lost)
            most_specific, key_of_cell = cell, key
        if self.note_keys and (untold := self._find_untold(keys, prefix)) is not None:
            remembered = min(untold.n, TUNING.memory)
            share = remembered / (remembered + tried)
            value += share * (untold.mean - value)
            lost += share * (untold.lost / untold.n - lost)
        tried = min(tried, tried_here) if keys[-1].startswith(BEST) else tried
        return Estimate(value, most_specific.n, key_of_cell, tried, tuple(most_specific.steps), context, lost)
