"""The library as proposer and judge: what it suggests to try, and what a state is worth."""

import math

from hardwon.memory import Estimate, Reasons
from hardwon.runtime.interfaces.types import Context, Decision

from .tuning import TUNING

NO_ESTIMATE = Estimate(0.0)


class RecalledValue:
    """The estimates that were recalled; the worth of a state is that of its best action."""

    def judge(self, context: Context, action: str = "") -> Estimate:
        """Return the estimate of an action, or the highest one of the state."""
        estimates = context.recollection.estimates
        if action:
            return estimates.get(action) or NO_ESTIMATE
        return max(estimates.values(), key=lambda estimate: estimate.value, default=NO_ESTIMATE)


class EstimatedActions:
    """The admissible actions with the highest estimates, each with the softmax of its estimate as prior."""

    def propose(self, context: Context, n: int) -> tuple[Decision, ...]:
        """Return at most n actions that were not refused, the best first; equal ones in an order drawn at random."""
        estimates = context.recollection.estimates
        actions = sorted(set(context.actions).difference(context.forbidden))
        context.rng.shuffle(actions)
        values = {action: (estimates.get(action) or NO_ESTIMATE).value for action in actions}
        chosen = sorted(actions, key=lambda action: -values[action])[:n]
        highest = max(values.values(), default=0.0)
        weights = [math.exp((values[action] - highest) / TUNING.temperature) for action in chosen]
        return tuple(
            Decision(action, Reasons(extra={"prior": weight / sum(weights)}))
            for action, weight in zip(chosen, weights, strict=True)
        )
