"""Recall: from a state to what past experience says of it, for the next step.

By step: the state's cluster first; where it is new, search by words and meaning, whose findings are
bound to the cluster; ranked by nearness and learnt utility; cut to a token budget; nothing at all
when nothing is near enough. By task: whole episodes chosen once by the task's words, for comparison.
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
from .cache import Derived
from .embedders import Vectors
from .ranking import POOL, Done, Found, best_of, by_votes, kind_of, placed_in, steps_of
from .search import DEPTH, How, Kind as SearchKind, Search, Version
from .text_index import MORE_TERMS, QUERY_TERMS

RECALL_FLOOR = FLOOR
"""An item whose score fell below this does more harm than good: it is not recalled, unless it is pinned."""
TASK_EPISODES = 5
VOTED = 4096
"""Situations whose voters are remembered, and steps."""
_REPEATED = 4
"""How many times as many states are looked at as are shown, because some repeat what others saw."""
FOUND = 512
"""Texts of which it is remembered what search found."""


def by_step(
    store: Store,
    derived: Derived,
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
    """What is known of this state, for one step."""
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
    fitting = (hit for hit in items if _offered(hit.what, kinds, situation, actions, derived.surroundings))
    left_out: tuple[str, ...] = ()
    if masked:
        known = [(hit, isinstance(hit.what, Item) and hit.what.id in masked) for hit in fitting]
        left_out = tuple(str(hit.what.id) for hit, hurts in known if hurts)[:k]
        fitting = (hit for hit, hurts in known if not hurts)
    shown, chosen, tokens = within_budget(clusters.distinct(fitting, k), steps, budget_tokens)
    if not (shown or chosen or guardrails or estimates):
        return Recollection(masked=left_out)
    summed = clusters.summaries_of(store, search.namespace, query.known, worlds) if query.known else ()
    path: Literal["hybrid", "cluster"] = "hybrid" if query.searched or not query.voters else "cluster"
    filled = min(filled, len(chosen))
    return Recollection(shown, chosen, guardrails, estimates, path, tokens, summed, filled, left_out)


class _Near(NamedTuple):
    """The best step of a state that search found."""

    what: Done
    similarity: float
    why: str


class _Query:
    """One recall by step: what is known of the situation, and what search finds beside it."""

    def __init__(
        self,
        store: Store,
        derived: Derived,
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
        self._others = testimony.has_untrusted(store, search.namespace)
        """Whether untrusted writers may have written here."""
        self._vector: Vectors | None = None

    def items(self) -> Sequence[Hit]:
        """Items for the situation: bound to it by an earlier visit, or searched for."""
        derived, state = self._derived, self._state
        if not derived.items:
            return ()  # of none, none are sought
        if self.is_question:
            return self._items_for_question()
        where = state.signature, self._worlds
        bound = derived.bound.get(where)
        if bound is None:
            text, vector = f"{state.task}\n{self._text}", self._embedded()
            bound = clusters.items_of(self._store, derived, self._search, state, text, vector, self._k, self._worlds)
            if self.known:
                derived.bound[where] = bound
        return bound

    def _items_for_question(self) -> Sequence[Hit]:
        """In the order of search, which is the nearest first."""
        found = self._find("items", max(DEPTH, self._k))
        numbers = self._derived.numbers
        return [
            Hit(self._derived.items[numbers[ref]], near, why)
            for ref, near, why in found
            if self._derived.is_of(ref, self._worlds)
        ]

    def steps(self) -> tuple[tuple[Hit, ...], int]:
        """Return the steps to show, by the votes of all of them, and how many of them search filled in."""
        if self.is_question:
            return _clean(_varied(step_hits(self._store, self._found(), self._worlds))[: self._k]), 0
        ranked = self._derived.ranked
        asked = (self._text, self.known, self._state.task, self._after, self._k, self._worlds)
        if asked not in ranked:
            if len(ranked) > FOUND:
                ranked.clear()
            ranked[asked] = self._ranked()
        return ranked[asked]

    def _ranked(self) -> tuple[tuple[Hit, ...], int]:
        voters = self.voters
        near = self._near() if len({one.action for one in voters}) < self._k else []
        done = [*voters, *(one.what for one in near)]
        similarities = [*[1.0] * len(voters), *(one.similarity for one in near)]
        order = by_votes(done, similarities, self._after, self._state.task, own=len(voters))
        places: dict[str, int] = {}
        for at in order:
            # of its own steps no action comes twice; each that is filled in is of another situation
            places.setdefault(done[at].action if at < len(voters) else str(at), at)
        chosen = list(places.values())[: self._k]
        read, why = self._read([done[at].step for at in chosen]), f"same situation {self.known}"
        hits = tuple(
            Hit(read[done[at].step], similarities[at], why if at < len(voters) else near[at - len(voters)].why)
            for at in chosen
            if done[at].step in read  # another process may have forgotten it just now
        )
        return _clean(hits), sum(at >= len(voters) for at in chosen) if voters else 0

    def with_testimony(self, clean: tuple[Hit, ...]) -> tuple[Hit, ...]:
        """Return trusted hits and, in free places, what untrusted steps say."""
        namespace = self._search.namespace
        if len(clean) >= self._k or not self._others:
            return clean

        def is_known(template: str) -> bool:
            return self._derived.values.cell(template) is not None

        found, left = self._find("states", POOL), self._k - len(clean)
        said = testimony.hits_of(self._store, namespace, found, self.known, self._k, is_known, self._uses())
        done = {testimony.form_of(one.what.action) for one in clean if isinstance(one.what, Step)}
        new = [one for one in said if isinstance(one.what, Step) and one.what.action not in done]
        return (*clean, *new[:left])

    def _uses(self) -> Mapping[str, int]:
        if self._derived.uses is None:
            self._derived.uses = testimony.uses_of(self._store, self._search.namespace)
        return self._derived.uses

    def _voters(self) -> list[Done]:
        voters, which = self._derived.voters, (self.known, self._after is not None, self._worlds)
        if which not in voters:
            if len(voters) > VOTED:
                voters.clear()
            voters[which] = clusters.done_here(self._store, self._search.namespace, *which)
        return voters[which]

    def _read(self, ids: Sequence[int]) -> Mapping[int, Step]:
        """Steps by id, from what was read since anything was written."""
        read = self._derived.steps
        missing = [ref for ref in ids if ref not in read]
        if missing:
            if len(read) > VOTED:
                read.clear()
                missing = list(ids)
            read.update(read_brief_steps(self._store, missing))
        return read

    def _near(self) -> list[_Near]:
        """The best steps of states that are near but not of the situation itself, how near, and why."""
        found = self._found()
        best = self._best([ref for ref, _, _ in found])
        own = {one.step for one in self.voters}
        return [
            _Near(best[ref], near, why)
            for ref, near, why in sorted(found)  # by id: so go ties
            if ref in best and best[ref].step not in own
        ]

    def _found(self) -> list[Found]:
        """What search finds for the text among states of the worlds that count."""
        near, asked = self._derived.near, (self._text, self._worlds, self.is_question)
        if asked not in near:
            if len(near) > FOUND:
                near.clear()
            near[asked] = self._find("states", POOL)
            if self._worlds is not None:
                near[asked] = self._of_worlds(near[asked])
        return near[asked]

    def _of_worlds(self, found: list[Found]) -> list[Found]:
        """Return the states found in the worlds that count; where others push them out, those of a deeper search."""
        kept = [one for one in found if one[0] in self._best([ref for ref, _, _ in found])]
        if len(kept) < DEPTH <= len(found):
            found = self._find("states", clusters.DEEPER * POOL, clusters.DEEPER * DEPTH)
            best = self._best([ref for ref, _, _ in found])
            kept = [one for one in found if one[0] in best][:POOL]
        return kept

    def _best(self, states: Sequence[int]) -> Mapping[int, Done]:
        """By state: the best step that was taken there in the worlds that count."""
        known = self._derived.done.setdefault(self._worlds, {})
        return best_of(self._store, states, steps_of(self._worlds), self._after is not None, known)

    def _find(self, kind: SearchKind, k: int, depth: int = DEPTH) -> list[Found]:
        """What is near enough to be shown for its words or meaning alone."""
        if kind == "states" and self._others:  # states of untrusted writers must not push the others out
            k *= testimony.POOL_FACTOR
        terms = MORE_TERMS if self.is_question else QUERY_TERMS
        found = self._search.find(
            kind, self._text, k, frequencies=self._derived.words, vector=self._embedded(), terms=terms, depth=depth
        )
        return [one for one in found if one[1] >= clusters.MIN_COSINE]

    def _embedded(self) -> Vectors:
        self.searched = True
        if self._vector is None:
            self._vector = self._search.embed(self._text)
        return self._vector


def _offered(
    item: Item | Step,
    kinds: Sequence[Kind] | None,
    situation: Situation,
    actions: Mapping[str, str],
    surroundings: Surroundings,
) -> bool:
    """Whether an item is of a kind asked for, not discredited and, as far as can be told, its condition holds here.

    Where the admissible actions are not known, what speaks of an action says itself when it applies.
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


def _clean(hits: Iterable[Hit]) -> tuple[Hit, ...]:
    """Return hits on trusted steps without texts that read like instructions."""
    return tuple(one for one in map(without_instructions, hits) if one is not None)


def step_hits(
    store: Store, found: Sequence[tuple[int, float, str]], worlds: frozenset[int] | None = None
) -> tuple[Hit, ...]:
    """For each state found, the best step that was taken in it; where `worlds` are given, in one of these."""
    best = read_best_steps(store, [ref for ref, _, _ in found], steps_of(worlds))
    return tuple(Hit(best[ref], cosine, why) for ref, cosine, why in found if ref in best)


def _varied(hits: Sequence[Hit]) -> tuple[Hit, ...]:
    """Return hits on steps in their order, but those that repeat what an earlier one saw come last."""
    seen: dict[str, int] = {}
    repeats: list[Hit] = []
    for at, hit in enumerate(hits):
        text = hit.what.pre.observation if isinstance(hit.what, Step) else str(at)
        if seen.setdefault(text, at) != at:
            repeats.append(hit)
    return (*(hits[at] for at in seen.values()), *repeats)


def _rank(hits: Sequence[Hit], score_here: Callable[[Item], float], *, in_order: bool) -> Sequence[Hit]:
    """Nearness times utility in this world; ties by id, so that any process gives the same order.

    What answers a question stays in the order in which it was found.
    """
    if in_order:
        return hits

    def worth(hit: Hit) -> tuple[float, str]:
        item = hit.what
        assert isinstance(item, Item)
        return (-hit.similarity * (0.5 + score_here(item)), item.id)

    return sorted(hits, key=worth)


def tokens_of(text: str) -> int:
    """An estimate that needs no tokenizer: four characters a token."""
    return len(text) // 4 + 1


def within_budget(
    items: Sequence[Hit], steps: Sequence[Hit], budget: int | None
) -> tuple[tuple[Hit, ...], tuple[Hit, ...], int]:
    """Items, then steps, as long as they fit; a thing too long is skipped for shorter ones."""
    kept: tuple[list[Hit], list[Hit]] = ([], [])
    used = 0
    for where, hits in zip(kept, (items, steps), strict=True):
        for hit in hits:
            cost = tokens_of(
                hit.what.text if isinstance(hit.what, Item) else f"{hit.what.pre.observation} {hit.what.action}"
            )
            if budget is None or used + cost <= budget:
                where.append(hit)
                used += cost
    return tuple(kept[0]), tuple(kept[1]), used


def by_task(
    store: Store,
    search: Search,
    derived: Derived,
    state: State,
    *,
    k: int,
    budget_tokens: int | None,
    actions: Mapping[str, str],
    after: str | None = None,
) -> Recollection:
    """The best episodes of the most similar tasks: k of their steps, and estimates from their steps alone.

    The nearest episode's steps come first, in their order; where it is known which action was taken last, those that
    followed the same kind of action.
    """
    if state.task not in derived.task_episodes:
        derived.task_episodes[state.task] = _similar_episodes(store, search, derived, state)
    steps, values = derived.task_episodes[state.task]
    if not steps:
        return Recollection()
    best = _that_follow(steps, after)[:k]
    clean = (without_instructions(Hit(step, 1.0, "an episode of a similar task")) for step in best)
    _, hits, tokens = within_budget((), [hit for hit in clean if hit is not None], budget_tokens)
    situation = derived.situation(state)
    estimates = {
        action: values.estimate(situation.keys(action, counts), situation.context(action))
        for action, counts in actions.items()
    }
    return Recollection(steps=hits, estimates=estimates, path="task", tokens=tokens)


def _that_follow(steps: Sequence[Step], after: str | None) -> list[Step]:
    """The steps after the same kind of action first, otherwise in their order; `steps` are whole episodes."""
    if after is None:
        return list(steps)
    here, before = kind_of(after), ["", *(kind_of(step.action) for step in steps)]
    follows = [(before[at] if step.t else "") == here for at, step in enumerate(steps)]
    return [steps[at] for at in sorted(range(len(steps)), key=lambda at: not follows[at])]


def _similar_episodes(store: Store, search: Search, derived: Derived, state: State) -> tuple[list[Step], ValueTable]:
    """Steps of the TASK_EPISODES episodes of the most similar tasks; of one task's the better rewarded first.

    Tasks of other worlds are left out where the world of the state is sure.
    """
    chosen: list[str] = []
    worlds = derived.related(state)
    where = "" if worlds is None else f"AND {placed_in(worlds, 'trajectories.namespace', 'trajectories.id')} "
    some = TASK_EPISODES if worlds is None else clusters.DEEPER * TASK_EPISODES
    for known in derived.tasks.nearest(state.task, some, search.embed_all):
        rows = store.rows(
            "SELECT id FROM trajectories WHERE namespace = ? AND task = ? AND success IS NOT NULL "
            f"AND trust = 'trusted' {where}ORDER BY total_reward DESC, rowid LIMIT ?",
            (search.namespace, known, TASK_EPISODES - len(chosen)),
        )
        chosen.extend(row[0] for row in rows)
        if len(chosen) == TASK_EPISODES:
            break
    mine = "namespace = ? AND trajectory_id = ? ORDER BY t"
    steps = [step for ref in chosen for step in read_steps(store, mine, (search.namespace, ref))]
    values = ValueTable()
    for step in steps:
        values.add(step.keys, step.return_to_go or 0.0, step.id or 0)
    return steps, values


def search(
    store: Store, derived: Derived, index: Search, version: Version | None, text: str, k: int, how: How
) -> list[Hit]:
    """Items and steps that speak of a text, best first; of the library at this version, where that is known."""
    vector = None if how == "text" else index.embed(text)
    asked: dict[str, Any] = {"frequencies": derived.words, "how": how, "vector": vector, "version": version}
    asked["terms"] = MORE_TERMS
    items = index.find("items", text, k, **asked) if derived.items else []
    states = index.find("states", text, _REPEATED * k, **asked)
    hits = [
        Hit(derived.items[derived.numbers[ref]], cosine, why) for ref, cosine, why in items if ref in derived.numbers
    ]
    clean = [one for one in map(without_instructions, step_hits(store, states)) if one is not None]
    hits.extend(_varied(clean)[:k])
    return sorted(hits, key=lambda hit: -hit.similarity)[:k]
