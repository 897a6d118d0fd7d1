"""Credit: what an episode's outcome says about the items that were shown in it, and about guardrails.

Runs in the transaction that records the episode. An item's utility u = 2 score - 1 estimates
E[R | shown] - E[R | not shown]; it moves by shared error, so that a bystander recalled beside a good
item gains nothing once that item explains the outcome:

    error_i = R - clip(baseline_i + sum_j u_j, 0, 1)        j over all items shown
    u_i    += alpha_i w_i error_i,    alpha_i = max(SCORE_RATE, 1 / (uses_i + 2))

(Rescorla and Wagner 1972.) A surprise for the better is shared equally, w_i = 1 / n; one for the
worse is charged by promise, w_i = (max(u_i, 0) + CAUTION) / sum_j. Episodes show several items at
once, so an item's own difference would pay all of them for what one did.

baseline_i is the mean outcome of, in this order: episodes of this task that withheld the item; the
control arm on this task and seed; the control arm on this task; episodes of this task without the
item; all episodes of the task, smoothed towards one half. The runtime withholds items at random:
what else was shown in those episodes is in their mean already, so there the credit is counterfactual
and the item's alone, error_i = R - clip(baseline_i + u_i, 0, 1) and w_i = 1.

Scores are kept per world (see `storage.world_scores`): u_i is the item's in the world of the episode, so that harm
done in one world is not charged in another.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from sqlite3 import Connection
from typing import Any

from hardwon.memory import items as catalogue
from hardwon.memory.guardrails.conditions import MIN_CONFIDENCE
from hardwon.memory.guardrails.probation import WEAKENED, judge_trial
from hardwon.memory.records import Failure, Item, Step, Trajectory
from hardwon.memory.storage.checksums import seal
from hardwon.memory.storage.world_scores import WorldScores

SCORE_RATE = 0.1
"""The least that one episode moves a utility by, of its error: old episodes fade."""
CAUTION = 0.1
"""The share of a bad surprise of an item that promised nothing."""
RECENT = 200
"""Episodes of a task that a baseline looks at."""
_BOOKED = frozenset(["recalled", "withheld", "blocked", "overrode", "skill"])
"""What a step's reasons say of items."""
_SETTLED_ALONE = frozenset(["blocked", "overrode"])
"""Of these, those that are booked whatever came of the episode."""
OVERRIDES = 2
"""Successes of what a guardrail blocked, under override, that retire it."""


def settle(connection: Connection, namespace: int, trajectory: Trajectory, clock: int) -> None:
    """Close the books of an episode: write its usages, move scores, count overrides and verified skills.

    `clock` is the number of episodes recorded before, by which the age of items is told.
    """
    if not names_items(trajectory):
        return
    if trajectory.success is None:  # how it ended is unknown; how the overridden calls ended is not
        _write_usages(connection, namespace, trajectory, None, None)
        _judge_guardrails(connection, namespace, trajectory, clock)
        return
    outcome = float(bool(trajectory.success))
    control = _control(connection, namespace, trajectory)
    _write_usages(connection, namespace, trajectory, outcome, control)
    refused = _named(trajectory, "blocked")
    shown = [
        item
        for item in _items(connection, namespace, _named(trajectory, "recalled"))
        if item.id not in refused  # what it refused was not seen: no outcome speaks for it
    ]
    without = {item.id: _withheld(connection, namespace, trajectory, item.id) for item in shown}
    alone = {item_id: mean for item_id, mean in without.items() if mean is not None}
    baselines = {item.id: _baseline(connection, namespace, trajectory, item.id, control) for item in shown}
    uses = _touch(connection, namespace, shown, clock)
    scores = WorldScores(connection, namespace, trajectory.id, shown, uses)
    for local, moved in shared_error(scores.local(), uses, {**baselines, **alone}, outcome, frozenset(alone)):
        item, score = scores.move(local.id, moved)
        if score != item.score:
            catalogue.set_score(connection, namespace, item, score)
    _judge_guardrails(connection, namespace, trajectory, clock)
    _judge_skills(connection, namespace, trajectory, clock)


def names_items(trajectory: Trajectory) -> bool:
    """Whether an episode says something of items; one that is not trusted does not.

    One whose end is unknown does of the guardrails that acted in it.
    """
    if trajectory.trust != "trusted":
        return False
    if trajectory.success is None:
        return any(not _SETTLED_ALONE.isdisjoint(step.why) for step in trajectory.steps if step.why)
    return bool(trajectory.meta.get("skills")) or any(map(_names_items, trajectory.steps))


def shared_error(
    shown: Iterable[Item],
    uses: Mapping[str, int],
    baselines: Mapping[str, float],
    outcome: float,
    alone: frozenset[str] = frozenset(),
) -> list[tuple[Item, float]]:
    """Each item shown with its new score, in [0, 1]; `alone` are those with a counterfactual baseline."""
    items = list(shown)
    utility = {item.id: 2.0 * item.score - 1.0 for item in items}
    promised = sum(utility.values())
    blame = sum(max(0.0, u) + CAUTION for u in utility.values())
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
    return bool(step.why) and not _BOOKED.isdisjoint(step.why)


def _named(trajectory: Trajectory, mode: str) -> dict[str, int]:
    """The items that the steps name under a mode, with the step that named each first."""
    named: dict[str, int] = {}
    for step in trajectory.steps:
        for item_id in _listed(step.why.get(mode)):
            named.setdefault(item_id, step.t)
    return named


def _listed(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def _write_usages(
    connection: Connection, namespace: int, trajectory: Trajectory, outcome: float | None, control: float | None
) -> None:
    rows = []
    for step in trajectory.steps:
        unknown = step.diagnosis.failure is Failure.UNAVAILABLE
        worked = None if unknown else float(step.diagnosis.success)
        ended = (("recalled", outcome), ("withheld", outcome), ("blocked", outcome), ("overrode", worked))
        for said, result in ended:
            mode = "overridden" if said == "overrode" else said
            rows += [(item_id, step.t, mode, result) for item_id in _listed(step.why.get(said))]
    verified = trajectory.meta.get("skills") or {} if outcome is not None else {}
    rows += [(item_id, t, "followed", float(verified.get(item_id, 0))) for item_id, t in _followed(trajectory).items()]
    (newest,) = connection.execute("SELECT coalesce(max(id), 0) FROM usages").fetchone()
    connection.executemany(
        "INSERT INTO usages(namespace, item_id, trajectory_id, t, mode, arm, outcome, control_outcome) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (namespace, item_id, trajectory.id, t, mode, trajectory.arm, result, control)
            for item_id, t, mode, result in rows
        ],
    )
    seal(connection, "usages", "id > ?", (newest,))


def _followed(trajectory: Trajectory) -> dict[str, int]:
    return _named(trajectory, "skill")


def _items(connection: Connection, namespace: int, named: Iterable[str]) -> list[Item]:
    found = (catalogue.read_item(connection, namespace, item_id) for item_id in named)
    return [item for item in found if item is not None and item.status == "active"]


def _touch(connection: Connection, namespace: int, items: Iterable[Item], clock: int) -> dict[str, int]:
    """Count one more use of each; returns how often each was used before."""
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


def _control(connection: Connection, namespace: int, trajectory: Trajectory) -> float | None:
    """Mean outcome of the control arm on this task and seed, else on this task; None where there is none."""
    where = (
        "namespace = ? AND task = ? AND arm = 'control' AND success IS NOT NULL AND trust = 'trusted' "
        "AND id != ? AND NOT EXISTS (SELECT 1 "
        "FROM usages WHERE usages.namespace = trajectories.namespace AND trajectory_id = id AND mode = 'recalled')"
    )
    mine = (namespace, trajectory.task, trajectory.id)
    if trajectory.arm == "control":
        return None
    for more, parameters in ((" AND seed = ?", (*mine, trajectory.seed)), ("", mine)):
        (mean,) = connection.execute(
            f"SELECT avg(success) FROM trajectories WHERE {where}{more}", parameters
        ).fetchone()
        if mean is not None:
            return float(mean)
    return None


def _withheld(connection: Connection, namespace: int, trajectory: Trajectory, item_id: str) -> float | None:
    """Mean outcome of the episodes of this task in which the item was held back at random; None without any."""
    return _mean_where(connection, namespace, trajectory, item_id, "EXISTS ({used} = 'withheld')")


def _baseline(
    connection: Connection, namespace: int, trajectory: Trajectory, item_id: str, control: float | None
) -> float:
    """What such an episode reaches without any of the items, as far as can be told."""
    if control is not None:
        return control
    mean = _mean_where(connection, namespace, trajectory, item_id, "NOT EXISTS ({used} IN ('recalled', 'followed'))")
    if mean is not None:
        return mean
    won, n = connection.execute(
        "SELECT coalesce(sum(success), 0), count(*) FROM trajectories "
        "WHERE namespace = ? AND task = ? AND success IS NOT NULL AND trust = 'trusted'",
        (namespace, trajectory.task),
    ).fetchone()
    return float((won + 1) / (n + 2))


def _mean_where(
    connection: Connection, namespace: int, trajectory: Trajectory, item_id: str, which: str
) -> float | None:
    used = "SELECT 1 FROM usages WHERE usages.namespace = ? AND trajectory_id = episode.id AND item_id = ? AND mode"
    (mean,) = connection.execute(
        "SELECT avg(success) FROM (SELECT success FROM trajectories AS episode WHERE namespace = ? AND task = ? "
        "AND success IS NOT NULL AND trust = 'trusted' "
        f"AND id != ? AND {which.format(used=used)} ORDER BY rowid DESC LIMIT {RECENT})",
        (namespace, trajectory.task, trajectory.id, namespace, item_id),
    ).fetchone()
    return None if mean is None else float(mean)


def _judge_guardrails(connection: Connection, namespace: int, trajectory: Trajectory, clock: int) -> None:
    """Renew the guardrails whose trial failed, weaken those whose forbidden call worked, retire those after OVERRIDES.

    An outage decides nothing.
    """
    for step in trajectory.steps:
        if step.diagnosis.failure is not Failure.UNAVAILABLE:
            for item_id in _listed(step.why.get("trial")):
                judge_trial(connection, namespace, item_id, step.diagnosis.success)
    guardrails = _items(connection, namespace, _named(trajectory, "overrode"))
    _touch(connection, namespace, [*guardrails, *_items(connection, namespace, _named(trajectory, "blocked"))], clock)
    for item in guardrails:
        worked, failed = connection.execute(
            "SELECT sum(outcome = 1), sum(outcome = 0) FROM usages "
            "WHERE namespace = ? AND item_id = ? AND mode = 'overridden'",
            (namespace, item.id),
        ).fetchone()
        if item.kind != "guardrail" or item.pinned or not worked:
            continue
        if worked >= OVERRIDES and 2 * worked >= failed:
            why = f"what it blocked worked {worked} times under override (and failed {failed} times)"
            catalogue.retire(connection, namespace, item.id, why)
        elif item.confidence >= MIN_CONFIDENCE and _worked_last(connection, namespace, item.id):
            catalogue.weaken(connection, namespace, item, WEAKENED, "what it forbids worked when it was let through")


def _worked_last(connection: Connection, namespace: int, item_id: str) -> bool:
    row = connection.execute(
        "SELECT outcome FROM usages WHERE namespace = ? AND item_id = ? AND mode = 'overridden' "
        "AND outcome IS NOT NULL ORDER BY id DESC LIMIT 1",
        (namespace, item_id),
    ).fetchone()
    return bool(row and row[0] == 1)


def _judge_skills(connection: Connection, namespace: int, trajectory: Trajectory, clock: int) -> None:
    """A skill is as sure as its own criteria were met: confidence is a running mean over verified runs."""
    verified = trajectory.meta.get("skills") or {}
    followed = [item for item in _items(connection, namespace, _followed(trajectory)) if item.id in verified]
    uses = _touch(connection, namespace, followed, clock)
    for item in followed:
        confidence = item.confidence + (float(verified[item.id]) - item.confidence) / (uses[item.id] + 2)
        judged = replace(item, confidence=confidence, version=item.version + 1)
        catalogue.write(connection, namespace, judged, "verified" if verified[item.id] else "failed")


def usefulness(connection: Connection, namespace: int, item_id: str) -> dict[str, Any]:
    """u = E[R | shown] - E[R | withheld] over episodes, with a 95% interval (normal approximation).

    Only randomised withholding identifies it, co-occurrence never does; so
    `difference` is None until the item was both shown and withheld.
    """
    arms = {}
    for mode in ("recalled", "withheld"):
        n, mean = connection.execute(
            "SELECT count(*), avg(outcome) FROM (SELECT DISTINCT trajectory_id, outcome FROM usages "
            "WHERE namespace = ? AND item_id = ? AND mode = ? AND outcome IS NOT NULL)",
            (namespace, item_id, mode),
        ).fetchone()
        arms[mode] = (n, mean)
    (n, shown), (m, withheld) = arms["recalled"], arms["withheld"]
    if not n or not m:
        return {"shown": n, "withheld": m, "difference": None, "low": None, "high": None}
    p, q = (shown * n + 1) / (n + 2), (withheld * m + 1) / (m + 2)  # smoothed: no interval of width 0
    margin = 1.96 * math.sqrt(p * (1 - p) / n + q * (1 - q) / m)
    difference = shown - withheld
    return {
        "shown": n,
        "withheld": m,
        "difference": difference,
        "low": max(-1.0, difference - margin),
        "high": min(1.0, difference + margin),
    }
