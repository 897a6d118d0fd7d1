"""Traits: what the values of an argument that work have in common, and those that fail lack.

    search(query="red", limit=500)                  limit=50 or less works
    book(room="7", day="2027-03-02")                day="02.03.2027", so the form "##.##.####"
    tail(path="main.log")                           path="/srv/logs/main.log", so the beginning "/srv/logs/"
    tag(ticket="T20", labels=["ui"])                labels=["ui", "triage"], so the element "triage"
    reset(user="Mia Torres")                        user="U-9310", which a result had named

A value that failed counts if another one worked in the same episode: then it was the agent's to choose, and the
request did not ask for it.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence, Set
from itertools import chain
from math import comb

from hardwon.memory.guardrails.traits import find_form, has_trait, quote, read_list, read_texts
from hardwon.memory.learning.tuning import TUNING
from hardwon.memory.situations.phrases import REDACTED, content_words
from hardwon.memory.situations.titles import NUMBER

from .choices import ArgumentChoice, CallUse, list_names

_UP_TO_SIGN, _FROM_SIGN = re.compile(r"[^\n]*[^\w\s]"), re.compile(r"[^\w\s][^\n]*")
"""Parts of a value that end or begin with a sign, which stands between its words."""
_ADDRESS = re.compile(r"://|@")
_SIGNS = {"#": "a digit", "A": "a capital letter", "a": "a small letter"}


def find_trait(uses: Sequence[CallUse], support: int) -> ArgumentChoice | None:
    """Return the argument whose values work if they have a trait, and else fail, each in enough episodes; or None."""
    worked_in = {use.episode: read_texts(use.action) for use in uses if not use.failure}
    right = [use for use in uses if not use.failure]
    wrong = [use for use in uses if use.failure and use.episode in worked_in]
    for name in list_names([read_texts(use.action) for use in uses]):
        works, fails = ([read_texts(use.action)[name] for use in each] for each in (right, wrong))
        changed = {use.episode for use, text in zip(wrong, fails, strict=True) if worked_in[use.episode][name] != text}
        if len({*fails}) < 2 or len(changed) < support or any(map(REDACTED.search, works)):
            continue  # before the traits, which cost more
        for clause in _list_traits(name, right, works, fails):
            if counts := _count_episodes(uses, clause, worked_in, support):
                return ArgumentChoice(name, {"": (clause, *counts)})
    return None


def _count_episodes(
    uses: Sequence[CallUse], clause: str, worked_in: Collection[str], support: int
) -> tuple[int, int] | None:
    """Return in how many of how many episodes values with a trait worked; None if this may be chance.

    It works nearly always, and values without it hardly ever do.
    """
    episodes: defaultdict[tuple[bool, bool], set[str]] = defaultdict(set)
    for use in uses:
        episodes[has_trait(clause, use.action, use.copied), bool(use.failure)].add(use.episode)
    worked, failed = episodes[True, False], episodes[True, True]
    n, in_vain, by_others = len(worked), len(episodes[False, True].intersection(worked_in)), len(episodes[False, False])
    is_firm = in_vain >= support and 5 * len(failed) <= n and 5 * by_others <= in_vain
    return (n, len(worked | failed)) if is_firm else None


def _list_traits(name: str, right: Sequence[CallUse], works: Sequence[str], fails: Sequence[str]) -> Iterator[str]:
    """Yield what the values that worked may have in common, what tells most first."""
    common = works[0] if len({*works}) == 1 else ""
    if any(use.copied for use in right):
        yield f"copy {name} from a result"
    requests = frozenset(chain.from_iterable(use.words for use in right))
    for element in sorted(frozenset.intersection(*(frozenset(read_list(use.action, name)) for use in right))):
        if _is_telling(element, requests):
            yield f"include {quote(element)} in {name}"
    if common:
        yield f"use {name}={quote(common)}"
        return
    yield from _list_bounds(name, works, fails)
    forms = Counter(map(find_form, {*works}))
    form, n = max(forms.items(), key=lambda each: (each[1], each[0]))
    if form and n > 1:
        signs = ", ".join(f"{sign} is {meaning}" for sign, meaning in _SIGNS.items() if sign in form)
        yield f'write {name} as "{form}" ({signs})'
    if not any(text.lower() in use.copied for use, text in zip(right, works, strict=True)):
        yield from _list_ends(name, works, requests)


def _list_bounds(name: str, works: Sequence[str], fails: Sequence[str]) -> Iterator[str]:
    """Yield the largest and the smallest number that worked, if a random order would seldom part the numbers so."""
    right, wrong = ({float(text): text for text in texts if NUMBER.fullmatch(text)} for texts in (works, fails))
    if right and comb(len(right) + len(wrong), len(wrong)) >= 2 * TUNING.chance_odds:
        most, least = max(right), min(right)
        if 2 * sum(number > most for number in wrong) > len(wrong):
            yield f"keep {name} at {right[most]} or less"
        if 2 * sum(number < least for number in wrong) > len(wrong):
            yield f"keep {name} at {right[least]} or more"


def _list_ends(name: str, texts: Sequence[str], requests: Set[str]) -> Iterator[str]:
    """Yield the beginning and the end that values have in common."""
    start = _UP_TO_SIGN.match(_find_start(texts))
    if start and _is_telling(start[0], requests):
        yield f"begin {name} with {quote(start[0])}"
    end = _FROM_SIGN.search(_find_start([text[::-1] for text in texts])[::-1])
    if end and _is_telling(end[0], requests):
        yield f"end {name} with {quote(end[0])}"


def _find_start(texts: Sequence[str]) -> str:
    """Return what all texts begin with."""
    least, most = min(texts), max(texts)  # in the order of the alphabet, these two have the least in common
    return least[: next((n for n, (a, b) in enumerate(zip(least, most, strict=False)) if a != b), len(least))]


def _is_telling(part: str, requests: Set[str]) -> bool:
    """Return whether a part of a value has letters, and is neither of an address nor of what a request asks for.

    An address may be somebody else's, and what a request asks for is its customer's.
    """
    is_asked = not requests.isdisjoint(content_words(part))
    return any(map(str.isalpha, part)) and not is_asked and not _ADDRESS.search(part)
