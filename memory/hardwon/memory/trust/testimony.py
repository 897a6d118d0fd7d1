"""Testimony: the actions that untrusted writers took in a situation, and how often they worked, without their words.

An action is reduced to its form, with placeholders for its arguments. A form is skipped if it is longer than a name or
reads like an instruction. Forms that a trusted step or a second writer also used come first. Then forms of most
episodes rank higher, discounted by how common they are in all situations. An episode counts once, however many steps it
has.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import sqrt
from typing import Any

from hardwon.memory.reasons import Reasons
from hardwon.memory.records import Diagnosis, Failure, Hit, State, Step
from hardwon.memory.situations.actions import parse_action
from hardwon.memory.situations.commands import looks_like_shell
from hardwon.memory.situations.phrases import FUNCTION_WORDS, HOLE
from hardwon.memory.situations.scripts import split_words
from hardwon.memory.storage.database import Store

from .instructions import instruction_in
from .tuning import TUNING

REQUESTS, PARTIES = 3, 2
"""Number of requests that must say a word before it is shown, and of their parties if there are several."""

SIMILARITY_MARGIN, COPIES = 0.2, 20
"""A state counts if its cosine is at most the margin below the one of rank `COPIES`. An attacker who records copies of
an expected request therefore needs more than this number to push out other states."""
WORDS_OF_NAME, LONGEST_NAME, ARGUMENTS = 4, 40, 8
WHY = "untrusted: only the form of the action and its outcome"
_HOLES = re.compile(r"\{\d*\}")
_PLAIN = re.compile(r"[\w.'-]+")
_PIECES = re.compile(r"[a-z]+|[A-Z][a-z]*|\d+")
_CALL = re.compile(r"\s*[^\W\d][\w.-]*\(.*\)\s*", re.S)


@dataclass(slots=True)
class FormUsage:
    """Uses of one form by untrusted writers."""

    episodes: dict[int, set[str]] = field(default_factory=dict)
    """Ids of the episodes that used the form, by writer."""
    successes: set[str] = field(default_factory=set)
    """Ids of the episodes in which it worked, perhaps after it had failed with other values."""
    failures: dict[str, str] = field(default_factory=dict)
    """How it failed, by episode."""
    templates: set[str] = field(default_factory=set)
    is_told: bool = False
    """Whether a result named the tool before it was used."""

    @property
    def total(self) -> int:
        """Return the number of episodes that used the form."""
        return sum(map(len, self.episodes.values()))

    @property
    def losses(self) -> list[str]:
        """Return how it failed in each episode in which it never worked."""
        return [failure for episode, failure in self.failures.items() if episode not in self.successes]


def form_of(action: str) -> str:
    """Return the form of an action, or an empty string if it consists of more than names.

    >>> form_of('refund(order="A17", reason="Mia Torres moved")')
    'refund(order={order}, reason={reason})'
    """
    parsed = parse_action(action)
    is_call = _CALL.fullmatch(action) is not None or (action.lstrip().startswith("{") and bool(parsed.parts))
    if instruction_in(action) or (len(action.split()) > TUNING.max_command_words and not is_call):
        return ""
    if not is_call:
        return parsed.verb if parsed.verb.isalpha() and len(parsed.verb) <= 20 and _is_name(parsed.verb) else ""
    # the keys of nested objects are no names of parameters
    arguments = list(dict.fromkeys(part.name.partition(".")[0] or str(n) for n, part in enumerate(parsed.parts, 1)))
    names = (parsed.verb, *(name for name in arguments if not name.isdigit()))
    if len(arguments) > ARGUMENTS or not all(map(_is_name, names)) or instruction_in(" ".join(names)):
        return ""
    listed = (f"{{{name}}}" if name.isdigit() else f"{name}={{{name}}}" for name in arguments)
    return f"{parsed.verb}({', '.join(listed)})"


def find_names(action: str) -> frozenset[str]:
    """Return the names of the tool and of its parameters in lower case."""
    parsed = parse_action(action)
    return frozenset(name.lower() for name in (parsed.verb, *(part.name.partition(".")[0] for part in parsed.parts)))


@lru_cache(maxsize=8192)
def find_chosen_words(action: str) -> frozenset[str]:
    """Return the words of an action's form that no schema gives: commands, flags, keys within JSON.

    Names of tools and parameters are among them only if they are no names, such as a link or a sentence.
    """
    parsed = parse_action(action)
    names = [(parsed.verb, parsed.verb), *((part.name, part.name.partition(".")[0]) for part in parsed.parts)]
    if parsed.parts:
        texts = [part.frame for part in parsed.parts]
    else:
        texts = [parsed.template] if looks_like_shell(action) else []
    for name, first in names:
        texts.append(name[len(first) :] if _PLAIN.fullmatch(first) and _is_name(first) else name)
    return frozenset(split_words(_HOLES.sub(" ", " ".join(texts))))


def hides_values(pattern: str) -> bool:
    """Return whether the form of a pattern leaves out values that the pattern names, such as a command."""
    return any(HOLE.fullmatch(part.value) is None for part in parse_action(pattern).parts)


def _is_name(text: str) -> bool:
    """Return whether a text is short enough for a name and does not read like an instruction."""
    return 0 < len(text) <= LONGEST_NAME and len(_PIECES.findall(text)) <= WORDS_OF_NAME and not instruction_in(text)


def hits_of(
    store: Store,
    namespace: int,
    hits: Sequence[tuple[int, float, str]],
    signature: str,
    k: int,
    is_known: Callable[[str], bool],
    uses: Mapping[str, int],
) -> tuple[Hit, ...]:
    """Return the best supported actions of untrusted steps in similar states, or in states with the signature."""
    cosines = sorted((cosine for _, cosine, _ in hits), reverse=True)
    # not the best cosine: a few close copies of an expected request would then exclude all other states
    reference = cosines[min(COPIES, len(cosines) // 3)] if cosines else 0.0
    states = [ref for ref, cosine, _ in hits if cosine >= reference - SIMILARITY_MARGIN]
    usage = _count(
        store.rows(_STEPS, (json.dumps(states), namespace, signature, namespace, TUNING.untrusted_steps)), is_known
    )
    ranked = sorted(usage, key=lambda form: _rank(form, usage[form], is_known, uses))
    return tuple(Hit(_step(form, usage[form]), 0.5, WHY) for form in ranked[:k])


def hits_by_words(
    store: Store, namespace: int, question: str, k: int, is_known: Callable[[str], bool], uses: Mapping[str, int]
) -> tuple[Hit, ...]:
    """Return the actions of untrusted steps whose forms share a word with a question, most words first.

    Only the words of the forms count, because only they are shown. The words of the steps would let their writer decide
    which questions they answer, and would tell a reader what the steps say.
    """
    question_words = {word.lower() for word in _PIECES.findall(question)} - FUNCTION_WORDS
    shares = {form: len(question_words & _words_of_form(form)) for form in uses if form}
    if not any(shares.values()):
        return ()
    usage = _count(store.rows(_NEWEST, (namespace, TUNING.untrusted_steps)), is_known)
    matching = [form for form in usage if shares.get(form)]
    ranked = sorted(matching, key=lambda form: (-shares[form], _rank(form, usage[form], is_known, uses)))
    return tuple(Hit(_step(form, usage[form]), 0.5, WHY) for form in ranked[:k])


def _words_of_form(form: str) -> set[str]:
    """Return the words of the names in a form, in lower case."""
    return {word.lower() for word in _PIECES.findall(form)}


def _count(rows: Iterable[tuple[Any, ...]], is_known: Callable[[str], bool]) -> dict[str, FormUsage]:
    """Return the uses by form of steps as (action, failure, witness, episode, copied) rows.

    A form that no trusted step has, or whose tool a result named, needs REQUESTS episodes: its names are words of its
    writer, or of whoever wrote the result.
    """
    usage: dict[str, FormUsage] = {}
    for action, failure, witness, episode, copied in rows:
        form = form_of(action)
        if form:
            form_usage = usage.setdefault(form, FormUsage())
            form_usage.episodes.setdefault(witness, set()).add(episode)
            parsed = parse_action(action)
            form_usage.templates.add(parsed.template)
            form_usage.is_told = form_usage.is_told or (bool(copied) and parsed.verb.lower() in json.loads(copied))
            if failure in (Failure.NONE, Failure.STEP_LIMIT):
                form_usage.successes.add(episode)
            else:
                form_usage.failures[episode] = failure
    return {
        form: form_usage
        for form, form_usage in usage.items()
        if form_usage.total >= REQUESTS or (not form_usage.is_told and any(map(is_known, form_usage.templates)))
    }


def _rank(
    form: str, usage: FormUsage, is_known: Callable[[str], bool], uses: Mapping[str, int]
) -> tuple[bool, int, bool, float, str]:
    """Return the sort key of a form: agreement first, then success, then support."""
    agreed = len(usage.episodes) > 1 or any(map(is_known, usage.templates))
    is_bad = 2 * len(usage.losses) > usage.total
    return not agreed, -len(usage.episodes), is_bad, -usage.total / sqrt(uses.get(form, 1)), form


def uses_of(store: Store, namespace: int) -> dict[str, int]:
    """Return the number of uses by form among the newest untrusted steps, to discount common forms."""
    rows = store.rows(
        "SELECT action FROM steps WHERE namespace = ? AND witness > 0 AND action != '' ORDER BY id DESC LIMIT ?",
        (namespace, TUNING.untrusted_steps),
    )
    return dict(Counter(form_of(action) for (action,) in rows))


COPIED = """iif(instr(why, '"copied"') AND json_valid(why), json_extract(why, '$.copied'), '')"""
"""What a step copied from a result, as JSON; empty if it is nothing."""
_NEWEST = f"""
SELECT action, failure, witness, trajectory_id, {COPIED} FROM steps
WHERE namespace = ? AND witness > 0 AND action != '' AND keys != '[]' ORDER BY id DESC LIMIT ?
"""
_STEPS = f"""
SELECT action, failure, witness, trajectory_id, {COPIED} FROM steps WHERE pre IN (
    SELECT value FROM json_each(?) UNION SELECT id FROM (
        SELECT id FROM states WHERE namespace = ? AND signature = ? ORDER BY id DESC LIMIT 256))
AND witness > 0 AND action != '' AND keys != '[]' AND namespace = ? ORDER BY id DESC LIMIT ?
"""


def _step(form: str, usage: FormUsage) -> Step:
    """Return a step that contains only the form and its most frequent outcome."""
    losses = usage.losses
    bad = 2 * len(losses) > usage.total
    failure = Failure(max(sorted(set(losses)), key=losses.count)) if bad else Failure.NONE
    why = Reasons(untrusted=True, episodes=usage.total, failed=len(losses), writers=len(usage.episodes))
    return Step(State("", signature="-"), form, State("", signature="-"), Diagnosis(not bad, failure), why=why)
