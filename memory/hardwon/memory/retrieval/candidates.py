"""Candidates for one state or question: what recall may show, from every source, each with a similarity and a reason.

The sources are the steps of the situation itself, the states and items that share words or meaning with the text, and
the items filed under the situation, its place, adjacent places and its tags. Every source is asked once, and `match`
and `Candidates.items` merge the answers. `recall` filters, ranks, deduplicates and cuts the candidates.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Literal, NamedTuple

from hardwon.memory.records import Hit, Item, State
from hardwon.memory.situations.keys import content_words
from hardwon.memory.storage.counted import COUNTED_STATES
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import plain, state_text
from hardwon.memory.storage.freshness import Version

from .cache import NamespaceCache
from .embedders import Vectors
from .ranking import RankedRow, Subject, TakenStep, find_best_steps, read_voters, steps_of, weigh_subject
from .search import IndexKind, Search
from .text_index import WordCounts
from .tuning import TUNING

How = Literal["hybrid", "dense", "text"]
_REACHABLE = """
SELECT DISTINCT after.location FROM steps JOIN states AS after ON after.id = post WHERE pre IN (
    SELECT id FROM states WHERE namespace = ? AND location = ? AND location != '' {counted} ORDER BY id DESC LIMIT ?)
AND after.location NOT IN ('', ?) ORDER BY 1
"""


class Matches(NamedTuple):
    """The texts that match a query by words or by meaning, and the cosines of further ones."""

    rated: dict[int, tuple[float, str]]
    """By id of a match, the best first: its similarity and its reason.

    The similarity is the cosine or, if larger, the share of the query's words that the text contains. A short question
    has a small cosine to a long text that answers it."""
    cosines: dict[int, float]
    """Cosine by id, also of the further texts."""


def match(
    index: Search,
    kind: IndexKind,
    text: str,
    vector: Vectors,
    *,
    count_episodes: WordCounts,
    version: Version | None,
    terms: int = TUNING.query_terms,
    depth: int = TUNING.depth,
    further: Iterable[int] = (),
) -> Matches:
    """Search by words and by meaning, and merge the results.

    At most `terms` words are looked up, and each index returns `depth` matches. `further` texts get a cosine whether
    they match or not. The version of the library to search is the current one if it is None.
    """
    index.scans += 1
    vectors = index.index(kind, version)
    cosines = dict(vectors.search(vector, depth))
    nearest = frozenset(cosines)
    rows = {row.ref: row for row in index.texts[kind].search(text, depth, count_episodes, terms)}
    # One product with all missing vectors: each call of the index costs more than the multiplication.
    missing = [ref for ref in dict.fromkeys((*rows, *further)) if ref not in nearest]
    cosines.update(zip(missing, vectors.cosine(vector, missing), strict=True))
    ranked = []
    for ref in {*nearest, *rows}:
        score, similarity, why = TUNING.meaning_weight * cosines[ref], cosines[ref], "meaning"
        if (row := rows.get(ref)) is not None:
            score, similarity = score + row.score, max(similarity, row.share)
            why = "words and meaning" if ref in nearest else "words"
        ranked.append((-score, ref, similarity, why))
    return Matches({ref: (similarity, why) for _, ref, similarity, why in sorted(ranked)}, cosines)


def find(
    index: Search,
    kind: IndexKind,
    text: str,
    k: int,
    *,
    count_episodes: WordCounts,
    how: How = "hybrid",
    vector: Vectors | None = None,
    version: Version | None = None,
    is_question: bool = False,
    depth: int = TUNING.depth,
) -> list[RankedRow]:
    """Return the best matches for a text, at most k triples (id, similarity, reason), the best first.

    A question, or a search text, has more words looked up. The vector of the text is computed unless it is given.
    """
    terms = TUNING.more_terms if is_question else TUNING.query_terms
    if vector is None and how != "text":
        (vector,) = index.embed([text])
    if vector is None or (how == "dense" and not vector.any()):  # one letter has no meaning, but it is found as a word
        index.scans += 1
        rows = index.texts[kind].search(text, k, count_episodes, terms)
        return [(row.ref, row.share, "words") for row in rows]
    if how == "dense":
        index.scans += 1
        return [(ref, cosine, "meaning") for ref, cosine in index.index(kind, version).search(vector, k)]
    matches = match(
        index, kind, text, vector, count_episodes=count_episodes, version=version, terms=terms, depth=depth
    )  # fmt: skip
    return [(ref, similarity, why) for ref, (similarity, why) in islice(matches.rated.items(), k)]


def fuse(*rankings: Sequence[int]) -> list[int]:
    """Fuse rankings of ids by reciprocal rank fusion (Cormack et al. 2009).

    The score of an id is the sum over the rankings of 1 / (rank_constant + rank).
    """
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, ref in enumerate(ranking, 1):
            scores[ref] = scores.get(ref, 0.0) + 1.0 / (TUNING.rank_constant + rank)
    return sorted(scores, key=lambda ref: (-scores[ref], ref))


@lru_cache(maxsize=1024)
def _without_numbers(text: str) -> frozenset[str]:
    """Return the content words of a text but the numbers: a counter of steps must not cause a search at every step."""
    return frozenset(word for word in content_words(text) if not word.isdecimal())


class Neighbor(NamedTuple):
    """The best step of a state that search found."""

    what: TakenStep
    similarity: float
    why: str


class Candidates:
    """The candidates for one state or question. What one visit of a situation finds is cached for the next one."""

    def __init__(
        self,
        store: Store,
        derived: NamespaceCache,
        index: Search,
        state: State,
        *,
        k: int,
        after: str | None = None,
        by_text: bool = False,
        worlds: frozenset[int] | None = None,
        version: Version | None = None,
    ) -> None:
        """Prepare the candidates; every source is asked on first use."""
        self._store, self._derived, self._index, self._version = store, derived, index, version
        self.state, self.k, self.after, self.worlds = state, k, after, worlds
        self.namespace = index.namespace
        text = state_text(state)
        # whoever shows nothing but a task asks in the words of the task
        self.text = text if text.strip() else state.task
        self.is_question = by_text and after is None
        self.signature = "" if by_text else plain(state.signature)
        """Signature of the situation; empty for a text."""
        self.searched = False
        """Whether any index was searched."""
        self._vector: Vectors | None = None
        self.voters: Sequence[TakenStep] = self._read_voters() if self.signature else ()
        """Steps of the situation itself that vote."""

    def items(self) -> Sequence[Hit]:
        """Return the candidate items. Those of a situation are kept until the items or the reachable places change."""
        derived = self._derived
        if not derived.items.by_id:
            return ()  # saves a search
        if self.is_question:
            hits = self.find("items", max(TUNING.depth, self.k))
            return [
                Hit(derived.items.by_id[derived.items.numbers[ref]], similarity, why)
                for ref, similarity, why in hits
                if derived.items.has(ref, self.worlds)
            ]
        # A signature hides names and numbers, or says only what the facts say; the words tell which items fit.
        query = f"{self.state.task}\n{self.text}"
        where = self.state.signature, self.worlds, _without_numbers(query), self._list_reachable()
        bound = derived.findings.bound.get(where)
        if bound is None:  # first visit of this situation since the items changed
            bound = self._find_items(query)
            if self.signature:
                if len(derived.findings.bound) > 4096:
                    derived.findings.bound.clear()
                derived.findings.bound[where] = bound
        return bound

    def rate(self, item: Item) -> Hit | None:
        """Return the hit that an item would be if the library had it, filed under its words alone; None if it is none.

        Only the depth of a search is not considered: where it matters, better items fill the places anyway.
        """
        query = self.text if self.is_question else f"{self.state.task}\n{self.text}"
        terms = TUNING.more_terms if self.is_question else TUNING.query_terms
        cosine = float(self._embed() @ self._index.embed([item.text])[0])
        texts = self._index.texts["items"]
        share = texts.measure_share(query, item.text, self._derived.words.count, terms)
        statement = f"{item.title}\n{item.body}"
        subject = weigh_subject(statement, self._weigh(content_words(statement))).rate(content_words(query))
        similarity = max(cosine, share, 0.0 if self.is_question else subject)
        is_hit = similarity >= TUNING.min_cosine and self._derived.items.counts_in(item, self.worlds)
        return Hit(item, similarity, "words and meaning") if is_hit else None

    def states(self) -> list[RankedRow]:
        """Return the states of the applicable worlds that search finds for the text."""
        nearest, query = self._derived.findings.nearest, (self.text, self.worlds, self.is_question)
        if query not in nearest:
            if len(nearest) > 512:
                nearest.clear()
            nearest[query] = self.find("states", TUNING.voting_states)
            if self.worlds is not None:
                nearest[query] = self._keep_applicable(nearest[query])
        return nearest[query]

    def neighbors(self) -> list[Neighbor]:
        """Return the best steps of similar states, without those of the situation itself."""
        states = self.states()
        best = self._best([ref for ref, _, _ in states])
        own = {voter.step for voter in self.voters}
        return [
            Neighbor(best[ref], similarity, why)
            for ref, similarity, why in sorted(states)  # by id, which breaks ties
            if ref in best and best[ref].step not in own
        ]

    # -- the situation itself ---------------------------------------------------------------------

    def _read_voters(self) -> Sequence[TakenStep]:
        """Return the steps of the situation that vote, from the cache if possible."""
        cached, which = self._derived.findings.voters, (self.signature, self.after is not None, self.worlds)
        voters = cached.get(which)
        if voters is None:
            if len(cached) > 4096:
                cached.clear()
            voters = cached[which] = read_voters(self._store, self.namespace, *which)
        return voters

    # -- states -----------------------------------------------------------------------------------

    def _keep_applicable(self, hits: list[RankedRow]) -> list[RankedRow]:
        """Keep the states with steps that count here; search deeper if those of other worlds crowd them out."""
        for deeper in (1, TUNING.deeper):
            if deeper > 1:
                hits = self.find("states", deeper * TUNING.voting_states, deeper * TUNING.depth)
            best = self._best([ref for ref, _, _ in hits])
            kept = [state for state in hits if state[0] in best]
            if len(kept) >= TUNING.depth or len(hits) < TUNING.depth:
                break
        return kept[: TUNING.voting_states]

    def _best(self, states: Sequence[int]) -> Mapping[int, TakenStep]:
        """Return the best step that was taken in each state in the applicable worlds."""
        best = self._derived.findings.done.setdefault(self.worlds, {})
        return find_best_steps(self._store, states, steps_of(self.worlds), self.after is not None, best)

    def find(self, kind: IndexKind, k: int, depth: int = TUNING.depth) -> list[RankedRow]:
        """Return the best matches, at most k, that are similar enough to be shown."""
        terms = TUNING.more_terms if self.is_question else TUNING.query_terms
        matches = match(
            self._index, kind, self.text, self._embed(),
            count_episodes=self._derived.words.count, version=self._version, terms=terms, depth=depth,
        )  # fmt: skip
        best = islice(matches.rated.items(), k)
        return [(ref, similarity, why) for ref, (similarity, why) in best if similarity >= TUNING.min_cosine]

    def _embed(self) -> Vectors:
        """Return the vector of the text, (dim,) float32."""
        self.searched = True
        if (vector := self._vector) is None:
            (vector,) = self._index.embed([self.text])
            self._vector = vector
        return vector

    # -- items ------------------------------------------------------------------------------------

    def _find_items(self, query: str) -> tuple[Hit, ...]:
        """Return the items for the situation of the state, at most `bound_items`, in no particular order."""
        has, worlds = self._derived.items.has, self.worlds
        filed = self._find_filed(query)
        refs = [ref for ref in dict.fromkeys(ref for _, _, refs in filed for ref in refs) if has(ref, worlds)]
        matches, nearest = self._match_items(query, refs)
        chosen = list(dict.fromkeys((*nearest, *refs)))
        if len(chosen) > TUNING.bound_items:  # the order of all sources together decides only which items are kept
            fused = fuse(*(refs for _, _, refs in reversed(filed)), nearest)
            chosen = [ref for ref in fused if has(ref, worlds)][: TUNING.bound_items]
        # In ascending order of similarity: the last entry of an item is the strongest reason to show it.
        floors = {ref: (floor, why) for floor, why, refs in filed for ref in refs}
        items, numbers, refs_found = self._derived.items.by_id, self._derived.items.numbers, set(nearest)
        in_view = content_words(query)
        subjects = self._weigh_subjects(items[numbers[ref]] for ref in chosen if ref in floors)
        hits = []
        for ref in chosen:
            similarity, why = matches.rated[ref] if ref in refs_found else (matches.cosines[ref], "")
            if ref in floors:
                floor, reason = floors[ref]
                if floor >= similarity or not why:
                    why = reason
                similarity = max(similarity, floor + (1.0 - floor) * subjects[numbers[ref]].rate(in_view))
            if similarity >= TUNING.min_cosine:
                hits.append(Hit(items[numbers[ref]], similarity, why))
        return tuple(hits)

    def _weigh_subjects(self, items: Iterable[Item]) -> Mapping[str, Subject]:
        """Return the subjects at least of these items, by id: many items may be filed under one place."""
        subjects = self._derived.findings.subjects
        if missing := {item.id: f"{item.title}\n{item.body}" for item in items if item.id not in subjects}:
            weights = self._weigh(frozenset[str]().union(*map(content_words, missing.values())))
            subjects.update((ref, weigh_subject(text, weights)) for ref, text in missing.items())
        return subjects

    def _weigh(self, words: frozenset[str]) -> dict[str, float]:
        """Return the weights of words: their rarity among episodes or, if none showed a word, among items.

        Words that no episode shows are of two kinds: those of the sentences themselves, such as `rewarded`, which are
        common among items, and names of things that have not been met.
        """
        counts, time = self._derived.words.count(words), self._derived.words.clock.time
        weights = {word: max(0.0, math.log((time + 1) / counts[word])) for word in words if counts[word]}
        return weights | self._index.texts["items"].measure_rarity(words - weights.keys())

    def _match_items(self, query: str, filed: Sequence[int]) -> tuple[Matches, list[int]]:
        """Return the items that match by words and meaning, and the applicable ones among the best of them."""
        has, worlds = self._derived.items.has, self.worlds

        def search_within(depth: int) -> tuple[Matches, list[int]]:
            matches = match(
                self._index, "items", query, self._embed(),
                count_episodes=self._derived.words.count, version=self._version, depth=depth, further=filed,
            )  # fmt: skip
            return matches, [ref for ref in islice(matches.rated, depth) if has(ref, worlds)]

        depth = max(TUNING.depth, 4 * self.k)
        matches, nearest = search_within(depth)
        # Searching deep is the exception: only items of other worlds can leave gaps in the first result.
        return (
            search_within(TUNING.deeper * depth) if worlds is not None and len(nearest) < depth else (matches, nearest)
        )

    def _find_filed(self, query: str) -> list[tuple[float, str, list[int]]]:
        """Return the filed items as (least similarity, reason, numbers), in ascending order of similarity."""
        own = self._read_filed("signature", [plain(self.state.signature)])
        at_place, adjacent = self._find_by_place()
        named = content_words(query)
        counts = self._derived.words.count(named)
        rarest = [word for _, word in sorted((counts[word], word) for word in named)]
        return [
            (0.0, "its subject", self._find_by_subject(rarest)),
            (TUNING.min_cosine, "its tags", self._find_by_tag(rarest[: TUNING.rare_words])),
            (TUNING.min_next_place, "a place that is near", adjacent),
            (TUNING.min_same_place, "its own place", at_place),
            (TUNING.min_same_situation, "its own situation", own),
        ]

    def _read_filed(self, by: str, values: Sequence[str]) -> list[int]:
        """Return the numbers of the active items filed under any of these values, the best score first."""
        rows = self._store.rows(
            f"SELECT DISTINCT number FROM item_places WHERE namespace = ? AND by = ? "
            f"AND value IN ({','.join('?' * len(values))})",
            (self.namespace, by, *values),
        )
        items, numbers = self._derived.items.by_id, self._derived.items.numbers
        scored = [(-items[numbers[number]].score, number) for (number,) in rows if number in numbers]
        return [number for _, number in sorted(scored)[: TUNING.bound_items]]

    def _find_by_place(self) -> tuple[list[int], list[int]]:
        """Return the items filed under the place of the state, and those filed under places reached from it."""
        location, places = plain(self.state.location), self._list_reachable()
        at_place = self._read_filed("location", [location]) if location else []
        return at_place, self._read_filed("location", places) if places else []

    def _list_reachable(self) -> tuple[str, ...]:
        """Return the places that recorded steps reached from that of the state; none if no item is filed under one."""
        if not (location := plain(self.state.location)):
            return ()
        reached = self._derived.findings.reached
        if location not in reached:
            any_place = "SELECT 1 FROM item_places WHERE namespace = ? AND by = 'location' LIMIT 1"
            query = _REACHABLE.format(counted=COUNTED_STATES[self._derived.words.clock.counted])
            which = self.namespace, location, TUNING.place_states, location
            # One index lookup saves a library without placed items the query for reachable places.
            rows = self._store.rows(query, which) if self._store.rows(any_place, (self.namespace,)) else ()
            reached[location] = tuple([row[0] for row in rows])
        return reached[location]

    def _find_by_subject(self, rarest: Sequence[str]) -> list[int]:
        """Return the items with a rare word of the state, the best first.

        The words that are rare among items are often common among states, such as `nothing`, so the search for the
        whole text does not look these up. Of words that no episode showed, a long answer of a tool may have hundreds.
        """
        counts = self._derived.words.count(rarest)
        new = sorted((word for word in rarest if not counts[word]), key=lambda word: not word.isalpha())
        old = [word for word in rarest if counts[word]]
        texts = self._index.texts["items"]
        named = texts.select_present((*new[: TUNING.subject_words], *old[: TUNING.subject_words]))[: TUNING.rare_words]
        rows = texts.search(" ".join(named), TUNING.depth, self._derived.words.count, len(named))
        return [row.ref for row in rows]

    def _find_by_tag(self, rarest: Sequence[str]) -> list[int]:
        """Return the items that share at least `min_tags` tags with the rare words of a state, most tags first."""
        rows = self._store.rows(
            f"SELECT number FROM item_places WHERE namespace = ? AND by = 'tag' AND value IN "
            f"({','.join('?' * len(rarest))}) GROUP BY number HAVING count(*) >= ? "
            "ORDER BY count(*) DESC, number LIMIT ?",
            (self.namespace, *rarest, TUNING.min_tags, TUNING.bound_items),
        )
        return [row[0] for row in rows]
