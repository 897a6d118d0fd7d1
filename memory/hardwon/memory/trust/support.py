"""Support: which words of recorded steps may be shown, because independent requests produced them.

A tool's result may be written by anybody, and an argument may be a customer's name. What a single request says could be
an attack or a secret; what REQUESTS requests say alike is how the tool is used and how it answers. If several trusted
parties record, at least PARTIES of them must say it, because one person may send many requests. An episode counts once.

Values of actions are compared argument by argument. Messages are compared by pairs of neighboring tokens, and only with
messages that share at least half of them: otherwise, common words could be assembled to a new sentence.
"""

import json
import re
import sqlite3
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice, pairwise
from typing import NamedTuple

from hardwon.memory.records import Hit, Item, Step
from hardwon.memory.situations.actions import parse_action
from hardwon.memory.situations.phrases import HOLE
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import witness_of

from .instructions import LEFT_OUT

REQUESTS, PARTIES = 3, 2
SHARE_OF_VALUES, SHARE_OF_MESSAGES = 0.25, 0.5
"""Least share of the requests with the same form of action, or with a similar message."""
CONSTANT = 0.9
"""Least share of the requests for a tool that have a word of the step's own request. Other words of it, such as names,
are what varies between requests, and they are not shown however often one returns."""
READ, SCANNED = 4000, 32_000
"""Number of newest steps of a namespace that are compared, and of the file that are searched for them."""
MOST_WRITERS = 100
"""Number of trusted writers that are looked at to tell whether there are several parties."""
KEPT = 40
"""Number of newest steps with the same tool that are compared."""
LONGEST = 240
"""Number of characters of a message that are shown."""
HIDDEN = "{value}"
_HEAD = re.compile(r"[^\s(\[]*")
_CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_TOKEN = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+(?:[@/.:+-]+[^\W{_CJK}]+)*|[^\w\s]")
_DIGIT = re.compile(r"\d")
_NEW = """
SELECT steps.id, action, trajectory_id, task,
iif(failure = 'none' OR NOT json_valid(diagnosis), '', json_extract(diagnosis, '$.evidence'))
FROM steps JOIN states ON states.id = pre
WHERE steps.id > max(?, (SELECT max(id) FROM steps) - ?) AND +steps.namespace = ? AND witness = 0
ORDER BY steps.id DESC LIMIT ?
"""
_NEXT_WRITER = "SELECT min(writer) FROM trajectories WHERE namespace = ? AND writer > ?"
_EVIDENCE = """
SELECT trajectory_id, task FROM steps JOIN states ON states.id = pre
WHERE witness = 0 AND steps.id IN (SELECT value FROM json_each(?)) ORDER BY steps.id
"""
_WRITER = "SELECT writer FROM trajectories WHERE namespace = ? AND id = ?"


def _has_several_parties(store: Store, namespace: int) -> bool:
    """Return whether several trusted parties record in a namespace."""
    return len(set(islice(_list_parties(store, namespace), MOST_WRITERS))) >= PARTIES


def _are_of_several_parties(store: Store, namespace: int, episodes: Iterable[str]) -> bool:
    """Return whether several parties recorded these episodes."""
    writers = (row for ref in episodes for row in store.rows(_WRITER, (namespace, ref)))
    return len({_party_of(writer) for (writer,) in writers}) >= PARTIES


def _party_of(writer: str) -> str:
    """Return who is behind a trusted writer: the programs of this machine are one party."""
    return writer if writer.startswith("token:") else ""


def _list_parties(store: Store, namespace: int) -> Iterator[str]:
    """Yield the party of each writer; those of untrusted writers are left out, because they support nothing."""
    untrusted = {name for (name,) in store.rows("SELECT name FROM writers WHERE namespace = ?", (namespace,)) if name}
    writer: str | None = store.rows("SELECT min(writer) FROM trajectories WHERE namespace = ?", (namespace,))[0][0]
    while writer is not None:
        if witness_of(writer) not in untrusted:
            yield _party_of(writer)
        writer = store.rows(_NEXT_WRITER, (namespace, writer))[0][0]


Pair = tuple[str, str]
Pairs = tuple[Pair, ...]


class _Use(NamedTuple):
    """One recorded use of a tool."""

    action: str
    episode: str
    task: str
    message: str
    """Its error message; empty if it succeeded."""


class Support:
    """Counts which requests of one namespace share a value or a message."""

    def __init__(self, store: Store, namespace: int) -> None:
        self._store, self._namespace = store, namespace
        self._last = 0
        self._uses: dict[str, deque[_Use]] = {}
        self._limits: dict[str, dict[int | None, tuple[tuple[str, ...], str]]] = {}
        """By tool and step: the values and the message that may be shown, until the tool is used again."""
        self._has_several_parties = False
        self.unread = True
        """Whether steps were recorded since the last call."""

    def limit_words(self, hit: Hit) -> Hit:
        """Return a hit on a step with the supported part of its message, and with its supported values as a reason."""
        step = hit.what
        if not isinstance(step, Step) or step.why.untrusted:
            return hit
        self._read()
        head, diagnosis = _find_head(step.action), step.diagnosis
        limits = self._limits.setdefault(head, {})
        if step.id not in limits:
            uses = self._uses.get(head, ())
            has_message = diagnosis.evidence not in ("", LEFT_OUT)
            message = self._find_message(step, uses) if has_message else ""
            limits[step.id] = self._find_values(step.action, step.pre.task, uses), message
        values, message = limits[step.id]
        if diagnosis.evidence:
            diagnosis = replace(diagnosis, evidence=message)
        why = step.why.updated(supported=values) if values else step.why
        return replace(hit, what=replace(step, diagnosis=diagnosis, why=why))

    def vouches_for(self, item: Item) -> bool:
        """Return whether enough parties did what a rule-made item says, and enough requests gave the values in it."""
        self._read()
        evidence = self._store.rows(_EVIDENCE, (json.dumps(item.provenance),))
        if self._has_several_parties:
            episodes = {episode for episode, _ in evidence}
            if not _are_of_several_parties(self._store, self._namespace, episodes):
                return False
        task = evidence[-1][1] if evidence else ""
        for action in (item.forbids,) if item.forbids else item.steps:
            named = {slot for slot in parse_action(action).slots if not HOLE.fullmatch(slot)}
            if named and not named <= {*self._find_values(action, task, self._uses.get(_find_head(action), ()))}:
                return False
        return True

    def _read(self) -> None:
        """Read the steps that were recorded since the last call."""
        if not self.unread:
            return
        self.unread = False
        try:
            rows = self._store.rows(_NEW, (self._last, SCANNED, self._namespace, READ))
        except sqlite3.OperationalError:  # a damaged text supports nothing; `verify` reports it
            return
        for _, action, episode, task, message in reversed(rows):
            head = _find_head(action)
            self._limits.pop(head, None)
            kept = self._uses.setdefault(head, deque(maxlen=KEPT))
            kept.append(_Use(action, episode, task, " ".join((message or "").split())[:LONGEST]))
        if rows:
            self._last = rows[0][0]
            several = _has_several_parties(self._store, self._namespace)
            if several is not self._has_several_parties:
                self._has_several_parties = several
                self._limits.clear()

    def _is_supported(self, episodes: set[str], among: set[str], share: float) -> bool:
        """Return whether enough requests, of enough parties and of all similar ones, are among these."""
        if len(episodes) < max(REQUESTS, share * len(among)) or not self._has_several_parties:
            return len(episodes) >= max(REQUESTS, share * len(among))
        return _are_of_several_parties(self._store, self._namespace, episodes)

    def _find_values(self, action: str, task: str, uses: Iterable[_Use]) -> tuple[str, ...]:
        """Return the arguments of an action or a pattern that enough requests gave to the same parameter."""
        parsed, varying = parse_action(action), _find_varying(task, uses)
        if not parsed.slots:
            return ()
        episodes: list[set[str]] = [set() for _ in parsed.slots]
        among: set[str] = set()
        for use in uses:
            other = parsed if use.action == action else parse_action(use.action)
            if other.template == parsed.template:
                among.add(use.episode)
                for same, value, *forms in zip(episodes, parsed.slots, other.slots, other.heads, strict=True):
                    if value in forms:  # a pattern may name the kind of a thing alone
                        same.add(use.episode)
        values = (
            value
            for value, same in zip(parsed.slots, episodes, strict=True)
            if not _find_words(value) & varying and self._is_supported(same, among, SHARE_OF_VALUES)
        )
        return tuple(dict.fromkeys(values))

    def _find_message(self, step: Step, uses: Iterable[_Use]) -> str:
        """Return the part of a step's message that enough requests got, with holes; empty if little remains."""
        text, varying = " ".join(step.diagnosis.evidence.split())[:LONGEST], _find_varying(step.pre.task, uses)
        exact, masked, distinct, all_pairs = _pair(text)
        episodes: dict[Pair, set[str]] = defaultdict(set)
        among: set[str] = set()
        for use in uses:
            if not use.message:
                continue
            _, _, other_distinct, other_pairs = _pair(use.message)
            if 2 * len(distinct & other_distinct) >= len(distinct):
                among.add(use.episode)
                for pair in all_pairs & other_pairs:
                    episodes[pair].add(use.episode)

        def find_supported(pairs: Iterable[Pair]) -> list[bool]:
            return [
                varying.isdisjoint(pair) and self._is_supported(episodes[pair], among, SHARE_OF_MESSAGES)
                for pair in pairs
            ]

        return _fill_template(text, find_supported(exact), find_supported(masked))


def _find_varying(task: str, uses: Iterable[_Use]) -> frozenset[str]:
    """Return the words of a task that most of the requests for the same tool do not have."""
    words, tasks = _find_words(task), {use.episode: use.task for use in uses}
    counts = Counter(word for other in tasks.values() for word in words & _find_words(other))
    return frozenset(word for word in words if counts[word] < CONSTANT * len(tasks))


@lru_cache(maxsize=4096)
def _find_words(text: str) -> frozenset[str]:
    """Return the words of a text as tokens of messages."""
    return frozenset(token for token in _TOKEN.findall(text.casefold()) if token[0].isalnum())


def _find_head(action: str) -> str:
    """Return the name of the tool or the verb of an action."""
    match = _HEAD.match(action.lstrip())
    return match[0].lower() if match else ""


@lru_cache(maxsize=4096)
def _pair(text: str) -> tuple[Pairs, Pairs, frozenset[Pair], frozenset[Pair]]:
    """Return the pairs of neighboring tokens of a message, with its ends, as they are and with masked digits.

    The last two are the distinct masked ones, and all distinct ones.
    """
    exact = ["", *(token.casefold() for token in _TOKEN.findall(text)), ""]
    masked = [_DIGIT.sub("#", token) for token in exact]
    pairs, masked_pairs = tuple(pairwise(exact)), tuple(pairwise(masked))
    return pairs, masked_pairs, frozenset(masked_pairs), frozenset((*pairs, *masked_pairs))


def _fill_template(text: str, exact: list[bool], masked: list[bool]) -> str:
    """Return a message whose tokens are shown if a pair with a neighbor is supported, exactly or with masked digits."""
    parts = list(_show_tokens(text, exact, masked))
    if 2 * sum(part.strip() == HIDDEN for part in parts) > len(parts):
        return ""
    # several hidden tokens in a row become one hole
    kept = [
        part
        for part, before in zip(parts, ["", *parts], strict=False)
        if (part.strip(), before.strip()) != (HIDDEN, HIDDEN)
    ]
    return "".join(kept).strip()


def _show_tokens(text: str, exact: list[bool], masked: list[bool]) -> Iterator[str]:
    """Yield each token with the spaces before it; see `_fill_template`."""
    end = 0
    for at, token in enumerate(_TOKEN.finditer(text)):
        word = HIDDEN
        if any(masked[at : at + 2]):
            word = _DIGIT.sub("#", token[0])
        if any(exact[at : at + 2]):
            word = token[0]
        yield text[end : token.start()] + word
        end = token.end()
