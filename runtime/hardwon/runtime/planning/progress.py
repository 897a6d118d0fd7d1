"""Following a plan: which of its steps was run, whether it worked, and whether a skill was verified.

Pure functions on plans and steps. Whoever chose the action, what was planned and was run is a step of
the plan; it is done when it did not fail, was not told that something else must come first, and its
check holds in the state after. A skill is verified by its own criterion, whatever the policy says of
itself.
"""

from collections.abc import Mapping
from typing import Any

from hardwon.memory import State, Step
from hardwon.memory.guardrails.conditions import holds, matches
from hardwon.memory.situations.keys import Situation
from hardwon.runtime.interfaces.diagnosis import speaks_of_unmet
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.interfaces.working_memory import place

from .plans import Plan, PlannedStep, realise


def followed(plan: Plan | None, action: str) -> PlannedStep | None:
    """The planned step that this action is, or None."""
    following = plan.next if plan else None
    return following if following and matches(following.action, action) else None


def advanced(plan: Plan, planned: PlannedStep, step: Step) -> tuple[Plan, str]:
    """The plan after its next step was run; and what it did not bring about, where it did not fail otherwise."""
    met = _meets(planned.check, step.post, step.action)
    told_off = place(step.pre) == place(step.post) and speaks_of_unmet(step.post.feedback)
    after = plan.tried(step.action, done=step.diagnosis.success and met and not told_off)
    missed = f"`{step.action}` did not bring about what was planned" if step.diagnosis.success and not met else ""
    return after, missed


def verdicts(plan: Plan, state: State, known: Mapping[str, bool], *, going_on: Plan | None = None) -> dict[str, bool]:
    """`known`, and the verdict on every skill and remedy that was begun and is not gone on with.

    It is verified when its last step was done, that is with its criterion met, or the criterion holds
    in the end. One failure in an episode outweighs successes.
    """
    judged = dict(known)
    kept = {step.number for step in going_on.open} if going_on else set()
    for item_id in plan.item_ids:
        steps = [step for step in plan.steps if step.item_id == item_id]
        last = steps[-1]
        if last.number in kept or not any(step.tries for step in steps):
            continue
        met = last.done or (last.check is not None and _meets(last.check, state, last.action))
        judged[item_id] = judged.get(item_id, True) and met
    return judged


def cannot_go_on(context: Context) -> str | None:
    """Why the next step of the plan cannot be taken here, or None."""
    following = context.plan.next if context.plan else None
    if following is None or not context.actions or realise(following.action, context) is not None:
        return None
    return f"`{following.action}`, which was planned, cannot be done here"


def _meets(check: Mapping[str, Any] | None, state: State, action: str) -> bool:
    return check is None or holds(check, Situation(state), action)
