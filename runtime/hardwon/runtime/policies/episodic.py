"""A policy without a language model: it chooses by the estimated returns of similar past steps.

The value of an admissible action is the library's estimate, with a bonus for actions that were rarely tried. Actions
that failed in the same context of the episode are not repeated. `RandomPolicy` is the baseline.
"""

import math
from collections.abc import Mapping
from typing import Literal

from hardwon.memory import Estimate, Reasons
from hardwon.memory.errors import PolicyFailure
from hardwon.runtime.interfaces.types import Context, Decision
from hardwon.runtime.planning.plans import find_planned_action

from .tuning import TUNING

EXPLORE = (0.5, 0.05, 100)
"""Probability of a random action while learning: its start, its end, and the episodes over which it falls."""
MARGIN = (0.2, 3)
"""How much another action's estimate must exceed that of the planned one to leave the plan, and on how many steps at
least. A skill was verified as a whole, which the estimates of its single steps may not reflect."""


class EpisodicPolicy:
    """Chooses the admissible action with the highest estimated return, or the plan's next action."""

    name = "episodic"
    reads: Literal["values", "text"] = "values"

    def decide(self, context: Context) -> Decision:
        """Return the next action.

        Raises:
            PolicyFailure: The environment lists no admissible actions.
        """
        if not context.actions:
            raise PolicyFailure(
                "EpisodicPolicy chooses among admissible actions and this environment lists none. "
                "Use a chat model: --policy openai:MODEL."
            )
        estimates = context.recollection.estimates
        candidates = list_candidates(context)
        if (planned := _choose_planned(context, candidates)) is not None:
            why = _build_reasons(_find_estimate(estimates, planned), explored=False)
            return Decision(planned, why.updated(planned=True))
        if context.learning and (chosen := _explore(context, candidates)) is not None:
            return Decision(chosen, _build_reasons(_find_estimate(estimates, chosen), explored=True))
        bonus = TUNING.optimism if context.learning else 0.0

        def score(action: str) -> float:
            estimate = _find_estimate(estimates, action)
            risk = 0.0 if context.learning else _weigh_risks(context, action, estimate)
            # Without it, `max` would take the first of equal actions in every untried situation.
            tie_break = 1e-6 * context.rng.random()
            return estimate.value - risk + bonus / math.sqrt(1 + estimate.tried) + tie_break

        chosen = max(candidates, key=score)
        if not context.learning and _is_circling(context, chosen):  # while learning, exploration finds the way out
            chosen = max(_select_least_tried(context, candidates), key=score)
        return Decision(chosen, _build_reasons(_find_estimate(estimates, chosen), explored=False))

    async def adecide(self, context: Context) -> Decision:
        """Return the next action; nothing is awaited."""
        return self.decide(context)


class RandomPolicy:
    """Chooses admissible actions at random, as a baseline."""

    name = "random"
    reads: Literal["values", "text"] = "values"

    def decide(self, context: Context) -> Decision:
        """Return a random action that is not forbidden.

        Raises:
            PolicyFailure: The environment lists no admissible actions.
        """
        if not context.actions:
            raise PolicyFailure("RandomPolicy needs an environment that lists admissible actions.")
        return Decision(context.rng.choice(list_allowed(context)))

    async def adecide(self, context: Context) -> Decision:
        """Return a random action; nothing is awaited."""
        return self.decide(context)


def compute_exploration_rate(practice: int) -> float:
    """Return the probability of a random action after this number of episodes; see `Context.practice`."""
    start, end, over = EXPLORE
    return max(end, start - (start - end) * practice / over)


def _explore(context: Context, candidates: list[str]) -> str | None:
    """Return a random action, or None to follow the estimates.

    Where some were never tried for such a task, it is one of them at the rate of the start. An episode leaves its way
    only once for that, so that its return tells what the other way is worth.
    """
    explored = [bool(step.why.explored) for step in context.history]
    if not any(explored) or explored[-1]:
        untried = [action for action in candidates if _find_estimate(context.recollection.estimates, action).untried]
    else:
        untried = []
    rate = EXPLORE[0] if untried else compute_exploration_rate(context.practice)
    return context.rng.choice(untried or candidates) if context.rng.random() < rate else None


def _weigh_risks(context: Context, action: str, estimate: Estimate) -> float:
    """Return the penalty of a frozen agent for repeating an action here or losing the task."""
    return TUNING.place_wear * _count_tries(context, action, estimate) + max(0.0, estimate.lost - TUNING.likely_loss)


def _count_tries(context: Context, action: str, estimate: Estimate) -> int:
    """Return how often the action was taken at this location without a gain."""
    working, state = context.working, context.state
    return working.tries_since_gain(state, action) if estimate.n else working.tries_at(state, action)


def _is_circling(context: Context, action: str) -> bool:
    """Return whether this action, taken often here, would continue a loop or other trouble of the episode.

    In a loop, every try counts. In other trouble, such as failed steps, only tries since the last reward do: an action
    that was just paid is not what fails.
    """
    working, state = context.working, context.state
    if context.history and context.history[-1].diagnosis.loop:
        return working.tries_at(state, action) >= TUNING.many_tries
    return bool(context.replan) and working.tries_since_gain(state, action) >= TUNING.many_tries


def _select_least_tried(context: Context, actions: list[str]) -> list[str]:
    """Return the actions taken least often at this location, as a way out of a loop."""
    tries = {action: context.working.tries_at(context.state, action) for action in actions}
    return [action for action in actions if tries[action] == min(tries.values())]


def _choose_planned(context: Context, candidates: list[str]) -> str | None:
    """Return the plan's next action, unless another candidate is clearly better; see `MARGIN`."""
    planned = find_planned_action(context)
    if planned is None or (context.plan and context.plan.source):
        return planned  # the values of single steps say nothing about a search
    estimates = context.recollection.estimates
    margin, evidence = MARGIN
    alternatives = (_find_estimate(estimates, action) for action in candidates if action != planned)
    best = max((estimate.value for estimate in alternatives if estimate.n >= evidence), default=-math.inf)
    return planned if best <= _find_estimate(estimates, planned).value + margin else None


def list_candidates(context: Context) -> list[str]:
    """Return the allowed actions that have not failed in this context, or all allowed ones if there are none."""
    allowed = list_allowed(context)
    failures = [action for action in allowed if context.working.has_failed(action)]
    if not failures:
        return allowed
    estimates = context.read_estimates(failures)
    barred = {
        action for action in failures if context.working.failed(action, _find_estimate(estimates, action).context)
    }
    return [action for action in allowed if action not in barred] or allowed


def list_allowed(context: Context) -> list[str]:
    """Return the actions that were not refused in this step, or all of them if there are none."""
    return [action for action in context.actions if action not in context.forbidden] or list(context.actions)


def _find_estimate(estimates: Mapping[str, Estimate], action: str) -> Estimate:
    return estimates.get(action) or Estimate(0.0)


def _build_reasons(estimate: Estimate, *, explored: bool) -> Reasons:
    if explored:
        return Reasons(explored=True)
    return Reasons(value=round(estimate.value, 4), count=estimate.n, key=estimate.key, similar=estimate.steps)
