"""Ranking: which of the states that are near are worth showing, by what was done in them.

What a policy wants to know is the next action. The nearest state alone is a noisy witness: so all
that are near vote for the kind of action that was taken in them, the nearer the louder, and louder
still where the same kind of action had just been taken as here, quieter where nothing came of it.
States of the best supported kind come first. It is k-nearest-neighbour classification with a
kernel; it searches nothing, and leaves what was found as it is but for the order.
"""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .situation import parse_action
from .store import Store

POOL = 48
"""States that vote: all that search by words and by meaning puts forward."""
BANDWIDTH = 0.1
"""Of the kernel exp(cosine / BANDWIDTH): a witness nearer by this much counts e times as much."""
SAME_BEFORE = 5.0
"""How much more a state counts that was reached by the same kind of action as this one."""
FRUITLESS = 0.25
"""What a state counts from whose best step on no reward came: it shows what is done, not what is good."""
KNOWN = 8192
"""States of which the best step is remembered, about: some 2 MB."""
_BEFORE = (
    "(SELECT action FROM steps AS last WHERE last.namespace = steps.namespace "
    "AND last.trajectory_id = steps.trajectory_id AND last.t = steps.t - 1)"
)

Found = tuple[int, float, str]
"""A state: its id, its cosine to the query, why it was found."""


class Done(NamedTuple):
    """The best step taken in a state."""

    kind: str
    before: str
    """The kind of action that led to the state; "" at the beginning of an episode."""
    value: float
    """Discounted reward-to-go."""


Known = dict[tuple[int, bool], Done | None]
"""By state, and whether what led to it was read: its best step; None where none was taken."""


def by_support(
    store: Store, found: Sequence[Found], where: str, after: str | None, known: Known | None = None
) -> list[Found]:
    """The states in which a step was taken, those of the best supported kind of action first.

    Within a kind the heaviest witness comes first; ties by id, so that any process gives the same order.

    Args:
        where: which steps count, as a condition on the steps table.
        after: the action just taken in this episode; "" at its beginning, None when not known.
        known: what was read of states since anything was written; what is read now is added.
    """
    done = _known(store, [ref for ref, _, _ in found], where, after is not None, {} if known is None else known)
    here = None if after is None else kind_of(after)
    taken = [one for one in found if one[0] in done]
    weights = {ref: _weight(cosine, done[ref], here) for ref, cosine, _ in taken}
    support = _support({ref: done[ref].kind for ref in weights}, weights)

    def worth(one: Found) -> tuple[float, float, int]:
        ref, _, _ = one
        return (-support.get(done[ref].kind, 0.0), -weights[ref], ref)

    return sorted(taken, key=worth)


def _weight(cosine: float, done: Done, here: str | None) -> float:
    """exp(cosine / BANDWIDTH), more after the same kind of action as here, less where nothing came of it."""
    return (
        math.exp(cosine / BANDWIDTH)
        * (SAME_BEFORE if done.before == here else 1.0)
        * (1.0 if done.value > 0 else FRUITLESS)
    )


def _support(kinds: Mapping[int, str], weights: Mapping[int, float]) -> Mapping[str, float]:
    """By kind of action, the weight of the states in which it was done."""
    support: defaultdict[str, float] = defaultdict(float)
    for ref, kind in kinds.items():
        support[kind] += weights[ref]
    return support


def kind_of(action: str) -> str:
    """What kind of action it is: the tool of a call, the verb of a sentence."""
    return parse_action(action).verb


def _known(store: Store, states: Sequence[int], where: str, with_before: bool, known: Known) -> dict[int, Done]:
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
        f"SELECT pre, action, {before}, max(return_to_go) "
        f"FROM steps WHERE pre IN (SELECT value FROM json_each(?)) AND {where} "
        "GROUP BY pre HAVING max(return_to_go) IS NOT NULL",  # SQLite takes the other columns from the row of the max
        (json.dumps(states),),
    )
    return {row[0]: Done(kind_of(row[1]), kind_of(row[2] or ""), row[3]) for row in rows}
