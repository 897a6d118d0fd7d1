"""Preconditions: the calls that nearly always failed, until the run had done something else or used other arguments.

A remedy says what made a call work. Where the call usually failed without it, it is a warning before the call as well:
`refund(...)` failed until `check_order(...)` was called. It forbids nothing, since the run may know better.
"""

from collections.abc import Iterable, Mapping

from hardwon.memory.records import Item
from hardwon.memory.situations.actions import ParsedAction, is_parsed_of, parse_action
from hardwon.memory.situations.titles import is_for_failures, is_in_range
from hardwon.memory.trust.testimony import REQUESTS

from .traits import find_trait_clause, has_trait

RemediesByVerb = Mapping[str, tuple[tuple[ParsedAction, Item], ...]]
"""By verb: the pattern of the calls that a remedy warns of, and the remedy, the best supported first."""


def find_failing_pattern(item: Item) -> str:
    """Return the pattern of the calls that a remedy warns of; empty if it is advice for failures alone."""
    is_firm = item.source != "experience" or item.episodes >= REQUESTS
    if item.kind != "remedy" or not item.steps or not is_firm or is_for_failures(item.title):
        return ""
    *before, last = item.steps
    if item.forbids and item.forbids != last:
        pattern = item.forbids
    else:
        pattern = last if before or find_trait_clause(item.title) else ""
    # An environment lists what is possible now. A tool can be called at any time.
    return pattern if parse_action(pattern).template.endswith(")") else ""


def index_remedies(items: Iterable[Item]) -> RemediesByVerb:
    """Return the remedies that warn of calls."""
    by_verb: dict[str, tuple[tuple[ParsedAction, Item], ...]] = {}
    for item in sorted(items, key=lambda item: (-item.score * item.confidence, item.id)):
        if pattern := find_failing_pattern(item):
            parsed = parse_action(pattern)
            by_verb[parsed.verb] = (*by_verb.get(parsed.verb, ()), (parsed, item))
    return by_verb


def find_remedies(remedies: RemediesByVerb, action: str, call: ParsedAction) -> list[Item]:
    """Return the remedies that warn of a parsed call, the best supported first; none that the call is an example of."""
    about = [item for pattern, item in remedies.get(call.verb, ()) if is_parsed_of(pattern, call)]
    return [item for item in about if is_in_range(item.title, call) and not _is_what_it_says(item, action, call)]


def _is_what_it_says(item: Item, action: str, call: ParsedAction) -> bool:
    """Return whether a call has the values that a remedy advises."""
    *before, advised = item.steps
    if not before and (clause := find_trait_clause(item.title)):
        return has_trait(clause, action)
    return item.forbids not in (None, advised) and is_parsed_of(parse_action(advised), call)
