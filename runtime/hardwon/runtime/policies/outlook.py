"""A policy without a language model that plans: it chooses by what actions bring and make possible.

The library estimates both for every action from its steps (see `hardwon.memory.values.outlook`). An action at another
location competes with the actions here, discounted by the way; if it is best, the first action of the way is taken.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from hardwon.memory import Reasons
from hardwon.memory.errors import PolicyFailure
from hardwon.memory.values.outlook import DISCOUNT, RISK, TOLERATED, Outlook
from hardwon.memory.values.prospects import Elsewhere, Prospects
from hardwon.runtime.interfaces.types import Context, Decision
from hardwon.runtime.planning.plans import find_planned_action

from .episodic import list_candidates

EXPLORE = (0.35, 0.08, 100)
"""Probability of a random action while learning: its start, its end, and the episodes over which it falls."""
BONUS = (0.4, 0.05, 100)
"""Bonus of an untried action while learning: its start, its end, and the episodes over which it falls."""
MOST_LOST = (0.25, 0.5)
"""Share of lost tasks beyond which an action is not taken: frozen, and while learning. Losing teaches the rules."""
RETURNS = 1.0
"""Weight of the estimated returns beside the outlooks."""
WEAR = 0.3
"""Penalty on an action for each time that it was taken in exactly this state."""
MOST_DEAD = 0.8
"""Share of steps without any effect beyond which an action is not taken."""


class OutlookPolicy:
    """Chooses the action with the best outlook, here or at another known location."""

    name = "outlook"
    reads: Literal["values", "text"] = "values"
    foresees = True

    def decide(self, context: Context) -> Decision:
        """Return the next action.

        Raises:
            PolicyFailure: The environment lists no admissible actions.
        """
        if not context.actions:
            raise PolicyFailure(
                "OutlookPolicy chooses among admissible actions and this environment lists none. "
                "Use a chat model: --policy openai:MODEL."
            )
        planned = find_planned_action(context)
        if planned is not None:
            return Decision(planned, Reasons(planned=True))
        outlooks = context.prospects.by_action
        candidates = _list_open(context, outlooks)
        if context.learning and context.rng.random() < _fall(EXPLORE, context.episode):
            return Decision(context.rng.choice(candidates), Reasons(explored=True))
        bonus = _fall(BONUS, context.episode) if context.learning else 0.0

        def score(outlook: Outlook) -> float:
            assumed = max(0.0, _assume_lost(outlook, context.learning) - TOLERATED)
            value = outlook.value + RISK * (max(0.0, outlook.lost - TOLERATED) - assumed)
            # The random part breaks ties.
            return value + bonus / math.sqrt(1 + outlook.n) + 1e-6 * context.rng.random()

        returns = _compare_returns(context, candidates)
        scores = {
            action: score(outlooks.get(action, NO_OUTLOOK))
            + returns[action]
            - WEAR * context.working.tries(context.state, action)
            for action in candidates
        }
        best = max(candidates, key=scores.__getitem__)
        far, value = _find_best_elsewhere(context.prospects, candidates, context.learning, score)
        if far is not None and value > scores[best]:
            return Decision(far.first, _build_reasons(far.outlook, value, far))
        return Decision(best, _build_reasons(outlooks.get(best, NO_OUTLOOK), scores[best]))

    async def adecide(self, context: Context) -> Decision:
        """Return the next action; nothing is awaited."""
        return self.decide(context)


NO_OUTLOOK = Outlook(0.0)


def _assume_lost(outlook: Outlook, learning: bool) -> float:
    """Return the share of lost tasks to reckon with.

    Of what was rarely tried, only similar actions tell. While learning, it counts as safe, because losing teaches the
    rules; afterwards it counts as twice as risky.
    """
    doubt = 1.0 / math.sqrt(1 + outlook.n)
    return outlook.lost * (1.0 - doubt if learning else 1.0 + doubt)


def _is_safe(outlook: Outlook, learning: bool) -> bool:
    return _assume_lost(outlook, learning) <= MOST_LOST[learning]


def _list_open(context: Context, outlooks: Mapping[str, Outlook]) -> list[str]:
    """Return the actions that are worth a try: the strictest of four lists that is not empty."""
    allowed = list_candidates(context)
    safe = [action for action in allowed if _is_safe(outlooks.get(action, NO_OUTLOOK), context.learning)]
    live = [action for action in safe if outlooks.get(action, NO_OUTLOOK).dead <= MOST_DEAD]
    return live or safe or allowed


def _compare_returns(context: Context, actions: list[str]) -> dict[str, float]:
    """Return by how much the estimated return of each action exceeds the mean of all, in units of an outlook."""
    estimates, unit = context.recollection.estimates, context.prospects.scale
    values = {action: estimates[action].value if action in estimates else 0.0 for action in actions}
    mean = sum(values.values()) / len(values)
    return {action: RETURNS * (value - mean) / unit for action, value in values.items()}


def _find_best_elsewhere(
    prospects: Prospects, candidates: list[str], learning: bool, score: Callable[[Outlook], float]
) -> tuple[Elsewhere | None, float]:
    """Return the best action at another location that can be approached, and its discounted score."""
    best: Elsewhere | None = None
    highest = 0.0
    for far in prospects.elsewhere:
        if far.first not in candidates or not _is_safe(far.outlook, learning) or far.outlook.dead > MOST_DEAD:
            continue
        value = score(far.outlook) * DISCOUNT**far.steps
        if value > highest:
            best, highest = far, value
    return best, highest


def _fall(schedule: tuple[float, float, int], episode: int) -> float:
    """Return a number that falls from its start to its end over some episodes."""
    start, end, over = schedule
    return max(end, start - (start - end) * episode / over)


def _build_reasons(outlook: Outlook, value: float, far: Elsewhere | None = None) -> Reasons:
    """Return the value with its parts, and the plan if the action is the first of a way."""
    parts = {"gain": outlook.gain, "unlock": outlook.unlock, "lost": outlook.lost}
    extra: dict[str, Any] = {name: round(share, 3) for name, share in parts.items()}
    if far is not None:
        extra["plan"] = f"{far.first}, then {far.action} at {far.location}, {far.steps} steps away"
    return Reasons(value=round(value, 4), count=outlook.n, extra=extra)
