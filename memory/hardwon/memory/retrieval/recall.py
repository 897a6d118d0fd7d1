"""Recall: return the past experience that applies to a state, for the next step.

Recall by step looks up the state's cluster. For a new cluster, or one in other words, it searches by words and meaning
and keeps the results for the next visit. Results are ranked by similarity and learned utility and cut to a budget of
tokens. If nothing is similar enough, recall returns nothing. `candidates` has the sources.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain
from operator import itemgetter
from typing import Any, Literal

from hardwon.memory.guardrails.conditions import forbids, holds
from hardwon.memory.reasons import ADVICE
from hardwon.memory.records import Hit, Item, Kind, Recollection, Step, Summary
from hardwon.memory.situations.actions import is_of
from hardwon.memory.situations.keys import Attempt, words
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import dumps, read_best_steps, read_brief_steps
from hardwon.memory.storage.freshness import Version
from hardwon.memory.storage.rollups import summaries
from hardwon.memory.trust import testimony
from hardwon.memory.trust.instructions import without_instructions
from hardwon.memory.values.tuning import TUNING as VALUES

from .cache import NamespaceCache
from .candidates import Candidates, How, Neighbor, find
from .ranking import RankedRow, TakenStep, order_by_votes, steps_of
from .request import RecallRequest
from .search import Search
from .tuning import TUNING

RECALL_FLOOR = VALUES.masking_score
"""Score below which an item is not recalled, unless it is pinned."""


def recall_by_step(
    store: Store, derived: NamespaceCache, index: Search, request: RecallRequest, version: Version | None = None
) -> Recollection:
    """Return the experience that applies to a state."""
    state, actions, k = request.state, request.actions or {}, request.k
    situation, statistics = derived.situation(state), derived.statistics
    estimates = statistics.estimate(situation, actions) if actions else {}
    attempts = [Attempt(situation, action) for action in actions]
    guardrails = derived.items.guard.active(attempts) if actions else ()
    home, worlds = derived.worlds.locate(state.task, actions)
    outcomes = statistics.outcomes.find(state, actions, worlds) if actions and k else {}
    if k <= 0:
        path: Literal["empty", "hybrid", "cluster"] = "cluster" if estimates else "empty"
        return Recollection(guardrails=guardrails, estimates=estimates, path=path, outcomes=outcomes)
    query = Candidates(
        store, derived, index, state,
        k=k, after=request.after, by_text=request.by_text, worlds=worlds, version=version,
    )  # fmt: skip
    items, masked = _rank_items(query, derived, request, attempts, home)
    if derived.effects.gain().is_off:
        masked = (*masked, ADVICE)
    steps, filled = _rank_steps(query, derived, store)
    steps = _add_testimony(query, derived, store, steps)
    if not actions and (request.kinds is None or "remedy" in request.kinds):
        items = chain(_find_remedies(derived.items.remedies, steps, masked), items)
    worded = [derived.support.limit_words(hit) for hit in _distinct(items, k)]
    chosen_items, chosen, tokens = within_budget(worded, steps, request.budget_tokens)
    if not (chosen_items or chosen or guardrails or estimates):
        return Recollection(masked=masked)
    # Summaries come last: a recollection without content needs no query for them.
    signature = query.signature
    summed = _read_summaries(store, query.namespace, signature, worlds) if signature else ()
    path = "hybrid" if query.searched or not query.voters else "cluster"
    filled = min(filled, len(chosen))
    return Recollection(chosen_items, chosen, guardrails, estimates, path, tokens, summed, filled, masked, outcomes)


def _read_summaries(store: Store, namespace: int, signature: str, worlds: frozenset[int] | None) -> tuple[Summary, ...]:
    """Return summaries of the most tried kinds of action in a situation, at most `summaries`."""
    if worlds is None:
        return summaries(store, namespace, signature, TUNING.summaries)
    most = summaries(store, namespace, signature, TUNING.more_kinds * TUNING.summaries)
    ends = dumps([ref for summary in most for ref in (summary.best, summary.first, summary.last)])
    among = f"SELECT id FROM steps WHERE id IN (SELECT value FROM json_each(?)) AND {steps_of(worlds)}"
    tried = {row[0] for row in store.rows(among, (ends,))}
    kept = (summary for summary in most if not tried.isdisjoint((summary.best, summary.first, summary.last)))
    return tuple(kept)[: TUNING.summaries]


def _rank_items(
    query: Candidates, derived: NamespaceCache, request: RecallRequest, attempts: Sequence[Attempt], home: int | None
) -> tuple[Iterable[Hit], tuple[str, ...]]:
    """Return the hits on items that may be shown, the best first, and the ids of those masked in the home world."""
    candidates = query.items()
    if request.beside is not None:
        candidates = _add_beside(candidates, request.beside, query)
    if not candidates:
        return (), ()
    ranked = candidates if query.is_question else _order(candidates, derived.effects.score_in(home))
    masked = derived.effects.left_out(home)
    no_action = Attempt(derived.situation(query.state), "")
    fitting = (hit for hit in ranked if _is_applicable(hit.what, request.kinds, attempts, no_action, derived))
    if not masked:
        return fitting, ()  # lazily: only the first k distinct ones are checked
    flagged = [(hit, isinstance(hit.what, Item) and hit.what.id in masked) for hit in fitting]
    left_out = tuple(str(hit.what.id) for hit, is_masked in flagged if is_masked)[: query.k]
    return [hit for hit, is_masked in flagged if not is_masked], left_out


def _add_beside(candidates: Sequence[Hit], item: Item, query: Candidates) -> Sequence[Hit]:
    """Return the candidates with an item that is not in the library, unless one of them has the same words."""
    own = frozenset(words(item.text))
    hit = query.rate(item)
    if hit is None or any(isinstance(each.what, Item) and own == {*words(each.what.text)} for each in candidates):
        return candidates
    return _interleave(candidates, [hit])


def _find_remedies(remedies: Sequence[Item], steps: Iterable[Hit], masked: Sequence[str]) -> Iterator[Hit]:
    """Yield the remedies with calls that were made in similar situations, so that the agent need not fail first.

    With admissible actions, the planner repairs a plan when a step of it fails.
    """
    actions = {hit.what.action for hit in steps if isinstance(hit.what, Step)}
    for item in remedies:
        is_good = item.score >= RECALL_FLOOR or item.pinned
        about = {item.forbids or item.steps[-1], *item.steps}
        if is_good and item.id not in masked and any(is_of(call, action) for call in about for action in actions):
            yield Hit(item, 1.0, "repairs a call that was made in a similar situation")


def _rank_steps(query: Candidates, derived: NamespaceCache, store: Store) -> tuple[tuple[Hit, ...], int]:
    """Return the steps to show, and how many of them search added; cached until the library changes."""
    if query.is_question:
        hits = _iter_step_hits(store, query.states(), query.k, query.worlds)
        clean = map(without_instructions, _first_distinct(hits, query.k))
        return tuple(derived.support.limit_words(hit) for hit in clean if hit is not None), 0
    ranked = derived.findings.ranked
    which = (query.text, query.signature, query.state.task, query.after, query.k, query.worlds)
    steps = ranked.get(which)
    if steps is None:
        if len(ranked) > 512:
            ranked.clear()
        steps = ranked[which] = _vote(query, derived, store)
    return steps


def _vote(query: Candidates, derived: NamespaceCache, store: Store) -> tuple[tuple[Hit, ...], int]:
    """Rank the steps of the situation, filled up with steps of similar states."""
    reason = f"same situation {query.signature}"
    voters = [Neighbor(step, 1.0, reason) for step in query.voters]
    own = len(voters)
    # Search is the expensive part, so it runs only if the situation itself has too few different actions.
    if len({voter.what.action for voter in voters}) < query.k:
        voters += query.neighbors()
    steps, similarities = [voter.what for voter in voters], [voter.similarity for voter in voters]
    places: dict[str, int] = {}
    for at in order_by_votes(steps, similarities, query.after, query.state.task, own=own):
        # Actions of the situation itself are unique; each step added by search is from another situation.
        places.setdefault(steps[at].action if at < own else str(at), at)
    chosen = list(places.values())[: query.k]
    step_of = _read_clean(store, derived, [steps[at].step for at in chosen])
    count = _count_alike(steps, {steps[at].step for at in chosen})
    hits, filled = [], 0
    for at in chosen:
        filled += 0 < own <= at
        step = step_of.get(steps[at].step)
        if step is not None:  # its action reads like an instruction, or another process just deleted it
            hits.append(Hit(count(derived.support.limit_step(step), steps[at]), similarities[at], voters[at].why))
    return tuple(hits), filled


def _count_alike(steps: Sequence[TakenStep], hits: Set[int]) -> Callable[[Step, TakenStep], Step]:
    """Return a function that adds to a shown step the others that did the same with the same result.

    Each counts once. `failed` is in how many of the others the task was lost, and `value` the mean return of all.
    """
    rest: dict[tuple[str, bool], list[TakenStep]] = {}
    for step in steps:
        if step.step not in hits:
            rest.setdefault((step.action, step.failed), []).append(step)

    def count(step: Step, vote: TakenStep) -> Step:
        alike = rest.pop((vote.action, vote.failed), [])[: TUNING.voting_states]
        if not alike:
            return step
        returns, ids = [each.value for each in alike], [each.step for each in alike]
        mean = ((step.return_to_go or 0.0) + sum(returns)) / (1 + len(alike))
        failed = len([value for value in returns if value <= 0])
        return replace(step, why=step.why.updated(similar=tuple(ids), failed=failed, value=mean))

    return count


def _read_clean(store: Store, derived: NamespaceCache, ids: Sequence[int]) -> Mapping[int, Step | None]:
    """Return steps by id without texts that read like instructions, using the cache; None if the action does."""
    read = derived.findings.steps
    missing = [ref for ref in ids if ref not in read]
    if missing:
        if len(read) > 4096:
            read.clear()
            # Clearing also dropped requested steps that were cached.
            missing = list(ids)
        for ref, step in read_brief_steps(store, missing).items():
            clean = without_instructions(Hit(step, 1.0, ""))
            read[ref] = clean.what if clean is not None and isinstance(clean.what, Step) else None
    return read


def _add_testimony(query: Candidates, derived: NamespaceCache, store: Store, clean: tuple[Hit, ...]) -> tuple[Hit, ...]:
    """Return trusted hits and, in free places, hits on untrusted steps."""
    if len(clean) >= query.k or not derived.words.clock.has_untrusted:
        return clean

    def is_known(template: str) -> bool:
        return derived.statistics.values.cell(template) is not None

    free, uses = query.k - len(clean), derived.findings.uses
    if uses is None:
        uses = derived.findings.uses = testimony.uses_of(store, query.namespace)
    if query.is_question:
        testimony_hits = testimony.hits_by_words(store, query.namespace, query.text, query.k, is_known, uses)
    else:
        states = query.find("testimony", TUNING.voting_states)
        testimony_hits = testimony.hits_of(store, query.namespace, states, query.signature, query.k, is_known, uses)
    forms = {testimony.form_of(hit.what.action) for hit in clean if isinstance(hit.what, Step)}
    additional = [hit for hit in testimony_hits if isinstance(hit.what, Step) and hit.what.action not in forms]
    return (*clean, *additional[:free])


def _is_applicable(
    item: Item | Step,
    kinds: Sequence[Kind] | None,
    attempts: Sequence[Attempt],
    no_action: Attempt,
    derived: NamespaceCache,
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
        return holds(item.condition, no_action)
    return not attempts or any(forbids(item, attempt, derived.items.context_ranges) for attempt in attempts)


def _iter_step_hits(
    store: Store, hits: Sequence[RankedRow], k: int, worlds: frozenset[int] | None = None
) -> Iterator[Hit]:
    """Yield a hit on the best step of each state; k are read at a time, because callers rarely need more."""
    for at in range(0, len(hits), max(1, k)):
        some = hits[at : at + k]
        best = read_best_steps(store, [ref for ref, _, _ in some], steps_of(worlds))
        yield from (Hit(best[ref], cosine, why) for ref, cosine, why in some if ref in best)


def _first_distinct(hits: Iterable[Hit], k: int) -> list[Hit]:
    """Return k hits in their order; hits that repeat an observation come last."""
    chosen: dict[str, Hit] = {}
    repeats: list[Hit] = []
    for hit in hits:
        text = hit.what.pre.observation if isinstance(hit.what, Step) else ""
        if text in chosen:
            repeats.append(hit)
        else:
            chosen[text] = hit
            if len(chosen) == k:  # here, because the loop would read the next hit before a check at its beginning
                break
    return [*chosen.values(), *repeats][:k]


def _order(hits: Sequence[Hit], score_of: Callable[[Item], float]) -> list[Hit]:
    """Order hits on items by similarity times utility in this world; ties are broken by id."""
    keyed = []
    for hit in hits:
        item = hit.what
        assert isinstance(item, Item)
        keyed.append((-hit.similarity * (0.5 + score_of(item)), item.id, hit))
    keyed.sort(key=itemgetter(0, 1))
    return [hit for _, _, hit in keyed]


def _distinct(hits: Iterable[Hit], k: int) -> list[Hit]:
    """Return the first k hits on items that do not repeat the words of an earlier hit."""
    chosen: dict[frozenset[str], Hit] = {}
    for hit in hits:
        if isinstance(hit.what, Item):
            chosen.setdefault(frozenset(words(hit.what.text)), hit)
        if len(chosen) == k:
            break
    return list(chosen.values())


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text without a tokenizer: four characters per token."""
    return len(text) // 4 + 1


def within_budget(
    items: Sequence[Hit], steps: Sequence[Hit], budget: int | None
) -> tuple[tuple[Hit, ...], tuple[Hit, ...], int]:
    """Return the items, then the steps, that fit into a token budget; a hit that is too long is skipped."""
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


def search(
    store: Store, derived: NamespaceCache, index: Search, version: Version | None, text: str, k: int, how: How
) -> list[Hit]:
    """Return the items and steps that match a text, the best first."""
    vector = None if how == "text" else index.embed([text])[0]
    options: dict[str, Any] = {"count_episodes": derived.words.count, "how": how, "vector": vector}
    options.update(version=version, is_question=True)
    items = find(index, "items", text, k, **options) if derived.items.by_id else []
    hits = [
        Hit(derived.items.by_id[derived.items.numbers[ref]], cosine, why)
        for ref, cosine, why in items
        if ref in derived.items.numbers
    ]
    return _interleave(hits, _search_steps(store, index, text, k, options))[:k]


def _interleave(first: Sequence[Hit], second: Sequence[Hit]) -> list[Hit]:
    """Merge two rankings by the similarity of their next hits; each ranking keeps its own order.

    The order of a ranking also depends on how often and how densely a text contains the words, which its similarity
    does not show. Sorting all hits by similarity would discard that.
    """
    merged: list[Hit] = []
    left, right = deque(first), deque(second)
    while left and right:
        merged.append((left if left[0].similarity >= right[0].similarity else right).popleft())
    return [*merged, *left, *right]


def _search_steps(store: Store, index: Search, text: str, k: int, options: Mapping[str, Any]) -> list[Hit]:
    """Return the best steps for a text; see `search`."""
    hits = map(without_instructions, _iter_nearest(store, index, text, k, options))
    return _first_distinct((hit for hit in hits if hit is not None), k)


def _iter_nearest(store: Store, index: Search, text: str, k: int, options: Mapping[str, Any]) -> Iterator[Hit]:
    """Yield hits on the best steps for a text, more than k only if some of them cannot be shown."""
    nearest = find(index, "states", text, k, **options)
    yield from _iter_step_hits(store, nearest, k)
    if len(nearest) == k:  # some have the same observation; a scan for few is much faster than one for all of these
        first = {ref for ref, _, _ in nearest}
        further = find(index, "states", text, 4 * k, **options)
        yield from _iter_step_hits(store, [state for state in further if state[0] not in first], k)
