"""Recall: from a state to what past experience says of it, for the next step.

By step: the state's cluster first; where it is new, search by words and meaning, whose findings are
bound to the cluster; ranked by nearness and learnt utility; cut to a token budget; nothing at all
when nothing is near enough. By task: whole episodes chosen once by the task's words, for comparison.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import clusters
from .derived import Derived
from .embed import Vectors
from .guardrails import forbids, holds
from .ledger import plain, read_best_steps, read_steps, state_text
from .ranking import POOL, by_support
from .records import Hit, Item, Kind, Recollection, State, Step
from .search import How, Search, Version
from .situation import Situation, content_words
from .store import Store
from .values import ValueTable

RECALL_FLOOR = 0.4
"""An item whose score fell below this does more harm than good: it is not recalled, unless it is pinned."""
TASK_EPISODES = 5
_COUNTS = "attempt IS NOT NULL"
"""Of steps: something was done, and the episode was not excluded."""


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
    known = "" if by_text else plain(state.signature)
    cluster = clusters.steps_of(store, search.namespace, known, k) if known else ()
    items: Sequence[Hit] | None = (
        derived.bound.get(state.signature) if derived.items else ()
    )  # of none, none are sought
    hybrid = not cluster or items is None
    if hybrid:
        vector = search.embed(state_text(state))
        if items is None:
            items = clusters.items_of(store, derived, search, state, f"{state.task}\n{state_text(state)}", vector, k)
            if not by_text:
                derived.bound[state.signature] = items
        if not cluster:
            cluster = _found_steps(store, derived, search, state, vector, k, after)
    offered = (hit for hit in _rank(items or ()) if _offered(hit.what, kinds, situation, actions))
    shown, steps, tokens = within_budget(clusters.distinct(offered, k), cluster[:k], budget_tokens)
    if not (shown or steps or guardrails or estimates):
        return Recollection()
    summed = clusters.summaries_of(store, search.namespace, known) if known else ()
    return Recollection(shown, steps, guardrails, estimates, "hybrid" if hybrid else "cluster", tokens, summed)


def _offered(item: Item | Step, kinds: Sequence[Kind] | None, situation: Situation, actions: Mapping[str, str]) -> bool:
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
    return not actions or any(forbids(item, situation, action) for action in actions)


def _found_steps(
    store: Store, derived: Derived, search: Search, state: State, vector: Vectors, k: int, after: str | None
) -> tuple[Hit, ...]:
    found = search.find("states", state_text(state), POOL, frequencies=derived.words, vector=vector)
    near = [one for one in found if one[1] >= clusters.MIN_COSINE]
    return step_hits(store, by_support(store, near, _COUNTS, after, derived.done)[:k])


def step_hits(store: Store, found: Sequence[tuple[int, float, str]]) -> tuple[Hit, ...]:
    """For each state found, the best step that was taken in it."""
    best = read_best_steps(store, [ref for ref, _, _ in found], _COUNTS)
    return tuple(Hit(best[ref], cosine, why) for ref, cosine, why in found if ref in best)


def _rank(hits: Iterable[Hit]) -> list[Hit]:
    """Nearness times utility; ties by id, so that any process gives the same order."""

    def worth(hit: Hit) -> tuple[float, str]:
        item = hit.what
        assert isinstance(item, Item)
        return (-hit.similarity * (0.5 + item.score), item.id)

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
    namespace: int,
    derived: Derived,
    state: State,
    *,
    k: int,
    budget_tokens: int | None,
    actions: Mapping[str, str],
) -> Recollection:
    """The best episodes of the most similar tasks: their k best steps, and estimates from their steps alone."""
    if state.task not in derived.task_episodes:
        derived.task_episodes[state.task] = _similar_episodes(store, namespace, state.task)
    steps, values = derived.task_episodes[state.task]
    if not steps:
        return Recollection()
    best = sorted(steps, key=lambda step: (-(step.return_to_go or 0.0), step.id))[:k]
    _, hits, tokens = within_budget(
        (), [Hit(step, 1.0, "an episode of a similar task") for step in best], budget_tokens
    )
    situation = derived.situation(state)
    estimates = {
        action: values.estimate(situation.keys(action, counts), situation.context(action))
        for action, counts in actions.items()
    }
    return Recollection(steps=hits, estimates=estimates, path="task", tokens=tokens)


def _similar_episodes(store: Store, namespace: int, task: str) -> tuple[list[Step], ValueTable]:
    """The TASK_EPISODES episodes whose task shares most words, the better rewarded first."""
    wanted = content_words(task)
    rows = store.rows(
        "SELECT id, task, total_reward, rowid FROM trajectories WHERE namespace = ? AND success IS NOT NULL "
        "AND trust = 'trusted'",
        (namespace,),
    )

    def nearness(row: tuple[str, str, float, int]) -> tuple[float, float, int]:
        known = content_words(row[1])
        return (-len(wanted & known) / max(1, len(wanted | known)), -row[2], row[3])

    chosen = sorted(rows, key=nearness)[:TASK_EPISODES]
    mine = "namespace = ? AND trajectory_id = ? ORDER BY t"
    steps = [step for row in chosen for step in read_steps(store, mine, (namespace, row[0]))]
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
    items = index.find("items", text, k, **asked) if derived.items else []
    states = index.find("states", text, k, **asked)
    hits = [
        Hit(derived.items[derived.numbers[ref]], cosine, why) for ref, cosine, why in items if ref in derived.numbers
    ]
    hits.extend(step_hits(store, states))
    return sorted(hits, key=lambda hit: -hit.similarity)[:k] if how != "text" else hits[:k]
