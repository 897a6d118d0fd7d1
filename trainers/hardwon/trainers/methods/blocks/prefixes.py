"""Beginnings in the middle of a demonstration."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from hardwon.memory.errors import ConfigError
from hardwon.memory.records import Step
from hardwon.trainers.algorithms.composers.base import group_specs
from hardwon.trainers.algorithms.composers.spec import Spec


def parse_shares(shares: str) -> tuple[float, ...]:
    """Return shares that are written as `0.25, 0.5, 0.75`.

    Raises:
        ConfigError: They are not numbers above 0 and below 1 in rising order.
    """
    try:
        values = tuple(float(part) for part in shares.split(","))
    except ValueError:
        values = ()
    if not values or list(values) != sorted({*values}) or not all(0 < value < 1 for value in values):
        raise ConfigError(f"shares is {shares!r}; write numbers above 0 and below 1 in rising order, as 0.25, 0.5.")
    return values


Prefix = tuple[Step, ...]
"""The steps that an episode begins with; empty for a plain beginning."""


def give_prefixes(specs: Sequence[Spec], choose: Callable[[str, str, Spec], Prefix], label: str) -> list[Spec]:
    """Return the episodes, all those of a group with the same prefix.

    Args:
        specs: The episodes.
        choose: Returns the prefix of a group, given its task instance, its arm and its first episode.
        label: Label of the episodes that have a prefix.
    """
    begun: list[Spec] = []
    for (group, arm), own in group_specs(specs).items():
        prefix = choose(group, arm, own[0])
        begun += [replace(spec, prefix=prefix, label=label) for spec in own] if prefix else own
    return begun
