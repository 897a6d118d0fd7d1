"""Item credit: update the scores of the items that were shown in an episode, and the standing of guardrails.

This runs in the transaction that records the episode. An item's utility u = 2 score - 1 estimates
E[R | shown] - E[R | not shown]. It is updated by a shared error, so an irrelevant item recalled next to a good one
gains nothing once the good one explains the outcome:

    error_i = R - clip(baseline_i + sum_j u_j, 0, 1)        j over all items shown
    u_i    += alpha_i w_i error_i,    alpha_i = max(SCORE_RATE, 1 / (uses_i + 2))

(Rescorla and Wagner 1972.) A positive error is shared equally, w_i = 1 / n. A negative one is distributed by promised
utility, w_i = (max(u_i, 0) + CAUTION) / sum_j. Episodes show several items at once, so individual differences would
credit all of them for the effect of one.

baseline_i is the mean outcome of the first of these sets that is not empty: episodes of this task that withheld the
item; the control arm on this task and seed; the control arm on this task; episodes of this task without the item; all
episodes of the task, smoothed towards one half. The runtime withholds items at random. Other items shown in those
episodes are already part of their mean, so with this baseline the credit is counterfactual and belongs to the item
alone: error_i = R - clip(baseline_i + u_i, 0, 1) and w_i = 1.

Scores are kept per world (see `storage.world_scores`): u_i is the utility in the world of the episode, so harm in one
world does not lower the score in another.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from sqlite3 import Connection
from typing import Any

from hardwon.memory import items as catalogue
from hardwon.memory.guardrails.conditions import MIN_CONFIDENCE
from hardwon.memory.guardrails.probation import WEAKENED, judge_trial
from hardwon.memory.reasons import ADVICE, Reasons
from hardwon.memory.records import Failure, Item, Step, Trajectory
from hardwon.memory.storage.checksums import seal
from hardwon.memory.storage.counted import OUTCOME
from hardwon.memory.storage.world_scores import WorldScores

from .settlements import ScoreState, Settlement, add_settlements

SCORE_RATE = 0.1
"""Least learning rate of a utility, so that old episodes fade."""
CAUTION = 0.1
"""Weight of an item without positive utility when a negative error is distributed."""
RECENT = 200
"""Number of recent episodes of a task in a baseline."""
_EARLIER = "AND rowid <= (SELECT rowid FROM trajectories AS own WHERE own.namespace = ? AND own.id = ?)"
"""SQL condition on the episodes recorded up to one of them: a later grade must not see what came after it."""
ItemIds = tuple[str, ...] | None
"""Ids of the items that a step names in one role; None if it names none."""
OVERRIDES = 2
"""Successful overrides that retire a guardrail."""


def settle(connection: Connection, namespace: int, trajectory: Trajectory, clock: int) -> None:
    """Settle an episode: write its usages, update scores, and judge its guardrails and skills.

    An episode with an unknown outcome only updates the guardrails whose blocked calls ran anyway.
    """
    if not names_items(trajectory):
        return
    if trajectory.success is None:  # the outcomes of overridden calls are still known
        write_usages(connection, namespace, trajectory, None, None)
        _judge_guardrails(connection, namespace, trajectory, clock)
        return
    outcome = trajectory.outcome or 0.0
    control = read_control_outcome(connection, namespace, trajectory)
    write_usages(connection, namespace, trajectory, outcome, control)
    usages = read_shown_items(connection, namespace, trajectory)
    baselines, alone = read_baselines(connection, namespace, trajectory, [item.id for item in usages], control)
    uses = _count_uses(connection, namespace, usages, clock)
    scores = WorldScores(connection, namespace, trajectory.id, usages, uses)
    settlements = []
    for local, moved in shared_error(scores.local(), uses, baselines, outcome, alone):
        world, before = scores.standing(local.id)
        item, score = scores.move(local.id, moved)
        after = ScoreState(scores.standing(local.id)[1], score)
        settlements.append(
            Settlement(0, trajectory.id, item.id, world, uses[item.id], ScoreState(before, item.score), after)
        )
        if score != item.score:
            catalogue.set_score(connection, namespace, item, score)
    add_settlements(connection, namespace, settlements)
    _judge_guardrails(connection, namespace, trajectory, clock)
    judge_skills(connection, namespace, trajectory, clock)


def read_shown_items(connection: Connection, namespace: int, trajectory: Trajectory) -> list[Item]:
    """Return the active items that an episode is credited to: those that it was shown and that refused no call."""
    refused = _steps_by_item(trajectory, lambda why: why.blocked)
    items = _read_active_items(connection, namespace, _steps_by_item(trajectory, lambda why: why.recalled))
    return [item for item in items if item.id not in refused]  # the outcome of a refused call was never observed


def read_baselines(
    connection: Connection, namespace: int, trajectory: Trajectory, item_ids: Sequence[str], control: float | None
) -> tuple[dict[str, float], frozenset[str]]:
    """Return the expected outcome of an episode without each item, from the episodes recorded before it."""
    without = {ref: _read_withheld_outcome(connection, namespace, trajectory, ref) for ref in item_ids}
    alone = {ref: mean for ref, mean in without.items() if mean is not None}
    baselines = {
        ref: alone[ref] if ref in alone else _estimate_baseline(connection, namespace, trajectory, ref, control)
        for ref in item_ids
    }
    return baselines, frozenset(alone)


def names_items(trajectory: Trajectory) -> bool:
    """Return whether an episode has anything to settle.

    Untrusted episodes never do. Episodes with an unknown outcome do only if a guardrail acted in them.
    """
    if trajectory.trust != "trusted":
        return False
    if trajectory.success is None:
        return any(step.why.blocked is not None or step.why.overridden is not None for step in trajectory.steps)
    return bool(trajectory.meta.get("skills")) or any(map(_names_items, trajectory.steps))


def shared_error(
    recalled: Iterable[Item],
    uses: Mapping[str, int],
    baselines: Mapping[str, float],
    outcome: float,
    alone: frozenset[str] = frozenset(),
) -> list[tuple[Item, float]]:
    """Return each shown item with its new score in [0, 1]."""
    items = list(recalled)
    utility = {item.id: 2.0 * item.score - 1.0 for item in items}
    promised = sum(utility.values())
    # CAUTION keeps the sum positive even if no item promises anything.
    blame = sum(max(0.0, u) + CAUTION for u in utility.values())
    # All errors use the scores before the episode, so the order of items does not matter.
    moved = []
    for item in items:
        own = item.id in alone
        claim = utility[item.id] if own else promised
        error = outcome - min(1.0, max(0.0, baselines[item.id] + claim))
        share = 1.0 / len(items) if error > 0 else (max(0.0, utility[item.id]) + CAUTION) / blame
        rate = max(SCORE_RATE, 1.0 / (uses[item.id] + 2)) * (1.0 if own else share)
        moved.append((item, min(1.0, max(0.0, 0.5 + 0.5 * (utility[item.id] + rate * error)))))
    return moved


def _names_items(step: Step) -> bool:
    """Return whether a step has a usage of an item."""
    why = step.why
    usages = (why.recalled, why.withheld, why.advice, why.blocked, why.overridden, why.skills)
    return any(ids is not None for ids in usages)


def _steps_by_item(trajectory: Trajectory, read_ids: Callable[[Reasons], ItemIds]) -> dict[str, int]:
    """Return the items that a field of the reasons names, each with the number of the first such step."""
    named: dict[str, int] = {}
    for step in trajectory.steps:
        for item_id in read_ids(step.why) or ():
            named.setdefault(item_id, step.t)
    return named


def write_usages(
    connection: Connection, namespace: int, trajectory: Trajectory, outcome: float | None, control: float | None
) -> None:
    """Write one row per usage, with the outcome of the episode or, for overrides, of the step."""
    rows = []
    for step in trajectory.steps:
        unknown = step.diagnosis.failure is Failure.UNAVAILABLE
        worked = None if unknown else float(step.diagnosis.success)
        why = step.why
        usages: tuple[tuple[str, ItemIds, float | None], ...] = (
            ("recalled", why.recalled, outcome),
            ("withheld", why.withheld, outcome),
            ("blocked", why.blocked, outcome),
            ("overridden", why.overridden, worked),
        )
        rows += [(item_id, step.t, mode, result) for mode, ids, result in usages for item_id in ids or ()]
    # Once per episode: the draw is that of the whole episode.
    advised = next((step for step in trajectory.steps if step.why.advice is not None), None)
    if advised is not None:
        rows.append((ADVICE, advised.t, "withheld" if advised.why.advice == "withheld" else "recalled", outcome))
    masked = _steps_by_item(trajectory, lambda why: why.masked)
    rows += [(item_id, t, "masked", outcome) for item_id, t in masked.items()]
    verified = trajectory.meta.get("skills") or {} if outcome is not None else {}
    rows += [
        (item_id, t, "followed", float(verified.get(item_id, 0)))
        for item_id, t in _find_followed_skills(trajectory).items()
    ]
    (newest,) = connection.execute("SELECT coalesce(max(id), 0) FROM usages").fetchone()
    connection.executemany(
        "INSERT INTO usages(namespace, item_id, trajectory_id, t, mode, arm, outcome, control_outcome) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (namespace, item_id, trajectory.id, t, mode, trajectory.arm, result, control)
            for item_id, t, mode, result in rows
        ],
    )
    # The write lock keeps other writers out, so the range holds exactly the rows inserted above.
    seal(connection, "usages", "id > ?", (newest,))


def _find_followed_skills(trajectory: Trajectory) -> dict[str, int]:
    """Return the skills that were followed, each with its first step."""
    return _steps_by_item(trajectory, lambda why: why.skills)


def _read_active_items(connection: Connection, namespace: int, named: Iterable[str]) -> list[Item]:
    """Return the active items among these ids."""
    items = (catalogue.read_item(connection, namespace, item_id) for item_id in named)
    return [item for item in items if item is not None and item.status == "active"]


def _count_uses(connection: Connection, namespace: int, items: Iterable[Item], clock: int) -> dict[str, int]:
    """Count one more use of each item; return the previous number of uses by id."""
    uses = {}
    for item in items:
        ((uses[item.id],),) = connection.execute(
            "SELECT uses FROM items WHERE namespace = ? AND id = ?", (namespace, item.id)
        ).fetchall()
        connection.execute(
            "UPDATE items SET uses = uses + 1, fresh = ? WHERE namespace = ? AND id = ?", (clock, namespace, item.id)
        )
        seal(connection, "items", "namespace = ? AND id = ?", (namespace, item.id))
    return uses


def read_control_outcome(connection: Connection, namespace: int, trajectory: Trajectory) -> float | None:
    """Return the mean outcome of the control arm on this task and seed, or on this task, or None."""
    where = (
        "namespace = ? AND task = ? AND arm = 'control' AND success IS NOT NULL AND trust = 'trusted' "
        # An episode in which items were recalled anyway is no control.
        "AND id != ? AND NOT EXISTS (SELECT 1 "
        "FROM usages WHERE usages.namespace = trajectories.namespace AND trajectory_id = id AND mode = 'recalled') "
        f"{_EARLIER}"
    )
    own = (namespace, trajectory.task, trajectory.id, namespace, trajectory.id)
    if trajectory.arm == "control":
        return None
    for condition, parameters in ((" AND seed = ?", (*own, trajectory.seed)), ("", own)):
        (mean,) = connection.execute(
            f"SELECT avg({OUTCOME}) FROM trajectories WHERE {where}{condition}", parameters
        ).fetchone()
        if mean is not None:
            return float(mean)
    return None


def _read_withheld_outcome(
    connection: Connection, namespace: int, trajectory: Trajectory, item_id: str
) -> float | None:
    """Return the mean outcome of episodes of this task that withheld the item, or None."""
    return _mean_where(connection, namespace, trajectory, item_id, "EXISTS ({used} = 'withheld')")


def _estimate_baseline(
    connection: Connection, namespace: int, trajectory: Trajectory, item_id: str, control: float | None
) -> float:
    """Return the expected outcome of the episode without any item."""
    if control is not None:
        return control
    mean = _mean_where(connection, namespace, trajectory, item_id, "NOT EXISTS ({used} IN ('recalled', 'followed'))")
    if mean is not None:
        return mean
    won, n = connection.execute(
        f"SELECT coalesce(sum({OUTCOME}), 0), count(*) FROM trajectories "
        f"WHERE namespace = ? AND task = ? AND success IS NOT NULL AND trust = 'trusted' {_EARLIER}",
        (namespace, trajectory.task, namespace, trajectory.id),
    ).fetchone()
    return float((won + 1) / (n + 2))


def _mean_where(
    connection: Connection, namespace: int, trajectory: Trajectory, item_id: str, which: str
) -> float | None:
    """Return the mean outcome of the last RECENT episodes of the task that meet a condition, or None."""
    used = "SELECT 1 FROM usages WHERE usages.namespace = ? AND trajectory_id = episode.id AND item_id = ? AND mode"
    (mean,) = connection.execute(
        f"SELECT avg(outcome) FROM (SELECT {OUTCOME} AS outcome FROM trajectories AS episode "
        "WHERE namespace = ? AND task = ? AND success IS NOT NULL AND trust = 'trusted' "
        f"AND id != ? AND {which.format(used=used)} {_EARLIER} ORDER BY rowid DESC LIMIT {RECENT})",
        (namespace, trajectory.task, trajectory.id, namespace, item_id, namespace, trajectory.id),
    ).fetchone()
    return None if mean is None else float(mean)


def _judge_guardrails(connection: Connection, namespace: int, trajectory: Trajectory, clock: int) -> None:
    """Apply the outcomes of calls that guardrails forbid but that ran anyway, as one outcome per episode.

    A failed trial renews a guardrail, a success weakens it, and OVERRIDES episodes with a success retire it. An outage
    has no effect.
    """
    trials: dict[str, bool] = {}
    for step in trajectory.steps:
        if step.diagnosis.failure is not Failure.UNAVAILABLE:
            for item_id in step.why.trial or ():
                trials[item_id] = trials.get(item_id, False) or step.diagnosis.success
    for item_id, has_worked in trials.items():
        judge_trial(connection, namespace, item_id, has_worked)
    guardrails = _read_active_items(connection, namespace, _steps_by_item(trajectory, lambda why: why.overridden))
    _count_uses(
        connection,
        namespace,
        [*guardrails, *_read_active_items(connection, namespace, _steps_by_item(trajectory, lambda why: why.blocked))],
        clock,
    )
    for item in guardrails:
        worked, failed = connection.execute(
            "SELECT sum(best = 1), sum(best = 0) FROM (SELECT max(outcome) AS best FROM usages "
            "WHERE namespace = ? AND item_id = ? AND mode = 'overridden' GROUP BY trajectory_id)",
            (namespace, item.id),
        ).fetchone()
        # `worked` is None if the guardrail has no usage with a known outcome.
        if item.kind != "guardrail" or item.pinned or not worked:
            continue
        if worked >= OVERRIDES and 2 * worked >= failed:
            why = f"what it blocked worked under override in {worked} of {worked + failed} episodes"
            catalogue.retire(connection, namespace, item.id, why)
        elif item.confidence >= MIN_CONFIDENCE and _worked_last(connection, namespace, item.id):
            catalogue.weaken(connection, namespace, item, WEAKENED, "what it forbids worked when it was let through")


def _worked_last(connection: Connection, namespace: int, item_id: str) -> bool:
    """Return whether the last overridden call of a guardrail succeeded."""
    row = connection.execute(
        "SELECT outcome FROM usages WHERE namespace = ? AND item_id = ? AND mode = 'overridden' "
        "AND outcome IS NOT NULL ORDER BY id DESC LIMIT 1",
        (namespace, item_id),
    ).fetchone()
    return bool(row and row[0] == 1)


def judge_skills(connection: Connection, namespace: int, trajectory: Trajectory, clock: int) -> None:
    """Update the confidence of followed skills: the running mean of their verified success."""
    verified = trajectory.meta.get("skills") or {}
    followed = [
        item
        for item in _read_active_items(connection, namespace, _find_followed_skills(trajectory))
        if item.id in verified
    ]
    uses = _count_uses(connection, namespace, followed, clock)
    for item in followed:
        confidence = item.confidence + (float(verified[item.id]) - item.confidence) / (uses[item.id] + 2)
        judged = replace(item, confidence=confidence, version=item.version + 1)
        catalogue.write(connection, namespace, judged, "verified" if verified[item.id] else "failed")


def usefulness(connection: Connection, namespace: int, item_id: str) -> dict[str, Any]:
    """Estimate how much showing an item changes the outcome: E[R | shown] - E[R | withheld] over episodes.

    Only randomized withholding identifies the effect; co-occurrence does not. Episodes in which the item was masked
    withheld it with another probability, so they are compared among themselves; see `estimate_difference`.
    """
    rows = connection.execute(ARMS.format(" AND item_id = ?"), (namespace, item_id))
    return estimate_difference({(mode, bool(masked)): (n, mean) for _, mode, masked, n, mean in rows})


MODES = ("recalled", "withheld")
ARMS = """
SELECT item_id, mode, masked, count(*), avg(outcome) FROM (
    SELECT item_id, mode, outcome, max(mode = 'masked') OVER (PARTITION BY item_id, trajectory_id) AS masked FROM (
        SELECT DISTINCT item_id, mode, trajectory_id, outcome FROM usages
        WHERE namespace = ? AND outcome IS NOT NULL AND mode IN ('recalled', 'withheld', 'masked'){}))
WHERE mode != 'masked' GROUP BY 1, 2, 3
"""
"""Query of the arms of items, with a place for a further condition. An item counts once per episode and mode."""


def estimate_difference(arms: Mapping[tuple[str, bool], tuple[int, float]]) -> dict[str, Any]:
    """Return the difference of the mean outcomes with and without an item, with its 95 % interval; see `usefulness`.

    The differences of the episodes in which the item was in use and of those in which it was masked are averaged,
    weighted by the inverse of their variances.
    """
    counts = {mode: sum(arms.get((mode, masked), (0, 0.0))[0] for masked in (False, True)) for mode in MODES}
    compared = [
        _compare(*(arms[mode, masked] for mode in MODES))
        for masked in (False, True)
        if all(arms.get((mode, masked), (0, 0.0))[0] for mode in MODES)
    ]
    sizes = {"shown": counts["recalled"], "withheld": counts["withheld"]}
    if not compared:
        return {**sizes, "difference": None, "low": None, "high": None}
    weight = sum(1.0 / variance for _, variance in compared)
    difference = sum(each / variance for each, variance in compared) / weight
    margin = 1.96 / math.sqrt(weight)
    return {
        **sizes,
        "difference": difference,
        "low": max(-1.0, difference - margin),
        "high": min(1.0, difference + margin),
    }


def _compare(with_it: tuple[int, float], without_it: tuple[int, float]) -> tuple[float, float]:
    """Return the difference of two mean outcomes and its variance."""
    (n, with_item), (m, without) = with_it, without_it
    # Smoothed, so that the interval never has width 0.
    p, q = (with_item * n + 1) / (n + 2), (without * m + 1) / (m + 2)
    return with_item - without, p * (1 - p) / n + q * (1 - q) / m
