"""Keys of a situation: the index entries of a step for one action in one state, from general to specific.

A step is filed under every key of its action, from `*` (any step) over the action's template to its exact words in
this context. The estimate of an action without past steps here backs off to the most specific key that has evidence.
Keys are readable text. They are built from facts if the environment provides them, and from the text otherwise;
nothing is specific to one environment.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from copy import copy
from functools import cached_property, lru_cache
from typing import NamedTuple

from hardwon.memory.records import Fact, State

from .actions import ParsedAction, parse_action, pattern_of
from .phrases import ARTICLES, FUNCTION_WORDS, MAY_BE_ID, content_words, head_noun, vocabulary, words
from .refinements import BEST, CASE, FULL_NAME, MAY_CHANGE, SLOT, list_slots, name_in_full
from .scripts import FULL_STOPS
from .tuning import TUNING

__all__ = [
    "Attempt",
    "Context",
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
_SENTENCE = re.compile(rf"[.!?]\s+|[\n{FULL_STOPS}]")
_PLACES = 1 << 32
"""More than the words of a sentence."""
CONTEXT_KEY = 4
"""Index of the key that combines an action's template with its context."""
KEYS_VERSION = 13
"""Version of the functions that compute keys. If you change them, add one: libraries are then rekeyed when opened."""
SAID = "said"
"""Mark in keys for an action that the text names."""
ANY_SAID = f"* {SAID}"
"""Most general key of an action that the text names, instead of `*`."""
TOLD = " | ?"
"""End of the key of all steps with an action that notes are about; each of their words has a key of its own."""
NOTHING_TOLD = "nothing told"
"""End of the keys of an action in a state without notes."""
SIGHT = "0: "
"""Beginning of the part of a context with what the text shows as a whole."""
GUARD_MARK = "! "
"""Prefix of the keys under which failures are counted for guardrails."""


EVERY_WORD = frozenset(("*",))
"""Structural words that keep every word in a context; told apart by identity, as no text has this word."""


class _Text:
    """The sentences of a text as words, with an index from words to their positions."""

    def __init__(self, text: str) -> None:
        self.sentences = [parsed for parsed in (words(sentence) for sentence in _SENTENCE.split(text)) if parsed]
        self._index: defaultdict[str, list[int]] = defaultdict(list)  # numbers, because a pair costs twice the time
        for number, sentence in enumerate(self.sentences):
            for place, word in enumerate(sentence, number * _PLACES):
                self._index[word].append(place)
        self._spans: dict[str, Places] = {}

    @property
    def vocabulary(self) -> AbstractSet[str]:
        """Return the distinct words."""
        return self._index.keys()

    def find(self, slot: str) -> "Places":
        """Return the places of an argument, or those of its head noun if its words do not occur in a row."""
        span = self._spans.get(slot)
        if span is None:
            span = self._places(words(slot))
            if not span.starts:
                span = self._places(words(head_noun(slot)))
            self._spans[slot] = span
        return span

    def says(self, phrase: Words) -> bool:
        """Return whether the words occur in a row, articles aside: `slice carrot` in `slice the carrot`."""
        # most phrases begin with a word that the text lacks
        return phrase[0] in self._index and f" {' '.join(phrase)} " in self._plain

    @cached_property
    def _plain(self) -> str:
        """Return the words of the sentences without articles, each between spaces."""
        return "\n".join(f" {' '.join(_drop_articles(sentence))} " for sentence in self.sentences)

    def _places(self, phrase: Words) -> "Places":
        """Return the places where a phrase starts."""
        starts: dict[int, list[int]] = {}
        for place in self._index.get(phrase[0], ()) if phrase else ():  # a phrase such as `..` has no words
            number, at = divmod(place, _PLACES)
            if self.sentences[number][at : at + len(phrase)] == phrase:
                starts.setdefault(number, []).append(at)
        return Places(starts, len(phrase))


def _drop_articles(phrase: Words) -> Words:
    """Return the words without articles and possessives."""
    return tuple(word for word in phrase if word not in ARTICLES)


@lru_cache(maxsize=8192)
def _phrase_of(action: str) -> Words:
    """Return the words of an action without articles."""
    return _drop_articles(words(action))


class Places(NamedTuple):
    """Start positions of a phrase by sentence, and its length in words."""

    starts: dict[int, list[int]]
    length: int


# consecutive steps share a state, and every action of a state reads the same text
@lru_cache(maxsize=1024)
def _text(text: str) -> _Text:
    """Return the cached index of a text."""
    return _Text(text)


class Situation:
    """One state, prepared for computing the keys of many actions. Expensive parts are computed on first use."""

    def __init__(self, state: State, structural: frozenset[str] = frozenset()) -> None:
        self.state = state
        self._structural = structural
        self._task = content_words(state.task)
        self._contexts: dict[Words, str] = {}
        """By the arguments of an action: see `read_context`; for `_in_notes`, see `read_notes`."""
        self._in_notes: dict[Words, str] = {}
        self._flags: dict[str, list[str]] = {}
        """By argument: see `flags`, without the notes."""
        self._sight: str | None = None
        """See `read_sight`; None until it is needed."""
        self._keys: dict[tuple[str, str], tuple[str, ...]] = {}
        """By action and counts: see `keys`. The action that is taken was estimated before."""
        self._lists = {
            name: [element if isinstance(element, str) else str(element) for element in value]
            for name, value in state.facts.items()
            if isinstance(value, list | tuple)
        }
        self.listed = "; ".join([_reduce_list(name, self._lists[name], self._task) for name in sorted(self._lists)])
        """All lists of the facts, reduced to the words that the task names."""
        self._scalars: str | None = None
        """See `_read_scalars`; None until they are needed."""

    @cached_property
    def whole(self) -> "Situation":
        """Return the situation with all words in its contexts, not only structural ones."""
        return self._with_words(EVERY_WORD)

    @cached_property
    def before(self) -> "Situation | None":
        """Return the situation as it was filed before words of its text became structural or ceased to be."""
        changed = {word for word in self._observation.vocabulary if f"{word}{MAY_CHANGE}" in self._structural}
        return self._with_words(self._structural ^ changed) if changed else None

    def _with_words(self, structural: frozenset[str]) -> "Situation":
        """Return the situation with other structural words."""
        situation = copy(self)
        situation._structural = structural
        situation._contexts, situation._in_notes, situation._keys = {}, {}, {}  # as they depend on the words
        situation._sight = None
        situation.__dict__.pop("_slots", None)
        situation.__dict__.pop("_errand", None)
        return situation

    @cached_property
    def _observation(self) -> _Text:
        """Return the index of the observation."""
        return _text(self.state.observation)

    @cached_property
    def _notes(self) -> _Text:
        """Return the index of the notes."""
        return _text("\n".join(self.state.notes))

    def _read_scalars(self) -> str:
        """Return the facts that are not lists, and the lists that the observation does not show."""
        if self._scalars is None:
            scalars = [f"{name} {value}" for name, value in sorted(self.state.facts.items()) if name not in self._lists]
            self._scalars = "; ".join([*scalars, *_find_hidden_lists(self._lists, self.state.observation)])
        return self._scalars

    def keys(self, action: str, counts: str = "") -> tuple[str, ...]:
        """Return the keys of an action in this state, most general first."""
        if (keys := self._keys.get((action, counts))) is None:
            keys = self._keys[action, counts] = self._compute_keys(action, counts)
        return keys

    def _compute_keys(self, action: str, counts: str) -> tuple[str, ...]:
        parsed = parse_action(action)
        around, notes = self.read_context(parsed.slots), self.read_notes(parsed.slots)
        context = self.read_full_context(parsed) if self._tells_little(parsed) else around
        is_named = self.says(action)
        flags = f"{self.flags(parsed)} {SAID}".lstrip() if is_named else self.flags(parsed)
        facts = f"{counts} | {flags} | {self.listed}"
        special = f"{facts} | {context} | {notes}"
        form, half, whole = parsed.template, pattern_of(action, keep_first=True), pattern_of(action)
        # the order is from general to specific: estimates back off from the end (see CONTEXT_KEY)
        keys = [ANY_SAID if is_named else "*", form, f"{form} | {counts}", f"{form} | {facts}", f"{form} | {special}"]
        name = name_in_full(action)
        thing = [f"{whole} | {facts}"] if parsed.slots else []
        thing += [f"{FULL_NAME}{name} | {facts}"] if name else []
        # what was told of a thing says more than what kind of thing it is
        has_notes = bool(self._notes.sentences)
        keys += thing if has_notes else []
        note_words = self.read_note_words(parsed.slots)
        keys += [f"{half}{TOLD}", *(f"{half} | {word}" for word in note_words)] if note_words else []
        if half != form:
            keys.append(f"{half} | {flags} | {notes}")
        keys += [] if has_notes else thing
        if half != form:
            keys.append(f"{half} | {special}")
        if parsed.slots:
            keys.append(f"{whole} | {special}")
        keys += [f"{FULL_NAME}{name} | {special}"] if name else []
        keys += self._refine(name or whole, f"{around} | {notes}")
        keys += [f"{BEST}{form} | {self._errand}"] if self._errand else []
        return tuple(dict.fromkeys(keys))  # without distinguishing words, a pattern equals the form

    def _refine(self, named: str, context: str) -> list[str]:
        """Return the keys of an action with the task, with what the text shows near it or as a whole, and its slots."""
        goal, sight = _select_goal(self.state.task), self.read_sight()
        keys = [f"=goal {named} | {goal}", f"=near {named} | {goal} | {context}"] if goal else []
        keys += [f"=sight {named} | {sight}", f"=both {named} | {goal} | {sight}"] if sight else []
        keys += [f"{SLOT}{place} {named} | {value}" for place, value in self._slots]
        # without anything else that it shows, this is the slot alone
        return keys + [f"{CASE}{place} {named} | {sight} | {value}" for place, value in self._slots if sight]

    @cached_property
    def _errand(self) -> str:
        """Return the form of the task, and what each sentence shows; "" if that is much, or there is no task."""
        if not self.state.task or not self.read_sight():
            return ""
        sentences = {" ".join(sorted(self._select_words(frozenset(each)))) for each in self._observation.sentences}
        return f"{parse_action(self.state.task).template} | {'; '.join(sorted(sentences))}"

    @cached_property
    def _slots(self) -> list[tuple[str, str]]:
        """Return places of the text and what stands there: numbers of the task, slots of the observation and facts."""
        facts = (f"{name} {value}" for name, value in sorted(self.state.facts.items()) if type(value) in (int, float))
        slots = list_slots([self.state.task], frozenset())
        sentences = (text for text in _SENTENCE.split(self.state.observation) if not text.lstrip().startswith(">"))
        slots |= list_slots([*sentences, *facts], self._structural)  # none of the agent's own calls
        kept = slots.items() if len(slots) <= TUNING.max_slots else ()
        return [(place, f"{place.rstrip('#')}: {value}".lstrip(": ")) for place, value in kept]

    def read_sight(self) -> str:
        """Return the words of the observation that belong to a context; "" if they are many, as they hardly recur."""
        if self._sight is None:
            kept = self._select_words(self._observation.vocabulary)
            self._sight = " ".join(sorted(kept if self._structural is EVERY_WORD else limit_sight(kept)))
        return self._sight

    def flags(self, parsed: ParsedAction) -> str:
        """Return flags for each argument: named by the task (T), in a list of the facts, mentioned in the notes.

        For the notes, the flag is `told` (mentioned with this verb), `other` (mentioned without it) or `unnamed`.
        """
        flags = []
        for number, slot in enumerate(parsed.slots, 1):
            marks = self._flags.get(slot)
            if marks is None:
                marks = ["T"] if content_words(slot) & self._task else []
                marks += [name for name in sorted(self._lists) if _listed_in(slot, self._lists[name])]
                self._flags[slot] = marks
            marks = [*marks, self._mark(parsed.verb, slot)] if self._notes.sentences else marks
            flags.append(f"{number}:{','.join(marks)}")
        return " ".join(flags)

    def says(self, action: str) -> bool:
        """Return whether the text or the notes contain the words of the action in a row, such as `touch your nose`."""
        phrase = _phrase_of(action)
        return len(phrase) > 1 and (self._observation.says(phrase) or self._notes.says(phrase))

    def _mark(self, verb: str, slot: str) -> str:
        """Return the flag of an argument for the notes."""
        sentences = self._notes.find(slot).starts
        if not sentences:
            return "unnamed"
        return "told" if any(verb in self._notes.sentences[number] for number in sentences) else "other"

    def names_together(self, slot: str, phrase: str) -> bool:
        """Return whether a sentence of the observation contains both an argument and the words of a phrase."""
        named = self._observation.find(phrase).starts
        return bool(named) and not named.keys().isdisjoint(self._observation.find(slot).starts)

    def mark(self, parsed: ParsedAction) -> tuple[str, ...]:
        """Return the flags of the arguments for the notes, such as `1 told`, `2 unnamed`; empty without notes."""
        if not self._notes.sentences:
            return ()
        return tuple(f"{number} {self._mark(parsed.verb, slot)}" for number, slot in enumerate(parsed.slots, 1))

    def context(self, action: str) -> str:
        """Return the words around the arguments of an action: the condition of an automatic guardrail."""
        return self.read_context(parse_action(action).slots)

    def read_note_words(self, slots: Words) -> Words:
        """Return the words around each argument in the notes, one by one: `1 grill`, `1 slice`."""
        if not self._notes.sentences:
            return ()
        notes = self.read_notes(slots).split("; ")
        return tuple(f"{part[0]} {word}" for part in notes for word in part[3:].split() if word != "-")

    def read_context(self, slots: Words) -> str:
        """Return the words around each argument in the observation, with hidden facts."""
        context = self._contexts.get(slots)
        if context is None:
            texts = [
                f"{number}: {self._around(slot, slots, self._observation)}" for number, slot in enumerate(slots, 1)
            ]
            scalars = self._read_scalars()
            context = self._contexts[slots] = "; ".join([*texts, scalars] if scalars else texts)
        return context

    def read_full_context(self, parsed: ParsedAction) -> str:
        """Return the context of an action with what the text shows as a whole, which is empty if it shows much."""
        context = self.read_context(parsed.slots)
        parts = context.split("; ", len(parsed.slots)) if context else []
        parts.insert(len(parsed.slots), f"{SIGHT}{self.read_sight()}")
        return "; ".join(parts)

    def _tells_little(self, parsed: ParsedAction) -> bool:
        """Return whether the text names no argument of an action, so that nothing near them tells situations apart.

        A call of a tool names what need not be in sight, and what was said last before it hardly recurs.
        """
        return not parsed.parts and not any(self._observation.find(slot).starts for slot in parsed.slots)

    def read_notes(self, slots: Words) -> str:
        """Return the words around each argument in the notes."""
        if not self._notes.sentences:
            return NOTHING_TOLD
        notes = self._in_notes.get(slots)
        if notes is None:
            around = (f"{number}: {self._around(slot, slots, self._notes)}" for number, slot in enumerate(slots, 1))
            notes = self._in_notes[slots] = "; ".join(around)
        return notes

    def _around(self, slot: str, slots: Sequence[str], text: _Text) -> str:
        """Return the structural words near an argument, in the sentences with most of the arguments."""
        places, length = text.find(slot)
        if not places:
            return "-"
        rest = [text.find(other).starts for other in slots if other != slot]
        counts = {number: sum(number in starts for starts in rest) for number in places} if rest else {}
        most = max(counts.values(), default=0)
        # a set, because a context must not depend on the order of words or on how often they occur
        window: set[str] = set()
        for number, starts in places.items():
            if most and counts[number] < most:
                continue
            sentence = text.sentences[number]
            for at in starts:
                after = at + length
                window.update(sentence[max(0, at - TUNING.context_words) : at])
                window.update(sentence[after : after + TUNING.context_words])
        return " ".join(sorted(self._select_words(window)))

    def _select_words(self, candidates: AbstractSet[str]) -> AbstractSet[str]:
        """Return the words that belong to a context: structural ones, and [T] in place of the words of the task.

        Keys then agree between tasks that differ only in their objects.
        """
        structural = candidates if self._structural is EVERY_WORD else candidates & self._structural
        kept = structural - FUNCTION_WORDS - self._task
        return kept if self._task.isdisjoint(candidates) else kept | {"[T]"}


def _find_hidden_lists(lists: Mapping[str, Sequence[str]], observation: str) -> Iterator[str]:
    """Yield the lists that an observation does not show, such as `has stone wood`.

    Lists with values (`key: 2 ahead`) describe the view and change with every step, so they are skipped.
    """
    visible = vocabulary(observation) if lists else frozenset()
    for name in sorted(lists):
        elements = lists[name][: TUNING.max_hidden_elements]
        if elements and not any(":" in element or visible.issuperset(words(element)) for element in elements):
            yield f"{name} {' '.join(sorted(elements))}"


def _reduce_list(name: str, elements: Sequence[str], task: frozenset[str]) -> str:
    """Return a list reduced to the elements that the task names: `inventory T`, `seen TT 2 ahead 1 left`."""
    best, text = 0, ""
    for element in elements:
        thing, _, value = element.partition(":")
        overlap = len(content_words(thing) & task)
        if overlap > best:
            best, text = overlap, value.strip()
    return f"{name} {'T' * best or '-'}{' ' + text if text else ''}"


class Context(NamedTuple):
    """The context of an action, split by argument; `rest` is the part that comes from facts alone."""

    words: tuple[frozenset[str], ...]
    """For each argument, the words around it."""
    rest: str

    @classmethod
    def of(cls, attempt: "Attempt") -> "Context":
        """Return the context of an action in a situation."""
        # the added "; " makes the split yield a rest also for a context without facts
        *parts, rest = f"{attempt.context}; ".split("; ", len(attempt.parsed.slots))
        return cls(tuple(frozenset(part.partition(":")[2].split()) for part in parts), rest.removesuffix("; "))


class Attempt:
    """One action in one situation, parsed once; a check of guardrails reads all parts from this object."""

    def __init__(self, situation: Situation, action: str, *, again: bool = False) -> None:
        """Parse the action. The other parts are computed on first use."""
        self.situation = situation
        self.action = action
        self.again = again
        self.parsed = parse_action(action)

    @property
    def context(self) -> str:
        """Return the words around the arguments in the observation, with hidden facts."""
        return self.situation.read_context(self.parsed.slots)

    @cached_property
    def full_context(self) -> str:
        """Return the context with what the text shows as a whole."""
        return self.situation.read_full_context(self.parsed)

    @property
    def sight(self) -> frozenset[str]:
        """Return the words that count as what the text shows as a whole."""
        return frozenset(self.situation.read_sight().split())

    @cached_property
    def phrase(self) -> Words:
        """Return the words of the action without articles."""
        return _phrase_of(self.action)

    @cached_property
    def argument_context(self) -> Context:
        """Return the context, split by argument."""
        return Context.of(self)

    @cached_property
    def marks(self) -> Words:
        """Return the flags of the arguments for the notes, such as `1 told`, `2 unnamed`."""
        return self.situation.mark(self.parsed)

    @cached_property
    def note_words(self) -> Words:
        """Return the structural words around each argument in the notes: `1 grill`, `1 slice`."""
        return self.situation.read_note_words(self.parsed.slots)

    @cached_property
    def all_note_words(self) -> Words:
        """Return all words around each argument in the notes, not only structural ones."""
        return self.situation.whole.read_note_words(self.parsed.slots)


@lru_cache(maxsize=1024)
def _select_goal(task: str) -> str:
    """Return the words of a task without numbers that may be ids; "" for a task of many words."""
    goal = sorted(word for word in content_words(task) if not MAY_BE_ID.search(word))
    return " ".join(goal) if len(goal) <= TUNING.max_refined else ""


def has_sight(context: str) -> bool:
    """Return whether what the text shows as a whole belongs to a context."""
    return f"; {SIGHT}" in f"; {context}"


def limit_sight(words: AbstractSet[str]) -> AbstractSet[str]:
    """Return the words of a text that count as what it shows: none of them if they are many."""
    return words if len(words) <= TUNING.max_refined else frozenset()


def guard_keys(situation: Situation, action: str) -> tuple[str, ...]:
    """Return the keys under which failures of an action in a situation are counted.

    The patterns go from wide (`cook {1} in {2}`) over half (`cook {1} in stove`) to narrow (`cook carrot in stove`).
    Each is combined with one condition: the words around the arguments, alone and with what the text shows as a whole,
    one word about an argument in the notes, or the flag of an argument for the notes.
    """
    parsed = parse_action(action)
    wide, half, narrow = parsed.template, pattern_of(action, keep_first=True), pattern_of(action)
    contexts = [situation.read_context(parsed.slots)]
    contexts += [] if parsed.parts else [situation.read_full_context(parsed)]  # the text before a call hardly recurs
    notes = [f"told {word}" for word in situation.read_note_words(parsed.slots)]
    notes += [f"mark {mark}" for mark in situation.mark(parsed)]
    pairs = [(pattern, f"around {context}") for context in contexts for pattern in (wide, narrow)]
    pairs += [(pattern, note) for note in notes for pattern in (wide, half)]
    return tuple(dict.fromkeys([f"{GUARD_MARK}{pattern} @ {condition}" for pattern, condition in pairs]))


def _listed_in(slot: str, elements: Sequence[str]) -> bool:
    """Return whether an element contains the words of an argument in a row: `key 1` is not in `key 12`."""
    wanted = f" {' '.join(words(slot))} "
    return any(wanted in f" {' '.join(words(str(element)))} " for element in elements)


def fact_words(facts: Iterable[Fact]) -> frozenset[str]:
    """Return the words in the values of facts."""
    listed = (value if isinstance(value, list | tuple) else (value,) for value in facts)
    return frozenset(word for value in listed for part in value for word in words(str(part)))
