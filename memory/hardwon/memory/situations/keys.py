"""A situation as experience is filed under: keys for one action in one state, general to special.

A step's experience is filed under every key of the action taken, from `*` (any step) over the
action's template to its exact words in this context. An estimate for an action never tried here
backs off to the most special key that has evidence. Keys are words a person can read. Facts are
used where the environment gives them, text otherwise; nothing here knows any one environment.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from functools import cached_property, lru_cache
from typing import NamedTuple

from hardwon.memory.records import Fact, State

from .actions import ParsedAction, parse_action, pattern_of
from .phrases import FUNCTION_WORDS, content_words, head_noun, vocabulary, words

__all__ = [
    "ParsedAction",
    "Situation",
    "content_words",
    "fact_words",
    "guard_keys",
    "parse_action",
    "pattern_of",
    "vocabulary",
    "words",
]

Words = tuple[str, ...]
_SENTENCE = re.compile(r"[.!?]\s+|\n")
WINDOW = 4
"""Words to either side of an argument that count as its context."""
MAX_LISTED = 12
"""Elements of a listing that are looked at where the text does not show it."""
CONTEXT_KEY = 4
"""Which of an action's keys is its template in its context, arguments left open."""
KEYS_VERSION = 3
"""Of the functions that make keys; add one when they change, and opened libraries are filed anew (`rekeying`)."""
SAID = "said"
"""A mark in keys: the text names this very action."""
ANY_SAID = f"* {SAID}"
"""The most general key of an action that the text names, in place of `*`."""
GUARD_MARK = "! "
"""Begins the keys under which failures are counted for guardrails."""


class _EveryWord(frozenset[str]):
    """A set that has every word."""

    def __contains__(self, word: object) -> bool:
        return True


EVERY_WORD: frozenset[str] = _EveryWord()
"""As structural words: no word is left out of a context."""


class _Text:
    """The sentences of a text as words, with an index from words to their places."""

    def __init__(self, text: str) -> None:
        self.sentences = [parsed for parsed in (words(sentence) for sentence in _SENTENCE.split(text)) if parsed]
        self._index: dict[str, list[tuple[int, int]]] = {}
        for number, sentence in enumerate(self.sentences):
            for at, word in enumerate(sentence):
                self._index.setdefault(word, []).append((number, at))
        self._found: dict[str, Places] = {}

    def find(self, slot: str) -> "Places":
        """Return where an argument is named; by its head where the text nowhere has all of its words."""
        found = self._found.get(slot)
        if found is None:
            found = self._places(words(slot))
            if not found.starts:
                found = self._places(words(head_noun(slot)))
            self._found[slot] = found
        return found

    def has(self, phrase: Words) -> bool:
        """Return whether the words stand somewhere in a row."""
        return bool(self._places(phrase).starts)

    def _places(self, phrase: Words) -> "Places":
        starts: dict[int, list[int]] = {}
        for number, at in self._index.get(phrase[0], ()) if phrase else ():  # `..` has no word
            if self.sentences[number][at : at + len(phrase)] == phrase:
                starts.setdefault(number, []).append(at)
        return Places(starts, len(phrase))


class Places(NamedTuple):
    """Where a phrase starts, by sentence, and how many words it has."""

    starts: dict[int, list[int]]
    length: int


@lru_cache(maxsize=1024)
def _text(text: str) -> _Text:
    return _Text(text)


class Situation:
    """One state, prepared so that many actions can be keyed in it cheaply; what none asks for is not read."""

    def __init__(self, state: State, structural: frozenset[str] = frozenset()) -> None:
        self.state = state
        self._structural = structural
        self._task = content_words(state.task)
        self._contexts: dict[str, tuple[str, str]] = {}
        self.failed: frozenset[str] = frozenset()
        """Calls that failed in this run, with nothing that worked since."""
        self._lists = {
            name: [one if isinstance(one, str) else str(one) for one in value]
            for name, value in state.facts.items()
            if isinstance(value, list | tuple)
        }

    def after_failure(self, action: str) -> "Situation":
        """Return this situation as one in which the action was made in vain, and nothing worked since."""
        found = copy(self)
        found.failed = frozenset({action})
        return found

    @cached_property
    def whole(self) -> "Situation":
        """This situation with no word left out of its contexts: what holds whatever words are structural."""
        found = copy(self)
        found._structural, found._contexts = EVERY_WORD, {}
        return found

    @cached_property
    def _shown(self) -> _Text:
        return _text(self.state.observation)

    @cached_property
    def _notes(self) -> _Text:
        return _text("\n".join(self.state.notes))

    @cached_property
    def _scalars(self) -> str:
        told = [f"{name} {value}" for name, value in sorted(self.state.facts.items()) if name not in self._lists]
        return "; ".join([*told, *self._untold()])

    @cached_property
    def _listed(self) -> str:
        return "; ".join(self._listed_fact(name, self._lists[name]) for name in sorted(self._lists))

    def keys(self, action: str, counts: str = "") -> tuple[str, ...]:
        """The keys of this action here, most general first.

        `counts` says what this episode already tried: it comes from the runtime's working memory.
        """
        parsed = parse_action(action)
        shown, told = self._context(action)
        said = self.says(action)
        flags = f"{self.flags(parsed)} {SAID}".lstrip() if said else self.flags(parsed)
        facts = f"{counts} | {flags} | {self._listed}"
        special = f"{facts} | {shown} | {told}"
        form, half = parsed.template, pattern_of(action, keep_first=True)
        keys = [ANY_SAID if said else "*", form, f"{form} | {counts}", f"{form} | {facts}", f"{form} | {special}"]
        keys += [f"{half} | {word}" for word in self.told_words(action)]
        if half != form:
            keys.append(f"{half} | {flags} | {told}")
        if parsed.slots:
            keys.append(f"{pattern_of(action)} | {facts}")
        if half != form:
            keys.append(f"{half} | {special}")
        if parsed.slots:
            keys.append(f"{pattern_of(action)} | {special}")
        return tuple(dict.fromkeys(keys))  # a pattern of open arguments is the form itself

    def flags(self, parsed: ParsedAction) -> str:
        """For each argument: is it named by the task (T), listed by a fact, spoken of in the notes?

        Of the notes: `told` names it with this verb, `other` without it, `unnamed` not at all.
        """
        flags = []
        for number, slot in enumerate(parsed.slots, 1):
            marks = ["T"] if content_words(slot) & self._task else []
            marks += [name for name in sorted(self._lists) if _listed_in(slot, self._lists[name])]
            marks += [self._mark(parsed.verb, slot)] if self._notes.sentences else []
            flags.append(f"{number}:{','.join(marks)}")
        return " ".join(flags)

    def says(self, action: str) -> bool:
        """Return whether the text or the notes name this very action, all of its words in a row: `touch your nose`."""
        phrase = words(action)
        return len(phrase) > 1 and any(text.has(phrase) for text in (self._shown, self._notes))

    def _mark(self, verb: str, slot: str) -> str:
        named = self._notes.find(slot).starts
        if not named:
            return "unnamed"
        return "told" if any(verb in self._notes.sentences[number] for number in named) else "other"

    def marks(self, action: str) -> tuple[str, ...]:
        """How the notes speak of each argument: `1 told`, `2 unnamed`; nothing while there are none."""
        if not self._notes.sentences:
            return ()
        parsed = parse_action(action)
        return tuple(f"{number} {self._mark(parsed.verb, slot)}" for number, slot in enumerate(parsed.slots, 1))

    def context(self, action: str) -> str:
        """What holds around the arguments of an action: the condition of an automatic guardrail."""
        return self._context(action)[0]

    def told_words(self, action: str) -> tuple[str, ...]:
        """The words told of each argument, one by one: `1 grill`, `1 slice`."""
        if not self._notes.sentences:
            return ()
        told = self._context(action)[1].split("; ")
        return tuple(f"{part[0]} {word}" for part in told for word in part[3:].split() if word != "-")

    def _context(self, action: str) -> tuple[str, str]:
        """What is shown around each argument (and the facts that only facts tell), and what was told of it."""
        if action not in self._contexts:
            parsed = parse_action(action)
            slots = parsed.slots
            near = [f"{number}: {self._around(slot, slots, self._shown)}" for number, slot in enumerate(slots, 1)]
            told = [f"{number}: {self._around(slot, slots, self._notes)}" for number, slot in enumerate(slots, 1)]
            shown = "; ".join([*near, self._scalars] if self._scalars else near)
            self._contexts[action] = (shown, "; ".join(told) if self._notes.sentences else "nothing told")
        return self._contexts[action]

    def _around(self, slot: str, slots: Sequence[str], text: _Text) -> str:
        """Structural words within `WINDOW` of an argument, in the sentences that name most of the arguments."""
        places, length = text.find(slot)
        if not places:
            return "-"
        others = [text.find(other).starts for other in slots if other != slot]
        named = {number: sum(number in other for other in others) for number in places}
        most = max(named.values())
        near: set[str] = set()
        for number, starts in places.items():
            if named[number] < most:
                continue
            sentence = text.sentences[number]
            for at in starts:
                after = at + length
                near.update(sentence[max(0, at - WINDOW) : at])
                near.update(sentence[after : after + WINDOW])
        return " ".join(sorted({"[T]" if word in self._task else word for word in near if self._keeps(word)}))

    def _keeps(self, word: str) -> bool:
        return word in self._task or (word in self._structural and word not in FUNCTION_WORDS)

    def _untold(self) -> Iterator[str]:
        """Listings that the text does not show, `has stone wood`: what holds there is to be had from them alone.

        Listings with values (`key: 2 ahead`) are views, not holdings, and change with every step.
        """
        shown = vocabulary(self.state.observation) if self._lists else frozenset()
        for name in sorted(self._lists):
            elements = self._lists[name][:MAX_LISTED]
            if elements and not any(":" in element or shown.issuperset(words(element)) for element in elements):
                yield f"{name} {' '.join(sorted(elements))}"

    def _listed_fact(self, name: str, elements: Sequence[str]) -> str:
        """A listing reduced to what the task names: `inventory T`, `seen TT 2 ahead 1 left`."""
        best, shown = 0, ""
        for element in elements:
            thing, _, value = element.partition(":")
            overlap = len(content_words(thing) & self._task)
            if overlap > best:
                best, shown = overlap, value.strip()
        return f"{name} {'T' * best or '-'}{' ' + shown if shown else ''}"


def guard_keys(situation: Situation, action: str) -> tuple[str, ...]:
    """The keys under which failures of this action here are counted.

    Patterns from wide (`cook {1} in {2}`) over half (`cook {1} in stove`) to narrow (`cook carrot in
    stove`), each under one condition: what is shown around the arguments, one word told of an
    argument, or how the notes speak of it.
    """
    wide, half, narrow = parse_action(action).template, pattern_of(action, keep_first=True), pattern_of(action)
    shown = f"around {situation.context(action)}"
    told = [f"told {word}" for word in situation.told_words(action)]
    told += [f"mark {mark}" for mark in situation.marks(action)]
    found = [(wide, shown), (narrow, shown), *((pattern, one) for one in told for pattern in (wide, half))]
    return tuple(dict.fromkeys(f"{GUARD_MARK}{pattern} @ {condition}" for pattern, condition in found))


def _listed_in(slot: str, elements: Sequence[str]) -> bool:
    """Return whether an element has the words of an argument, in a row: `key 1` is not in `key 12`."""
    wanted = f" {' '.join(words(slot))} "
    return any(wanted in f" {' '.join(words(str(element)))} " for element in elements)


def fact_words(facts: Iterable[Fact]) -> frozenset[str]:
    """The words in the values of facts."""
    listed = (value if isinstance(value, list | tuple) else (value,) for value in facts)
    return frozenset(word for value in listed for part in value for word in words(str(part)))
