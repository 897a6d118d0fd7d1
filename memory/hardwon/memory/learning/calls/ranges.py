"""Ranges: the numbers of an argument for which a value is right, or for which a call needs another one before it.

pay(invoice="R7", amount=40)        works at once
pay(invoice="R9", amount=250)       works after approve(invoice="R9") alone, so "if amount is above 40"
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, product
from math import factorial, prod
from typing import NamedTuple

from hardwon.memory.guardrails.traits import read_texts
from hardwon.memory.learning.tuning import TUNING
from hardwon.memory.situations.titles import NUMBER
from hardwon.memory.trust.testimony import REQUESTS

from .choices import ArgumentChoice, CallUse, list_choices, list_names


class ConditionalNeed(NamedTuple):
    """A call that has to come before another one for some numbers."""

    form: str
    clause: str
    n: int
    """Number of episodes in which the call worked after it."""
    tried: int


def find_ranged_choice(uses: Sequence[CallUse]) -> ArgumentChoice | None:
    """Return the argument whose value has to fit the number of another argument, or None."""
    right = {use.episode: read_texts(use.action) for use in uses if not use.failure}
    names = list_names([*right.values()])
    for name, by in product(list_choices(uses), names):
        labels = {episode: text[name] for episode, text in right.items()}
        ranges = _find_ranges(by, right, labels, len(names))
        if by != name and ranges:
            ns = Counter(labels.values())
            clauses = zip(_name_ranges(by, [*ranges.values()]), ranges, strict=True)
            return ArgumentChoice(name, {clause: (value, ns[value], ns[value]) for clause, value in clauses})
    return None


def find_conditional_need(uses: Sequence[CallUse]) -> ConditionalNeed | None:
    """Return the call that has to come first if the number of an argument is in a range, or None.

    Without it, the call works outside of the range and fails within, and after it, it works; each in enough episodes.
    """
    for form in dict.fromkeys(form for use in uses if not use.failure for form in use.prepared):
        bare = {use.episode: use for use in reversed(uses) if form not in use.prepared}  # the first of each episode
        after = {use.episode: not use.failure for use in uses if form in use.prepared}
        labels = {episode: "failed" if use.failure else "" for episode, use in bare.items()}
        n = sum(after.values())
        if n < REQUESTS or 5 * n < 4 * len(after) or len({*labels.values()}) < 2:
            continue
        texts = {episode: read_texts(use.action) for episode, use in bare.items()}
        names = list_names([*texts.values()])
        for by in names:
            ranges = _find_ranges(by, texts, labels, len(names))
            if len(ranges) == 2 and "" in ranges:
                free, is_below = ranges[""], next(iter(ranges)) == ""
                clause = f"{by} is above {free[-1]}" if is_below else f"{by} is below {free[0]}"
                return ConditionalNeed(form, clause, n, len(after))
    return None


def _find_ranges(
    by: str, texts: Mapping[str, Mapping[str, str]], labels: Mapping[str, str], tries: int
) -> dict[str, list[str]]:
    """Return the numbers of the episodes of each label, in order, if they are one range each; else nothing.

    A random order of the different numbers would seldom part the labels so: of n numbers, n_i of each label, there are
    n! / (n_1! n_2! ...) orders, and k! of them part k labels. `tries` arguments are looked at (Bonferroni).
    """
    episodes = Counter(labels.values())
    if len(episodes) < 2 or min(episodes.values()) < REQUESTS:
        return {}
    if not all(NUMBER.fullmatch(text[by]) for text in texts.values()):
        return {}
    numbers = sorted({(float(texts[episode][by]), label, texts[episode][by]) for episode, label in labels.items()})
    ranges = [(label, [text for *_, text in group]) for label, group in groupby(numbers, lambda each: each[1])]
    counts = [len(group) for _, group in ranges]
    is_parted = len(ranges) == len(episodes) and len({number for number, *_ in numbers}) == len(numbers)
    orders = factorial(sum(counts)) // prod(map(factorial, counts))
    is_firm = orders >= TUNING.chance_odds * factorial(len(ranges)) * tries
    return dict(ranges) if is_parted and is_firm else {}


def _name_ranges(by: str, ranges: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a clause for each range."""
    *middle, last = ranges[1:]
    yield f"{by} is {ranges[0][-1]} or less"
    yield from (f"{by} is from {numbers[0]} to {numbers[-1]}" for numbers in middle)
    yield f"{by} is {last[0]} or more"
