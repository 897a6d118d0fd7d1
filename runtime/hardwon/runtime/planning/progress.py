"""Progress of a plan: which step ran, whether it worked, and whether a skill was verified.

An action that matches the plan's next step counts as that step, whoever chose it. The step is completed if it did not
fail, no unmet precondition was reported, and its check holds in the state after it. A skill is verified by its own
success check, not by the policy's opinion.
"""

from collections.abc import Mapping
from typing import Any

from hardwon.memory import State, Step
from hardwon.memory.guardrails.conditions import holds, matches
from hardwon.memory.situations.keys import Attempt, Situation
from hardwon.runtime.interfaces.diagnosis import speaks_of_unmet
from hardwon.runtime.interfaces.plans import Plan, PlannedStep
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.interfaces.working_memory import place

from .plans import realize


def find_followed_step(plan: Plan | None, action: str) -> PlannedStep | None:
    """Return the plan's next step if the action matches it, or None."""
    following = plan.next if plan else None
    return following if following and matches(following.action, action) else None


def advance_plan(plan: Plan, planned: PlannedStep, step: Step) -> tuple[Plan, str]:
    """Return the plan after its next step ran."""
    met = _meets(planned.check, step.post, step.action)
    after = plan.tried(step.action, done=met and took_effect(step))
    missed = f"`{step.action}` did not bring about what was planned" if step.diagnosis.success and not met else ""
    return after, missed


def took_effect(step: Step) -> bool:
    """Return whether a step succeeded and did not leave everything as it was for want of a precondition."""
    # An unchanged place plus such a message means that the action had no effect, even without a reported failure.
    is_unmet = place(step.pre) == place(step.post) and speaks_of_unmet(step.post.feedback)
    return step.diagnosis.success and not is_unmet


def judge_skills(
    plan: Plan, state: State, earlier: Mapping[str, bool], *, continued_by: Plan | None = None
) -> dict[str, bool]:
    """Return the verdicts on all skills and remedies that were started and have ended.

    An item is verified if its last step was completed or its success check holds in `state`. One failure in an episode
    outweighs successes.
    """
    judged = dict(earlier)
    kept = {step.number for step in continued_by.open} if continued_by else set()
    for item_id in plan.item_ids:
        steps = [step for step in plan.steps if step.item_id == item_id]
        last = steps[-1]
        if last.number in kept or not any(step.tries for step in steps):
            continue
        met = last.done or (last.check is not None and _meets(last.check, state, last.action))
        judged[item_id] = judged.get(item_id, True) and met
    return judged


def explain_dead_end(context: Context) -> str | None:
    """Return why the plan's next step is impossible in this state, or None."""
    following = context.plan.next if context.plan else None
    if following is None or not context.actions or realize(following.action, context) is not None:
        return None
    return f"`{following.action}`, which was planned, cannot be done here"


def _meets(check: Mapping[str, Any] | None, state: State, action: str) -> bool:
    return check is None or holds(check, Attempt(Situation(state), action))
