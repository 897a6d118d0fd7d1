"""Ranking: order similar states by how well they support the next action.

A policy needs the next action. The nearest state alone is noisy evidence, so all similar states vote for the kind of
action that was taken in them (k-nearest-neighbor classification with a kernel). A vote weighs more for a more similar
state and if the same kind of action preceded both states. It weighs less if the step earned no reward. States of the
best supported kind of action come first, and among these the best supported exact actions. A tool that a result named
comes after what the agent chose itself and what worked, however many votes it has: results are written by anybody.
Ranking searches nothing and changes only the order.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from itertools import chain
from operator import mul
from typing import Any, NamedTuple

from hardwon.memory.records import Failure
from hardwon.memory.situations.keys import content_words, parse_action
from hardwon.memory.storage.database import Store
from hardwon.memory.storage.episodes import BEST_STEP
from hardwon.memory.trust.testimony import COPIED

from .tuning import TUNING

MIN_VOTERS, SHARPNESS_FACTOR, MIN_SHARPNESS = 6, 0.75, 0.1
"""Effective number of states that vote at least, the factor on the kernel's sharpness until they do, and its limit."""
TASK_BANDWIDTH, SHARP_TASK_BANDWIDTH = 0.1, 0.03
"""Bandwidths of the factor exp(similarity of tasks / bandwidth). The second one is for known situations with more than
`many_kinds` kinds of action: such a state, as `The next request.`, says little, so the tasks distinguish its steps."""
ATTEMPTS, MORE_ATTEMPTS = TUNING.many_kinds, 48
"""Numbers of kinds of action that are read for a situation, the most tried ones: up to `many_kinds`, and beyond."""
VOTERS, MORE_VOTERS = 64, 256
"""Numbers of steps of a situation that vote, the newest ones, without and with more kinds of action."""
KNOWN = 8192
"""Approximate number of states whose best step is cached; about 2 MB."""
_BEFORE = (
    "(SELECT action FROM steps AS last WHERE last.namespace = steps.namespace "
    "AND last.trajectory_id = steps.trajectory_id AND last.t = steps.t - 1)"
)

_TASK = "(SELECT task FROM states WHERE states.id = pre)"
_GOOD = frozenset({Failure.NONE.value, Failure.STEP_LIMIT.value})

RankedRow = tuple[int, float, str]
"""A search result: id, similarity to the query, and the reason for the match."""


class Subject(NamedTuple):
    """What a statement is about: its content words with their weights."""

    weights: Mapping[str, float]
    total: float
    """Sum of the weights."""

    def rate(self, in_view: Set[str]) -> float:
        """Return how far a state shows this subject, in [0, 1), given the content words of the state.

        It is the weight of the statement's words that the state shows, over the weight of all of them plus 1. A
        statement about putting toothpaste in a cabinet fits where there is toothpaste, and not where there is another
        thing and a cabinet. One about things that are everywhere fits nowhere in particular.
        """
        weights = self.weights
        # Sets have no fixed order: an exact sum is the same in any process.
        return math.fsum(weights[word] for word in weights.keys() & in_view) / (self.total + 1.0)


def weigh_subject(statement: str, weights: Mapping[str, float]) -> Subject:
    """Return what a statement is about, given at least the weights of its words."""
    weights = {word: weights[word] for word in content_words(statement)}
    return Subject(weights, math.fsum(weights.values()))


class TakenStep(NamedTuple):
    """The best step taken in a state, or one of the steps taken in a known situation."""

    kind: str
    """Kind of the action; see `kind_of`."""
    before: str
    """Kind of the action that led to the state; "" at the beginning of an episode."""
    value: float
    """Discounted reward-to-go."""
    task: str = ""
    failed: bool = False
    """Whether the step itself failed, regardless of the episode's outcome."""
    step: int = 0
    """Id of the step."""
    action: str = ""
    """The action in lower case."""
    is_told: bool = False
    """Whether a result before had named the tool, so that the step may not be the agent's own choice."""


ALL_STEPS = "attempt IS NOT NULL"
"""SQL condition on the steps that count: they have an action, and their episode was not excluded."""


def steps_of(worlds: frozenset[int] | None) -> str:
    """Return the SQL condition on the steps table for steps that count: those of these worlds, or all."""
    if worlds is None:
        return ALL_STEPS
    return f"{ALL_STEPS} AND {placed_in(worlds, 'steps.namespace', 'steps.trajectory_id')}"


def placed_in(worlds: frozenset[int], namespace: str, episode: str) -> str:
    """Return the SQL condition that an episode belongs to one of these worlds."""
    # World ids are integers that the library assigned, so no foreign text enters the SQL.
    among = ",".join(str(number) for number in sorted(worlds))
    return (
        f"EXISTS (SELECT 1 FROM episode_worlds AS placed WHERE placed.namespace = {namespace} "
        f"AND placed.trajectory_id = {episode} AND placed.world IN ({among}))"
    )


BestSteps = dict[tuple[int, bool], TakenStep | None]
"""By state and whether the preceding action was read: its best step, or None if no step was taken."""


def order_by_votes(
    done: Sequence[TakenStep], similarities: Sequence[float], after: str | None, task: str, *, own: int | None = None
) -> list[int]:
    """Return the indices of steps, ordered by the support of their kind, then of their action.

    Ties keep the original order.
    """
    best, has_own, own_kinds = 0.0, False, set()
    for at, step in enumerate(done):
        if own and at < own:
            best = max(best, step.value)
            own_kinds.add(step.kind)
        has_own = has_own or (step.value > 0 and not step.failed and not step.is_told)
    weights = weigh(
        done, similarities, after, task, SHARP_TASK_BANDWIDTH if len(own_kinds) > TUNING.many_kinds else TASK_BANDWIDTH
    )
    if own and best > 0:  # returns are comparable within one situation: many poor steps must not outvote a good one
        for at, step in enumerate(done[:own]):
            weights[at] *= max(step.value / best, TUNING.min_relative_return) ** 2
    support: defaultdict[tuple[bool, str], float] = defaultdict(float)
    by_action: defaultdict[str, float] = defaultdict(float)
    for step, weight in zip(done, weights, strict=True):
        support[has_own and step.is_told, step.kind] += weight
        by_action[step.action] += weight
    chosen = [total for (is_last, _), total in support.items() if not is_last]
    least = TUNING.min_support * max(chosen, default=0.0)

    # A step's claim to a place is the support of its action over its rank among equal ones: an action that many similar
    # states took is worth more than one place, and the places that it does not need go to others.
    ranks: Counter[str] = Counter()
    ranked = []
    for lightness, loss, at in sorted([(-weights[at], -step.value, at) for at, step in enumerate(done)]):
        step = done[at]
        ranks[step.action] += 1
        is_last = has_own and step.is_told
        if own is None or support[is_last, step.kind] >= least:
            claim = by_action[step.action] / ranks[step.action]
            ranked.append((is_last, -support[is_last, step.kind], -claim, lightness, loss, at))
    ranked.sort()
    return [at for *_, at in ranked]


def weigh(
    done: Sequence[TakenStep], similarities: Sequence[float], after: str | None, task: str, bandwidth: float
) -> list[float]:
    """Return the weight of each step as a vote; the constants of this module describe its factors.

    Weights are relative to the largest one, with bandwidths that grow until enough states vote. One state in the same
    words would otherwise outvote twenty in almost the same: one wrong success would speak for all requests with its
    customer's name. The number that votes is (sum w)^2 / sum w^2.
    """
    likeness = _compare_tasks(task, [step.task for step in done])
    exponents = [
        similarity / TUNING.bandwidth + likeness[step.task] / bandwidth
        for step, similarity in zip(done, similarities, strict=True)
    ]
    largest, sharpness = max(exponents, default=0.0), 1.0
    while True:
        kernel = [math.exp(sharpness * (exponent - largest)) for exponent in exponents]
        is_broad = sum(kernel) ** 2 >= MIN_VOTERS * sum(map(mul, kernel, kernel))
        if is_broad or len(kernel) < MIN_VOTERS or sharpness < MIN_SHARPNESS:
            break
        sharpness *= SHARPNESS_FACTOR
    previous_kind = None if after is None else kind_of(after)
    return [
        weight
        * (TUNING.same_before if step.before == previous_kind else 1.0)
        * (1.0 if step.value > 0 and not step.failed else TUNING.fruitless_weight)
        for step, weight in zip(done, kernel, strict=True)
    ]


def _compare_tasks(task: str, tasks: Sequence[str]) -> Mapping[str, float]:
    """Return the similarity of each task to the current one, in [0, 1].

    It is the weighted share of common words (Jaccard); words that occur in all tasks have no weight.
    """
    distinct = dict.fromkeys(tasks, 0.0)
    own = content_words(task)
    # With one task there is nothing to compare; equal factors cancel out.
    if not own or (len(distinct) == 1 and task in distinct):
        return distinct
    words = {other: content_words(other) for other in distinct}
    counts = Counter(chain.from_iterable(words.values()))
    weight = {word: math.log((1 + len(distinct)) / (0.5 + counts[word])) for word in {*counts, *own}}
    weigh_word = weight.__getitem__
    for other, other_words in words.items():
        # Sets have no fixed order: sorting makes the sum of floats the same in any process.
        total = sum(map(weigh_word, sorted(own | other_words)))
        distinct[other] = sum(map(weigh_word, sorted(own & other_words))) / total if total > 0 else 0.0
    return distinct


def kind_of(action: str) -> str:
    """Return the kind of an action: the tool of a call, or the verb of a sentence."""
    return parse_action(action).verb


def find_best_steps(
    store: Store, states: Sequence[int], where: str, with_before: bool, best_steps: BestSteps
) -> dict[int, TakenStep]:
    """Return the best step of each state in which one was taken."""
    if len(best_steps) > KNOWN:
        best_steps.clear()
    # The cache also holds None for states without a step, so these are not queried again.
    if unread := [ref for ref in states if (ref, with_before) not in best_steps]:
        best_steps.update(dict.fromkeys([(ref, with_before) for ref in unread]))
        query = _BEST.format(before=_BEFORE if with_before else "NULL", where=where)
        for ref, *row in store.rows(query, (json.dumps(unread),)):
            best_steps[ref, with_before] = parse_taken_step(tuple(row))
    return {ref: done for ref in states if (done := best_steps[ref, with_before]) is not None}


_BEST = f"""
SELECT pre, action, {{before}}, return_to_go, failure, {_TASK}, steps.id, {COPIED}
FROM steps WHERE id IN (SELECT ({BEST_STEP.format(state="json_each.value", where="{where}")}) FROM json_each(?))
"""


def read_voters(
    store: Store, namespace: int, signature: str, with_before: bool, worlds: frozenset[int] | None = None
) -> list[TakenStep]:
    """Return the steps of a situation that vote, the newest first: the newest and the best of its most tried kinds.

    They are looked up by index: the cost does not depend on the number of states that share the signature.
    """
    before, where = _BEFORE if with_before else "NULL", steps_of(worlds)
    factor = 1 if worlds is None else TUNING.more_kinds
    limits = factor * MORE_ATTEMPTS, factor * ATTEMPTS, VOTERS, MORE_VOTERS
    for live in ("AND folded = 0", ""):  # activity in other worlds may have folded all of these steps
        query = _VOTERS.format(before=before, where=where, live=live)
        rows = store.rows(query, (namespace, signature, *limits))
        if rows or worlds is None:
            break
    return list(map(parse_taken_step, rows))


_VOTERS = f"""
SELECT action, {{before}}, return_to_go, failure, {_TASK}, steps.id, {COPIED} FROM steps WHERE id IN (
    WITH tried AS MATERIALIZED (
        SELECT id, best FROM attempts WHERE namespace = ? AND signature = ? ORDER BY n DESC, id LIMIT ?)
    SELECT id FROM steps WHERE id IN (SELECT best FROM tried) AND {{where}} UNION
    SELECT id FROM (
        SELECT id FROM steps WHERE attempt IN (SELECT id FROM tried) {{live}} AND {{where}} ORDER BY id DESC
        LIMIT iif((SELECT count(*) FROM tried) <= ?, ?, ?))
) ORDER BY id DESC
"""


@lru_cache(maxsize=KNOWN)  # the same steps are read again after every write
def parse_taken_step(row: tuple[Any, ...]) -> TakenStep:
    """Build a step from its columns: action, preceding action, return, failure, task, id, what it copied as JSON."""
    action, before, value, failure, task, step, copied = row
    kind, failed = kind_of(action), failure not in _GOOD
    is_told = bool(copied) and kind.lower() in json.loads(copied)
    return TakenStep(kind, kind_of(before or ""), value, task, failed, step, action.lower(), is_told)
