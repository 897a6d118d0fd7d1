"""Ranking: which of the states that are near are worth showing, by what was done in them.

What a policy wants to know is the next action. The nearest state alone is a noisy witness: so all
that are near vote for the kind of action that was taken in them, the nearer the louder, and louder
still where the same kind of action had just been taken as here, quieter where nothing came of it.
States of the best supported kind come first. It is k-nearest-neighbour classification with a
kernel; it searches nothing, and leaves what was found as it is but for the order.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hardwon.memory.records import Failure
from hardwon.memory.situations.keys import content_words, parse_action
from hardwon.memory.storage.database import Store

POOL = 48
"""States that vote: all that search by words and by meaning puts forward."""
BANDWIDTH = 0.1
"""Of the kernel exp(cosine / BANDWIDTH): a witness nearer by this much counts e times as much."""
SAME_BEFORE = 5.0
"""How much more a state counts that was reached by the same kind of action as this one."""
FRUITLESS = 0.25
"""What a state counts from whose best step on no reward came: it shows what is done, not what is good."""
TASK_BANDWIDTH = 0.1
"""Of the factor exp(likeness of tasks / TASK_BANDWIDTH): a task that shares a tenth more words counts e times as much.
"""
POOR = 0.1
"""Of the return of the best step of a situation: the share that any other step of it counts as having at least."""
LEAST_SUPPORT = 0.3
"""A kind of action with less than this share of the best one's support fills no place: better an empty one."""
KNOWN = 8192
"""States of which the best step is remembered, about: some 2 MB."""
_BEFORE = (
    "(SELECT action FROM steps AS last WHERE last.namespace = steps.namespace "
    "AND last.trajectory_id = steps.trajectory_id AND last.t = steps.t - 1)"
)

_TASK = "(SELECT task FROM states WHERE states.id = pre)"
_GOOD = frozenset({Failure.NONE.value, Failure.STEP_LIMIT.value})

Found = tuple[int, float, str]
"""A state: its id, how near it is to the query, why it was found."""


class Done(NamedTuple):
    """The best step taken in a state, or one of the steps taken in a known situation."""

    kind: str
    before: str
    """The kind of action that led to the state; "" at the beginning of an episode."""
    value: float
    """Discounted reward-to-go."""
    task: str = ""
    failed: bool = False
    """Whether the step itself failed, whatever came of the episode."""
    step: int = 0
    action: str = ""
    """In lower case."""


ALL_STEPS = "attempt IS NOT NULL"
"""Of the steps that count: something was done, and the episode was not excluded."""


def steps_of(worlds: frozenset[int] | None) -> str:
    """Return which steps count, as a condition on the steps table: those of these worlds, or all."""
    if worlds is None:
        return ALL_STEPS
    return f"{ALL_STEPS} AND {placed_in(worlds, 'steps.namespace', 'steps.trajectory_id')}"


def placed_in(worlds: frozenset[int], namespace: str, episode: str) -> str:
    """Return the condition that an episode, by the columns of its namespace and id, is of one of these worlds."""
    among = ",".join(str(number) for number in sorted(worlds))
    return (
        f"EXISTS (SELECT 1 FROM episode_worlds AS placed WHERE placed.namespace = {namespace} "
        f"AND placed.trajectory_id = {episode} AND placed.world IN ({among}))"
    )


Known = dict[tuple[int, bool], Done | None]
"""By state, and whether what led to it was read: its best step; None where none was taken."""


def by_support(
    store: Store, found: Sequence[Found], where: str, after: str | None, known: Known | None = None, *, task: str = ""
) -> list[Found]:
    """The states in which a step was taken, those of the best supported kind of action first.

    Within a kind the heaviest witness comes first; ties by id, so that any process gives the same order.

    Args:
        where: which steps count, as a condition on the steps table.
        after: the action just taken in this episode; "" at its beginning, None when not known.
        known: what was read of states since anything was written; what is read now is added.
        task: the task at hand; states of tasks like it count for more.
    """
    done = best_of(store, [ref for ref, _, _ in found], where, after is not None, {} if known is None else known)
    taken = sorted(one for one in found if one[0] in done)
    order = by_votes([done[ref] for ref, _, _ in taken], [one[1] for one in taken], after, task)
    return [taken[at] for at in order]


def by_votes(
    done: Sequence[Done], similarities: Sequence[float], after: str | None, task: str, *, own: int | None = None
) -> list[int]:
    """Return the places of witnesses in the order of their kind's support, their own weight, and their return.

    Of equal ones the first comes first. Where `own` is given, the first `own` witnesses are of the situation itself,
    and those of kinds with less than LEAST_SUPPORT of the best supported one are left out.
    """
    weights = weigh(done, similarities, after, task)
    best = max((one.value for one in done[:own]), default=0.0) if own else 0.0
    if own and best > 0:  # of one situation the returns can be compared: many poor steps must not outvote a good one
        weights[:own] = [
            weight * max(one.value / best, POOR) ** 2 for weight, one in zip(weights, done[:own], strict=False)
        ]
    support = _support([one.kind for one in done], weights)
    least = LEAST_SUPPORT * max(support.values(), default=0.0)

    def worth(at: int) -> tuple[float, float, float, int]:
        return (-support.get(done[at].kind, 0.0), -weights[at], -done[at].value, at)

    kept = [at for at in range(len(done)) if own is None or support.get(done[at].kind, 0.0) >= least]
    return sorted(kept, key=worth)


def weigh(done: Sequence[Done], similarities: Sequence[float], after: str | None, task: str) -> list[float]:
    """The weight of each step as a witness: see the constants."""
    here = None if after is None else kind_of(after)
    alike = _tasks_alike(task, [one.task for one in done])
    return [
        math.exp(similarity / BANDWIDTH)
        * (SAME_BEFORE if one.before == here else 1.0)
        * (1.0 if one.value > 0 and not one.failed else FRUITLESS)
        * math.exp(alike[one.task] / TASK_BANDWIDTH)
        for one, similarity in zip(done, similarities, strict=True)
    ]


def _tasks_alike(task: str, others: Sequence[str]) -> Mapping[str, float]:
    """By task: how much of its words it shares with the task at hand, in [0, 1]; words of all tasks do not count."""
    known = dict.fromkeys(others)
    mine = content_words(task)
    if not mine or (len(known) == 1 and task in known):
        return dict.fromkeys(known, 0.0)
    words = {other: content_words(other) for other in known}
    counts = Counter(word for found in words.values() for word in found)
    weight = {word: math.log((1 + len(known)) / (0.5 + counts[word])) for word in {*counts, *mine}}
    return {other: _share(mine, words[other], weight) for other in known}


def _share(mine: frozenset[str], other: frozenset[str], weight: Mapping[str, float]) -> float:
    """Weighted Jaccard similarity of two sets of words."""
    every = sum(weight[word] for word in sorted(mine | other))
    return sum(weight[word] for word in sorted(mine & other)) / every if every > 0 else 0.0


def _support(kinds: Sequence[str], weights: Sequence[float]) -> Mapping[str, float]:
    """By kind of action, the weight of the steps that did it."""
    support: defaultdict[str, float] = defaultdict(float)
    for kind, weight in zip(kinds, weights, strict=True):
        support[kind] += weight
    return support


def kind_of(action: str) -> str:
    """What kind of action it is: the tool of a call, the verb of a sentence."""
    return parse_action(action).verb


def best_of(store: Store, states: Sequence[int], where: str, with_before: bool, known: Known) -> dict[int, Done]:
    """By state in which a step was taken: the best one, from what is known or from the library."""
    if len(known) > KNOWN:
        known.clear()
    unread = [ref for ref in states if (ref, with_before) not in known]
    if unread:
        read = _done(store, unread, where, _BEFORE if with_before else "NULL")
        known.update({(ref, with_before): read.get(ref) for ref in unread})
    return {ref: done for ref in states if (done := known[ref, with_before]) is not None}


def _done(store: Store, states: Sequence[int], where: str, before: str) -> dict[int, Done]:
    """By state: its best step."""
    rows = store.rows(
        f"SELECT pre, action, {before}, max(return_to_go), failure, {_TASK}, steps.id "
        f"FROM steps WHERE pre IN (SELECT value FROM json_each(?)) AND {where} "
        "GROUP BY pre HAVING max(return_to_go) IS NOT NULL",  # SQLite takes the other columns from the row of the max
        (json.dumps(states),),
    )
    return {row[0]: done_of(row[1:]) for row in rows}


def done_in(store: Store, steps: Sequence[int], with_before: bool) -> list[Done]:
    """These steps as witnesses."""
    rows = store.rows(
        f"SELECT action, {_BEFORE if with_before else 'NULL'}, return_to_go, failure, {_TASK}, steps.id "
        "FROM steps WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id DESC",
        (json.dumps(steps),),
    )
    return [done_of(row) for row in rows]


def done_of(row: Sequence[Any]) -> Done:
    """A witness of its columns: action, action before, return, failure, task, step."""
    action, before, value, failure, task, step = row
    return Done(kind_of(action), kind_of(before or ""), value, task, failure not in _GOOD, step, action.lower())
