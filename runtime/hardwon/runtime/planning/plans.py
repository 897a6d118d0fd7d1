"""Plans: the actions of the next steps, made of skills, and repaired without touching what is done.

    plan = SkillPlanner(library).plan(context, skills)      # or None: nothing known fits here
    plan = planner.repair(plan, "no progress: it is locked", context, items)

A planned action is a pattern, `take {1}`; `realise` finds the admissible action it stands for here, and
what filled a hole fills it in the steps that follow: `put {1} in basket`. A plan is data to a policy,
never an order: the guard is asked before every action all the same. No action is run here, and no
model is asked; `chat_planner` asks one.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from hardwon.memory import Estimate, ExperienceLibrary, Item
from hardwon.memory.guardrails.conditions import matches
from hardwon.memory.situations.actions import bind
from hardwon.runtime.interfaces.types import Context, Usage

_HOLE = re.compile(r"\{\d+\}")


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One action to come, or done."""

    number: int
    """Its name within the episode's plan: kept by a repair, never given twice."""
    action: str
    """An action, or a pattern with holes."""
    item_id: str = ""
    """The skill or remedy it comes from; empty when the planner made it up."""
    check: Mapping[str, Any] | None = None
    """What must hold after it (see `hardwon.memory.guardrails.conditions`), whatever the policy says."""
    tries: int = 0
    done: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps towards a goal: those done come first."""

    goal: str
    steps: tuple[PlannedStep, ...] = ()
    usage: Usage = field(default_factory=Usage)
    """What the last planning cost."""

    def __post_init__(self) -> None:
        if not isinstance(self.steps, tuple):  # as a checkpoint may give it back
            object.__setattr__(self, "steps", tuple(self.steps))

    @property
    def done(self) -> tuple[PlannedStep, ...]:
        """The completed prefix."""
        return tuple(step for step in self.steps if step.done)

    @property
    def open(self) -> tuple[PlannedStep, ...]:
        """The suffix that is still to do."""
        return tuple(step for step in self.steps if not step.done)

    @property
    def next(self) -> PlannedStep | None:
        """The first step that is still to do; None when the plan is over."""
        return next((step for step in self.steps if not step.done), None)

    @property
    def item_ids(self) -> tuple[str, ...]:
        """The skills and remedies it was made of."""
        return tuple(dict.fromkeys(step.item_id for step in self.steps if step.item_id))

    @property
    def following(self) -> int:
        """The number of the next step that is added to it."""
        return 1 + max((step.number for step in self.steps), default=0)

    def tried(self, action: str, *, done: bool) -> "Plan":
        """The plan after its next step was tried by this action; done, it fills the holes of what follows."""
        first, *rest = self.open
        first = replace(first, tries=first.tries + 1)
        if done:
            filling = holes(first.action, action)
            first = replace(first, action=action, done=True)
            rest = [filled(step, filling) if step.item_id == first.item_id else step for step in rest]
        return replace(self, steps=(*self.done, first, *rest))

    def continued(self, suffix: Sequence[PlannedStep]) -> "Plan":
        """The completed prefix, the very same steps, with another suffix."""
        return replace(self, steps=(*self.done, *suffix), usage=Usage())


class Planner(Protocol):
    """Makes plans and repairs them."""

    waits: bool
    """Whether it waits for a model; then it is asked in a thread where other episodes run beside."""

    def plan(self, context: Context, skills: Sequence[Item]) -> Plan | None:
        """A plan made of what is offered here, best first; None when there is none."""
        ...

    def repair(self, plan: Plan, reason: str, context: Context, items: Sequence[Item]) -> Plan:
        """The plan with the same completed prefix and another suffix, which may be empty."""
        ...


class SkillPlanner:
    """The best skill that can be begun here; repaired by a remedy for the last failure, else another skill."""

    waits = False

    def __init__(self, library: ExperienceLibrary) -> None:
        self._library = library

    def plan(self, context: Context, skills: Sequence[Item]) -> Plan | None:
        """The first of the skills that can be begun here and that no guardrail of task granularity refuses."""
        made = self.repair(Plan(context.state.task), "", context, [item for item in skills if item.kind == "skill"])
        return made if made.steps else None

    def repair(self, plan: Plan, reason: str, context: Context, items: Sequence[Item]) -> Plan:
        """A remedy's steps first, else another skill; where nothing fits the suffix is dropped."""
        suffixes = (*_by_remedy(plan, context, items), *_by_skill(plan, items))
        return plan.continued(next((suffix for suffix in suffixes if self._fits(suffix, context)), ()))

    def _fits(self, suffix: Sequence[PlannedStep], context: Context) -> bool:
        can_begin = not context.actions or realise(suffix[0].action, context) is not None
        return can_begin and self._library.check_plan(context.state, actions_of(suffix, context)).allowed


def holes(pattern: str, action: str) -> dict[str, str]:
    """What an action puts into the holes of its pattern: {"{1}": "red apple"}."""
    return bind(pattern, action) or {}


def filled(step: PlannedStep, filling: Mapping[str, str]) -> PlannedStep:
    """The step with these holes filled; itself where it has none of them."""
    action = _HOLE.sub(lambda hole: filling.get(hole[0], hole[0]), step.action)
    return step if action == step.action else replace(step, action=action)


def steps_of(item: Item, first: int) -> tuple[PlannedStep, ...]:
    """A skill's or a remedy's steps, numbered from `first`; its verification is the check of the last one."""
    last = len(item.steps) - 1
    return tuple(
        PlannedStep(first + n, action, item.id, item.verify if n == last else None)
        for n, action in enumerate(item.steps)
    )


def _by_remedy(plan: Plan, context: Context, items: Sequence[Item]) -> Iterator[tuple[PlannedStep, ...]]:
    """The suffixes of remedies for the last failure, those that end with the action that failed first.

    Each is tried once in a situation of an episode. What was induced from one action's failures speaks
    of that action alone.
    """
    if not context.history or context.history[-1].diagnosis.success:
        return
    failed, here = context.history[-1], context.state.signature
    tried = {step.why.get("skill") for step in context.history if step.pre.signature == here}
    fitting = [
        item
        for item in items
        if item.kind == "remedy"
        and item.repairs == failed.diagnosis.failure
        and item.steps
        and item.id not in tried
        and (item.source != "experience" or item.condition is not None or matches(item.steps[-1], failed.action))
    ]
    for item in sorted(fitting, key=lambda item: not matches(item.steps[-1], failed.action)):
        repair = steps_of(item, plan.following)
        if matches(item.steps[-1], failed.action):
            repair = tuple(filled(step, holes(item.steps[-1], failed.action)) for step in repair)
        yield (*repair, *(_left(plan, repair) if item.scope == "step" else ()))


def _left(plan: Plan, repair: Sequence[PlannedStep]) -> tuple[PlannedStep, ...]:
    """What is still to do after a repair of one step, which may end with the step that failed."""
    left = plan.open
    return left[1:] if left and matches(left[0].action, repair[-1].action) else left


def _by_skill(plan: Plan, items: Sequence[Item]) -> Iterator[tuple[PlannedStep, ...]]:
    """The steps of every skill that the plan is not in the middle of."""
    pending = plan.next.item_id if plan.next else ""
    for item in items:
        if item.kind == "skill" and item.steps and item.id != pending:
            yield steps_of(item, plan.following)


def realise(pattern: str, context: Context) -> str | None:
    """The admissible action of the pattern with the best estimate; None when there is none to be had.

    What was refused in this step, or failed in this context before, is not to be had. An action that is
    the pattern to the letter comes before one that is of the pattern.
    """
    estimates = context.recollection.estimates

    def known(action: str) -> Estimate:
        return estimates.get(action) or Estimate(0.0)

    fitting = [
        action
        for action in context.actions
        if matches(pattern, action)
        and action not in context.forbidden
        and not context.working.failed(action, known(action).context)
    ]
    return max(fitting, key=lambda action: (action == pattern, known(action).value), default=None)


def actions_of(steps: Sequence[PlannedStep], context: Context) -> list[str]:
    """The planned actions with their holes filled where that can be told from here."""
    return [realise(step.action, context) or step.action for step in steps]


def planned_action(context: Context) -> str | None:
    """The admissible action that the plan has next here, or None."""
    following = context.plan.next if context.plan else None
    return realise(following.action, context) if following else None
