"""Item credit: update the scores of the items that were shown in an episode, and the standing of guardrails.

This runs in the transaction that records the episode. An item's utility u = 2 score - 1 estimates
E[R | shown] - E[R | not shown]. It is updated by a shared error, so an irrelevant item recalled next to a good one
gains nothing once the good one explains the outcome:

    error_i = R - clip(baseline_i + sum_j u_j, 0, 1)        j over all items shown
    u_i    += alpha_i w_i error_i,    alpha_i = max(min_score_rate, 1 / (uses_i + 2))

(Rescorla and Wagner 1972.) A positive error is shared equally, w_i = 1 / n. A negative one is distributed by promised
utility, w_i = (max(u_i, 0) + caution) / sum_j. Episodes show several items at once, so individual differences would
credit all of them for the effect of one.

baseline_i is the mean outcome of the first of these sets that is not empty: episodes of this task that withheld the
item; the control arm on this task and seed; the control arm on this task; episodes of this task without the item; all
episodes of the task, smoothed towards one half. The runtime withholds items at random. Other items shown in those
episodes are already part of their mean, so with this baseline the credit is counterfactual and belongs to the item
alone: error_i = R - clip(baseline_i + u_i, 0, 1) and w_i = 1.

Scores are kept per world (see `storage.world_scores`): u_i is the utility in the world of the episode, so harm in one
world does not lower the score in another.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from sqlite3 import Connection

from hardwon.memory import items as catalogue
from hardwon.memory.guardrails.probation import judge_trial
from hardwon.memory.guardrails.tuning import TUNING as GUARDRAILS
from hardwon.memory.reasons import ADVICE, Reasons
from hardwon.memory.records import Failure, Item, Step, Trajectory
from hardwon.memory.storage.checksums import seal
from hardwon.memory.storage.counted import OUTCOME
from hardwon.memory.storage.world_scores import WorldScores

from .tuning import TUNING

ItemIds = tuple[str, ...] | None
"""Ids of the items that a step names in one role; None if it names none."""


def settle(connection: Connection, namespace: int, trajectory: Trajectory, clock: int) -> None:
    """Settle an episode: write its usages, update scores, and judge its guardrails and skills.

    An episode with an unknown outcome only updates the guardrails whose blocked calls ran anyway.
    """
    if not names_items(trajectory):
        return
    if trajectory.success is None:  # the outcomes of overridden calls are still known
        write_usages(connection, namespace, trajectory, None)
    else:
        credit(connection, namespace, trajectory, clock)
    _judge_guardrails(connection, namespace, trajectory, clock)


def credit(connection: Connection, namespace: int, trajectory: Trajectory, clock: int) -> None:
    """Write the usages of an episode with a known outcome, and update the scores of its items and skills."""
    control = _read_control_outcome(connection, namespace, trajectory)
    write_usages(connection, namespace, trajectory, control)
    items = _read_shown_items(connection, namespace, trajectory)
    baselines, alone = _read_baselines(connection, namespace, trajectory, items, control)
    uses = _count_uses(connection, namespace, items, clock)
    scores = WorldScores(connection, namespace, trajectory.id, items, uses)
    for item, score in shared_error(scores.local(), uses, baselines, trajectory.outcome or 0.0, alone):
        _write_score(connection, namespace, *scores.move(item.id, score))
    _judge_skills(connection, namespace, trajectory, clock)


def weigh_last(connection: Connection, namespace: int, trajectory: Trajectory) -> dict[str, tuple[float, float]]:
    """Return the score of each item without an episode and with it, as if it were the last one; empty if it is unknown.

    Grades in turn would move scores further and further if each difference were taken from the scores as they are, so
    the scores are found from which this episode leads to the present ones.
    """
    if trajectory.outcome is None or not names_items(trajectory):
        return {}
    present, settle_scores = _prepare(connection, namespace, trajectory)
    without = {item.id: item.score for item in present}
    with_it = settle_scores(without)
    # Steps in which the scores without an episode are found. Rates are at most 1/2, so each step halves the error.
    for _ in range(100):
        gaps = {item.id: item.score - with_it[item.id] for item in present}
        # Error of a score that is none.
        if max(map(abs, gaps.values()), default=0.0) < 1e-12:
            break
        without = {ref: min(1.0, max(0.0, score + gaps[ref])) for ref, score in without.items()}
        with_it = settle_scores(without)
    return {ref: (score, with_it[ref]) for ref, score in without.items()}


def _prepare(
    connection: Connection, namespace: int, trajectory: Trajectory
) -> tuple[list[Item], Callable[[Mapping[str, float]], dict[str, float]]]:
    """Return an episode's items with their scores in its world, and what it makes of such scores."""
    items = _read_shown_items(connection, namespace, trajectory)
    control = _read_control_outcome(connection, namespace, trajectory)
    baselines, alone = _read_baselines(connection, namespace, trajectory, items, control)
    uses = {ref: max(0, n - 1) for ref, n in _count_uses(connection, namespace, items, None, 0).items()}
    present = WorldScores(connection, namespace, trajectory.id, items, uses).local()

    def settle_scores(scores: Mapping[str, float]) -> dict[str, float]:
        candidates = [replace(item, score=scores[item.id]) for item in present]
        return {
            item.id: score
            for item, score in shared_error(candidates, uses, baselines, trajectory.outcome or 0.0, alone)
        }

    return present, settle_scores


def recredit(
    connection: Connection, namespace: int, trajectory: Trajectory, before: Mapping[str, tuple[float, float]]
) -> None:
    """Move the present scores of an episode's items by the difference that its new outcome makes; see `weigh_last`."""
    change = 0 if trajectory.outcome is not None else -1
    after = {ref: score for ref, (score, _) in before.items()}
    if trajectory.outcome is not None:
        after = _prepare(connection, namespace, trajectory)[1](after)
    items = _read_shown_items(connection, namespace, trajectory)
    uses = _count_uses(connection, namespace, items, None, change)
    scores = WorldScores(connection, namespace, trajectory.id, items, uses)
    for item in scores.local():
        score = item.score + after[item.id] - before[item.id][1]
        _write_score(connection, namespace, *scores.move(item.id, min(1.0, max(0.0, score)), change))


def _write_score(connection: Connection, namespace: int, item: Item, score: float) -> None:
    if score != item.score:
        catalogue.set_score(connection, namespace, item, score)


def _read_shown_items(connection: Connection, namespace: int, trajectory: Trajectory) -> list[Item]:
    """Return the active items that an episode is credited to: those that it was shown and that refused no call."""
    refused = _steps_by_item(trajectory, lambda why: why.blocked)
    items = _read_active_items(connection, namespace, _steps_by_item(trajectory, lambda why: why.recalled))
    return [item for item in items if item.id not in refused]  # the outcome of a refused call was never observed


def _read_baselines(
    connection: Connection, namespace: int, trajectory: Trajectory, items: Iterable[Item], control: float | None
) -> tuple[dict[str, float], frozenset[str]]:
    """Return the expected outcome of an episode without each item, and the items that other episodes withheld."""
    without = {item.id: _read_withheld_outcome(connection, namespace, trajectory, item.id) for item in items}
    baselines = {
        ref: _estimate_baseline(connection, namespace, trajectory, ref, control) if mean is None else mean
        for ref, mean in without.items()
    }
    return baselines, frozenset(ref for ref, mean in without.items() if mean is not None)


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
    # `caution` keeps the sum positive even if no item promises anything.
    blame = sum(max(0.0, u) + TUNING.caution for u in utility.values())
    # All errors use the scores before the episode, so the order of items does not matter.
    moved = []
    for item in items:
        own = item.id in alone
        claim = utility[item.id] if own else promised
        error = outcome - min(1.0, max(0.0, baselines[item.id] + claim))
        share = 1.0 / len(items) if error > 0 else (max(0.0, utility[item.id]) + TUNING.caution) / blame
        rate = max(TUNING.min_score_rate, 1.0 / (uses[item.id] + 2)) * (1.0 if own else share)
        moved.append((item, min(1.0, max(0.0, 0.5 + 0.5 * (utility[item.id] + rate * error)))))
    return moved


def _names_items(step: Step) -> bool:
    """Return whether a step has a usage of an item."""
    why = step.why
    usages = (why.recalled, why.withheld, why.advice, why.blocked, why.overridden, why.skills)
    return usages.count(None) < len(usages)


def _steps_by_item(trajectory: Trajectory, read_ids: Callable[[Reasons], ItemIds]) -> dict[str, int]:
    """Return the items that a field of the reasons names, each with the number of the first such step."""
    named: dict[str, int] = {}
    for step in trajectory.steps:
        for item_id in read_ids(step.why) or ():
            named.setdefault(item_id, step.t)
    return named


def write_usages(connection: Connection, namespace: int, trajectory: Trajectory, control: float | None) -> None:
    """Write one row per usage, with the outcome of the episode or, for overrides, of the step."""
    rows, outcome = [], trajectory.outcome
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


def _count_uses(
    connection: Connection, namespace: int, items: Iterable[Item], clock: int | None, change: int = 1
) -> dict[str, int]:
    """Change the number of uses of each item; return the previous number of uses by id."""
    uses = {}
    for item in items:
        ((uses[item.id],),) = connection.execute(
            "SELECT uses FROM items WHERE namespace = ? AND id = ?", (namespace, item.id)
        ).fetchall()
        connection.execute(
            "UPDATE items SET uses = max(0, uses + ?), fresh = coalesce(?, fresh) WHERE namespace = ? AND id = ?",
            (change, clock, namespace, item.id),
        )
        seal(connection, "items", "namespace = ? AND id = ?", (namespace, item.id))
    return uses


def _read_control_outcome(connection: Connection, namespace: int, trajectory: Trajectory) -> float | None:
    """Return the mean outcome of the control arm on this task and seed, or on this task, or None."""
    where = (
        "namespace = ? AND task = ? AND arm = 'control' AND success IS NOT NULL AND trust = 'trusted' "
        # An episode in which items were recalled anyway is no control.
        "AND id != ? AND NOT EXISTS (SELECT 1 "
        "FROM usages WHERE usages.namespace = trajectories.namespace AND trajectory_id = id AND mode = 'recalled')"
    )
    own = (namespace, trajectory.task, trajectory.id)
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
        "WHERE namespace = ? AND task = ? AND success IS NOT NULL AND trust = 'trusted'",
        (namespace, trajectory.task),
    ).fetchone()
    return float((won + 1) / (n + 2))


def _mean_where(
    connection: Connection, namespace: int, trajectory: Trajectory, item_id: str, which: str
) -> float | None:
    """Return the mean outcome of the last `baseline_episodes` episodes of the task that meet a condition, or None."""
    used = "SELECT 1 FROM usages WHERE usages.namespace = ? AND trajectory_id = episode.id AND item_id = ? AND mode"
    (mean,) = connection.execute(
        f"SELECT avg(outcome) FROM (SELECT {OUTCOME} AS outcome FROM trajectories AS episode "
        "WHERE namespace = ? AND task = ? AND success IS NOT NULL AND trust = 'trusted' "
        f"AND id != ? AND {which.format(used=used)} ORDER BY rowid DESC LIMIT {TUNING.baseline_episodes})",
        (namespace, trajectory.task, trajectory.id, namespace, item_id),
    ).fetchone()
    return None if mean is None else float(mean)


def _judge_guardrails(connection: Connection, namespace: int, trajectory: Trajectory, clock: int) -> None:
    """Apply the outcomes of calls that guardrails forbid but that ran anyway, as one outcome per episode.

    A failed trial renews a guardrail, a success weakens it, and `retiring_overrides` episodes with a success retire it.
    An outage has no effect.
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
        if worked >= TUNING.retiring_overrides and 2 * worked >= failed:
            why = f"what it blocked worked under override in {worked} of {worked + failed} episodes"
            catalogue.retire(connection, namespace, item.id, why)
        elif item.confidence >= GUARDRAILS.min_confidence and _worked_last(connection, namespace, item.id):
            catalogue.weaken(
                connection, namespace, item, GUARDRAILS.weakening, "what it forbids worked when it was let through"
            )


def _worked_last(connection: Connection, namespace: int, item_id: str) -> bool:
    """Return whether the last overridden call of a guardrail succeeded."""
    row = connection.execute(
        "SELECT outcome FROM usages WHERE namespace = ? AND item_id = ? AND mode = 'overridden' "
        "AND outcome IS NOT NULL ORDER BY id DESC LIMIT 1",
        (namespace, item_id),
    ).fetchone()
    return bool(row and row[0] == 1)


def _judge_skills(connection: Connection, namespace: int, trajectory: Trajectory, clock: int) -> None:
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
