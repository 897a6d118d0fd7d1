"""The curator: the only way for an item to enter the library.

    rules (schema, specific, no conflict) -> learned gate, if there is one -> duplicates -> capacity

Every candidate is added, merged, replaced or rejected, and the admission gives the reason. Items from untrusted sources
are put in quarantine: stored and visible, but neither recalled nor enforced. A person releases them, or evidence does,
when the library's own experience supports the same item.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from sqlite3 import Connection
from typing import Protocol, TypeVar

from hardwon.memory import items
from hardwon.memory.guardrails import thinning
from hardwon.memory.guardrails.conditions import is_in_force, matches
from hardwon.memory.items import check_conditions, identify, read_item
from hardwon.memory.privacy.redaction import redact_item
from hardwon.memory.records import MIN_SKILL_STEPS, Admission, Item
from hardwon.memory.situations.keys import content_words, parse_action, words
from hardwon.memory.storage.episodes import first_row, last_row
from hardwon.memory.trust.instructions import instruction_in

from .calls.mining import REFUTED
from .guardrail_index import GuardrailIndex
from .tuning import TUNING
from .untrusted_writers import UNSUPPORTED

T = TypeVar("T")
GENERIC = (
    "be careful",
    "be patient",
    "be thorough",
    "avoid mistakes",
    "do your best",
    "double check",
    "explore more",
    "focus on the task",
    "keep trying",
    "make sure",
    "pay attention",
    "plan ahead",
    "read carefully",
    "stay focused",
    "step by step",
    "take your time",
    "think carefully",
    "think before",
    "try again",
    "try harder",
    "try something else",
    "work hard",
)
_NEGATIONS = frozenset(["not", "never", "no", "don't", "dont", "avoid", "cannot", "without", "stop"])
_WITH_WORD = (
    "SELECT rowid FROM items_text WHERE items_text MATCH ? AND rowid BETWEEN ? AND ? "
    f"ORDER BY rowid DESC LIMIT {TUNING.compared_rows}"
)


class AdmissionGate(Protocol):
    """A learned judge of candidates that is consulted after the rules."""

    def decide(self, candidate: Item, similar: Iterable[Item]) -> tuple[bool, float, str]:
        """Decide on a candidate."""
        ...


@dataclass(frozen=True, slots=True)
class Curator:
    """Admits items into one namespace within the caller's transaction."""

    connection: Connection
    namespace: int
    clock: int = 0
    """Number of episodes recorded so far, the unit of an item's age."""
    gate: AdmissionGate | None = None
    guardrails: GuardrailIndex = field(default_factory=GuardrailIndex)
    """Finds the guardrails that a candidate is compared with."""

    def admit(self, item: Item) -> Admission:
        """Add, merge, replace or reject a candidate."""
        item = redact_item(item)
        check_conditions(item)
        if item.trust == "untrusted" and item.source != "experience":
            item = replace(item, id="")  # untrusted sources may not choose ids, because agents see them
        item = replace(item, id=item.id or identify(item))
        order = "" if item.source == "person" else _find_instruction(item)
        if order:
            item = replace(item, trust="untrusted")
        stored = read_item(self.connection, self.namespace, item.id)
        if stored is not None:
            return self._meet(stored, item)
        objection = (
            _find_schema_error(item) or _find_generic_phrase(item) or self._conflict(item) or self._explain_cover(item)
        )
        if objection:
            return Admission("rejected", objection)
        # The gate sees the candidate before it is merged, so duplicates do not bypass it.
        similar = self._similar(item)
        if self.gate is not None:
            admit, p, why = self.gate.decide(item, similar)
            if not admit:
                return Admission("rejected", f"the gate refused it ({p:.2f}): {why}")
        twin = next((other for other in similar if says_the_same(item, other)), None)
        if twin is not None:
            return self._meet(twin, item)
        return self._place(item, order)

    def _meet(self, stored: Item, item: Item) -> Admission:
        """Merge a candidate into an equivalent item, or reject or revive it depending on that item's status."""
        if stored.status == "retired" and self._is_needed(stored, item):
            return self._revive(stored, item)
        if self._may_return(stored):
            return self._place(replace(item, id=stored.id, version=stored.version + 1), "")
        if stored.status == "retired":
            return Admission("rejected", f"{stored.id} says the same and was retired", stored.id)
        if item.trust == "untrusted" and stored.trust == "trusted":
            return Admission("rejected", f"{stored.id} says the same and comes from a trusted source", stored.id)
        merged = _merge(stored, item)
        if self._used(stored):  # earned figures take precedence over claimed ones
            judged = stored.confidence if stored.kind == "skill" else merged.confidence
            merged = replace(merged, score=stored.score, confidence=judged)
        reason = f"same as {stored.id}; evidence merged"
        if stored.status == "quarantined" and item.trust == "trusted":
            # An untrusted source can guess the id in advance, so none of its text is released.
            merged = replace(item, id=stored.id, pinned=stored.pinned, version=stored.version + 1)
            reason = f"{stored.id} is released from quarantine: {item.source} says the same"
        # Without new content nothing is written; otherwise every run would add to the history.
        if replace(merged, version=stored.version) != stored:
            self._write(merged, "merged")
            self._harden(merged)
        return Admission("merged", reason, stored.id)

    def rewrite(self, targets: Sequence[Item], item: Item) -> Admission:
        """Rewrite one or more items into one.

        The first item takes the new text, the others are retired, and the evidence is merged. An untrusted rewrite of a
        trusted item becomes a separate candidate in quarantine.
        """
        first, rest, item = targets[0], targets[1:], redact_item(item)
        if item.trust == "untrusted" and any(target.trust == "trusted" for target in targets):
            return self.admit(item)
        objection = _find_schema_error(item) or _find_generic_phrase(item)
        if not objection and any(target.pinned for target in targets):
            objection = "it is pinned; only a person can change it"
        if objection:
            return Admission("rejected", objection, first.id)
        united = first
        for other in (*rest, item):
            united = _merge(united, replace(other, writer=""))
        rewritten = replace(
            united,
            title=item.title,
            body=item.body,
            when_to_use=item.when_to_use,
            when_not_to_use=item.when_not_to_use,
            writer=item.writer,
            score=first.score,
            version=first.version + 1,
        )
        self._write(rewritten, "updated")
        for other in rest:
            items.retire(self.connection, self.namespace, other.id, f"merged into {first.id}")
        return Admission("merged", f"rewrote {first.id}" + (f" with {len(rest)} more" if rest else ""), first.id)

    def _place(self, item: Item, order: str) -> Admission:
        """Write a new item: into quarantine, as active, or in place of the weakest item."""
        if item.trust == "untrusted":
            if self._held(item.kind, "quarantined") >= TUNING.quarantine_capacity:
                return Admission(
                    "rejected",
                    f"quarantine already holds {TUNING.quarantine_capacity} items of its kind; release or retire some",
                )
            self._write(replace(item, status="quarantined", pinned=False), "added")
            why = f"its source ({item.source}) is not trusted"
            if order:
                why = f"it reads like an instruction to a model ({order})"
            elif item.source == "experience":
                why = "only one untrusted writer supports it; evidence from another writer or a person can release it"
            return Admission("added", f"quarantined: {why}", item.id)
        if self._held(item.kind, "active") >= TUNING.capacity:
            return self._replace_weakest(item)
        self._write(item, "added")
        self._harden(item)
        return Admission("added", "new", item.id)

    def _replace_weakest(self, item: Item) -> Admission:
        """Replace the weakest item of a full kind if the candidate scores higher."""
        weakest = self._weakest(item.kind)
        if weakest is None:
            return Admission("rejected", f"{item.kind} is full of pinned items")
        loser, score, strength = weakest
        if item.score <= strength:
            return Admission("rejected", f"{item.kind} is full and its weakest scores {score:.2f}")
        items.retire(self.connection, self.namespace, loser, f"replaced by {item.id}")
        self._write(item, "added")
        self._harden(item)
        return Admission("replaced", f"scores {item.score:.2f}, above {loser} with {score:.2f}", item.id)

    def _is_needed(self, stored: Item, item: Item) -> bool:
        """Return whether the call of a guardrail that was retired for lack of use has failed since."""
        if not thinning.is_made_by_rules(item):
            return False
        retired_at = items.find_retirement(self.connection, self.namespace, stored)
        return retired_at is not None and max(item.provenance, default=0) > retired_at

    def _may_return(self, stored: Item) -> bool:
        """Return whether an item was retired for its evidence alone, so that what supports it now decides anew."""
        return items.find_retirement_reason(self.connection, self.namespace, stored) in (UNSUPPORTED, REFUTED)

    def _revive(self, stored: Item, item: Item) -> Admission:
        """Reactivate a retired guardrail, unless another one covers it."""
        if objection := self._explain_cover(item):
            return Admission("rejected", objection, stored.id)
        revived = replace(_merge(stored, item), status="active", score=stored.score)
        self._write(revived, "revived: what it forbids failed again")
        self._harden(revived)
        return Admission("added", "what it forbids has failed again since it was retired", stored.id)

    def _explain_cover(self, item: Item) -> str:
        """Return why a rule-made guardrail would be redundant, or an empty string."""
        if not (thinning.is_made_by_rules(item) and is_in_force(item)):
            return ""
        wide = thinning.find_covering(self.connection, self.namespace, item, self._index().iter_near(item))
        return f"{wide.id} already forbids it" if wide else ""

    def _used(self, item: Item) -> bool:
        """Return whether an item was ever used."""
        (uses,) = self.connection.execute(
            "SELECT uses FROM items WHERE namespace = ? AND id = ?", (self.namespace, item.id)
        ).fetchone()
        return bool(uses)

    def _write(self, item: Item, op: str) -> None:
        """Write an item and mark it as fresh."""
        items.write(self.connection, self.namespace, item, op)
        items.set_fresh(self.connection, self.namespace, item.id, self.clock)

    def _harden(self, item: Item) -> None:
        """Retire the items that a guardrail in force makes redundant: equal warnings and covered guardrails."""
        if not is_in_force(item):
            return
        index = self._index()
        for other in thinning.find_covered(self.connection, self.namespace, item, index.iter_near(item)):
            why = f"{item.id} forbids what it forbids"
            items.retire(self.connection, self.namespace, other.id, why, until_needed=True)
        for warning in index.iter_same("warning", item.forbids or "", item.condition):
            if (warning.condition, warning.forbids) == (item.condition, item.forbids) and not warning.pinned:
                items.retire(self.connection, self.namespace, warning.id, f"became guardrail {item.id}")

    def _conflict(self, item: Item) -> str:
        """Return why an existing confident item contradicts the candidate, or an empty string."""
        if item.kind == "remedy":
            for other in self._active("remedy"):
                rival = other.confidence >= TUNING.firm_confidence and item.repairs == other.repairs
                if rival and item.steps != other.steps and _trigger_overlap(item, other) >= TUNING.conflict_overlap:
                    return (
                        f"conflicts with {other.id}, which repairs the same failure (confidence {other.confidence:.2f})"
                    )
        for action in item.steps:
            for other in self._index().iter_same("guardrail", action, item.condition):
                is_rival = other.confidence >= TUNING.firm_confidence and other.condition == item.condition
                if is_rival and matches(other.forbids or "", action):
                    return f"conflicts with {other.id}, which forbids one of its actions under the same condition"
        if item.kind in ("strategy", "insight", "warning") and item.condition is None:
            for other in self._similar(item):
                if other.confidence >= TUNING.firm_confidence and _contradicts(item, other):
                    return f"conflicts with {other.id}, which says the opposite (confidence {other.confidence:.2f})"
        return ""

    def _index(self) -> GuardrailIndex:
        """Return the index of the guardrails and warnings as they are now, with those of this transaction."""
        self.guardrails.catch_up(self.connection, self.namespace)
        return self.guardrails

    def _active(self, kind: str) -> list[Item]:
        """Return the active items of a kind."""
        rows = self.connection.execute(
            "SELECT record FROM items WHERE namespace = ? AND status = 'active' AND kind = ?", (self.namespace, kind)
        )
        return [items.kept_item_of(row[0]) for row in rows]

    def _similar(self, item: Item) -> list[Item]:
        """Return the active items of the same kind with the most words in common with what the item says.

        Items made by rules or with a condition have none: they are identified by their id.
        """
        statement = content_words(_read_statement(item)) or content_words(item.text)
        chosen = nsmallest(6, statement, key=lambda word: (-len(word), word))
        if not chosen or item.condition is not None or item.writer == "rules":
            return []
        rows = self.connection.execute(
            "SELECT record FROM items WHERE status = 'active' AND kind = ? AND number IN "
            "(SELECT value FROM json_each(?)) ORDER BY number",
            (item.kind, json.dumps(self._find_by_words(chosen))),
        )
        return [items.item_of(row[0]) for row in rows]

    def _find_by_words(self, chosen: Sequence[str]) -> list[int]:
        """Return the numbers of the items with the most of these words; words that few items contain weigh more."""
        first, weights = first_row(self.namespace), defaultdict[int, float](float)
        for word in chosen:
            rows = self.connection.execute(_WITH_WORD, (f'"{word}"', first, last_row(self.namespace))).fetchall()
            for (row,) in rows:
                weights[row - first] += math.log1p(TUNING.compared_rows / len(rows))
        return sorted(weights, key=lambda number: (-weights[number], number))[: TUNING.compared_items]

    def _held(self, kind: str, status: str) -> int:
        """Return the number of items with this kind and status."""
        where = "namespace = ? AND status = ? AND kind = ?"
        row = self.connection.execute(f"SELECT count(*) FROM items WHERE {where}", (self.namespace, status, kind))
        return int(row.fetchone()[0])

    def _weakest(self, kind: str) -> tuple[str, float, float] | None:
        """Return (id, score, strength) of the weakest unpinned item of a kind, or None if all are pinned."""
        row = self.connection.execute(
            f"SELECT id, score, {STRENGTH} AS strength FROM items "
            "WHERE namespace = ? AND status = 'active' AND kind = ? AND pinned = 0 ORDER BY strength, number LIMIT 1",
            (self.clock, self.namespace, kind),
        ).fetchone()
        return (str(row[0]), float(row[1]), float(row[2])) if row else None


STRENGTH = f"score / (1.0 + max(0, ? - fresh) / {float(TUNING.half_life)})"
"""SQL expression for an item's score, discounted by the episodes since its last use; takes the clock."""


def expire(connection: Connection, namespace: int, clock: int) -> list[str]:
    """Retire items whose time to live passed without new evidence or use."""
    rows = connection.execute(
        "SELECT id, json_extract(record, '$.ttl') AS ttl FROM items "
        "WHERE namespace = ? AND status = 'active' AND pinned = 0 AND ttl IS NOT NULL AND ? - fresh > ttl",
        (namespace, clock),
    ).fetchall()
    for item_id, ttl in rows:
        items.retire(connection, namespace, item_id, f"no new evidence for {ttl} episodes, its time to live")
    return [row[0] for row in rows]


def _find_instruction(item: Item) -> str:
    """Return the kind of model instruction in any text of an item, or an empty string."""
    words = (item.text, item.when_not_to_use, item.forbids or "", *item.steps, *item.tags, *item.locations, item.id)
    return next(filter(None, map(instruction_in, words)), "")


def _find_schema_error(item: Item) -> str:
    """Return what an item lacks, or an empty string; items written by a person may be incomplete."""
    if item.source == "person":
        return ""
    if item.kind == "skill" and not (item.steps and item.condition is not None and item.verify is not None):
        return "a skill needs steps, preconditions (condition) and a verification (verify)"
    if item.kind == "skill" and len(item.steps) < MIN_SKILL_STEPS:
        return f"a skill needs at least {MIN_SKILL_STEPS} steps, not {len(item.steps)}"
    if item.kind == "remedy" and not (item.repairs and (item.steps or item.body)):
        return "a remedy needs the failure that it repairs, and steps or a body"
    if item.source == "model" and not item.provenance:
        return "it has no evidence; name the steps that it was learned from"
    return ""


def _find_generic_phrase(item: Item) -> str:
    """Return why a text is too generic, or an empty string."""
    text = f" {' '.join(item.text.lower().replace('-', ' ').split())} "
    phrases = [phrase for phrase in GENERIC if phrase in text]
    for phrase in phrases:
        text = text.replace(phrase, " ")
    if phrases and len(content_words(text) - _NEGATIONS) < TUNING.min_content_words:
        return f"too generic: {phrases[0]!r} applies to any situation"
    return ""


def says_the_same(item: Item, other: Item) -> bool:
    """Return whether two items of a kind share so many words that the second adds nothing.

    Words are compared, not letters: `open the red door` and `open the bed door` are different findings. The statements
    alone are compared as well, because short lessons of one task share all words of a long `when_to_use`.
    """
    if (item.condition, item.forbids, item.steps) != (other.condition, other.forbids, other.steps):
        return False
    a, b = frozenset(words(item.text)), frozenset(words(other.text))
    if _negated(item) != _negated(other) or _numbers(a) != _numbers(b):
        return False
    return (
        _jaccard(a, b) > TUNING.duplicate_similarity
        and _jaccard(*(frozenset(words(_read_statement(each))) for each in (item, other))) > TUNING.duplicate_similarity
    )


def _read_statement(item: Item) -> str:
    """Return what an item says, without the situation that it is for."""
    return f"{item.title}\n{item.body}"


def _numbers(tokens: frozenset[str]) -> frozenset[str]:
    """Return the words that contain a digit."""
    return frozenset(word for word in tokens if any(sign.isdigit() for sign in word))


def _contradicts(item: Item, other: Item) -> bool:
    """Return whether two texts share almost all words but only one of them is negated."""
    if _negated(item) == _negated(other):
        return False
    texts = ((each.text, _read_statement(each)) for each in (item, other))
    pairs = zip(*([content_words(text.lower()) - _NEGATIONS for text in pair] for pair in texts), strict=True)
    return all(_jaccard(a, b) > TUNING.duplicate_similarity for a, b in pairs)


def _negated(item: Item) -> bool:
    """Return whether the text of an item contains a negation."""
    return bool(_NEGATIONS & {*item.text.lower().split()})


def _trigger_overlap(item: Item, other: Item) -> float:
    """Return how much the situations of two items overlap, in [0, 1]."""
    if item.condition is not None and item.condition == other.condition:
        return 1.0
    return _jaccard(_trigger(item), _trigger(other))


def _trigger(item: Item) -> frozenset[str]:
    """Return the words, clusters and verbs that describe when an item applies."""
    verbs = frozenset(parse_action(action).verb for action in item.steps)
    return content_words(item.when_to_use or item.title) | frozenset(item.signatures) | verbs


def _jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    """Return the Jaccard similarity of two sets, in [0, 1]; it is 1 for two empty sets."""
    return len(a & b) / len(a | b) if a or b else 1.0


def _merge(stored: Item, new: Item) -> Item:
    """Merge two items into one.

    Evidence and places are united, figures of the same writer are replaced by newer ones, and a person's text is kept.
    """
    same_writer = new.writer == stored.writer
    merged = replace(
        stored,
        provenance=_unite(stored.provenance, new.provenance, TUNING.max_evidence),
        signatures=_unite(stored.signatures, new.signatures, TUNING.max_places),
        locations=_unite(stored.locations, new.locations, TUNING.max_places),
        tags=_unite(stored.tags, new.tags, TUNING.max_places),
        body=(new.body or stored.body) if same_writer or not stored.body else stored.body,
        score=stored.score if same_writer else max(stored.score, new.score),
        confidence=new.confidence if same_writer else max(stored.confidence, new.confidence),
        episodes=new.episodes if same_writer else max(stored.episodes, new.episodes),
        version=stored.version + 1,
    )
    if not same_writer:
        return merged
    if new.writer == "rules":  # the title of a rule describes its newest evidence
        merged = replace(merged, title=new.title, when_to_use=new.when_to_use)
    return replace(merged, condition=new.condition, verify=new.verify, steps=new.steps)


def _unite(stored: tuple[T, ...], new: tuple[T, ...], most: int) -> tuple[T, ...]:
    """Return both tuples without duplicates, limited to the last `most` entries."""
    return tuple(dict.fromkeys((*stored, *new)))[-most:]
