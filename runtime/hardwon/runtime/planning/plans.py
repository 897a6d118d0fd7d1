"""Plans: the actions of the next steps, made from skills and repaired without touching completed steps.

    plan = SkillPlanner(library).plan(context, skills)      # or None if no skill fits
    plan = planner.repair(plan, "no progress: it is locked", context, items)

A planned action is a pattern such as `take {1}`. `realize` finds the admissible action that it matches in a state. The
value of a hole then fills the same hole in the following steps, as in `put {1} in basket`. The policy may deviate from
a plan, and guardrails check every action. This module neither runs actions nor calls a model; see `chat_planner`.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from hardwon.memory import Estimate, ExperienceLibrary, Item
from hardwon.memory.guardrails.conditions import matches
from hardwon.runtime.interfaces.plans import Plan, PlannedStep, bind_holes, fill_holes
from hardwon.runtime.interfaces.types import Context


class Planner(Protocol):
    """Makes plans and repairs them."""

    waits: bool
    """Whether the planner waits for a model; an asynchronous loop then runs it in a thread."""

    def plan(self, context: Context, skills: Sequence[Item]) -> Plan | None:
        """Return a plan made from the offered skills, or None.

        Args:
            context: The current state and the recalled experience.
            skills: Skills that fit the state, best first.
        """
        ...

    def repair(self, plan: Plan, reason: str, context: Context, items: Sequence[Item]) -> Plan:
        """Return the plan with the same completed steps and other pending steps, possibly none.

        Args:
            plan: The plan in trouble.
            reason: The trouble in words.
            context: The current state and the recalled experience.
            items: Skills and remedies that fit the state, best first.
        """
        ...


@runtime_checkable
class Following(Protocol):
    """A planner that chooses the next action of its plan anew in every step.

    While an agent learns, some episodes go without it, so that its worth is measured.
    """

    def yields(self, context: Context) -> bool:
        """Return whether earlier outcomes were clearly better without it, so that it is tried rarely."""
        ...

    def follow(self, plan: Plan | None, context: Context) -> Plan | None:
        """Return the plan with the action to take now, or None if it has none."""
        ...


class SkillPlanner:
    """Plans with the first skill that can start now, and repairs a plan with a remedy or another skill."""

    waits = False

    def __init__(self, library: ExperienceLibrary) -> None:
        self._library = library

    def plan(self, context: Context, skills: Sequence[Item]) -> Plan | None:
        """Return a plan from the first skill that can start and whose steps no guardrail forbids, or None."""
        plan = self.repair(Plan(context.state.task), "", context, [item for item in skills if item.kind == "skill"])
        return plan if plan.steps else None

    def repair(self, plan: Plan, reason: str, context: Context, items: Sequence[Item]) -> Plan:
        """Return the plan continued by a remedy or another skill; without either, drop the pending steps."""
        suffixes = (*_suggest_remedies(plan, context, items), *_suggest_skills(plan, items))
        return plan.continued(next((suffix for suffix in suffixes if self._fits(suffix, context)), ()))

    def _fits(self, suffix: Sequence[PlannedStep], context: Context) -> bool:
        # An environment that lists no actions accepts any text, so every skill can begin.
        can_begin = not context.actions or realize(suffix[0].action, context) is not None
        return can_begin and self._library.check(context.state, realize_actions(suffix, context)).allowed


def build_steps(item: Item, first: int) -> tuple[PlannedStep, ...]:
    """Return the steps of a skill or remedy, numbered from `first`; its success check belongs to the last one."""
    last = len(item.steps) - 1
    return tuple(
        PlannedStep(first + n, action, item.id, item.verify if n == last else None)
        for n, action in enumerate(item.steps)
    )


def _suggest_remedies(plan: Plan, context: Context, items: Sequence[Item]) -> Iterator[tuple[PlannedStep, ...]]:
    """Yield the steps of remedies for the last failure, those that end with the failed action first.

    Each remedy is tried once per situation of an episode. A remedy that was mined from failures of one action applies
    to that action only, unless it has a condition of its own.
    """
    if not context.history or context.history[-1].diagnosis.success:
        return
    failed, signature = context.history[-1], context.state.signature
    tried = {ref for step in context.history if step.pre.signature == signature for ref in step.why.skills or ()}
    fitting = [
        item
        for item in items
        if item.kind == "remedy"
        and item.repairs == failed.diagnosis.failure
        and item.steps
        and item.id not in tried
        and (item.source != "experience" or item.condition is not None or _is_about(item, failed.action))
    ]
    for item in sorted(fitting, key=lambda item: not _is_about(item, failed.action)):
        repair, repaired = build_steps(item, plan.following), item.forbids or item.steps[-1]
        if _is_about(item, failed.action):
            repair = tuple(fill_holes(step, bind_holes(repaired, failed.action)) for step in repair)
        last = failed.action if item.forbids else repair[-1].action
        yield (*repair, *(_drop_repaired(plan, last) if item.scope == "step" else ()))


def _is_about(item: Item, action: str) -> bool:
    """Return whether a remedy makes this action work."""
    return matches(item.forbids or item.steps[-1], action)


def _drop_repaired(plan: Plan, repaired: str) -> tuple[PlannedStep, ...]:
    """Return the pending steps after a repair, without the failed step if the repair replaces it or ends with it."""
    pending = plan.open
    return pending[1:] if pending and matches(pending[0].action, repaired) else pending


def _suggest_skills(plan: Plan, items: Sequence[Item]) -> Iterator[tuple[PlannedStep, ...]]:
    """Yield the steps of every skill except the one that the plan is executing."""
    pending = plan.next.item_id if plan.next else ""
    for item in items:
        if item.kind == "skill" and item.steps and item.id != pending:
            yield build_steps(item, plan.following)


def realize(pattern: str, context: Context) -> str | None:
    """Return the admissible action with the highest estimate that matches a pattern, or None.

    Actions that were refused in this step or failed in this context are excluded. An action equal to the pattern comes
    before one that fills its holes.
    """
    estimates = context.recollection.estimates

    def find_estimate(action: str) -> Estimate:
        return estimates.get(action) or Estimate(0.0)

    fitting = [
        action
        for action in context.actions
        if matches(pattern, action)
        and action not in context.forbidden
        and not context.working.failed(action, find_estimate(action).context)
    ]
    return max(fitting, key=lambda action: (action == pattern, find_estimate(action).value), default=None)


def realize_actions(steps: Sequence[PlannedStep], context: Context) -> list[str]:
    """Return the planned actions, with their holes filled if an admissible action matches."""
    return [realize(step.action, context) or step.action for step in steps]


def explain_plan(plan: Plan | None) -> dict[str, str]:
    """Return which chain of steps the next one is the first link of, and which demonstration it came from, if any."""
    if plan is None:
        return {}
    chain = {"plan": ", then ".join(step.action for step in plan.open)}
    return {**chain, "demonstration": f"episode:{plan.source}"} if plan.source else chain


def find_planned_action(context: Context) -> str | None:
    """Return the admissible action for the plan's next step, or None."""
    following = context.plan.next if context.plan else None
    return realize(following.action, context) if following else None
