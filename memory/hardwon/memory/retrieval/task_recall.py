"""Recall by task: choose whole episodes once, by the words of the task. It serves as a baseline for recall by step."""

from collections.abc import Sequence

from hardwon.memory.records import Hit, Recollection, State, Step
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import read_steps
from hardwon.memory.trust.instructions import without_instructions
from hardwon.memory.values.value_table import ValueTable

from .cache import NamespaceCache
from .ranking import kind_of, placed_in
from .recall import within_budget
from .request import RecallRequest
from .search import Search
from .tuning import TUNING


def recall_by_task(store: Store, derived: NamespaceCache, index: Search, request: RecallRequest) -> Recollection:
    """Return k steps from the best episodes of the most similar tasks, and estimates from these episodes alone.

    Steps of the nearest episode come first. If the previous action is known, steps that followed the same kind of
    action precede the others.
    """
    state = request.state
    if state.task not in derived.findings.task_episodes:
        derived.findings.task_episodes[state.task] = _similar_episodes(store, index, derived, state)
    steps, values = derived.findings.task_episodes[state.task]
    if not steps:
        return Recollection()
    best = _order_by_previous_kind(steps, request.after)[: request.k]
    clean = (without_instructions(Hit(step, 1.0, "an episode of a similar task")) for step in best)
    _, hits, tokens = within_budget(
        (), [derived.support.limit_words(hit) for hit in clean if hit is not None], request.budget_tokens
    )
    situation = derived.situation(state)
    estimates = {
        action: values.estimate(situation.keys(action, counts), situation.context(action))
        for action, counts in (request.actions or {}).items()
    }
    return Recollection(steps=hits, estimates=estimates, path="task", tokens=tokens)


def _order_by_previous_kind(steps: Sequence[Step], after: str | None) -> list[Step]:
    """Return the steps of whole episodes, those after the same kind of action first."""
    if after is None:
        return list(steps)
    kind, before = kind_of(after), ["", *(kind_of(step.action) for step in steps)]
    follows = [(before[at] if step.t else "") == kind for at, step in enumerate(steps)]
    return [steps[at] for at in sorted(range(len(steps)), key=lambda at: not follows[at])]


def _similar_episodes(
    store: Store, index: Search, derived: NamespaceCache, state: State
) -> tuple[list[Step], ValueTable]:
    """Return the steps of `task_episodes` episodes of the most similar tasks, and their values.

    Episodes of one task are ordered by reward. If the world of the state is certain, other worlds are left out.
    """
    chosen: list[str] = []
    _, worlds = derived.worlds.locate(state.task)
    where = "" if worlds is None else f"AND {placed_in(worlds, 'trajectories.namespace', 'trajectories.id')} "
    count = TUNING.task_episodes if worlds is None else TUNING.deeper * TUNING.task_episodes
    for task in derived.findings.tasks.nearest(state.task, count, index.embed):
        rows = store.rows(
            "SELECT id FROM trajectories WHERE namespace = ? AND task = ? AND success IS NOT NULL "
            f"AND trust = 'trusted' {where}ORDER BY total_reward DESC, rowid LIMIT ?",
            (index.namespace, task, TUNING.task_episodes - len(chosen)),
        )
        chosen.extend(row[0] for row in rows)
        if len(chosen) == TUNING.task_episodes:
            break
    by_episode = "namespace = ? AND trajectory_id = ? ORDER BY t"
    steps = [step for ref in chosen for step in read_steps(store, by_episode, (index.namespace, ref))]
    values = ValueTable()
    for step in steps:
        values.add(step.keys, step.return_to_go or 0.0, step.id or 0)
    return steps, values
