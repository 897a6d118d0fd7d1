"""The form that every data set is read into: notes to store, and queries with the notes that answer them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Note:
    """One text to store: a turn of a conversation, or a situation with the action that followed."""

    tenant: str
    """The conversation or user that owns the note; a query searches the notes of one tenant."""
    session: str
    text: str
    action: str = ""
    """The action that followed, in a collection of situations."""


@dataclass(frozen=True, slots=True)
class Query:
    """One question: its text, and the numbers of the notes that answer it or the action that was taken."""

    tenant: str
    text: str
    kind: str
    evidence: frozenset[int] = frozenset()
    action: str = ""
    group: str = ""
    """Queries of one group are alike, so intervals resample groups."""


@dataclass(frozen=True, slots=True)
class Collection:
    """A data set in the common form."""

    name: str
    notes: tuple[Note, ...]
    queries: tuple[Query, ...]
    omitted: int = 0
    """Number of questions without an answer in the notes, which no system is asked."""

    def group_notes(self) -> Mapping[str, list[int]]:
        """Return the numbers of the notes of each tenant."""
        groups: defaultdict[str, list[int]] = defaultdict(list)
        for number, note in enumerate(self.notes):
            groups[note.tenant].append(number)
        return groups

    def group_queries(self) -> Mapping[str, list[int]]:
        """Return the numbers of the queries of each tenant."""
        groups: defaultdict[str, list[int]] = defaultdict(list)
        for number, query in enumerate(self.queries):
            groups[query.tenant].append(number)
        return groups

    def list_texts(self) -> list[str]:
        """Return every distinct text of the notes and the queries."""
        return list(dict.fromkeys([*(note.text for note in self.notes), *(query.text for query in self.queries)]))

    def take_first(self, count: int) -> "Collection":
        """Return the first queries with the notes of their tenants; everything if `count` is 0."""
        if not count or count >= len(self.queries):
            return self
        queries = self.queries[:count]
        kept = {query.tenant for query in queries}
        numbers = [number for number, note in enumerate(self.notes) if note.tenant in kept]
        places = {number: place for place, number in enumerate(numbers)}
        return Collection(
            self.name,
            tuple(self.notes[number] for number in numbers),
            tuple(
                Query(
                    query.tenant,
                    query.text,
                    query.kind,
                    frozenset(places[number] for number in query.evidence),
                    query.action,
                    query.group,
                )
                for query in queries
            ),
            self.omitted,
        )


def match_texts(collection: Collection, tenant_notes: Sequence[int], texts: Sequence[str]) -> list[int]:
    """Return the numbers of the notes with the given texts, in the order of the texts.

    Args:
        collection: The collection that was stored.
        tenant_notes: Numbers of the notes of the tenant.
        texts: Texts that a system returned. A text that it returned twice stands for two notes with this text.
    """
    places: defaultdict[str, list[int]] = defaultdict(list)
    for number in tenant_notes:
        places[collection.notes[number].text.strip()].append(number)
    taken: defaultdict[str, int] = defaultdict(int)
    numbers = []
    for text in map(str.strip, texts):
        if taken[text] < len(places.get(text, ())):
            numbers.append(places[text][taken[text]])
            taken[text] += 1
    return numbers
