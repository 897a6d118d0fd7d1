"""Recrediting: settle an episode again after its outcome changed, with the later episodes that depend on it.

Scores are updated in the order of recording, so a changed outcome moves the scores that later episodes began with, and
the baselines of later episodes of the same task. From the graded episode on, every episode that shares an item or the
task is settled again from its `settlement`; the result is that of a library in which the episode had ended so from the
start. What people or clients changed in between is kept: a shift of the overall score stays the same shift.

Episodes without a settlement (imported ones, those of older versions, and those from before worlds were merged) move
the present score by the difference that the new outcome makes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from sqlite3 import Connection

from hardwon.memory import items as catalogue
from hardwon.memory.records import Item, Trajectory
from hardwon.memory.storage import world_scores
from hardwon.memory.storage.checksums import seal
from hardwon.memory.storage.world_scores import Scores, WorldScores, compute_overall

from .item_credit import (
    read_baselines,
    read_control_outcome,
    read_shown_items,
    shared_error,
)
from .settlements import ScoreState, Settlement, read_settlements_since, replace_settlements

SAME = 1e-9
"""Difference of two scores that is an error of rounding."""


@dataclass(frozen=True, slots=True)
class _Move:
    """The scores of an item as they were recorded at some time, and as they should have been."""

    recorded: ScoreState
    corrected: ScoreState
    uses: int = 0
    """Uses that the record lacks (1) or has too many (-1)."""


def recredit(connection: Connection, namespace: int, episode: Trajectory, previous: float | None) -> None:
    """Settle an episode whose outcome changed, and later ones that depend on it."""
    groups = read_settlements_since(connection, namespace, episode.id)
    is_settled = bool(groups) and groups[0][0].episode == episode.id
    if previous is None:
        groups = [_begin_group(connection, namespace, episode, groups), *groups]
    elif not is_settled and episode.outcome is not None:
        _move_by_difference(connection, namespace, episode, previous)
    elif not is_settled:
        _count_use(connection, namespace, [item.id for item in read_shown_items(connection, namespace, episode)], -1)
    moves: dict[str, _Move] = {}
    for group in filter(None, groups):
        other = episode if group[0].episode == episode.id else _read_head(connection, namespace, group[0].episode)
        if other.id == episode.id or other.task == episode.task or any(entry.item in moves for entry in group):
            change = 0 if other.id != episode.id else int(episode.outcome is not None) - int(previous is not None)
            moves |= _settle_again(connection, namespace, other, group, moves, change)
    _write(connection, namespace, moves)
    if is_settled and episode.outcome is None:
        connection.execute("DELETE FROM settlements WHERE namespace = ? AND trajectory_id = ?", (namespace, episode.id))


def _read_head(connection: Connection, namespace: int, ref: str) -> Trajectory:
    """Return an episode without its steps."""
    task, success, score, total, arm, seed, meta = connection.execute(
        "SELECT task, success, score, total_reward, arm, seed, meta FROM trajectories WHERE namespace = ? AND id = ?",
        (namespace, ref),
    ).fetchone()
    values = json.loads(meta)
    if values.get("outcome") == "reward":  # the sum of rewards, which the steps would give, as a score
        values, score = {**values, "outcome": "score"}, total
    return Trajectory(task, (), None if success is None else bool(success), score, arm, seed, meta=values, id=ref)


def _begin_group(
    connection: Connection, namespace: int, episode: Trajectory, later: Sequence[Sequence[Settlement]]
) -> list[Settlement]:
    """Return settlements without effect for an episode that was never settled, with the scores of its items then."""
    items = read_shown_items(connection, namespace, episode)
    following = {entry.item: entry for group in reversed(later) for entry in group}
    uses = {item.id: _read_uses(connection, namespace, item.id) for item in items}
    scores = WorldScores(connection, namespace, episode.id, items, uses)
    group = []
    for item in items:
        world, before = scores.standing(item.id)
        standing, count = ScoreState(before, item.score), uses[item.id]
        if (after := following.get(item.id)) is not None:
            standing, count = after.before, after.uses
        group.append(Settlement(0, episode.id, item.id, world, count, standing, standing))
    return group


def _settle_again(
    connection: Connection,
    namespace: int,
    episode: Trajectory,
    group: Sequence[Settlement],
    moves: Mapping[str, _Move],
    change: int,
) -> dict[str, _Move]:
    """Settle one episode again and replace its settlements; return what that moves."""
    before = {entry.item: _carry(entry.before, moves.get(entry.item)) for entry in group}
    added = {entry.item: moves[entry.item].uses if entry.item in moves else 0 for entry in group}
    uses = {entry.item: entry.uses + added[entry.item] for entry in group}
    after = dict(before)
    if episode.outcome is not None:
        control = read_control_outcome(connection, namespace, episode)
        baselines, alone = read_baselines(connection, namespace, episode, [entry.item for entry in group], control)
        stored = {entry.item: catalogue.read_item(connection, namespace, entry.item) for entry in group}
        worlds = {entry.item: entry.world for entry in group}
        items = [
            replace(item, score=_read_local(before[ref], worlds[ref]))
            for ref, item in stored.items()
            if item is not None
        ]
        for item, score in shared_error(items, uses, baselines, episode.outcome, alone):
            after[item.id] = _move(before[item.id], worlds[item.id], score)
        _set_control(connection, namespace, episode.id, control)
    replace_settlements(
        connection,
        namespace,
        [replace(entry, uses=uses[entry.item], before=before[entry.item], after=after[entry.item]) for entry in group],
    )
    return {entry.item: _Move(entry.after, after[entry.item], added[entry.item] + change) for entry in group}


def _read_local(standing: ScoreState, world: int | None) -> float:
    return standing.overall if world is None else standing.scores.get(world, (standing.overall, 0))[0]


def _move(standing: ScoreState, world: int | None, score: float) -> ScoreState:
    """Return a standing after an episode moved the score in its world; see `WorldScores.move`."""
    if world is None:
        return ScoreState(standing.scores, score)
    scores = {**standing.scores, world: (score, standing.scores.get(world, (0.0, 0))[1] + 1)}
    return ScoreState(scores, compute_overall(scores))


def _carry(recorded: ScoreState, move: _Move | None) -> ScoreState:
    """Return a recorded standing as it should have been, given what the item's last settlement moved."""
    if move is None:
        return recorded
    last, right = move.recorded, move.corrected
    if recorded == last:
        return right
    # Scores that only the correction has were earned in the meantime; those that only the record has were not.
    kept = {
        world: (_clip(score + _find_shift(world, last, right)), max(0, uses + _find_uses(world, last, right)))
        for world, (score, uses) in recorded.scores.items()
        if world in right.scores or world not in last.scores
    }
    shift = recorded.overall - last.overall
    earned = {
        world: (_clip(score + shift), uses)
        for world, (score, uses) in right.scores.items()
        if world not in recorded.scores and world not in last.scores
    }
    return ScoreState({**kept, **earned}, _clip(right.overall + shift))


def _find_shift(world: int, last: ScoreState, right: ScoreState) -> float:
    if world in last.scores and world in right.scores:
        return right.scores[world][0] - last.scores[world][0]
    return right.overall - last.overall


def _find_uses(world: int, last: ScoreState, right: ScoreState) -> int:
    if world in last.scores and world in right.scores:
        return right.scores[world][1] - last.scores[world][1]
    return 0


def _clip(score: float) -> float:
    return min(1.0, max(0.0, score))


def _write(connection: Connection, namespace: int, moves: Mapping[str, _Move]) -> None:
    """Write the present scores and uses of all items that moved."""
    for ref, move in moves.items():
        item = catalogue.read_item(connection, namespace, ref)
        if item is None:
            continue
        if move.uses:
            _count_use(connection, namespace, [ref], move.uses)
        if move.recorded == move.corrected:
            continue
        present: Scores = world_scores.read(connection, namespace, ref)
        # The stored scores lack a later shift of the overall score, which applies when they are read.
        unshifted = compute_overall(present) if present else item.score
        is_newest = move.recorded == ScoreState(_shift(present, item.score - unshifted), item.score)
        scores = move.corrected.scores if is_newest else _carry(ScoreState(present, unshifted), move).scores
        if scores or present:
            world_scores.write(connection, namespace, ref, scores)
        _set_score(connection, namespace, item, _carry(ScoreState(present, item.score), move).overall)


def _shift(scores: Scores, change: float) -> Scores:
    """Return scores after a shift of the overall score; see `WorldScores`."""
    if abs(change) <= SAME:
        return scores
    return {world: (_clip(score + change), uses) for world, (score, uses) in scores.items()}


def _set_score(connection: Connection, namespace: int, item: Item, score: float) -> None:
    if abs(score - item.score) > SAME:
        catalogue.set_score(connection, namespace, item, score)


def _set_control(connection: Connection, namespace: int, ref: str, control: float | None) -> None:
    """Write the outcome of the control arm to the usages of an episode, if it changed."""
    where = "namespace = ? AND trajectory_id = ?"
    changed = connection.execute(
        f"UPDATE usages SET control_outcome = ? WHERE {where} AND control_outcome IS NOT ?",
        (control, namespace, ref, control),
    )
    if changed.rowcount:
        seal(connection, "usages", where, (namespace, ref))


def _read_uses(connection: Connection, namespace: int, item_id: str) -> int:
    row = connection.execute("SELECT uses FROM items WHERE namespace = ? AND id = ?", (namespace, item_id)).fetchone()
    return int(row[0]) if row else 0


def _count_use(connection: Connection, namespace: int, item_ids: Sequence[str], change: int) -> None:
    for ref in item_ids:
        connection.execute(
            "UPDATE items SET uses = max(0, uses + ?) WHERE namespace = ? AND id = ?", (change, namespace, ref)
        )
        seal(connection, "items", "namespace = ? AND id = ?", (namespace, ref))


def _move_by_difference(connection: Connection, namespace: int, episode: Trajectory, previous: float) -> None:
    """Move the present scores of an episode's items by the difference between its new outcome and the previous one."""
    items = read_shown_items(connection, namespace, episode)
    uses = {item.id: max(0, _read_uses(connection, namespace, item.id) - 1) for item in items}
    scores = WorldScores(connection, namespace, episode.id, items, uses)
    control = read_control_outcome(connection, namespace, episode)
    baselines, alone = read_baselines(connection, namespace, episode, [item.id for item in items], control)
    local = scores.local()
    old, new = (
        {item.id: score for item, score in shared_error(local, uses, baselines, outcome, alone)}
        for outcome in (previous, episode.outcome or 0.0)
    )
    for item in items:
        world, before = scores.standing(item.id)
        standing = ScoreState(before, item.score)
        score = _clip(_read_local(standing, world) + new[item.id] - old[item.id])
        if world is None:
            _set_score(connection, namespace, item, score)
        elif before:
            count = before.get(world, (0.0, 1))[1]
            moved = {**before, world: (score, max(1, count))}
            world_scores.write(connection, namespace, item.id, moved)
            _set_score(connection, namespace, item, compute_overall(moved))
        else:
            _set_score(connection, namespace, item, _clip(item.score + new[item.id] - old[item.id]))
    _set_control(connection, namespace, episode.id, control)
