"""Guardrails: an executable condition on the state and the action pattern it forbids.

A condition is a tree of plain values, so that it is stored, read and checked without a model:

    {"around": "1: closed"}            what `Situation.context` says of the action: words shown near it;
                                       for a rule-made item its evidence says what this means (`surroundings`)
    {"told": "1 grill"}                the notes have this word beside the first argument
    {"again": "failed"}                this very call failed in this run, and nothing worked since
    {"mark": "1 unnamed"}              how the notes speak of an argument: told, other, unnamed
    {"text": "is locked"}              the observation or a note contains these words
    {"fact": {"front": "wall"}}        a fact equals a value, or a listing contains it
    {"signature": "9f..."}             the state belongs to this cluster
    {"all": [...]}, {"any": [...]}, {"not": {...}}

A pattern is an action with holes: `eat {1}`, `cook {1} in stove`. A word in an argument's place
stands for its kind: `cook {1} in stove` also forbids `cook carrot in old stove`. One with a number
stands for itself: `open drawer 1` does not forbid `open drawer 7`. Of a command in an argument the
program, its subcommand and its flags count: `run(command=make test)` does not forbid `npm test`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import combinations
from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.memory.records import Item, State, Verdict
from hardwon.memory.situations.actions import is_of, parse_action
from hardwon.memory.situations.keys import GUARD_MARK, Situation
from hardwon.memory.situations.phrases import HOLE

from .surroundings import Context, Surroundings

MIN_CONFIDENCE = 0.6
"""A guardrail below this only advises."""
_FILED = ("around", "told", "mark", "again")
"""Conditions of one operator that guardrails are found by: those that rules make."""
_OPERATORS = ("all", "any", "not", "around", "told", "mark", "again", "text", "fact", "signature")


def validate(condition: Mapping[str, Any]) -> None:
    """Raise ConfigError for a condition that could not be evaluated."""
    if not isinstance(condition, Mapping) or len(condition) != 1:
        raise ConfigError(f"condition {condition!r} must have exactly one of: {', '.join(_OPERATORS)}.")
    operator, operand = next(iter(condition.items()))
    if operator not in _OPERATORS:
        raise ConfigError(f"condition has {operator!r}; use one of {', '.join(_OPERATORS)}.")
    if operator in ("all", "any"):
        if not isinstance(operand, list) or not operand:
            raise ConfigError(f"condition {operator!r} needs a list of conditions, not {operand!r}.")
        for part in operand:
            validate(part)
    elif operator == "not":
        validate(operand)
    elif operator == "fact":
        if not isinstance(operand, Mapping) or not operand:
            raise ConfigError(f'condition "fact" needs {{name: value}}, not {operand!r}.')
    elif not isinstance(operand, str):
        raise ConfigError(f"condition {operator!r} needs text, not {operand!r}.")


def holds(condition: Mapping[str, Any], situation: Situation, action: str) -> bool:
    """Whether the condition is true of this action in this situation."""
    (operator, operand), state = next(iter(condition.items())), situation.state
    match operator:
        case "all":
            return all(holds(part, situation, action) for part in operand)
        case "any":
            return any(holds(part, situation, action) for part in operand)
        case "not":
            return not holds(operand, situation, action)
        case "around":
            return bool(situation.context(action) == operand)
        case "told":
            return operand in situation.whole.told_words(action)
        case "mark":
            return operand in situation.marks(action)
        case "again":
            return action in situation.failed
        case "text":
            return any(operand.lower() in told.lower() for told in (state.observation, *state.notes))
        case "fact":
            return all(_fact_is(state, name, value) for name, value in operand.items())
        case "signature":
            return bool(state.signature == operand)
    raise ConfigError(f"condition has {operator!r}; use one of {', '.join(_OPERATORS)}.")


def _fact_is(state: State, name: str, value: object) -> bool:
    known = state.facts.get(name)
    return value in known if isinstance(known, list | tuple) else known is not None and known == value


def matches(pattern: str, action: str) -> bool:
    """Return whether an action is of the pattern; see the module's docstring."""
    return is_of(pattern, action)


def forbids(item: Item, situation: Situation, action: str, surroundings: Surroundings | None = None) -> bool:
    """Whether an item with a pattern speaks of this action, and its condition holds here."""
    if not matches(item.forbids or "", action):
        return False
    stands = surroundings.hold(item, situation, action) if surroundings is not None else None
    return holds(item.condition or {}, situation, action) if stands is None else stands


def is_in_force(item: Item) -> bool:
    """Return whether an item is an active guardrail that is sure enough to refuse a call."""
    return item.kind == "guardrail" and item.status == "active" and item.confidence >= MIN_CONFIDENCE


def covers(wide: Item, narrow: Item) -> bool:
    """Return whether whatever the second guardrail forbids is forbidden by the first as well, by what they say."""
    return (
        wide.granularity == narrow.granularity
        and matches(wide.forbids or "", narrow.forbids or "")
        and _follows(wide.condition, narrow.condition)
    )


def _follows(condition: Mapping[str, Any] | None, given: Mapping[str, Any] | None) -> bool:
    """Return whether a condition is true wherever a given one is, as far as their form tells; None is always true."""
    if not condition or condition == given:
        return True
    operator, operand = next(iter(condition.items()))
    if operator == "all":
        return all(_follows(part, given) for part in operand)
    if not given:
        return False
    known, parts = next(iter(given.items()))
    if known == "any":
        return all(_follows(condition, part) for part in parts)
    if operator == "any" and any(_follows(part, given) for part in operand):
        return True
    return known == "all" and any(_follows(condition, part) for part in parts)


@lru_cache(maxsize=65536)
def named_arguments(action: str) -> frozenset[str]:
    """Return what distinguishes the arguments of an action or a pattern, without holes.

    An action of a pattern has all that the pattern names, so a guardrail is found by the subsets of an action's.
    """
    return frozenset(head for head in parse_action(action).heads if not HOLE.fullmatch(head))


def _within(filed: Mapping[frozenset[str], list[Item]], named: frozenset[str]) -> Iterator[list[Item]]:
    """Yield what is filed under subsets of these names, by the shorter way: trying them all, or looking through."""
    if 2 ** len(named) > len(filed):
        yield from (items for names, items in filed.items() if names <= named)
        return
    for size in range(len(named) + 1):
        for chosen in combinations(sorted(named), size):
            if (items := filed.get(frozenset(chosen))) is not None:
                yield items


def guard_key(item: Item) -> str:
    """Return the key under which the steps that a rule-made guardrail speaks of are filed; empty for others."""
    operator, operand = next(iter((item.condition or {"around": ""}).items()))
    return f"{GUARD_MARK}{item.forbids} @ {operator} {operand}" if operator in _FILED else ""


def _places(situation: Situation, action: str, operators: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the operators and operands under which guardrails that may forbid an action here are found."""
    yield "", ""
    if "around" in operators:
        yield "around", situation.context(action)
    if "near" in operators:
        yield "near", ""
        for number, words in enumerate(Context.of(situation, action).words, 1):
            yield from (("near", f"{number} {word}") for word in words)
    if "told" in operators:
        yield from (("told", word) for word in situation.whole.told_words(action))
    if "mark" in operators:
        yield from (("mark", mark) for mark in situation.marks(action))
    if "again" in operators and action in situation.failed:
        yield "again", "failed"


class Guard:
    """The active guardrails, filed by what they forbid and where, so that a check looks at few.

    A guardrail is found by the verb of its action, by its condition, where that is one that the rules make, and
    by the arguments that its pattern names. So a check costs the same however many guardrails speak of other things.
    """

    def __init__(
        self,
        items: Iterable[Item] = (),
        is_known_for: Callable[[Item, str], bool] = lambda item, task: True,
        surroundings: Surroundings | None = None,
    ) -> None:
        """`is_known_for` tells whether the evidence of a guardrail is of a task's environment and kind.

        `surroundings` tells what the evidence of a guardrail stood among.
        """
        self._is_known_for = is_known_for
        self._surroundings = surroundings or Surroundings()
        self.structural = self._surroundings.structural
        """The structural words by which the guardrails are filed; under others they are to be filed anew."""
        self._filed: dict[tuple[str, str, str], dict[frozenset[str], list[Item]]] = {}
        """By verb, operator and operand of the condition; then by the arguments that the pattern names."""
        self._operators: dict[str, set[str]] = {}
        """By verb, the operators that its guardrails are filed under."""
        self.evaluated = 0
        """Guardrails whose pattern and condition were looked at so far: what checks cost."""
        in_force = sorted(filter(is_in_force, items), key=lambda item: item.id)
        self._of_plans = [item for item in in_force if item.granularity == "task"]
        single = [item for item in in_force if item.granularity != "task"]
        self._surroundings.read(single)
        for item in single:
            self._file(item)

    def _file(self, item: Item) -> None:
        operator, operand = self._place_of(item)
        verb = parse_action(item.forbids or "").verb
        filed = self._filed.setdefault((verb, operator, operand), {})
        filed.setdefault(named_arguments(item.forbids or ""), []).append(item)
        self._operators.setdefault(verb, set()).add(operator)

    def _place_of(self, item: Item) -> tuple[str, str]:
        """Return the operator and operand under which a guardrail is found; of several contexts, one of their words."""
        operator, operand = next(iter((item.condition or {"": ""}).items()))
        if operator not in _FILED:
            return "", ""
        hull = self._surroundings.hull(item) if operator == "around" else None
        if hull is None:
            return operator, operand
        if (one := hull.context(self.structural)) is not None:
            return "around", one
        needed = enumerate(hull.needed(self.structural), 1)
        return "near", next((f"{number} {min(words)}" for number, words in needed if words), "")

    def forbidding(self, situation: Situation, action: str) -> list[Item]:
        """Return all guardrails that forbid the action here, in the order of their ids."""
        verb = parse_action(action).verb
        operators = self._operators.get(verb)
        if operators is None:
            return []
        holding = list(_places(situation, action, operators))
        named = named_arguments(action)
        found = {
            item.id: item
            for operator, operand in holding
            if (filed := self._filed.get((verb, operator, operand)))
            for items in _within(filed, named)
            for item in items
            if self._forbids(item, situation, action)
        }
        return [found[ref] for ref in sorted(found)]

    def check(self, situation: Situation, action: str) -> Verdict:
        """Whether the action may run here."""
        found = self.forbidding(situation, action)
        if not found:
            return Verdict(True)
        first = found[0]
        return Verdict(False, first.id, first.body or first.title, items=tuple(item.id for item in found))

    def _forbids(self, item: Item, situation: Situation, action: str) -> bool:
        self.evaluated += 1
        return forbids(item, situation, action, self._surroundings) and self._is_known_for(item, situation.state.task)

    def check_plan(self, situation: Situation, actions: Iterable[str]) -> Verdict:
        """Whether a plan of these actions, made here, may be followed."""
        for action in actions:
            for item in self._of_plans:
                if self._forbids(item, situation, action):
                    return Verdict(False, item.id, item.body or item.title, items=(item.id,))
        return Verdict(True)

    def keys(self, situation: Situation, action: str) -> tuple[str, ...]:
        """Return the keys of the rule-made guardrails that forbid an action here: its outcome counts for them.

        Where the structural words are others than when a guardrail was made, no other key of the step says this.
        """
        found = [item for item in self.forbidding(situation, action) if item.writer == "rules"]
        return tuple(key for key in map(guard_key, found) if key)

    def active(self, situation: Situation, actions: Iterable[str]) -> tuple[Item, ...]:
        """The guardrails that forbid any of these actions here."""
        found = {item.id: item for action in actions for item in self.forbidding(situation, action)}
        return tuple(found.values())
