"""Testimony: what steps of untrusted writers say of a situation: the forms of actions, and how often they worked.

None of their words is shown. An action is cut to its form, its arguments left open, and the form itself is passed
over where it is longer than a name or reads like an instruction. Forms that a trusted step or a second writer used
come first, then those of most episodes, less what is done in every situation: one episode is one voice, however many
steps it has.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt

from hardwon.memory.records import Diagnosis, Failure, Hit, State, Step
from hardwon.memory.situations.actions import parse_action
from hardwon.memory.storage.database import Store

from .instructions import instruction_in

READ = 4000
"""Steps of untrusted writers, the newest, that are looked at."""
NEAR, COPIES = 0.2, 20
"""How much less near a state may be than the one of this rank and still have a voice: fewer copies of a request that
is to come than this outvote nobody."""
POOL_FACTOR = 4
"""How many more states are looked at where untrusted ones are among them: they must not push the others out."""
WORDS_OF_NAME, LONGEST_NAME, ARGUMENTS = 4, 40, 8
LONGEST_COMMAND = 8
"""Words of an action that is no call; a longer one is a sentence."""
WHY = "untrusted: the form of the action and its outcome alone"
_PIECES = re.compile(r"[a-z]+|[A-Z][a-z]*|\d+")
_CALL = re.compile(r"\s*[A-Za-z_][\w.-]*\(.*\)\s*", re.S)


@dataclass(slots=True)
class Voices:
    """What writers say of one form."""

    episodes: dict[int, set[str]] = field(default_factory=dict)
    """By writer, the episodes that used it."""
    failed: set[str] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)
    templates: set[str] = field(default_factory=set)

    @property
    def total(self) -> int:
        """Return how many episodes used it."""
        return sum(map(len, self.episodes.values()))


def has_untrusted(store: Store, namespace: int) -> bool:
    """Return whether anybody untrusted may have written in a namespace."""
    return bool(store.rows("SELECT 1 FROM writers WHERE namespace = ? AND name != '' LIMIT 1", (namespace,)))


def form_of(action: str) -> str:
    """Return the form of an action, `refund(order={order})`; empty where it is more than a name.

    >>> form_of('refund(order="A17", reason="Mia Torres moved")')
    'refund(order={order}, reason={reason})'
    """
    parsed = parse_action(action)
    if instruction_in(action) or (len(action.split()) > LONGEST_COMMAND and _CALL.fullmatch(action) is None):
        return ""
    if _CALL.fullmatch(action) is None:
        return parsed.verb if parsed.verb.isalpha() and len(parsed.verb) <= 20 and _is_name(parsed.verb) else ""
    arguments = [part.name or str(n) for n, part in enumerate(parsed.parts, 1)]
    names = (parsed.verb, *(name for name in arguments if not name.isdigit()))
    if len(arguments) > ARGUMENTS or not all(map(_is_name, names)) or instruction_in(" ".join(names)):
        return ""
    listed = (f"{{{name}}}" if name.isdigit() else f"{name}={{{name}}}" for name in arguments)
    return f"{parsed.verb}({', '.join(listed)})"


def _is_name(text: str) -> bool:
    return 0 < len(text) <= LONGEST_NAME and len(_PIECES.findall(text)) <= WORDS_OF_NAME and not instruction_in(text)


def hits_of(
    store: Store,
    namespace: int,
    found: Sequence[tuple[int, float, str]],
    signature: str,
    k: int,
    is_known: Callable[[str], bool],
    uses: Mapping[str, int],
) -> tuple[Hit, ...]:
    """Return what untrusted steps did in the states found, or in those of a signature, the best supported first.

    Args:
        is_known: whether a trusted step has an action of this template.
        uses: how many steps anywhere have a form, see `uses_of`.
    """
    cosines = sorted((cosine for _, cosine, _ in found), reverse=True)
    middle = cosines[min(COPIES, len(cosines) // 3)] if cosines else 0.0
    states = [ref for ref, cosine, _ in found if cosine >= middle - NEAR]
    rows = store.rows(_STEPS, (json.dumps(states), namespace, signature, namespace, READ))
    voices: dict[str, Voices] = {}
    for action, failure, witness, episode in rows:
        form = form_of(action)
        if form:
            said = voices.setdefault(form, Voices())
            said.episodes.setdefault(witness, set()).add(episode)
            said.templates.add(parse_action(action).template)
            if failure not in (Failure.NONE, Failure.STEP_LIMIT):
                said.failed.add(episode)
                said.failures.append(failure)

    def order(form: str) -> tuple[bool, int, bool, float, str]:
        said = voices[form]
        agreed = len(said.episodes) > 1 or any(map(is_known, said.templates))
        return (
            not agreed,
            -len(said.episodes),
            2 * len(said.failed) > said.total,
            -said.total / sqrt(uses.get(form, 1)),
            form,
        )

    return tuple(Hit(_step(form, voices[form]), 0.5, WHY) for form in sorted(voices, key=order)[:k])


def uses_of(store: Store, namespace: int) -> dict[str, int]:
    """Return by form how many of the newest untrusted steps have it: what is done everywhere is no answer to this."""
    rows = store.rows(
        "SELECT action FROM steps WHERE namespace = ? AND witness > 0 AND action != '' ORDER BY id DESC LIMIT ?",
        (namespace, READ),
    )
    return dict(Counter(form_of(action) for (action,) in rows))


_STEPS = """
SELECT action, failure, witness, trajectory_id FROM steps WHERE pre IN (
    SELECT value FROM json_each(?) UNION SELECT id FROM (
        SELECT id FROM states WHERE namespace = ? AND signature = ? ORDER BY id DESC LIMIT 256))
AND witness > 0 AND action != '' AND keys != '[]' AND namespace = ? ORDER BY id DESC LIMIT ?
"""


def _step(form: str, said: Voices) -> Step:
    """Return a step that shows nothing but the form and what mostly came of it."""
    bad = 2 * len(said.failed) > said.total
    failure = Failure(max(sorted(set(said.failures)), key=said.failures.count)) if bad else Failure.NONE
    why = {"untrusted": True, "episodes": said.total, "failed": len(said.failed), "writers": len(said.episodes)}
    return Step(State("", signature="-"), form, State("", signature="-"), Diagnosis(not bad, failure), why=why)
