"""The published methods of training by name, with the settings of a run that make each.

A method is one card, or several: a composer of trees and the estimator that credits them.
"""

from collections.abc import Iterator
from typing import Any

from hardwon.memory.errors import UnknownName
from hardwon.trainers.algorithms.catalog import PARTS, Card

METHODS = ("estimator", "shaper", "term", "extra", "composer", "sampler", "recipe")
"""The kinds of parts that are methods. Sources feed methods and are none."""
SECTIONS = {
    "shaper": "roles.policy.shape",
    "term": "roles.policy.loss.terms",
    "extra": "roles.policy.extra",
    "composer": "tasks.compose",
    "sampler": "tasks.sampler",
}
"""The section that holds the name of a method, by kind of part."""


def list_methods() -> dict[str, list[Card]]:
    """Return the cards of every method, by name."""
    methods: dict[str, list[Card]] = {}
    for kind in METHODS:
        for card in PARTS.list_cards(kind).values():
            methods.setdefault(card.method, []).append(card)
    return dict(sorted(methods.items()))


def find_cards(name: str) -> list[Card]:
    """Return the cards of a method."""
    methods = list_methods()
    if name not in methods:
        raise UnknownName.of("method", name, [*methods])
    return methods[name]


def collect_settings(name: str) -> dict[str, Any]:
    """Return the settings of a method by dotted path; an empty mapping keeps what the run has there."""
    return {path: value for card in find_cards(name) for path, value in _list_settings(card)}


def collect_example(name: str) -> dict[str, Any]:
    """Return the further settings with which a method acts in `examples/methods/base.yaml`, by dotted path."""
    return {path: value for card in find_cards(name) for path, value in card.example.items()}


def _list_settings(card: Card) -> Iterator[tuple[str, Any]]:
    """Yield the settings of one card: its name in its section, a source for every signal, and its own settings."""
    if card.kind == "estimator":
        yield "roles.policy.credit.name", card.name
    elif card.kind in SECTIONS:
        yield f"{SECTIONS[card.kind]}.{card.name}", {}
    for signal in card.needs:
        for giver in PARTS.find_givers(signal)[:1]:
            yield f"roles.policy.sources.{giver}", {}
    yield from card.settings.items()
