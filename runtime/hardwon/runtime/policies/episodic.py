"""Episodic control: choose by the returns of similar past steps, with optimism for the untried.

No language model. The value of an admissible action is the library's estimate; what failed in the
same context earlier in this episode is not tried again. `RandomPolicy` is its control.
"""

import math
from collections.abc import Mapping
from typing import Literal

from hardwon.memory import Estimate
from hardwon.memory.errors import PolicyFailure
from hardwon.runtime.interfaces.types import Context, Decision
from hardwon.runtime.planning.plans import find_planned_action

EXPLORE = (0.5, 0.05, 100)
"""Chance of a random action while learning: from, to, over so many episodes."""
OFTEN = 2
"""Tries at this location after which a replan, or a loop that goes on, turns to what was tried less."""
WEAR = 0.1
"""Taken off the value of an action, while frozen, for each time that it was taken at this location: in the episode if
the library does not know it, since the last reward if it does. Returns tell what repeating an action is worth in the
same state; where anything else changed meanwhile, a door or a lamp, the state is new to them and the place is not."""
OPTIMISM = 0.1
"""Added to the value of an action never tried in its context, while learning; falls with 1/sqrt(1 + n)."""


CLEARLY = (0.2, 3)
"""By how much another action's estimate must exceed that of the planned one, on how many steps at least, to leave
the plan: a skill was verified as a whole, which the values of its single steps may not show."""


class EpisodicPolicy:
    """Takes the admissible action with the highest estimated return, or the one that a plan has next."""

    name = "episodic"
    reads: Literal["values", "text"] = "values"

    def decide(self, context: Context) -> Decision:
        """The next action; raises PolicyFailure where the environment lists no actions."""
        if not context.actions:
            raise PolicyFailure(
                "EpisodicPolicy chooses among admissible actions and this environment lists none. "
                "Use a chat model: --policy openai:MODEL."
            )
        estimates = context.recollection.estimates
        open_actions = _not_forbidden(context)
        candidates = [
            action
            for action in open_actions
            if not context.working.failed(action, _estimate(estimates, action).context)
        ] or open_actions
        if (planned := _planned(context, candidates)) is not None:
            return Decision(planned, {**_why(_estimate(estimates, planned), explored=False), "planned": True})
        if context.learning and context.rng.random() < exploration(context.episode):
            chosen = context.rng.choice(candidates)
            return Decision(chosen, _why(_estimate(estimates, chosen), explored=True))
        bonus = OPTIMISM if context.learning else 0.0

        def worth(action: str) -> float:
            known = _estimate(estimates, action)
            worn = 0.0 if context.learning else WEAR * _tries(context, action, known)
            return known.value - worn + bonus / math.sqrt(1 + known.tried) + 1e-6 * context.rng.random()

        chosen = max(candidates, key=worth)
        if not context.learning and _is_circling(context, chosen):  # while learning, chance finds the way out
            chosen = max(_least_tried(context, candidates), key=worth)
        return Decision(chosen, _why(_estimate(estimates, chosen), explored=False))

    async def adecide(self, context: Context) -> Decision:
        """The same; nothing is awaited."""
        return self.decide(context)


class RandomPolicy:
    """Any admissible action: what chance alone reaches."""

    name = "random"
    reads: Literal["values", "text"] = "values"

    def decide(self, context: Context) -> Decision:
        """A random action that is not forbidden."""
        if not context.actions:
            raise PolicyFailure("RandomPolicy needs an environment that lists admissible actions.")
        return Decision(context.rng.choice(_not_forbidden(context)))

    async def adecide(self, context: Context) -> Decision:
        """The same; nothing is awaited."""
        return self.decide(context)


def exploration(episode: int) -> float:
    """Chance of a random action after so many episodes learnt from."""
    start, end, over = EXPLORE
    return max(end, start - (start - end) * episode / over)


def _tries(context: Context, action: str, known: Estimate) -> int:
    """Return how often the action was taken at this location without bringing anything."""
    working, state = context.working, context.state
    return working.tries_since_gain(state, action) if known.n else working.tries_at(state, action)


def _is_circling(context: Context, action: str) -> bool:
    """Return whether the episode goes in circles and the action, taken here before, would go on with it."""
    loop = bool(context.history) and context.history[-1].diagnosis.loop
    return bool(context.replan or loop) and context.working.tries_at(context.state, action) >= OFTEN


def _least_tried(context: Context, actions: list[str]) -> list[str]:
    """Of these actions, those taken least often at this location: a way out of a circle."""
    tries = {action: context.working.tries_at(context.state, action) for action in actions}
    return [action for action in actions if tries[action] == min(tries.values())]


def _planned(context: Context, candidates: list[str]) -> str | None:
    """What the plan has next, unless another candidate is clearly better; see CLEARLY."""
    planned = find_planned_action(context)
    if planned is None:
        return None
    estimates = context.recollection.estimates
    margin, evidence = CLEARLY
    others = (_estimate(estimates, action) for action in candidates if action != planned)
    best = max((known.value for known in others if known.n >= evidence), default=-math.inf)
    return planned if best <= _estimate(estimates, planned).value + margin else None


def _not_forbidden(context: Context) -> list[str]:
    return [action for action in context.actions if action not in context.forbidden] or list(context.actions)


def _estimate(estimates: Mapping[str, Estimate], action: str) -> Estimate:
    return estimates.get(action) or Estimate(0.0)


def _why(known: Estimate, *, explored: bool) -> dict[str, object]:
    if explored:
        return {"explored": True}
    return {"value": round(known.value, 4), "n": known.n, "key": known.key, "like": list(known.steps)}
