"""Choices: what tells the uses of a call that worked from those that failed.

They are the calls before it, and the value of an argument that fits the beginning of another one, as in refunds to
"card" for orders that begin with "A", or fits what the text says, as in refunds to "voucher" for a request that says
"gift". What the values that work have in common is a matter of `traits`.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from math import comb

from hardwon.memory.guardrails.traits import read_texts
from hardwon.memory.learning.contrast import SeenStep, find_difference
from hardwon.memory.learning.tuning import TUNING
from hardwon.memory.situations.actions import parse_action
from hardwon.memory.situations.titles import Difference, read_beginning, read_difference

_LETTERS, _FIRST = re.compile(r"[^\W\d_]{1,4}(?=[^\w\s]?\d)"), re.compile(r"\w(?=\w*\W?\d)")
"""What an id begins with: its letters, else its first sign."""
TOOL = "tool"
"""The argument that names the tool where several are compared."""
_PLAIN_WORD = re.compile(r"[^\W\d_]+(?:[_-][^\W\d_]+){0,3}")
"""A word such as `gift_card`, but no number, code or text."""
_CODE = r"[^\W_]+(?:[_-][^\W_]+){0,3}"
"""A word or a code such as `INV30`, but no text."""


@dataclass(frozen=True, slots=True)
class CallUse:
    """One use of a call in an episode."""

    action: str
    episode: str
    failure: str
    """How it failed; empty if it worked."""
    prepared: Mapping[str, str]
    """By form, the calls that worked before in the episode."""
    id: int | None = None
    words: tuple[str, ...] = ()
    """Words of the request, and of what the prepared calls returned."""
    copied: tuple[str, ...] = ()
    """Values that an earlier result had, and the request had not."""
    task: str = ""


@dataclass(frozen=True, slots=True)
class ArgumentChoice:
    """The values of an argument that work, each with its condition."""

    name: str
    cases: Mapping[str, tuple[str, int, int]]
    """By condition as a clause: the value, and in how many of how many episodes with this value the call worked.

    Without a condition, it is what all values have in common; see `traits`.
    """


def name_tool(call: str, name: str) -> str:
    """Return a call with the same arguments of a tool that takes this name as an argument."""
    values = {TOOL: name, **{key: value for key, value in read_texts(call).items() if key != TOOL}}
    return f"use({', '.join(f'{key}={json.dumps(value)}' for key, value in values.items())})"


def find_needed(uses: Sequence[CallUse], support: int) -> tuple[str, ...]:
    """Return the forms of the calls that came before all uses that worked; without them, enough episodes failed.

    Those that share an argument with each use come alone: the others may be habits.
    """
    worked = [use for use in uses if not use.failure]
    always = [form for form in worked[0].prepared if all(form in use.prepared for use in worked)] if worked else []
    apart = [form for form in always if len({use.episode for use in uses if form not in use.prepared}) >= support]
    related = [form for form in apart if all(_shares_value(use.prepared[form], use.action) for use in worked)]
    return tuple(related or apart)


def _shares_value(call: str, other: str) -> bool:
    """Return whether two calls have an argument with the same value."""
    return not set(parse_action(call).slots).isdisjoint(parse_action(other).slots)


def find_choice(uses: Sequence[CallUse], support: int) -> ArgumentChoice | None:
    """Return the argument whose value has to fit another argument or the text, or None.

    At least two conditions have different values that nearly always worked, each in enough episodes and for as many
    different texts: what one id has in common with itself is no rule. Other values failed there in enough episodes.
    """
    texts = [read_texts(use.action) for use in uses]
    names, chosen = list_names(texts), list_choices(uses)
    for begin in (_LETTERS.match, _FIRST.match):
        starts = {by: [match and match[0] for match in (begin(text[by]) for text in texts)] for by in names}
        for name, by in product(chosen, (by for by in names if any(starts[by]))):
            groups: defaultdict[str, list[tuple[CallUse, str, str]]] = defaultdict(list)
            for use, text, start in zip(uses, texts, starts[by], strict=True):
                if start:
                    groups[read_beginning(by, start)].append((use, text[name], text[by]))
            cases = {clause: value for clause, group in groups.items() if (value := _find_value(group, support))}
            wrong = {
                use.episode
                for clause in cases
                for use, text, _ in groups[clause]
                if use.failure and text != cases[clause][0]
            }
            if len({value for value, *_ in cases.values()}) > 1 and len(wrong) >= support:
                return ArgumentChoice(name, cases)
    for name in chosen:
        different = _select_different(uses, name)
        cases = _find_said_cases(different, [read_texts(use.action)[name] for use in different], support)
        if len(cases) > 1:
            return ArgumentChoice(name, cases)
    return None


def find_mended(uses: Sequence[CallUse], support: int) -> ArgumentChoice | None:
    """Return the argument that had another value where the call failed than where it then worked, or None.

    It is so in most episodes in which it failed, of enough different requests, and no other argument changed in more
    than half as many: whoever tries again by chance changes this and that, and often in vain. A value that was right in
    more than half of them is a fix, which says more.
    """
    worked = {use.episode: read_texts(use.action) for use in uses if not use.failure}
    changes: defaultdict[str, dict[str, str]] = defaultdict(dict)
    failed = {use.episode for use in uses if use.failure}
    for use in (use for use in uses if use.failure and use.episode in worked):
        text = read_texts(use.action)
        for name, value in worked[use.episode].items():
            if text.get(name) != value:
                changes[name][use.episode] = use.task or use.episode
    name, *rest = sorted(changes, key=lambda name: (-len(changes[name]), name)) or [""]
    n, requests = len(changes[name]), len({*changes[name].values()})
    # of a call with one argument, it says nothing
    is_only = len(list_names([*worked.values()])) > 1 and all(2 * len(changes[other]) <= n for other in rest)
    values = Counter(worked[episode].get(name) for episode in changes[name])
    is_firm = requests >= support and 3 * n >= 2 * len(failed) and 2 * max(values.values(), default=0) <= n
    return ArgumentChoice(name, {"": (f"check {name}", n, len(failed))}) if is_firm and is_only else None


def _select_different(uses: Sequence[CallUse], name: str) -> list[CallUse]:
    """Return the uses without the requests that repeat an earlier one with the same value of an argument.

    They tell nothing of other requests.
    """
    first: dict[tuple[str | tuple[str, ...], str], str] = {}
    repeated = set()
    for use in (use for use in uses if not use.failure):
        request = use.task or use.words, read_texts(use.action)[name]
        if first.setdefault(request, use.episode) != use.episode:
            repeated.add(use.episode)
    return [use for use in uses if use.episode not in repeated]


def list_choices(uses: Sequence[CallUse]) -> list[str]:
    """Return the arguments of which few values worked, but more than one."""
    texts = [read_texts(use.action) for use in uses]
    worked = [text for use, text in zip(uses, texts, strict=True) if not use.failure]
    return [name for name in list_names(texts) if 1 < len({text[name] for text in worked}) <= TUNING.max_choices]


def has_open_choice(uses: Sequence[CallUse]) -> bool:
    """Return whether an argument had several words as its value that worked again and again."""
    worked = [read_texts(use.action) for use in uses if not use.failure]
    values = [{text[name] for text in worked} for name in list_choices(uses)]
    plain = (each for each in values if all(_PLAIN_WORD.fullmatch(value) for value in each))
    return any(2 * len(each) <= len(worked) for each in plain)


def _is_chosen(value: str, uses: Iterable[CallUse]) -> bool:
    """Return whether a value is a word, or a code that is the same for all: no use's request or result names it."""
    if _PLAIN_WORD.fullmatch(value):
        return True
    if not re.fullmatch(_CODE, value) or value.isdecimal():
        return False
    return not any(value in use.copied or value.lower() in use.task.lower() for use in uses)


def list_names(texts: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the arguments that all calls have."""
    return [name for name in texts[0] if all(name in text for text in texts)] if texts else []


def _find_said_cases(uses: Sequence[CallUse], values: Sequence[str], support: int) -> dict[str, tuple[str, int, int]]:
    """Return the values that work, each by what the text says where it does, and not where another one does."""
    texts = {use.episode: use.words for use in uses}
    counts = Counter(chain.from_iterable(texts.values()))
    telling = {word for word, count in counts.items() if TUNING.contrast_texts <= count < len(texts)}
    right: dict[str, str] = {}
    wrong: defaultdict[str, set[str]] = defaultdict(set)
    for use, value in zip(uses, values, strict=True):
        if use.failure:
            wrong[value].add(use.episode)
        else:
            right[use.episode] = value
    steps = {
        ref: SeenStep("", tuple(sorted(telling.intersection(words))), 0.0, failed=False) for ref, words in texts.items()
    }
    cases: dict[str, tuple[str, int, int]] = {}
    for value in (value for value, n in Counter(right.values()).items() if n >= support):
        if not _is_chosen(value, (use for use, other in zip(uses, values, strict=True) if other == value)):
            continue
        those = {ref for ref, other in right.items() if other == value}
        contrary = (right.keys() - those) | (wrong[value] - those)
        difference = find_difference([steps[ref] for ref in those], [steps[ref] for ref in contrary])
        alike = {ref for ref in those | contrary if difference.fits(texts[ref])}
        n = len(alike & those)
        # words that a text must lack are said, too, so enough requests must have said them
        is_firm = min([n, *(counts[word] for word in difference.lacks)]) >= support and 5 * n >= 4 * len(alike)
        if is_firm and _is_no_chance(difference, n, len(texts), len(telling)):
            cases[read_difference(difference)] = (value, n, len(alike))
    return cases


def _is_no_chance(difference: Difference, n: int, episodes: int, words: int) -> bool:
    """Return whether words that say nothing would seldom tell these episodes apart.

    A random word that n of all episodes have is in these n with a chance of 1 / C(episodes, n). There are as many
    differences as there are choices of words that some of the episodes say (Bonferroni).
    """
    used = len(difference.says) + len(difference.lacks)
    return used > 0 and comb(episodes, n) >= TUNING.chance_odds * words**used


def _find_value(group: Sequence[tuple[CallUse, str, str]], support: int) -> tuple[str, int, int] | None:
    """Return the code that nearly always worked, with the episodes in which it did, and in which it was tried."""
    worked = Counter(value for value, _ in {(value, use.episode) for use, value, _ in group if not use.failure})
    if not worked:
        return None
    value, n = worked.most_common(1)[0]
    tried = len({use.episode for use, text, _ in group if text == value})
    different = {by for use, text, by in group if text == value and not use.failure}
    is_firm = min(n, len(different)) >= support and 5 * n >= 4 * max(tried, worked.total())
    is_chosen = _is_chosen(value, (use for use, text, _ in group if text == value))
    return (value, n, tried) if is_firm and is_chosen else None
