"""Recall: return the past experience that applies to a state, for the next step.

Recall by step looks up the state's cluster. For a new cluster, it searches by words and meaning and binds the results
to the cluster. Results are ranked by similarity and learned utility and cut to a token budget. If nothing is similar
enough, recall returns nothing. Recall by task chooses whole episodes once, by the words of the task; it serves as a
baseline.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from hardwon.memory.guardrails.conditions import forbids, holds
from hardwon.memory.guardrails.surroundings import Surroundings
from hardwon.memory.records import Hit, Item, Kind, Recollection, State, Step
from hardwon.memory.situations.keys import Situation
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import plain, read_best_steps, read_brief_steps, read_steps, state_text
from hardwon.memory.trust import testimony
from hardwon.memory.trust.instructions import without_instructions
from hardwon.memory.values.effects import FLOOR
from hardwon.memory.values.value_table import ValueTable

from . import clusters
from .cache import NamespaceCache
from .embedders import Vectors
from .ranking import POOL, Found, TakenStep, find_best_steps, kind_of, order_by_votes, placed_in, steps_of
from .search import DEPTH, How, Kind as SearchKind, Search, Version
from .text_index import MORE_TERMS, QUERY_TERMS

RECALL_FLOOR = FLOOR
"""Score below which an item is not recalled, unless it is pinned."""
TASK_EPISODES = 5
"""Number of episodes that recall by task reads."""
VOTED = 4096
"""Largest number of situations with cached voters, and of cached steps."""
_REPEATED = 4
"""Number of states read per state shown, because some have the same observation."""
FOUND = 512
"""Largest number of texts with cached search results."""


def recall_by_step(
    store: Store,
    derived: NamespaceCache,
    search: Search,
    state: State,
    *,
    k: int,
    kinds: Sequence[Kind] | None,
    budget_tokens: int | None,
    actions: Mapping[str, str],
    by_text: bool,
    after: str | None = None,
) -> Recollection:
    """Return the experience that applies to a state.

    Args:
        store: The library.
        derived: The cache of the namespace.
        search: The search indices of the namespace.
        state: The current state.
        k: Largest number of items, and of steps.
        kinds: Kinds of items to return, or None for all.
        budget_tokens: Token budget for items and steps together, or None for no limit.
        actions: Admissible actions, each with the text about its earlier tries.
        by_text: Whether to search by text instead of looking up the cluster.
        after: The previous action of this episode; "" at its beginning, None if unknown.
    """
    situation = derived.situation(state)
    estimates = derived.estimates(situation, actions) if actions else {}
    guardrails = derived.guard.active(situation, actions)
    if k <= 0:
        return Recollection(guardrails=guardrails, estimates=estimates, path="cluster" if estimates else "empty")
    worlds = derived.related(state, actions)
    query = _Query(store, derived, search, state, k, after, by_text, worlds)
    items = _rank(query.items(), lambda item: derived.score_in(item, state, actions), in_order=query.is_question)
    steps, filled = query.steps()
    steps = query.with_testimony(steps)
    masked = derived.masked(state, actions) if items else frozenset()
    fitting = (hit for hit in items if _is_applicable(hit.what, kinds, situation, actions, derived.surroundings))
    left_out: tuple[str, ...] = ()
    if masked:
        flagged = [(hit, isinstance(hit.what, Item) and hit.what.id in masked) for hit in fitting]
        left_out = tuple(str(hit.what.id) for hit, is_masked in flagged if is_masked)[:k]
        fitting = (hit for hit, is_masked in flagged if not is_masked)
    shown, chosen, tokens = within_budget(clusters.distinct(fitting, k), steps, budget_tokens)
    if not (shown or chosen or guardrails or estimates):
        return Recollection(masked=left_out)
    # Summaries come last: a recollection without content needs no query for them.
    summed = clusters.read_summaries(store, search.namespace, query.known, worlds) if query.known else ()
    path: Literal["hybrid", "cluster"] = "hybrid" if query.searched or not query.voters else "cluster"
    filled = min(filled, len(chosen))
    return Recollection(shown, chosen, guardrails, estimates, path, tokens, summed, filled, left_out)


class _Neighbor(NamedTuple):
    """The best step of a state that search found."""

    what: TakenStep
    similarity: float
    why: str


class _Query:
    """One recall by step: experience of the situation itself, and similar states found by search."""

    def __init__(
        self,
        store: Store,
        derived: NamespaceCache,
        search: Search,
        state: State,
        k: int,
        after: str | None,
        by_text: bool,
        worlds: frozenset[int] | None,
    ) -> None:
        self._store, self._derived, self._search = store, derived, search
        self._state, self._k, self._after, self._worlds = state, k, after, worlds
        self._text = state_text(state)
        self.is_question = by_text and after is None
        self.known = "" if by_text else plain(state.signature)
        self.voters = self._voters() if self.known else []
        self.searched = False
        self._has_untrusted = testimony.has_untrusted(store, search.namespace)
        """Whether the namespace may have steps of untrusted writers."""
        self._vector: Vectors | None = None

    def items(self) -> Sequence[Hit]:
        """Return the items of the situation, bound to it by an earlier visit or found by search."""
        derived, state = self._derived, self._state
        if not derived.items:
            return ()  # saves a search
        if self.is_question:
            return self._items_for_question()
        where = state.signature, self._worlds
        bound = derived.bound.get(where)
        if bound is None:  # first visit of this cluster since the items changed
            text, vector = f"{state.task}\n{self._text}", self._embedded()
            bound = clusters.find_items(self._store, derived, self._search, state, text, vector, self._k, self._worlds)
            if self.known:
                derived.bound[where] = bound
        return bound

    def _items_for_question(self) -> Sequence[Hit]:
        """Return the items that search finds for a question, in the order of search."""
        found = self._find("items", max(DEPTH, self._k))
        numbers = self._derived.numbers
        return [
            Hit(self._derived.items[numbers[ref]], near, why)
            for ref, near, why in found
            if self._derived.is_of(ref, self._worlds)
        ]

    def steps(self) -> tuple[tuple[Hit, ...], int]:
        """Return the steps to show, ranked by votes, and how many of them search added."""
        if self.is_question:
            return _drop_instructions(
                _move_repeats_last(find_step_hits(self._store, self._search_states(), self._worlds))[: self._k]
            ), 0
        ranked = self._derived.ranked
        query = (self._text, self.known, self._state.task, self._after, self._k, self._worlds)
        if query not in ranked:
            if len(ranked) > FOUND:
                ranked.clear()
            ranked[query] = self._rank_steps()
        return ranked[query]

    def _rank_steps(self) -> tuple[tuple[Hit, ...], int]:
        """Rank the steps of the situation, filled up with steps of similar states."""
        voters = self.voters
        # Search is the expensive part, so it runs only if the situation itself has too few different actions.
        neighbors = self._find_neighbors() if len({voter.action for voter in voters}) < self._k else []
        steps = [*voters, *(neighbor.what for neighbor in neighbors)]
        similarities = [*[1.0] * len(voters), *(neighbor.similarity for neighbor in neighbors)]
        order = order_by_votes(steps, similarities, self._after, self._state.task, own=len(voters))
        places: dict[str, int] = {}
        for at in order:
            # Actions of the situation itself are unique; each step added by search is from another situation.
            places.setdefault(steps[at].action if at < len(voters) else str(at), at)
        chosen = list(places.values())[: self._k]
        step_of, reason = self._read([steps[at].step for at in chosen]), f"same situation {self.known}"
        hits = tuple(
            Hit(
                step_of[steps[at].step],
                similarities[at],
                reason if at < len(voters) else neighbors[at - len(voters)].why,
            )
            for at in chosen
            if steps[at].step in step_of  # another process may just have deleted it
        )
        return _drop_instructions(hits), sum(at >= len(voters) for at in chosen) if voters else 0

    def with_testimony(self, clean: tuple[Hit, ...]) -> tuple[Hit, ...]:
        """Return trusted hits and, in free places, hits on untrusted steps."""
        namespace = self._search.namespace
        if len(clean) >= self._k or not self._has_untrusted:
            return clean

        def is_known(template: str) -> bool:
            return self._derived.values.cell(template) is not None

        states, free = self._find("states", POOL), self._k - len(clean)
        testimony_hits = testimony.hits_of(self._store, namespace, states, self.known, self._k, is_known, self._uses())
        forms = {testimony.form_of(hit.what.action) for hit in clean if isinstance(hit.what, Step)}
        additional = [hit for hit in testimony_hits if isinstance(hit.what, Step) and hit.what.action not in forms]
        return (*clean, *additional[:free])

    def _uses(self) -> Mapping[str, int]:
        """Return the number of uses of each form of action in untrusted steps."""
        if self._derived.uses is None:
            self._derived.uses = testimony.uses_of(self._store, self._search.namespace)
        return self._derived.uses

    def _voters(self) -> list[TakenStep]:
        """Return the steps of the situation that vote."""
        voters, which = self._derived.voters, (self.known, self._after is not None, self._worlds)
        if which not in voters:
            if len(voters) > VOTED:
                voters.clear()
            voters[which] = clusters.read_voters(self._store, self._search.namespace, *which)
        return voters[which]

    def _read(self, ids: Sequence[int]) -> Mapping[int, Step]:
        """Return steps by id, using the cache."""
        read = self._derived.steps
        missing = [ref for ref in ids if ref not in read]
        if missing:
            if len(read) > VOTED:
                read.clear()
                # Clearing also dropped requested steps that were cached.
                missing = list(ids)
            read.update(read_brief_steps(self._store, missing))
        return read

    def _find_neighbors(self) -> list[_Neighbor]:
        """Return the best steps of similar states, without those of the situation itself."""
        states = self._search_states()
        best = self._best([ref for ref, _, _ in states])
        own = {voter.step for voter in self.voters}
        return [
            _Neighbor(best[ref], similarity, why)
            for ref, similarity, why in sorted(states)  # by id, which breaks ties
            if ref in best and best[ref].step not in own
        ]

    def _search_states(self) -> list[Found]:
        """Return the states that search finds for the text in the applicable worlds."""
        near, query = self._derived.near, (self._text, self._worlds, self.is_question)
        if query not in near:
            if len(near) > FOUND:
                near.clear()
            near[query] = self._find("states", POOL)
            if self._worlds is not None:
                near[query] = self._keep_applicable(near[query])
        return near[query]

    def _keep_applicable(self, found: list[Found]) -> list[Found]:
        """Keep the states of applicable worlds; search deeper if other worlds crowd them out."""
        kept = [state for state in found if state[0] in self._best([ref for ref, _, _ in found])]
        if len(kept) < DEPTH <= len(found):
            found = self._find("states", clusters.DEEPER * POOL, clusters.DEEPER * DEPTH)
            best = self._best([ref for ref, _, _ in found])
            kept = [state for state in found if state[0] in best][:POOL]
        return kept

    def _best(self, states: Sequence[int]) -> Mapping[int, TakenStep]:
        """Return the best step that was taken in each state in the applicable worlds."""
        known = self._derived.done.setdefault(self._worlds, {})
        return find_best_steps(self._store, states, steps_of(self._worlds), self._after is not None, known)

    def _find(self, kind: SearchKind, k: int, depth: int = DEPTH) -> list[Found]:
        """Return the search results that are similar enough to be shown."""
        if kind == "states" and self._has_untrusted:  # states of untrusted writers must not crowd out trusted ones
            k *= testimony.POOL_FACTOR
        terms = MORE_TERMS if self.is_question else QUERY_TERMS
        found = self._search.find(
            kind, self._text, k, frequencies=self._derived.words, vector=self._embedded(), terms=terms, depth=depth
        )
        return [hit for hit in found if hit[1] >= clusters.MIN_COSINE]

    def _embedded(self) -> Vectors:
        """Return the vector of the text, (dim,) float32."""
        self.searched = True
        if self._vector is None:
            self._vector = self._search.embed(self._text)
        return self._vector


def _is_applicable(
    item: Item | Step,
    kinds: Sequence[Kind] | None,
    situation: Situation,
    actions: Mapping[str, str],
    surroundings: Surroundings,
) -> bool:
    """Return whether an item may be shown: it has a requested kind, a sufficient score, and its condition holds.

    Without admissible actions, an item about an action is shown, because its text states when it applies.
    """
    if not isinstance(item, Item) or (kinds is not None and item.kind not in kinds):
        return False
    if item.score < RECALL_FLOOR and not item.pinned:
        return False
    if item.condition is None:
        return True
    if item.forbids is None:
        return holds(item.condition, situation, "")
    return not actions or any(forbids(item, situation, action, surroundings) for action in actions)


def _drop_instructions(hits: Iterable[Hit]) -> tuple[Hit, ...]:
    """Return the hits on trusted steps without texts that read like instructions."""
    return tuple(one for one in map(without_instructions, hits) if one is not None)


def find_step_hits(
    store: Store, found: Sequence[tuple[int, float, str]], worlds: frozenset[int] | None = None
) -> tuple[Hit, ...]:
    """Return a hit on the best step of each state.

    Args:
        store: The library.
        found: The states: (id, similarity, reason) triples.
        worlds: Worlds whose steps count, or None for all.
    """
    best = read_best_steps(store, [ref for ref, _, _ in found], steps_of(worlds))
    return tuple(Hit(best[ref], cosine, why) for ref, cosine, why in found if ref in best)


def _move_repeats_last(hits: Sequence[Hit]) -> tuple[Hit, ...]:
    """Return the hits in their order, with repeated observations moved to the end."""
    first_at: dict[str, int] = {}
    repeats: list[Hit] = []
    for at, hit in enumerate(hits):
        text = hit.what.pre.observation if isinstance(hit.what, Step) else str(at)
        if first_at.setdefault(text, at) != at:
            repeats.append(hit)
    return (*(hits[at] for at in first_at.values()), *repeats)


def _rank(hits: Sequence[Hit], score_here: Callable[[Item], float], *, in_order: bool) -> Sequence[Hit]:
    """Order hits on items by similarity times utility in this world; ties are broken by id.

    Hits for a question keep the order of search.
    """
    if in_order:
        return hits

    def worth(hit: Hit) -> tuple[float, str]:
        item = hit.what
        assert isinstance(item, Item)
        return (-hit.similarity * (0.5 + score_here(item)), item.id)

    return sorted(hits, key=worth)


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text without a tokenizer: four characters per token."""
    return len(text) // 4 + 1


def within_budget(
    items: Sequence[Hit], steps: Sequence[Hit], budget: int | None
) -> tuple[tuple[Hit, ...], tuple[Hit, ...], int]:
    """Return the items, then the steps, that fit into a token budget; a hit that is too long is skipped.

    Args:
        items: Hits on items, the best first.
        steps: Hits on steps, the best first.
        budget: The budget in tokens, or None for no limit.

    Returns:
        The kept items, the kept steps, and the tokens that they use.
    """
    kept: tuple[list[Hit], list[Hit]] = ([], [])
    used = 0
    for where, hits in zip(kept, (items, steps), strict=True):
        for hit in hits:
            cost = estimate_tokens(
                hit.what.text if isinstance(hit.what, Item) else f"{hit.what.pre.observation} {hit.what.action}"
            )
            if budget is None or used + cost <= budget:
                where.append(hit)
                used += cost
    return tuple(kept[0]), tuple(kept[1]), used


def recall_by_task(
    store: Store,
    search: Search,
    derived: NamespaceCache,
    state: State,
    *,
    k: int,
    budget_tokens: int | None,
    actions: Mapping[str, str],
    after: str | None = None,
) -> Recollection:
    """Return k steps from the best episodes of the most similar tasks, and estimates from these episodes alone.

    Steps of the nearest episode come first. If the previous action is known, steps that followed the same kind of
    action precede the others.

    Args:
        store: The library.
        search: The search indices of the namespace.
        derived: The cache of the namespace.
        state: The current state.
        k: Largest number of steps.
        budget_tokens: Token budget, or None for no limit.
        actions: Admissible actions, each with the text about its earlier tries.
        after: The previous action of this episode; "" at its beginning, None if unknown.
    """
    if state.task not in derived.task_episodes:
        derived.task_episodes[state.task] = _similar_episodes(store, search, derived, state)
    steps, values = derived.task_episodes[state.task]
    if not steps:
        return Recollection()
    best = _order_by_previous_kind(steps, after)[:k]
    clean = (without_instructions(Hit(step, 1.0, "an episode of a similar task")) for step in best)
    _, hits, tokens = within_budget((), [hit for hit in clean if hit is not None], budget_tokens)
    situation = derived.situation(state)
    estimates = {
        action: values.estimate(situation.keys(action, counts), situation.context(action))
        for action, counts in actions.items()
    }
    return Recollection(steps=hits, estimates=estimates, path="task", tokens=tokens)


def _order_by_previous_kind(steps: Sequence[Step], after: str | None) -> list[Step]:
    """Return the steps of whole episodes, those after the same kind of action first."""
    if after is None:
        return list(steps)
    here, before = kind_of(after), ["", *(kind_of(step.action) for step in steps)]
    follows = [(before[at] if step.t else "") == here for at, step in enumerate(steps)]
    return [steps[at] for at in sorted(range(len(steps)), key=lambda at: not follows[at])]


def _similar_episodes(
    store: Store, search: Search, derived: NamespaceCache, state: State
) -> tuple[list[Step], ValueTable]:
    """Return the steps of TASK_EPISODES episodes of the most similar tasks, and their values.

    Episodes of one task are ordered by reward. If the world of the state is certain, other worlds are left out.
    """
    chosen: list[str] = []
    worlds = derived.related(state)
    where = "" if worlds is None else f"AND {placed_in(worlds, 'trajectories.namespace', 'trajectories.id')} "
    count = TASK_EPISODES if worlds is None else clusters.DEEPER * TASK_EPISODES
    for task in derived.tasks.nearest(state.task, count, search.embed_all):
        rows = store.rows(
            "SELECT id FROM trajectories WHERE namespace = ? AND task = ? AND success IS NOT NULL "
            f"AND trust = 'trusted' {where}ORDER BY total_reward DESC, rowid LIMIT ?",
            (search.namespace, task, TASK_EPISODES - len(chosen)),
        )
        chosen.extend(row[0] for row in rows)
        if len(chosen) == TASK_EPISODES:
            break
    by_episode = "namespace = ? AND trajectory_id = ? ORDER BY t"
    steps = [step for ref in chosen for step in read_steps(store, by_episode, (search.namespace, ref))]
    values = ValueTable()
    for step in steps:
        values.add(step.keys, step.return_to_go or 0.0, step.id or 0)
    return steps, values


def search(
    store: Store, derived: NamespaceCache, index: Search, version: Version | None, text: str, k: int, how: How
) -> list[Hit]:
    """Return the items and steps that match a text, the best first.

    Args:
        store: The library.
        derived: The cache of the namespace.
        index: The search indices of the namespace.
        version: The version of the library to search, or None for the current one.
        text: The query.
        k: Largest number of hits.
        how: Which index to use: `hybrid`, `dense` or `text`.
    """
    vector = None if how == "text" else index.embed(text)
    options: dict[str, Any] = {"frequencies": derived.words, "how": how, "vector": vector, "version": version}
    options["terms"] = MORE_TERMS
    items = index.find("items", text, k, **options) if derived.items else []
    states = index.find("states", text, _REPEATED * k, **options)
    hits = [
        Hit(derived.items[derived.numbers[ref]], cosine, why) for ref, cosine, why in items if ref in derived.numbers
    ]
    clean = [hit for hit in map(without_instructions, find_step_hits(store, states)) if hit is not None]
    hits.extend(_move_repeats_last(clean)[:k])
    return sorted(hits, key=lambda hit: -hit.similarity)[:k]
