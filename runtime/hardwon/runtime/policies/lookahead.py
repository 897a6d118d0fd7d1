"""A policy without a language model that plans: it chooses by what actions bring and make possible.

The library estimates both for every action from its steps (see `hardwon.memory.values.lookahead_table`). An action at
another location competes with the actions here, discounted by the way; if it is best, the first action of the way is
taken.

While learning, the promise of an action counts, too: what a try could show. The agent repeats what is known to lead on,
and explores where nothing does. If nothing leads on after a paid step, it tries what that step made possible, although
similar actions lost the task: there is little to lose.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal

from hardwon.memory import Reasons, State
from hardwon.memory.errors import PolicyFailure
from hardwon.memory.values.lookahead import Elsewhere
from hardwon.memory.values.lookahead_table import LookaheadValue
from hardwon.memory.values.tuning import TUNING as VALUES
from hardwon.runtime.interfaces.types import Context, Decision
from hardwon.runtime.planning.plans import find_planned_action

from .episodic import list_candidates
from .tuning import TUNING

EXPLORE = (0.35, 0.08, 100)
"""Probability of a random action while learning: its start, its end, and the episodes over which it falls."""
MOST_LOST = (0.25, 0.5)
"""Share of lost tasks beyond which an action is not taken: frozen, and while learning. Losing teaches the rules."""


@dataclass(frozen=True, slots=True)
class _ScoredAction:
    """An action with its score; the first action of a way if it is for an action at another location."""

    action: str
    estimate: LookaheadValue
    score: float
    far: Elsewhere | None = None


class LookaheadPolicy:
    """Chooses the action with the best lookahead value, here or at another known location."""

    name = "lookahead"
    reads: Literal["values", "text"] = "values"
    looks_ahead = True
    recalls_on_demand = True

    def decide(self, context: Context) -> Decision:
        """Return the next action.

        Raises:
            PolicyFailure: The environment lists no admissible actions.
        """
        if not context.actions:
            raise PolicyFailure(
                "LookaheadPolicy chooses among admissible actions and this environment lists none. "
                "Use a chat model: --policy openai:MODEL."
            )
        planned = find_planned_action(context)
        if planned is not None:
            return Decision(planned, Reasons(planned=True))
        allowed = list_candidates(context)
        candidates = _list_open(context, allowed)
        best = max(_list_choices(context, candidates), key=_get_score)
        if best.score < TUNING.stuck_score:
            resort = _find_fresh(context, allowed) if context.learning else _find_bold(context, allowed, candidates)
            if resort is not None:
                return Decision(resort.action, _build_reasons(resort, context.learning))
        if context.learning and context.rng.random() < _compute_exploration(best.score, context.practice):
            return Decision(context.rng.choice(candidates), Reasons(explored=True))
        return Decision(best.action, _build_reasons(best, context.learning))

    async def adecide(self, context: Context) -> Decision:
        """Return the next action; nothing is awaited."""
        return self.decide(context)


NO_ESTIMATE = LookaheadValue(0.0)


def _get_score(choice: _ScoredAction) -> float:
    return choice.score


def _list_choices(context: Context, candidates: list[str]) -> Iterator[_ScoredAction]:
    """Yield the candidates with their scores, and the ways to actions at other locations."""

    def score(estimate: LookaheadValue) -> float:
        assumed = max(0.0, _assume_lost(estimate, context.learning) - VALUES.tolerated_losses)
        value = estimate.value + VALUES.lost_task_cost * (max(0.0, estimate.lost - VALUES.tolerated_losses) - assumed)
        return value + (TUNING.promise_weight * estimate.promise if context.learning else 0.0)

    yield from _score_here(context, candidates, score)
    safe = (far for far in context.lookahead.elsewhere if _is_safe(far.outlook, context.learning))
    yield from _score_elsewhere(context, candidates, safe, score)


def _score_here(
    context: Context, candidates: list[str], score: Callable[[LookaheadValue], float]
) -> Iterator[_ScoredAction]:
    """Yield the candidates with their scores, less the penalties for repetition."""
    by_action, working, state = context.lookahead.by_action, context.working, context.state
    for action in candidates:
        estimate = by_action.get(action, NO_ESTIMATE)
        worn = TUNING.wear * working.tries(state, action) + TUNING.repeat_wear * working.tries_since_gain(state, action)
        # The random part breaks ties.
        yield _ScoredAction(action, estimate, score(estimate) - worn + 1e-6 * context.rng.random())


def _score_elsewhere(
    context: Context,
    candidates: list[str],
    elsewhere: Iterator[Elsewhere],
    score: Callable[[LookaheadValue], float],
) -> Iterator[_ScoredAction]:
    """Yield the ways that can be begun, with the discounted scores of the actions they are for.

    Tries of the action there count, and so do those of the way's first action. Otherwise the agent would walk to and
    fro between two actions that each look better from the other location.
    """
    working, possible = context.working, set(candidates)
    first_tries = {action: working.tries_since_gain(context.state, action) for action in candidates}
    # The actions of a location come one after the other.
    for location, actions in groupby(elsewhere, attrgetter("location")):
        place = State("", location=location)
        for far in actions:
            if far.first in possible and far.outlook.dead <= TUNING.max_dead_share:
                tries = working.tries_since_gain(place, far.action) + first_tries[far.first]
                value = (score(far.outlook) - TUNING.repeat_wear * tries) * VALUES.lookahead_discount**far.steps
                yield _ScoredAction(far.first, far.outlook, value, far)


def _find_fresh(context: Context, allowed: list[str]) -> _ScoredAction | None:
    """Return the action with the best chance among those that the last paid step made possible, if there is any."""
    paid = max((t for t, step in enumerate(context.history) if step.reward > 0), default=-1)
    if paid < 0:
        return None
    earlier = {action for step in context.history[: paid + 1] for action in step.admissible}
    earlier.update(step.action for step in context.history[paid + 1 :])
    by_action = context.lookahead.by_action
    fresh = [
        _ScoredAction(action, by_action[action], by_action[action].chance + 1e-6 * context.rng.random())
        for action in allowed
        if action not in earlier and action in by_action and by_action[action].chance >= TUNING.slight_chance
    ]
    return max(fresh, key=_get_score, default=None)


def _find_bold(context: Context, allowed: list[str], candidates: list[str]) -> _ScoredAction | None:
    """Return the best risk of a frozen agent that is stuck, or the best estimated return if no risk is worth it.

    A lost task costs as much as one reward, because there is not more to be had, and what was rarely tried is not
    doubted.
    """

    def score(estimate: LookaheadValue) -> float:
        return estimate.gain + VALUES.lookahead_discount * estimate.unlock - estimate.lost

    by_action = context.lookahead.by_action
    risks = [action for action in allowed if by_action.get(action, NO_ESTIMATE).lost <= MOST_LOST[True]]
    bearable = (far for far in context.lookahead.elsewhere if far.outlook.lost <= MOST_LOST[True])
    choices = [*_score_here(context, risks, score), *_score_elsewhere(context, allowed, bearable, score)]
    best = max(choices, key=_get_score, default=None)
    return best if best is not None and best.score >= TUNING.stuck_score else _find_best_return(context, candidates)


def _find_best_return(context: Context, candidates: list[str]) -> _ScoredAction | None:
    """Return the candidate whose estimated return exceeds the mean most, if the library has estimates."""
    estimates = context.read_estimates(context.actions)
    unit, by_action = context.lookahead.scale, context.lookahead.by_action
    if not estimates:
        return None
    values = {action: estimates[action].value if action in estimates else 0.0 for action in candidates}
    mean = sum(values.values()) / len(values)
    choices = _score_here(context, candidates, lambda estimate: estimate.value)
    return max(
        (
            _ScoredAction(
                choice.action,
                by_action.get(choice.action, NO_ESTIMATE),
                choice.score + TUNING.returns_weight * (values[choice.action] - mean) / unit,
            )
            for choice in choices
        ),
        key=_get_score,
    )


def _assume_lost(estimate: LookaheadValue, learning: bool) -> float:
    """Return the share of lost tasks to reckon with.

    Of what was rarely tried, only similar actions tell. While learning, it counts as safe, because losing teaches the
    rules; afterwards it counts as twice as risky.
    """
    doubt = 1.0 / math.sqrt(1 + estimate.n)
    return estimate.lost * (1.0 - doubt if learning else 1.0 + doubt)


def _is_safe(estimate: LookaheadValue, learning: bool) -> bool:
    return _assume_lost(estimate, learning) <= MOST_LOST[learning]


def _list_open(context: Context, allowed: list[str]) -> list[str]:
    """Return the actions that are worth a try: the strictest of four lists that is not empty."""
    by_action = context.lookahead.by_action
    safe = [action for action in allowed if _is_safe(by_action.get(action, NO_ESTIMATE), context.learning)]
    live = [action for action in safe if by_action.get(action, NO_ESTIMATE).dead <= TUNING.max_dead_share]
    return live or safe or allowed


def _compute_exploration(best: float, practice: int) -> float:
    """Return the probability of a random action if the best one has this score."""
    start, end, over = EXPLORE
    return TUNING.rarely if best >= TUNING.promising else max(end, start - (start - end) * practice / over)


def _build_reasons(choice: _ScoredAction, learning: bool) -> Reasons:
    """Return the value with its parts, and the plan if the action is the first of a way."""
    estimate, far = choice.estimate, choice.far
    parts = {"gain": estimate.gain, "unlock": estimate.unlock, "lost": estimate.lost}
    parts |= {"promise": estimate.promise} if learning else {}
    extra: dict[str, Any] = {name: round(share, 3) for name, share in parts.items()}
    if far is not None:
        extra["plan"] = f"{far.first}, then {far.action} at {far.location}, {far.steps} steps away"
    return Reasons(value=round(choice.score, 4), count=estimate.n, extra=extra)
