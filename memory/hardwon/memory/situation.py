"""A situation as experience is filed under: keys for one action in one state, general to special.

A step's experience is filed under every key of the action taken, from `*` (any step) over the
action's template to its exact words in this context. An estimate for an action never tried here
backs off to the most special key that has evidence. Keys are words a person can read. Facts are
used where the environment gives them, text otherwise; nothing here knows any one environment.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from .records import Fact, State

Words = tuple[str, ...]
_WORD = re.compile(r"[a-z0-9][a-z0-9'-]*")
_WORD_OF_ANY_SCRIPT = re.compile(r"[^\W_](?:[^\W_]|['-])*")
_SENTENCE = re.compile(r"[.!?]\s+|\n")
_CALL = re.compile(r"^\s*([A-Za-z_][\w.-]*)\((.*)\)\s*$", re.DOTALL)
_ARGUMENT = re.compile(r"(\w+)\s*=\s*(\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^,]+)")
_PREPOSITIONS = frozenset(["in", "into", "on", "onto", "to", "from", "with", "at", "under", "using"])
_FUNCTION_WORDS = frozenset(
    [
        "a",
        "an",
        "and",
        "any",
        "are",
        "as",
        "be",
        "been",
        "but",
        "by",
        "can",
        "could",
        "do",
        "does",
        "for",
        "from",
        "have",
        "her",
        "him",
        "his",
        "i",
        "if",
        "in",
        "is",
        "it",
        "its",
        "let",
        "let's",
        "may",
        "my",
        "not",
        "of",
        "off",
        "on",
        "once",
        "or",
        "our",
        "out",
        "she",
        "should",
        "so",
        "some",
        "that",
        "the",
        "their",
        "them",
        "then",
        "there",
        "these",
        "they",
        "this",
        "those",
        "to",
        "up",
        "was",
        "we",
        "were",
        "what",
        "when",
        "where",
        "which",
        "who",
        "will",
        "with",
        "would",
        "you",
        "your",
        "yours",
        "one",
        "into",
        "onto",
        "at",
        "he",
        "here",
        "how",
    ]
)
WINDOW = 4
"""Words to either side of an argument that count as its context."""
MAX_LISTED = 12
"""Elements of a listing that are looked at where the text does not show it."""
CONTEXT_KEY = 4
"""Which of an action's keys is its template in its context, arguments left open."""
GUARD_MARK = "! "
"""Begins the keys under which failures are counted for guardrails."""


@dataclass(frozen=True, slots=True)
class ParsedAction:
    """An action taken apart: `put dirty dress in basket` -> put {1} in {2}, (dirty dress, basket)."""

    verb: str
    template: str
    slots: tuple[str, ...]

    @property
    def heads(self) -> tuple[str, ...]:
        """The last word of every argument: (dress, basket)."""
        return tuple(slot.rsplit(" ", 1)[-1] for slot in self.slots)


@lru_cache(maxsize=8192)
def parse_action(action: str) -> ParsedAction:
    """Verb, template and arguments of `verb thing preposition thing` or `tool(name="value")`."""
    call = _CALL.match(action)
    if call:
        arguments = [(m[1], m[2].strip().strip("\"'").lower()) for m in _ARGUMENT.finditer(call[2])]
        holes = ", ".join(f"{name}={{{i}}}" for i, (name, _) in enumerate(arguments, 1))
        return ParsedAction(call[1], f"{call[1]}({holes})", tuple(value for _, value in arguments))
    words = action.lower().split()
    if not words:
        return ParsedAction("", "", ())
    template, slots = [words[0]], []
    slot: list[str] = []
    for word in words[1:]:
        if word in _PREPOSITIONS:
            if slot:
                slots.append(" ".join(slot))
                template.append(f"{{{len(slots)}}}")
                slot = []
            template.append(word)
        else:
            slot.append(word)
    if slot:
        slots.append(" ".join(slot))
        template.append(f"{{{len(slots)}}}")
    return ParsedAction(words[0], " ".join(template), tuple(slots))


@lru_cache(maxsize=8192)
def pattern_of(action: str, *, keep_first: bool = False) -> str:
    """The action with each argument cut to its last word: `put dress in basket`.

    With `keep_first` the first argument stays open: `put {1} in basket`.
    """
    parsed = parse_action(action)
    pattern = parsed.template
    for number, head in enumerate(parsed.heads, 1):
        if keep_first and number == 1:
            continue
        pattern = pattern.replace(f"{{{number}}}", head, 1)
    return pattern


@lru_cache(maxsize=8192)
def words(text: str) -> tuple[str, ...]:
    """Lower-case words of a text, in order."""
    return tuple(_split(text))


def _split(text: str) -> list[str]:
    found: list[str] = (_WORD if text.isascii() else _WORD_OF_ANY_SCRIPT).findall(text.lower())
    return found


@lru_cache(maxsize=1024)
def content_words(text: str) -> frozenset[str]:
    """The words of a text that name things."""
    return frozenset(words(text)) - _FUNCTION_WORDS


class _Text:
    """The sentences of a text as words, with an index from words to their places."""

    def __init__(self, text: str) -> None:
        self.sentences = [parsed for parsed in (words(sentence) for sentence in _SENTENCE.split(text)) if parsed]
        self._index: dict[str, list[tuple[int, int]]] = {}
        for number, sentence in enumerate(self.sentences):
            for at, word in enumerate(sentence):
                self._index.setdefault(word, []).append((number, at))
        self._found: dict[Words, dict[int, list[int]]] = {}

    def find(self, phrase: Words) -> dict[int, list[int]]:
        """Where a phrase starts, by sentence; by its last word in a text that nowhere has all of it."""
        if not phrase:  # an argument without a word, such as '..'
            return {}
        found = self._found.get(phrase)
        if found is None:
            found = self._found[phrase] = {}
            for number, at in self._index.get(phrase[0], ()):
                if self.sentences[number][at : at + len(phrase)] == phrase:
                    found.setdefault(number, []).append(at)
            if not found:
                for number, at in self._index.get(phrase[-1], ()):
                    found.setdefault(number, []).append(at)
        return found


@lru_cache(maxsize=1024)
def _text(text: str) -> _Text:
    return _Text(text)


def vocabulary(text: str) -> frozenset[str]:
    """The distinct words of a text, for document frequencies."""
    return frozenset(_split(text))


class Situation:
    """One state, prepared so that many actions can be keyed in it cheaply; what none asks for is not read."""

    def __init__(self, state: State, structural: frozenset[str] = frozenset()) -> None:
        self.state = state
        self._structural = structural
        self._task = content_words(state.task)
        self._contexts: dict[str, tuple[str, str]] = {}
        self._lists = {
            name: [one if isinstance(one, str) else str(one) for one in value]
            for name, value in state.facts.items()
            if isinstance(value, list | tuple)
        }

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
        flags = self.flags(parsed)
        facts = f"{counts} | {flags} | {self._listed}"
        special = f"{facts} | {shown} | {told}"
        form, half = parsed.template, pattern_of(action, keep_first=True)
        keys = ["*", form, f"{form} | {counts}", f"{form} | {facts}", f"{form} | {special}"]
        keys += [f"{half} | {word}" for word in self.told_words(action)]
        if half != form:
            keys.append(f"{half} | {flags} | {told}")
        if parsed.slots:
            keys.append(f"{pattern_of(action)} | {facts}")
        if half != form:
            keys.append(f"{half} | {special}")
        if parsed.slots:
            keys.append(f"{pattern_of(action)} | {special}")
        return tuple(keys)

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

    def _mark(self, verb: str, slot: str) -> str:
        named = self._notes.find(tuple(slot.split()))
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
            slots = [tuple(slot.split()) for slot in parsed.slots]
            near = [f"{number}: {self._around(slot, slots, self._shown)}" for number, slot in enumerate(slots, 1)]
            told = [f"{number}: {self._around(slot, slots, self._notes)}" for number, slot in enumerate(slots, 1)]
            shown = "; ".join([*near, self._scalars] if self._scalars else near)
            self._contexts[action] = (shown, "; ".join(told) if self._notes.sentences else "nothing told")
        return self._contexts[action]

    def _around(self, slot: Words, slots: list[Words], text: _Text) -> str:
        """Structural words within `WINDOW` of an argument, in the sentences that name most of the arguments."""
        places = text.find(slot)
        if not places:
            return "-"
        others = [text.find(other) for other in slots if other != slot]
        named = {number: sum(number in other for other in others) for number in places}
        most = max(named.values())
        near: set[str] = set()
        for number, starts in places.items():
            if named[number] < most:
                continue
            sentence = text.sentences[number]
            for at in starts:
                after = at + len(slot)
                near.update(sentence[max(0, at - WINDOW) : at])
                near.update(sentence[after : after + WINDOW])
        return " ".join(sorted({"[T]" if word in self._task else word for word in near if self._keeps(word)}))

    def _keeps(self, word: str) -> bool:
        return word in self._task or (word in self._structural and word not in _FUNCTION_WORDS)

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
    return any(slot in element for element in elements)


def fact_words(facts: Iterable[Fact]) -> frozenset[str]:
    """The words in the values of facts."""
    listed = (value if isinstance(value, list | tuple) else (value,) for value in facts)
    return frozenset(word for value in listed for part in value for word in words(str(part)))
