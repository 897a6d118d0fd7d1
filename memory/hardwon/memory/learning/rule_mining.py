"""Rule mining: create items from the counts of past steps by fixed rules.

`RuleMiner` reads the changed cells of the value table and proposes candidates; the curator decides on admission. A
guardrail needs a pattern that failed in almost every episode under one condition, and in several since it last worked.
A value of one argument of a tool may also have failed in any situation, whatever the other arguments were.
A general pattern with an open argument needs more episodes than one that names its arguments. A call that succeeds
elsewhere needs more episodes than one that never did. An episode is one piece of evidence, however many steps it has. A
strategy is an action with a clearly higher return under a condition than on average, and than under every more general
condition.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import sqrt

from hardwon.memory.guardrails.conditions import ALWAYS, guard_key
from hardwon.memory.guardrails.thinning import is_made_by_rules
from hardwon.memory.guardrails.tuning import TUNING as GUARDRAILS
from hardwon.memory.items import identify
from hardwon.memory.records import Admission, Item, Kind
from hardwon.memory.situations.actions import is_of, parse_action, pattern_of, single_arguments
from hardwon.memory.situations.describe import condition_words, key_words
from hardwon.memory.situations.evidence import ANY_AGAIN, call_key, fact_key, split_facts
from hardwon.memory.situations.keys import GUARD_MARK, TOLD, has_sight
from hardwon.memory.situations.titles import (
    Difference,
    fill_holes,
    guardrail_title,
    name_pattern,
    strategy_title,
    warning_title,
)
from hardwon.memory.values.cells import Cell
from hardwon.memory.values.value_table import ValueTable

from .contrast import ReadSteps, SeenStep, find_difference, list_shared_words
from .evidence_watch import EvidenceWatch
from .proposals import Proposed
from .tuning import TUNING

RATE_LIMITS: dict[Kind, int] = {"strategy": 10, "warning": 5, "guardrail": 10, "skill": 5, "remedy": 5}
"""Largest number of items per kind that one call of `evolve` adds (SLEA-RL: 10 strategies, 5 warnings)."""
_WHERE = {"again": "when it had just failed and nothing was done in between", "": "whatever the other arguments"}
"""By operator of the condition: where the failures occurred, for the body of the item."""
_TASK_ALONE = re.compile(r"(?:^|; )0: \[T\](?:;|$)")
"""What the text shows as a whole, when this is a word of the task and no more, which tells a reader nothing."""
_WIDER = (1, 3)
"""Numbers of the parts of a key that wider conditions have: the counts, and also the flags and lists, but no words."""


@dataclass(slots=True)
class RuleMiner:
    """Proposes items from a value table, and remembers its proposals to avoid repeating them."""

    _proposed: dict[str, Proposed] = field(default_factory=dict)
    _changed: dict[str, Proposed | None] = field(default_factory=dict)
    """What `save_proposals` has to write: by key, the new state."""
    watch: EvidenceWatch = field(default_factory=EvidenceWatch)
    """Finds the items that `released` and `weakened` have to look at."""

    def resume(self, proposed: Mapping[str, Proposed]) -> None:
        """Continue after the proposals of earlier processes."""
        self._proposed = dict(proposed)

    def take_changes(self) -> dict[str, Proposed | None]:
        """Return the proposals that changed since the last call, by key; None for a key that may be proposed again."""
        changed, self._changed = self._changed, {}
        return changed

    def candidates(
        self,
        values: ValueTable,
        list_common: Callable[[], Collection[str]] = tuple,
        read_steps: ReadSteps = lambda _: (),
    ) -> Iterator[tuple[str, Item]]:
        """Yield a (key, item) pair for every changed cell that justifies an item, guardrails first."""
        cells = {
            key: cell
            for key in values.touched
            if (cell := values.cell(key)) is not None
            # most cells of guardrails have too few failures for anything
            and (cell.failed >= TUNING.losing_episodes or not key.startswith(GUARD_MARK))
        }
        for key in sorted(cells, key=lambda key: (not key.startswith(GUARD_MARK), -cells[key].n, key)):
            cell = cells[key]
            kind: Kind | None = _judge_failures(key, cell, values) if key.startswith(GUARD_MARK) else "strategy"
            if kind is None or not self._is_news(key, cell, kind):
                continue  # before the words of the item, which cost more than the counts
            item = (
                _build_strategy(key, cell, values, list_common, read_steps)
                if kind == "strategy"
                else _build_failure_item(key, cell, kind, values, read_steps)
            )
            if item is not None:
                self._proposed[key] = self._changed[key] = cell.episodes, kind
                yield key, item
        self.watch.note(values.touched)
        # After the last candidate. `postpone` marks keys again, so call it only when this generator is exhausted.
        values.touched.clear()

    def _is_news(self, key: str, cell: Cell, kind: Kind) -> bool:
        """Return whether a proposal is new.

        It is new if the episodes doubled since the last proposal, the kind changed, or the call worked in between.
        """
        n, proposed_kind = self._proposed.get(key, (0, kind))
        worked_since = key.startswith(GUARD_MARK) and cell.episodes - cell.streak > n
        return cell.episodes >= 2 * n or kind != proposed_kind or worked_since

    def postpone(self, key: str, values: ValueTable) -> None:
        """Propose a candidate again next time, because the rate limit left it out."""
        _, kind = self._proposed.pop(key)
        self._changed[key] = 0, kind
        values.touched[key] = None

    def reopen(self, item: Item) -> None:
        """Allow a guardrail that was retired until needed to be proposed at its next failure."""
        self._reopen_key(guard_key(item))

    def settle(self, key: str, admission: Admission) -> None:
        """Take the curator's decision on a candidate into account.

        A guardrail that was retired until needed is rejected until its next failure, at which it is proposed again.
        """
        if admission.status == "rejected" and admission.item_id:
            self._reopen_key(key)

    def _reopen_key(self, key: str) -> None:
        """Forget the proposal of a key."""
        self._proposed.pop(key, None)
        self._changed[key] = None

    def cell(self, item: Item, values: ValueTable) -> Cell | None:
        """Return the cell of the steps behind a guardrail or warning, or None."""
        return values.cell(self.watch.key_of(item))

    def loses(self, values: ValueTable, item: Item) -> bool:
        """Return whether most of the failures behind a guardrail lost the task."""
        cell = values.cell(guard_key(item))
        return cell is not None and cell.lost >= TUNING.lost_share * cell.failed

    def released(self, values: ValueTable, guardrails: Iterable[Item]) -> Iterator[tuple[Item, str]]:
        """Yield the rule-made guardrails that the counts no longer support, each with the reason."""
        for item in guardrails:
            cell = self.cell(item, values) if item.writer == "rules" else None
            if cell is not None and cell.failed < TUNING.release_rate * cell.episodes:
                yield item, f"worked in {cell.episodes - cell.failed} of {cell.episodes} episodes"
            elif cell is not None and _is_too_wide(item, cell):
                yield item, "lost the task in certain situations, which the condition does not tell apart"

    def outdated(self, values: ValueTable, items: Iterable[Item]) -> Iterator[tuple[Item, str]]:
        """Yield the rule-made guardrails whose evidence is from before a change of what they forbid."""
        for item in items if values.find_change() else ():
            if is_made_by_rules(item) and 0 < max(item.provenance, default=0) < values.find_change(item.forbids or ""):
                yield item, "what such calls bring has changed since"

    def weakened(self, values: ValueTable, guardrails: Iterable[Item]) -> Iterator[tuple[Item, str]]:
        """Yield the enforced rule-made guardrails whose call succeeded the last time, each with the reason."""
        for item in guardrails:
            if item.kind != "guardrail" or item.writer != "rules" or item.confidence < GUARDRAILS.min_confidence:
                continue
            cell = self.cell(item, values)
            if cell is not None and cell.n and not cell.streak:
                yield item, f"worked the last time, in {cell.episodes - cell.failed} of {cell.episodes} episodes in all"


def _judge_failures(key: str, cell: Cell, values: ValueTable) -> Kind | None:
    """Return whether the failures in a cell justify a guardrail or a warning, or neither."""
    pattern, _, condition = key.removeprefix(GUARD_MARK).partition(" @ ")
    operator, _, operand = condition.partition(" ")
    # An empty action, or an action that itself contains " @ ", does not split into a pattern and a condition.
    if not pattern or key == ANY_AGAIN or operator not in ("", "around", "told", "mark", "again"):
        return None
    if not operator and (pattern not in single_arguments(cell.bad_action) or pattern == pattern_of(cell.bad_action)):
        return None
    wide = not operator or ("{1}" in pattern and not (operator == "again" and _is_in_vain(values)))
    # If only one object failed, nothing follows for other objects of the same kind.
    if wide and operator in ("", "around", "again") and not cell.several_bad:
        return None
    if wide and operator == "around" and _is_of_one_value(pattern, cell, values):
        return None
    losing = cell.lost >= TUNING.lost_share * cell.failed
    if operator == "around" and has_sight(operand) is not _needs_sight(pattern, cell):
        return None
    needed = TUNING.losing_episodes if losing else TUNING.wide_episodes if wide else TUNING.guardrail_episodes
    # Successes elsewhere were first attempts, so they say nothing about repetitions.
    weight = TUNING.losing_weight if losing else TUNING.counterexample_weight
    outweighs = operator == "again" or cell.failed >= weight * sqrt(_count_successes(pattern, condition, values))
    if cell.streak >= needed and cell.failed >= TUNING.guardrail_failure_rate * cell.episodes and outweighs:
        return "guardrail"
    is_frequent = cell.failed >= TUNING.warning_episodes and cell.failed >= TUNING.warning_rate * cell.episodes
    return "warning" if is_frequent and operator else None


def _is_too_wide(item: Item, cell: Cell) -> bool:
    """Return whether all failures lost the task, and the condition lacks what the text shows as a whole.

    Only earlier versions made such guardrails.
    """
    around = (item.condition or {}).get("around")
    is_narrow = not isinstance(around, str) or has_sight(around)
    return not is_narrow and cell.lost >= cell.failed and _needs_sight(item.forbids or "", cell)


def _needs_sight(pattern: str, cell: Cell) -> bool:
    """Return whether what the text shows as a whole must be part of the condition under which a call failed.

    An error says what it needs. After a lost task, anything that the text shows may be the reason.
    """
    return cell.lost >= TUNING.lost_share * cell.failed and not parse_action(pattern).parts


def _is_of_one_value(pattern: str, cell: Cell, values: ValueTable) -> bool:
    """Return whether an argument that a pattern leaves open had one value in all failures: others may work."""
    narrower = (call for call in single_arguments(cell.bad_action) if call != pattern and is_of(pattern, call))
    cells = (values.cell(call_key(call)) for call in narrower)
    return any(each is not None and each.failed >= cell.failed for each in cells)


def _build_failure_item(key: str, cell: Cell, kind: Kind, values: ValueTable, read_steps: ReadSteps) -> Item:
    """Return the guardrail or warning for the failures in a cell."""
    pattern, _, condition = key.removeprefix(GUARD_MARK).partition(" @ ")
    operator, _, operand = condition.partition(" ")
    where = {operator: operand} if operator else ALWAYS
    # Several actions failed: the last one shows the form, and the pattern what they share.
    examples = (cell.bad_action,) * (1 + cell.several_bad)
    difference = Difference()
    if operator == "around" and has_sight(operand) and (calls := values.cell(call_key(pattern))) is not None:
        worked = [step for step in read_steps(calls.steps) if step.value > 0 and not step.failed]
        difference = _describe_text(operand, read_steps(cell.bad_steps), worked)
    # The id is derived from the wording of earlier versions, so existing items keep their ids.
    if kind == "guardrail":
        title, legacy = guardrail_title(pattern, where, examples, difference), f"do not `{pattern}`"
    else:
        title, legacy = warning_title(pattern, where, examples, difference), f"`{pattern}` mostly fails"
    legacy_title = f"{legacy} when {condition_words(where, pattern)}" if operand else legacy
    return Item(
        kind,
        title,
        f"Failed in {cell.failed} of {cell.episodes} episodes {_WHERE.get(operator, 'here')}",
        condition=where,
        forbids=pattern,
        provenance=tuple(cell.bad_steps),
        episodes=cell.failed,
        confidence=round((cell.failed + 1) / (cell.episodes + 2), 3),
        source="experience",
        writer="rules",
        id=identify(Item(kind, legacy_title, condition=where, forbids=pattern)),
    )


def _describe_text(condition: str, those: Sequence[SeenStep], contrary: Sequence[SeenStep]) -> Difference:
    """Return what a title says of the text as a whole, if that belongs to the condition."""
    context = next(filter(has_sight, condition.split(" | ")), "")
    difference = find_difference(those, contrary) if context else Difference()
    if any(difference) or not _TASK_ALONE.search(context):
        return difference
    return Difference(list_shared_words(those)[: TUNING.contrast_words])


@lru_cache(maxsize=8192)
def strategy_id(key: str) -> str:
    """Return the id of the strategy that is based on the cell of a key.

    The id depends on the words of the key and not on the title, so a reworded title keeps the id.
    """
    words = key_words(key)
    return identify(Item("strategy", f"{words[0]} pays: {'; '.join(words[1:])}"))


def _is_in_vain(values: ValueTable) -> bool:
    """Return whether repeating a failed call is known to fail for all forms of calls.

    A form then needs no more evidence of its own than a call with named arguments.
    """
    cell = values.cell(ANY_AGAIN)
    if cell is None or not cell.several_bad:
        return False
    return cell.episodes >= TUNING.repetition_episodes and cell.failed >= TUNING.guardrail_failure_rate * cell.episodes


def _count_successes(pattern: str, condition: str, values: ValueTable) -> int:
    """Return in how many episodes a call worked, in any situation or, if it has facts, where one of them was the same.

    Of several facts, the one with the fewest successes counts: it tells best where the call fails.
    """
    operator, _, context = condition.partition(" ")
    keys = [call_key(pattern)]
    if operator == "around":
        keys += [fact_key(pattern, fact) for fact in split_facts(context, pattern)]
    cells = [values.cell(key) for key in keys]
    return min(cell.episodes - cell.failed if cell is not None else 0 for cell in cells)


def _build_strategy(
    key: str,
    cell: Cell,
    values: ValueTable,
    list_common: Callable[[], Collection[str]],
    read_steps: ReadSteps,
) -> Item | None:
    """Return the strategy that the returns in a cell justify, or None."""
    if key.endswith(TOLD):  # that notes tell anything at all is no advice; each of their words has a key of its own
        return None
    pattern, _, condition = key.partition(" | ")
    is_enough = cell.n >= TUNING.strategy_evidence and cell.episodes >= TUNING.strategy_episodes
    average = values.cell(pattern) if condition and is_enough else None
    if average is None or cell.mean < average.mean + TUNING.strategy_gain:
        return None
    wider = _list_wider(key)
    cells = [parent for other in wider if (parent := values.cell(other)) is not None]
    if any(cell.mean < parent.mean + TUNING.condition_gain for parent in cells):
        return None
    common, steps = list_common(), read_steps(cell.steps)
    examples = frozenset(step.action for step in steps)
    paid_less = cell.mean - TUNING.strategy_gain
    contrary = [step for step in read_steps([*average.bad_steps, *average.steps]) if step.value < paid_less]
    paying = [step for step in steps if step.value >= cell.mean]
    title = strategy_title(key, common, examples, _describe_text(condition, paying, contrary))
    # it may say no more than the condition without words, or than the action alone
    if title in [strategy_title(other, common, examples) for other in (pattern, *wider[len(_WIDER) - 1 :])]:
        return None
    action = fill_holes(name_pattern(pattern, examples))
    return Item(
        "strategy",
        title,
        f"Brought {cell.mean:.2f} on average, in {cell.episodes} episodes; `{action}` at any time brought "
        f"{average.mean:.2f}, in {average.episodes} episodes",
        provenance=tuple(cell.steps),
        episodes=cell.episodes,
        score=round(min(1.0, max(0.0, 0.5 + cell.mean - average.mean)), 3),
        confidence=round(cell.episodes / (cell.episodes + 4), 3),
        source="experience",
        writer="rules",
        id=strategy_id(key),
    )


def _list_wider(key: str) -> list[str]:
    """Return the keys of the same pattern with fewer conditions; see `situations.keys`."""
    pattern, *parts = key.split(" | ")
    return [" | ".join([pattern, *parts[:count]]) for count in _WIDER if count < len(parts)]
