"""Guardrails: an executable condition on the state, and the action pattern that it forbids.

A condition is a tree of plain values, so it is stored, read and checked without a model:

    {"around": "1: closed"}            `Situation.context` of the action has this value: the words around each
                                       argument, and under 0 those of the whole text, if they
                                       belong to it; for rule-made items, `context_ranges` interprets it by the evidence
    {"told": "1 grill"}                the notes mention this word next to the first argument
    {"again": "failed"}                this exact call failed earlier in this run, and no call has succeeded since
    {"mark": "1 unnamed"}              how the notes mention an argument: told, other, unnamed
    {"text": "is locked"}              the observation or a note contains this text
    {"fact": {"front": "wall"}}        a fact equals a value, or a listing contains it
    {"signature": "9f..."}             the state belongs to this cluster
    {"all": [...]}, {"any": [...]}, {"not": {...}}; an empty "all" is always true

A pattern is an action with holes: `eat {1}`, `cook {1} in stove`. A word as an argument stands for its kind:
`cook {1} in stove` also forbids `cook carrot in old stove`. A word with a number stands for itself:
`open drawer 1` does not forbid `open drawer 7`. For a command as an argument, only the program, its subcommand
and its flags are compared: `run(command=make test)` does not forbid `npm test`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import combinations
from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.memory.records import Item, State, Verdict
from hardwon.memory.situations.actions import ParsedAction, is_of, is_parsed_of, parse_action
from hardwon.memory.situations.keys import GUARD_MARK, Attempt, Situation, has_sight
from hardwon.memory.situations.phrases import HOLE

from .context_ranges import ContextRanges
from .tuning import TUNING

_FILED = ("around", "told", "mark", "again")
"""Operators of the conditions that rules create; guardrails are indexed by them."""
ConditionPlace = tuple[str, str, str]
"""Where a guardrail is filed: the verb of its action, and an operator with its operand."""
ALWAYS: Mapping[str, Any] = {"all": []}
"""Condition of a guardrail that holds in any situation."""
_OPERATORS = ("all", "any", "not", "around", "told", "mark", "again", "text", "fact", "signature")


def validate(condition: Mapping[str, Any]) -> None:
    """Raise ConfigError if a condition cannot be evaluated."""
    if not isinstance(condition, Mapping) or len(condition) != 1:
        raise ConfigError(f"condition {condition!r} must have exactly one of: {', '.join(_OPERATORS)}.")
    operator, operand = next(iter(condition.items()))
    if operator not in _OPERATORS:
        raise ConfigError(f"condition has {operator!r}; use one of {', '.join(_OPERATORS)}.")
    if operator in ("all", "any"):
        if not isinstance(operand, list) or (operator == "any" and not operand):
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


def holds(condition: Mapping[str, Any], attempt: Attempt) -> bool:
    """Return whether a condition is true for an action in a situation."""
    (operator, operand), state = next(iter(condition.items())), attempt.situation.state
    match operator:
        case "all":
            return all(holds(part, attempt) for part in operand)
        case "any":
            return any(holds(part, attempt) for part in operand)
        case "not":
            return not holds(operand, attempt)
        case "around":
            return operand in (attempt.context, attempt.full_context)
        case "told":
            # all words: one that was structural when the guardrail was created need not be structural now
            return operand in attempt.all_note_words
        case "mark":
            return operand in attempt.marks
        case "again":
            return attempt.again
        case "text":
            return any(operand.lower() in text.lower() for text in (state.observation, *state.notes))
        case "fact":
            return all(_fact_is(state, name, value) for name, value in operand.items())
        case "signature":
            return bool(state.signature == operand)
    raise ConfigError(f"condition has {operator!r}; use one of {', '.join(_OPERATORS)}.")


def _fact_is(state: State, name: str, value: object) -> bool:
    """Return whether a fact equals the value or, if the fact is a listing, contains it."""
    # a fact that is not there equals nothing, not even None
    actual = state.facts.get(name)
    return value in actual if isinstance(actual, list | tuple) else actual is not None and actual == value


def matches(pattern: str, action: str) -> bool:
    """Return whether an action is an instance of a pattern; see the module docstring."""
    return is_of(pattern, action)


def forbids(item: Item, attempt: Attempt, context_ranges: ContextRanges | None = None) -> bool:
    """Return whether an item's pattern matches the action and its condition holds in the situation."""
    if not is_parsed_of(parse_action(item.forbids or ""), attempt.parsed):
        return False
    stands = context_ranges.hold(item, attempt) if context_ranges is not None else None
    return holds(item.condition or {}, attempt) if stands is None else stands


def is_in_force(item: Item) -> bool:
    """Return whether an item is an active guardrail that is confident enough to refuse a call."""
    return item.kind == "guardrail" and item.status == "active" and item.confidence >= TUNING.min_confidence


def covers(wide: Item, narrow: Item) -> bool:
    """Return whether the first guardrail forbids everything that the second one forbids.

    Only the patterns and the form of the conditions are compared, so a True answer is certain and a False one is not.
    """
    return (
        wide.granularity == narrow.granularity
        and matches(wide.forbids or "", narrow.forbids or "")
        and _follows(wide.condition, narrow.condition)
    )


def _follows(condition: Mapping[str, Any] | None, given: Mapping[str, Any] | None) -> bool:
    """Return whether one condition is implied by another, judging only by their form.

    A missing condition is always true.
    """
    if not condition or condition == given:
        return True
    operator, operand = next(iter(condition.items()))
    if operator == "all":
        return all(_follows(part, given) for part in operand)
    if not given:
        return False
    given_operator, parts = next(iter(given.items()))
    # split the given `any` before the wanted one: each alternative may imply a different part of it
    if given_operator == "any":
        return all(_follows(condition, part) for part in parts)
    if operator == "any" and any(_follows(part, given) for part in operand):
        return True
    return given_operator == "all" and any(_follows(condition, part) for part in parts)


@lru_cache(maxsize=65536)
def named_arguments(parsed: ParsedAction) -> frozenset[str]:
    """Return the head words of the arguments of an action or a pattern, without holes.

    An action that matches a pattern has all of the pattern's named arguments, so guardrails are looked up by the
    subsets of an action's named arguments.
    """
    return frozenset(head for head in parsed.heads if not HOLE.fullmatch(head))


def _iter_subsets(filed: Mapping[frozenset[str], list[Item]], named: frozenset[str]) -> Iterator[list[Item]]:
    """Yield the lists of items filed under subsets of these names."""
    # Enumerate the subsets or scan the index, whichever has fewer entries.
    if 2 ** len(named) > len(filed):
        yield from (items for names, items in filed.items() if names <= named)
        return
    for size in range(len(named) + 1):
        for chosen in combinations(sorted(named), size):
            if (items := filed.get(frozenset(chosen))) is not None:
                yield items


def guard_key(item: Item) -> str:
    """Return the key under which the steps behind a rule-made guardrail are filed."""
    if item.condition == ALWAYS:
        return f"{GUARD_MARK}{item.forbids}"
    operator, operand = next(iter((item.condition or {"around": ""}).items()))
    return f"{GUARD_MARK}{item.forbids} @ {operator} {operand}" if operator in _FILED else ""


def _iter_places(attempt: Attempt, operators: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the (operator, operand) pairs under which guardrails that may forbid the action are filed."""
    yield "", ""
    # compute only what this verb's guardrails need: contexts are the expensive part
    if "around" in operators:
        yield "around", attempt.context
    if "full" in operators:
        yield "full", attempt.full_context
    if "near" in operators:
        # context ranges whose contexts share no word
        yield "near", ""
        for number, words in enumerate(attempt.argument_context.words, 1):
            yield from (("near", f"{number} {word}") for word in words)
    if "told" in operators:
        yield from (("told", word) for word in attempt.all_note_words)
    if "mark" in operators:
        yield from (("mark", mark) for mark in attempt.marks)
    if "again" in operators and attempt.again:
        yield "again", "failed"


class Guard:
    """The active guardrails, indexed so that a check evaluates only a few of them.

    A guardrail is indexed by the verb of its action, by its condition if it is one that rules create, and by the named
    arguments of its pattern. The cost of a check does not depend on the number of guardrails about other things.
    """

    def __init__(
        self,
        items: Iterable[Item] = (),
        is_known_for: Callable[[Item, str], bool] = lambda item, task: True,
        context_ranges: ContextRanges | None = None,
    ) -> None:
        """Index the guardrails among the items."""
        self._is_known_for = is_known_for
        self._context_ranges = context_ranges or ContextRanges()
        self._structural = self._context_ranges.structural
        """The structural words used for the index; see `follow`."""
        self._filed: dict[ConditionPlace, dict[frozenset[str], list[Item]]] = {}
        """Guardrails by (verb, operator, operand), then by the named arguments of the pattern."""
        self._places: dict[str, tuple[ConditionPlace, Item]] = {}
        """By id, the guardrail and where it is filed."""
        self._operators: dict[str, Counter[str]] = {}
        """By verb: the operators under which its guardrails are filed, with the number of guardrails."""
        self.evaluated = 0
        """Number of guardrails evaluated so far, a measure of the cost of checks."""
        # by id, so that `check_plan` blames the same guardrail whatever order the items were read in
        in_force = sorted(filter(is_in_force, items), key=lambda item: item.id)
        self._of_plans = [item for item in in_force if item.granularity == "task"]
        single = [item for item in in_force if item.granularity != "task"]
        # one query for all: `_place_of` would otherwise read each context range on its own
        self._context_ranges.read(single)
        for item in single:
            self._file(item)

    def exchange(self, old: Item | None, new: Item | None) -> None:
        """Replace a guardrail by its new version; None stands for no guardrail. Other items change nothing."""
        if old is not None:
            self._of_plans = [item for item in self._of_plans if item.id != old.id]
            self._drop(old.id)
        if new is None or not is_in_force(new):
            return
        if new.granularity == "task":
            self._of_plans = sorted([*self._of_plans, new], key=lambda item: item.id)
        else:
            self._file(new)

    def follow(self, structural: frozenset[str]) -> None:
        """File the guardrails anew whose place changes with the structural words."""
        if structural == self._structural:
            return
        changed, self._structural = structural ^ self._structural, structural
        for _, item in list(self._places.values()):
            context_range = self._context_ranges.find_range(item)
            if context_range is not None and not changed.isdisjoint(context_range.list_words()):
                self._drop(item.id)
                self._file(item)

    def _file(self, item: Item) -> None:
        pattern = parse_action(item.forbids or "")
        verb = pattern.verb
        place = (verb, *self._place_of(item))
        self._filed.setdefault(place, {}).setdefault(named_arguments(pattern), []).append(item)
        self._operators.setdefault(verb, Counter())[place[1]] += 1
        self._places[item.id] = place, item

    def _drop(self, ref: str) -> None:
        if ref not in self._places:
            return
        place, item = self._places.pop(ref)
        names = named_arguments(parse_action(item.forbids or ""))
        filed = self._filed[place]
        filed[names].remove(item)
        # an empty entry would cost every later check a look
        if not filed[names]:
            del filed[names]
        if not filed:
            del self._filed[place]
        verb, operator, _ = place
        self._operators[verb][operator] -= 1
        if not self._operators[verb][operator]:
            del self._operators[verb][operator]
        if not self._operators[verb]:
            del self._operators[verb]

    def _place_of(self, item: Item) -> tuple[str, str]:
        """Return the (operator, operand) pair under which to file a guardrail.

        If the evidence spans several contexts, one of the words that they all share is used.
        """
        operator, operand = next(iter((item.condition or {"": ""}).items()))
        if operator not in _FILED:
            return "", ""
        if operator != "around":
            return operator, operand
        context_range = self._context_ranges.find_range(item)
        context: str | None = operand if context_range is None else context_range.context(self._structural)
        if context_range is None or context is not None:
            return "full" if has_sight(context or "") else operator, context or ""
        # A single shared word suffices for the lookup: `_forbids` checks the whole context range afterwards.
        needed = enumerate(context_range.needed(self._structural), 1)
        return "near", next((f"{number} {min(words)}" for number, words in needed if words), "")

    def forbidding(self, attempt: Attempt) -> list[Item]:
        """Return all guardrails that forbid the action in this situation, ordered by id."""
        verb = attempt.parsed.verb
        operators = self._operators.get(verb)
        if operators is None:
            return []
        places = list(_iter_places(attempt, operators))
        named = named_arguments(attempt.parsed)
        matching = {
            item.id: item
            for operator, operand in places
            if (filed := self._filed.get((verb, operator, operand)))
            for items in _iter_subsets(filed, named)
            for item in items
            if self._forbids(item, attempt)
        }
        return [matching[ref] for ref in sorted(matching)]

    def _forbids(self, item: Item, attempt: Attempt) -> bool:
        self.evaluated += 1
        task = attempt.situation.state.task
        return forbids(item, attempt, self._context_ranges) and self._is_known_for(item, task)

    def check(self, attempt: Attempt, speaks: Callable[[Item], bool] = lambda item: True) -> Verdict:
        """Return the verdict on one action; the first guardrail that forbids it, and that speaks, gives the reason."""
        matching = list(filter(speaks, self.forbidding(attempt)))
        if not matching:
            return Verdict(True)
        first = matching[0]
        return Verdict(False, first.id, first.body or first.title, items=tuple(item.id for item in matching))

    def check_plan(
        self, situation: Situation, actions: Iterable[str], speaks: Callable[[Item], bool] = lambda item: True
    ) -> Verdict:
        """Return the verdict on a plan."""
        for action in actions if self._of_plans else ():
            attempt = Attempt(situation, action)
            for item in self._of_plans:
                if self._forbids(item, attempt) and speaks(item):
                    return Verdict(False, item.id, item.body or item.title, items=(item.id,))
        return Verdict(True)

    def keys(self, situation: Situation, action: str) -> tuple[str, ...]:
        """Return the keys of the rule-made guardrails that forbid an action in this situation.

        The outcome of the action is counted under these keys. If the structural words have changed since a guardrail
        was created, no other key of the step leads to it. A call is counted in any situation anyway.
        """
        if parse_action(action).verb not in self._operators:
            return ()
        items = [item for item in self.forbidding(Attempt(situation, action)) if item.writer == "rules"]
        return tuple(key for item in items if item.condition != ALWAYS and (key := guard_key(item)))

    def active(self, attempts: Iterable[Attempt]) -> tuple[Item, ...]:
        """Return the guardrails that forbid at least one of these actions, without duplicates."""
        by_id = {item.id: item for attempt in attempts for item in self.forbidding(attempt)}
        return tuple(by_id.values())
