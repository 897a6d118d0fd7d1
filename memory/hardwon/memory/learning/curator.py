"""The curator: the one way by which an item comes into the library.

    rules (schema, specific, no conflict) -> learned gate, where there is one -> duplicates -> capacity

Every candidate ends as added, merged, replaced or rejected, with the reason. What comes from an
untrusted source is put in quarantine: kept, looked at, neither recalled nor enforced. It is released
by a person, or by evidence: when this library's own experience says the same.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from sqlite3 import Connection
from typing import Protocol, TypeVar

from hardwon.memory import items
from hardwon.memory.guardrails import thinning
from hardwon.memory.guardrails.conditions import is_in_force, matches
from hardwon.memory.items import check_conditions, identify, read_item
from hardwon.memory.privacy.redaction import redact_item
from hardwon.memory.records import MIN_SKILL_STEPS, Admission, Item
from hardwon.memory.situations.keys import content_words, parse_action, words
from hardwon.memory.storage.checksums import seal
from hardwon.memory.trust.instructions import instruction_in

T = TypeVar("T")
CAPACITY = 2000
"""Active items of one kind in one namespace."""
QUARANTINE = 500
"""Items of one kind that may wait in quarantine: a stranger must not flood the library."""
HALF_LIFE = 400
"""Episodes without use after which an item counts half when the weakest is looked for."""
MAX_EVIDENCE = 64
"""Step ids kept on an item; the newest stay."""
MAX_PLACES = 64
"""Clusters, places and tags kept on an item; the newest stay."""
SAME = 0.85
"""Likeness of two texts above which the second says nothing new (SLEA-RL)."""
OVERLAP = 0.5
"""Overlap of two triggers above which different contents contradict each other (MineEvolve eq. 6)."""
FIRM = 0.8
"""Confidence from which an item holds its ground against one that contradicts it (MineEvolve eq. 6)."""
MIN_WORDS = 3
"""Words that must be left when the generic phrases are taken out."""
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
_NEAR = 8
"""Items with most words in common that a candidate is compared with."""
_QUERY_WORDS = 6


class Gate(Protocol):
    """A learned judge of candidates, asked after the rules."""

    def decide(self, candidate: Item, similar: Iterable[Item]) -> tuple[bool, float, str]:
        """(admit, probability of admitting, reason); `similar` are the nearest items that are there."""
        ...


@dataclass(frozen=True, slots=True)
class Curator:
    """Admits items into one namespace inside the caller's transaction."""

    connection: Connection
    namespace: int
    clock: int = 0
    """Episodes recorded so far, by which the age of items is told."""
    gate: Gate | None = None

    def admit(self, item: Item) -> Admission:
        """Add, merge, replace or reject a candidate. Raises ConfigError for a condition that cannot be checked."""
        item = redact_item(item)
        check_conditions(item)
        if item.trust == "untrusted" and item.source != "experience":
            item = replace(item, id="")  # whoever is not trusted chooses no id: ids are shown
        item = replace(item, id=item.id or identify(item))
        order = "" if item.source == "person" else _order_in(item)
        if order:
            item = replace(item, trust="untrusted")
        known = read_item(self.connection, self.namespace, item.id)
        if known is not None:
            return self._meet(known, item)
        objection = _malformed(item) or _generic(item) or self._conflict(item) or self._covered(item)
        if objection:
            return Admission("rejected", objection)
        similar = self._similar(item)
        if self.gate is not None:
            admit, p, why = self.gate.decide(item, similar)
            if not admit:
                return Admission("rejected", f"the gate refused it ({p:.2f}): {why}")
        twin = next((other for other in similar if says_the_same(item, other)), None)
        if twin is not None:
            return self._meet(twin, item)
        return self._place(item, order)

    def _meet(self, known: Item, item: Item) -> Admission:
        """A candidate says what an item says that is there already."""
        if known.status == "retired" and self._is_needed(known, item):
            return self._revive(known, item)
        if known.status == "retired":
            return Admission("rejected", f"{known.id} says the same and was retired", known.id)
        if item.trust == "untrusted" and known.trust == "trusted":
            return Admission("rejected", f"{known.id} says the same and its source is trusted", known.id)
        merged = _merged(known, item)
        if self._used(known):  # what it earned counts, not what is claimed for it
            judged = known.confidence if known.kind == "skill" else merged.confidence
            merged = replace(merged, score=known.score, confidence=judged)
        reason = f"the same as {known.id}: evidence united"
        if known.status == "quarantined" and item.trust == "trusted":
            # Whoever is not trusted could have known the id in advance: nothing of what it said is released.
            merged = replace(item, id=known.id, pinned=known.pinned, version=known.version + 1)
            reason = f"{known.id} is released from quarantine: {item.source} says the same"
        if replace(merged, version=known.version) != known:
            self._write(merged, "merged")
            self._harden(merged)
        return Admission("merged", reason, known.id)

    def rewrite(self, targets: Sequence[Item], item: Item) -> Admission:
        """Rewrite items into one: the first takes the new words, the others are retired, evidence is united.

        What is not trusted does not rewrite what is: it becomes a candidate of its own, in quarantine.
        """
        first, rest, item = targets[0], targets[1:], redact_item(item)
        if item.trust == "untrusted" and any(target.trust == "trusted" for target in targets):
            return self.admit(item)
        objection = _malformed(item) or _generic(item)
        if not objection and any(target.pinned for target in targets):
            objection = "it is pinned: only a person changes it"
        if objection:
            return Admission("rejected", objection, first.id)
        united = first
        for other in (*rest, item):
            united = _merged(united, replace(other, writer=""))
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
        if item.trust == "untrusted":
            if self._held(item.kind, "quarantined") >= QUARANTINE:
                return Admission(
                    "rejected", f"{QUARANTINE} items of its kind wait in quarantine: release or retire some"
                )
            self._write(replace(item, status="quarantined", pinned=False), "added")
            why = f"its source ({item.source}) is not trusted"
            if order:
                why = f"it reads like an instruction to a model ({order})"
            elif item.source == "experience":
                why = "one writer who is not trusted says so alone: another writer's evidence or a person releases it"
            return Admission("added", f"quarantined: {why}", item.id)
        if self._held(item.kind, "active") >= CAPACITY:
            return self._replace_weakest(item)
        self._write(item, "added")
        self._harden(item)
        return Admission("added", "new", item.id)

    def _replace_weakest(self, item: Item) -> Admission:
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

    def _is_needed(self, known: Item, item: Item) -> bool:
        """Whether there are failures of what a guardrail forbids since it was retired for want of use."""
        return (
            thinning.is_made_by_rules(item)
            and max(item.provenance, default=0) > max(known.provenance, default=0)
            and items.is_retired_until_needed(self.connection, self.namespace, known)
        )

    def _revive(self, known: Item, item: Item) -> Admission:
        """Bring a guardrail back into force, unless another one does its work."""
        if objection := self._covered(item):
            return Admission("rejected", objection, known.id)
        revived = replace(_merged(known, item), status="active", score=known.score)
        self._write(revived, "revived: what it forbids failed again")
        self._harden(revived)
        return Admission("added", "what it forbids failed again since it was retired", known.id)

    def _covered(self, item: Item) -> str:
        """Why a guardrail by rules would decide nothing; empty when it would, and for all other items."""
        if not (thinning.is_made_by_rules(item) and is_in_force(item)):
            return ""
        wide = thinning.find_covering(self.connection, self.namespace, item, self._active("guardrail"))
        return f"{wide.id} forbids it already" if wide else ""

    def _used(self, item: Item) -> bool:
        (uses,) = self.connection.execute(
            "SELECT uses FROM items WHERE namespace = ? AND id = ?", (self.namespace, item.id)
        ).fetchone()
        return bool(uses)

    def _write(self, item: Item, op: str) -> None:
        items.write(self.connection, self.namespace, item, op)
        self.connection.execute(
            "UPDATE items SET fresh = ? WHERE namespace = ? AND id = ?", (self.clock, self.namespace, item.id)
        )
        seal(self.connection, "items", "namespace = ? AND id = ?", (self.namespace, item.id))

    def _harden(self, item: Item) -> None:
        """Retire what a guardrail in force makes needless: warnings of the same, guardrails that it covers."""
        if not is_in_force(item):
            return
        for other in thinning.find_covered(self.connection, self.namespace, item, self._active("guardrail")):
            why = f"{item.id} forbids what it forbids"
            items.retire(self.connection, self.namespace, other.id, why, until_needed=True)
        for warning in self._active("warning"):
            if (warning.condition, warning.forbids) == (item.condition, item.forbids) and not warning.pinned:
                items.retire(self.connection, self.namespace, warning.id, f"became guardrail {item.id}")

    def _conflict(self, item: Item) -> str:
        """Why an item that is there, and is sure, contradicts the candidate; empty when none does."""
        if item.kind == "remedy":
            for other in self._active("remedy"):
                rival = other.confidence >= FIRM and item.repairs == other.repairs
                if rival and item.steps != other.steps and _trigger_overlap(item, other) >= OVERLAP:
                    return f"conflicts with {other.id}, which repairs the same and is sure ({other.confidence:.2f})"
        if item.steps:
            for other in self._active("guardrail"):
                told = other.confidence >= FIRM and other.condition == item.condition
                if told and any(matches(other.forbids or "", action) for action in item.steps):
                    return f"conflicts with {other.id}, which forbids one of its actions under the same condition"
        if item.kind in ("strategy", "insight", "warning") and item.condition is None:
            for other in self._similar(item):
                if other.confidence >= FIRM and _contradicts(item, other):
                    return f"conflicts with {other.id}, which says the opposite and is sure ({other.confidence:.2f})"
        return ""

    def _active(self, kind: str) -> list[Item]:
        rows = self.connection.execute(
            "SELECT record FROM items WHERE namespace = ? AND status = 'active' AND kind = ?", (self.namespace, kind)
        )
        return [items.kept_item_of(row[0]) for row in rows]

    def _similar(self, item: Item) -> list[Item]:
        """The active items of its kind that share most words; none for what rules made, which is told by its id."""
        chosen = sorted(content_words(item.text), key=lambda word: (-len(word), word))[:_QUERY_WORDS]
        if not chosen or item.condition is not None or item.writer == "rules":
            return []
        table = f"items_text_{self.namespace}"
        rows = self.connection.execute(
            f"SELECT record FROM items WHERE status = 'active' AND kind = ? AND number IN "
            f"(SELECT rowid FROM {table} WHERE {table} MATCH ? ORDER BY rank LIMIT {_NEAR}) ORDER BY number",
            (item.kind, " OR ".join(f'"{word}"' for word in chosen)),
        )
        return [items.item_of(row[0]) for row in rows]

    def _held(self, kind: str, status: str) -> int:
        where = "namespace = ? AND status = ? AND kind = ?"
        row = self.connection.execute(f"SELECT count(*) FROM items WHERE {where}", (self.namespace, status, kind))
        return int(row.fetchone()[0])

    def _weakest(self, kind: str) -> tuple[str, float, float] | None:
        """(id, score, strength) of the unpinned item to go first; None when all are pinned."""
        row = self.connection.execute(
            f"SELECT id, score, {STRENGTH} AS strength FROM items "
            "WHERE namespace = ? AND status = 'active' AND kind = ? AND pinned = 0 ORDER BY strength, number LIMIT 1",
            (self.clock, self.namespace, kind),
        ).fetchone()
        return (str(row[0]), float(row[1]), float(row[2])) if row else None


STRENGTH = f"score / (1.0 + max(0, ? - fresh) / {float(HALF_LIFE)})"
"""SQL: what an item's score counts after so many episodes without use; takes the clock."""


def expire(connection: Connection, namespace: int, clock: int) -> list[str]:
    """Retire items that outlived their time to live without new evidence or use; returns their ids."""
    rows = connection.execute(
        "SELECT id, json_extract(record, '$.ttl') AS ttl FROM items "
        "WHERE namespace = ? AND status = 'active' AND pinned = 0 AND ttl IS NOT NULL AND ? - fresh > ttl",
        (namespace, clock),
    ).fetchall()
    for item_id, ttl in rows:
        items.retire(connection, namespace, item_id, f"no new evidence for {ttl} episodes, its time to live")
    return [row[0] for row in rows]


def _order_in(item: Item) -> str:
    """Return which kind of instruction to a model an item holds, in any of its words; empty for none."""
    words = (item.text, item.when_not_to_use, item.forbids or "", *item.steps, *item.tags, *item.locations, item.id)
    return next(filter(None, map(instruction_in, words)), "")


def _malformed(item: Item) -> str:
    """What a part of the schema lacks; a person may leave open what a program may not."""
    if item.source == "person":
        return ""
    if item.kind == "skill" and not (item.steps and item.condition is not None and item.verify is not None):
        return "a skill needs steps, preconditions (condition) and a verification (verify)"
    if item.kind == "skill" and len(item.steps) < MIN_SKILL_STEPS:
        return f"a skill of {len(item.steps)} step is the value of one action; give {MIN_SKILL_STEPS} steps or more"
    if item.kind == "remedy" and not (item.repairs and (item.steps or item.body)):
        return "a remedy needs the failure that it repairs, and how"
    if item.source == "model" and not item.provenance:
        return "it has no evidence: name the steps that it was learnt from"
    return ""


def _generic(item: Item) -> str:
    """Why a text says nothing in particular; empty when it does."""
    text = f" {' '.join(item.text.lower().replace('-', ' ').split())} "
    found = [phrase for phrase in GENERIC if phrase in text]
    for phrase in found:
        text = text.replace(phrase, " ")
    if found and len(content_words(text) - _NEGATIONS) < MIN_WORDS:
        return f"too generic: {found[0]!r} says nothing of any situation"
    return ""


def says_the_same(item: Item, other: Item) -> bool:
    """Whether two items of a kind share so many of their words that the second is no news.

    By words and not by letters: `open the red door` and `open the bed door` are two findings.
    """
    if (item.condition, item.forbids, item.steps) != (other.condition, other.forbids, other.steps):
        return False
    a, b = frozenset(words(item.text)), frozenset(words(other.text))
    return _negated(item) == _negated(other) and _numbers(a) == _numbers(b) and _jaccard(a, b) > SAME


def _numbers(said: frozenset[str]) -> frozenset[str]:
    return frozenset(word for word in said if any(sign.isdigit() for sign in word))


def _contradicts(item: Item, other: Item) -> bool:
    a, b = (content_words(one.text.lower()) - _NEGATIONS for one in (item, other))
    return _negated(item) != _negated(other) and _jaccard(a, b) > SAME


def _negated(item: Item) -> bool:
    return bool(_NEGATIONS & {*item.text.lower().split()})


def _trigger_overlap(item: Item, other: Item) -> float:
    if item.condition is not None and item.condition == other.condition:
        return 1.0
    return _jaccard(_trigger(item), _trigger(other))


def _trigger(item: Item) -> frozenset[str]:
    verbs = frozenset(parse_action(action).verb for action in item.steps)
    return content_words(item.when_to_use or item.title) | frozenset(item.signatures) | verbs


def _jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    return len(a & b) / len(a | b) if a or b else 1.0


def _merged(known: Item, new: Item) -> Item:
    """One item of two: evidence and places united, the newer figures of the same writer, a person's wording kept."""
    same_writer = new.writer == known.writer
    merged = replace(
        known,
        provenance=_united(known.provenance, new.provenance, MAX_EVIDENCE),
        signatures=_united(known.signatures, new.signatures, MAX_PLACES),
        locations=_united(known.locations, new.locations, MAX_PLACES),
        tags=_united(known.tags, new.tags, MAX_PLACES),
        body=(new.body or known.body) if same_writer or not known.body else known.body,
        score=known.score if same_writer else max(known.score, new.score),
        confidence=new.confidence if same_writer else max(known.confidence, new.confidence),
        version=known.version + 1,
    )
    if not same_writer:
        return merged
    if new.writer == "rules":  # the title of a rule speaks of its newest evidence
        merged = replace(merged, title=new.title, when_to_use=new.when_to_use)
    return replace(merged, condition=new.condition, verify=new.verify, steps=new.steps)


def _united(known: tuple[T, ...], new: tuple[T, ...], most: int) -> tuple[T, ...]:
    return tuple(dict.fromkeys((*known, *new)))[-most:]
