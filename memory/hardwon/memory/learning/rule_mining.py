"""Evolution by rules: what the counts of past steps justify becomes an item.

Reads the value table's cells that changed, proposes candidates, and leaves admission to the
catalogue. A guardrail needs a pattern that failed (almost) every time under one condition, in several
episodes and without a success since: a wide pattern, whose argument may be anything, needs more
evidence than one that names its arguments, and a call that works elsewhere needs more than one that
never did. A strategy is an action that pays clearly more under a condition than it does in general.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from math import sqrt

from hardwon.memory.guardrails.conditions import MIN_CONFIDENCE, guard_key
from hardwon.memory.items import identify
from hardwon.memory.records import Item, Kind
from hardwon.memory.situations.describe import condition_words, key_words
from hardwon.memory.situations.evidence import ANY_AGAIN, call_key
from hardwon.memory.situations.keys import GUARD_MARK
from hardwon.memory.situations.titles import fill_holes, guardrail_title, strategy_title, warning_title
from hardwon.memory.values.value_table import Cell, ValueTable

RATE_LIMITS: dict[Kind, int] = {"strategy": 10, "warning": 5, "guardrail": 10, "skill": 5, "remedy": 5}
"""Items of a kind added by one call of `evolve` (SLEA-RL: 10 strategies, 5 warnings)."""
NARROW_EVIDENCE = 4
WIDE_EVIDENCE = 12
WIDE_RATE = 0.97
AGAIN_EVIDENCE = 2 * WIDE_EVIDENCE
"""Repetitions of several forms of calls after which they are known to be in vain in general."""
NARROW_RATE = 0.95
LOST_SHARE = 0.5
"""Where so many of the failures lost the task, a wide pattern needs no more evidence than a narrow one."""
EPISODES = 3
"""Episodes that the failures of a guardrail or a warning must be of: one bad day forbids nothing."""
LOSING_EPISODES = 2
"""The same where most of the failures lost the task."""
WEIGHT = 1.5
"""A call that worked so often, wherever it was, must have failed at least WEIGHT * sqrt(successes) times here."""
WARNING_EVIDENCE = 8
WARNING_RATE = 0.7
RELEASE_RATE = 0.8
"""A guardrail whose failure rate fell below this is retired."""
_WHERE = {"again": "when it had just failed and nothing was done in between"}
"""Where the failures of a guardrail were, by its condition."""
STRATEGY_EVIDENCE = 5
STRATEGY_GAIN = 0.15
"""How much more discounted return than the action's average a strategy must bring."""


@dataclass(slots=True)
class Evolution:
    """Proposes items from a value table; remembers what it proposed so that it does not repeat itself."""

    _proposed: dict[str, tuple[int, Kind]] = field(default_factory=dict)

    def candidates(self, values: ValueTable) -> Iterator[tuple[str, Item]]:
        """(key, item) for every changed cell that justifies one, guardrails first."""
        touched = sorted(values.touched, key=lambda key: (not key.startswith(GUARD_MARK), -values.cells[key].n, key))
        for key in touched:
            cell = values.cells[key]
            item = _failure_item(key, cell, values) if key.startswith(GUARD_MARK) else _strategy(key, cell, values)
            if item is not None and self._is_news(key, cell, item):
                self._proposed[key] = cell.n, item.kind
                yield key, item
        values.touched.clear()

    def _is_news(self, key: str, cell: Cell, item: Item) -> bool:
        """Whether the steps doubled since the last proposal, a warning has hardened, or the call worked in between."""
        n, kind = self._proposed.get(key, (0, item.kind))
        worked_since = key.startswith(GUARD_MARK) and cell.n - cell.streak > n
        return cell.n >= 2 * n or kind != item.kind or worked_since

    def postpone(self, key: str, values: ValueTable) -> None:
        """The rate limit left this candidate out: propose it again the next time."""
        self._proposed.pop(key, None)
        values.touched[key] = None

    def reopen(self, item: Item) -> None:
        """A guardrail was retired until it is needed: propose it at its next failure."""
        self._proposed.pop(guard_key(item), None)

    def loses(self, values: ValueTable, item: Item) -> bool:
        """Return whether most of the failures that a guardrail rests on lost the task."""
        cell = values.cell(guard_key(item))
        return cell is not None and cell.lost >= LOST_SHARE * cell.bad

    def released(self, values: ValueTable, guardrails: Iterator[Item]) -> Iterator[tuple[Item, str]]:
        """Guardrails by these rules that the counts do not support any more, and why."""
        for item in guardrails:
            cell = values.cell(guard_key(item)) if item.writer == "rules" else None
            if cell is not None and cell.bad < RELEASE_RATE * cell.n:
                yield item, f"worked {cell.n - cell.bad} of {cell.n} times"

    def weakened(self, values: ValueTable, guardrails: Iterator[Item]) -> Iterator[tuple[Item, str]]:
        """Guardrails in force by these rules whose call worked the last time it was made, and why."""
        for item in guardrails:
            if item.kind != "guardrail" or item.writer != "rules" or item.confidence < MIN_CONFIDENCE:
                continue
            cell = values.cell(guard_key(item))
            if cell is not None and cell.n and not cell.streak:
                yield item, f"worked the last time, {cell.n - cell.bad} of {cell.n} times in all"


def _failure_item(key: str, cell: Cell, values: ValueTable) -> Item | None:
    pattern, _, condition = key.removeprefix(GUARD_MARK).partition(" @ ")
    operator, _, operand = condition.partition(" ")
    if (
        not pattern or key == ANY_AGAIN or operator not in ("around", "told", "mark", "again")
    ):  # no action, or one with an @ of its own
        return None
    wide = "{1}" in pattern and not (operator == "again" and _is_in_vain(values))
    if (
        wide and operator in ("around", "again") and not cell.several_bad
    ):  # one thing's failures say nothing of others like it
        return None
    losing = cell.lost >= LOST_SHARE * cell.bad
    if cell.bad_episodes < (LOSING_EPISODES if losing else EPISODES):
        return None
    evidence, rate = (WIDE_EVIDENCE, WIDE_RATE) if wide and not losing else (NARROW_EVIDENCE, NARROW_RATE)
    # successes elsewhere were first tries, and say nothing of repetitions
    outweighs = operator == "again" or cell.bad >= WEIGHT * sqrt(_successes(pattern, values))
    if cell.streak >= evidence and cell.bad >= rate * cell.n and outweighs:
        kind: Kind = "guardrail"
        title, legacy = guardrail_title(pattern, {operator: operand}), f"do not `{pattern}`"
    elif cell.n >= WARNING_EVIDENCE and cell.bad >= WARNING_RATE * cell.n:
        kind = "warning"
        title, legacy = warning_title(pattern, {operator: operand}), f"`{pattern}` mostly fails"
    else:
        return None
    named = f"{legacy} when {condition_words({operator: operand}, pattern)}" if operand else legacy
    return Item(
        kind,
        title,
        f"failed {cell.bad} of {cell.n} times {_WHERE.get(operator, 'here')}",
        condition={operator: operand},
        forbids=pattern,
        provenance=tuple(cell.bad_steps),
        confidence=round((cell.bad + 1) / (cell.n + 2), 3),
        source="experience",
        writer="rules",
        id=identify(Item(kind, named, condition={operator: operand}, forbids=pattern)),
    )


@lru_cache(maxsize=8192)
def strategy_id(key: str) -> str:
    """Return the id of the strategy that rests on the cell of a key.

    It is made of the words of the key, not of the title, so a clearer title keeps the id.
    """
    words = key_words(key)
    return identify(Item("strategy", f"{words[0]} pays: {'; '.join(words[1:])}"))


def _is_in_vain(values: ValueTable) -> bool:
    """Return whether repetitions of failed calls are known to be in vain, whatever the form of the call.

    Then a form needs no more evidence of its own than a call with named arguments.
    """
    cell = values.cell(ANY_AGAIN)
    return cell is not None and cell.several_bad and cell.n >= AGAIN_EVIDENCE and cell.bad >= WIDE_RATE * cell.n


def _successes(pattern: str, values: ValueTable) -> int:
    """How often the call did not fail, wherever it was made."""
    cell = values.cell(call_key(pattern))
    return cell.n - cell.bad if cell is not None else 0


def _strategy(key: str, cell: Cell, values: ValueTable) -> Item | None:
    pattern, _, where = key.partition(" | ")
    usual = values.cells.get(pattern)
    if not where.count("|") or usual is None or cell.n < STRATEGY_EVIDENCE:
        return None
    if cell.mean < usual.mean + STRATEGY_GAIN:
        return None
    return Item(
        "strategy",
        strategy_title(key),
        f"earned {cell.mean:.2f} on average in {cell.n} steps; `{fill_holes(pattern)}` earns {usual.mean:.2f} "
        f"on average over all {usual.n} steps",
        provenance=tuple(cell.steps),
        score=round(min(1.0, max(0.0, 0.5 + cell.mean - usual.mean)), 3),
        confidence=round(cell.n / (cell.n + 4), 3),
        source="experience",
        writer="rules",
        id=strategy_id(key),
    )
