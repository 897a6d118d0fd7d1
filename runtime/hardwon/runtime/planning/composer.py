"""Follow bound demonstrations: one after the other, until one solves the task or none is left.

The planner asks before every step. What was done is read from the plan itself, so a resumed episode continues.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.situations.actions import parse_action
from hardwon.memory.values.demonstration_index import DemonstrationIndex
from hardwon.runtime.interfaces.plans import Plan, PlannedStep
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.interfaces.usage import ModelUsage

from .composition import Binding, BindingProgress, bind_demonstration, choose_action, choose_detour, fits_step
from .plans import SkillPlanner
from .progress import took_effect
from .tuning import TUNING


class DemonstrationComposer:
    """Binds demonstrations to tasks and continues their plans."""

    def __init__(self) -> None:
        self._bound: tuple[DemonstrationIndex, int, str, list[Binding]] | None = None
        """An index of demonstrations, its size, a task, and the different bindings of both, the best first."""

    def follow(self, plan: Plan | None, context: Context, index: DemonstrationIndex) -> Plan | None:
        """Return the plan with the action to take now, or None if no demonstration is left."""
        bindings = self._list_bindings(context.state.task, index)
        if plan is None or not plan.source:
            # What this episode gave up is not tried again, although its plan has ended.
            plan = Plan(context.state.task, abandoned=_list_followed(context))
        for binding in bindings[: TUNING.max_demonstrations]:
            if binding.source in plan.abandoned:
                continue
            if plan.source != binding.source:
                plan = continue_with(plan, binding, bindings)
            if (continued := _advance(plan, binding, context, index)) is not None:
                return continued
            plan = replace(plan, abandoned=(*plan.abandoned, binding.source))
        return None

    def _list_bindings(self, task: str, index: DemonstrationIndex) -> list[Binding]:
        """Return the different bindings of the demonstrations to a task, the best first."""
        bound = self._bound
        # by identity: indexes of demonstrations that leave out different task instances may be of one size
        if bound is None or bound[0] is not index or bound[1:3] != (index.size, task):
            bound = self._bound = (
                index,
                index.size,
                task,
                list(_bind_all(task, index)),
            )
        return bound[3]


class DemonstrationPlanner:
    """Plans with a success bound to the task, and with skills where no demonstration can be followed.

    It binds successes of the agent's own environment only, and yields to the estimates where the outcomes of earlier
    episodes were better without demonstrations.
    """

    waits = False

    def __init__(self, library: ExperienceLibrary) -> None:
        self._library, self._skills, self._composer = library, SkillPlanner(library), DemonstrationComposer()

    def follow(self, plan: Plan | None, context: Context) -> Plan | None:
        """Return the plan of a bound demonstration with the action to take now, or None if none can be followed.

        Args:
            plan: The plan so far, if there is one.
            context: The current state and the recalled experience.
        """
        return self._composer.follow(plan, context, self._read_demonstrations(context))

    def yields(self, context: Context) -> bool:
        """Return whether demonstrations made the outcomes of such tasks worse, so that they are tried rarely."""
        return self._read_demonstrations(context).are_worse(context.state.task)

    def _read_demonstrations(self, context: Context) -> DemonstrationIndex:
        return self._library.episodes.index_demonstrations(context.environment, context.actions)

    def plan(self, context: Context, skills: Sequence[Item]) -> Plan | None:
        """Return a plan from the first skill that can start, or None."""
        return self._skills.plan(context, skills)

    def repair(self, plan: Plan, reason: str, context: Context, items: Sequence[Item]) -> Plan:
        """Return the plan continued by a remedy or another skill."""
        return self._skills.repair(plan, reason, context, items)


def _bind_all(task: str, index: DemonstrationIndex) -> Iterator[Binding]:
    seen, needed = set(), index.list_needed(task)
    for demonstration in index.list_demonstrations(task):
        binding = bind_demonstration(demonstration, task, index)
        if binding is None or not needed.issubset(step.form for step in binding.steps):
            continue
        if binding.shape not in seen:
            seen.add(binding.shape)
            yield binding


def _list_followed(context: Context) -> tuple[str, ...]:
    """Return the ids of the demonstrations that the episode followed."""
    sources = (str(step.why.extra.get("demonstration", "")) for step in context.history)
    return tuple(dict.fromkeys(source.removeprefix("episode:") for source in sources if source))


def continue_with(plan: Plan, binding: Binding, bindings: list[Binding]) -> Plan:
    """Return the plan with another binding; what the last one achieved stays done, if it leads up to the new one.

    So a demonstration that ends early is continued by one that goes on, and one with another order by its rest.
    """
    earlier = next((other for other in bindings if other.source == plan.source), None)
    done = [step for step in plan.done if step.source == plan.source and step.part]
    parts = _match_steps([earlier.steps[step.part - 1].text for step in done], binding) if earlier else {}
    by_number = {done[at].number: part for at, part in parts.items()}
    steps = tuple(
        replace(step, source=binding.source, part=by_number[step.number]) if step.number in by_number else step
        for step in plan.done
    )
    return replace(plan, steps=steps, source=binding.source)


def _match_steps(texts: list[str], binding: Binding) -> dict[int, int]:
    """Return the part of a binding that each step did, for steps in its order from the first on.

    Without the last step nothing matches: it may have undone the others.
    """
    parts: dict[int, int] = {}
    for at, text in enumerate(texts):
        if len(parts) < len(binding.steps) and text == binding.steps[len(parts)].text:
            parts[at] = len(parts) + 1
    return parts if len(texts) - 1 in parts else {}


def _advance(plan: Plan, binding: Binding, context: Context, index: DemonstrationIndex) -> Plan | None:
    """Return the plan with the next action of a binding; None if it has ended or nothing is left to try."""
    own = [step for step in plan.done if step.source == binding.source and step.part]
    at = len(own)
    tries = next((step.tries for step in plan.open if step.part == at + 1 and step.source == binding.source), 0)
    if at >= len(binding.steps) or tries >= TUNING.step_tries:
        return None
    earlier_actions = [step.action for step in plan.done if step.part and step.source != binding.source]
    progress = BindingProgress(
        tuple((step.part - 1, step.action) for step in own),
        _count_since(plan, context),
        frozenset(parse_action(action).slots[0] for action in earlier_actions if parse_action(action).slots),
    )
    last = context.history[-1] if progress.since < len(context.history) else None
    if last and took_effect(last) and fits_step(binding, at, last.action, progress):
        # the policy did it with another thing, or at another place, than was planned
        done = PlannedStep(plan.following, last.action, done=True, source=binding.source, part=at + 1)
        return _advance(replace(plan, steps=(*plan.done, done)), binding, context, index)
    is_last = at == len(binding.steps) - 1
    detour = choose_detour(binding, progress, context, index) if is_last and context.learning else ""
    action = detour or choose_action(binding, at, progress, context, index)
    if not action and progress.used:  # there is no other thing of this kind
        progress = replace(progress, used=frozenset())
        action = choose_action(binding, at, progress, context, index)
    if not action:
        return None
    first, source = plan.following, binding.source
    is_part = fits_step(binding, at, action, progress)
    pending = [PlannedStep(first, action, tries=tries if is_part else 0, source=source, part=(at + 1) * is_part)]
    for number in range(at + is_part, len(binding.steps)):
        pending.append(PlannedStep(first + len(pending), binding.steps[number].text, source=source, part=number + 1))
    return replace(plan, steps=(*plan.done, *pending), usage=ModelUsage())


def _count_since(plan: Plan, context: Context) -> int:
    """Return the number of steps of the episode until the last step of the demonstration was done."""
    actions = [step.action for step in plan.done if step.part]
    if not actions:
        return 0
    return max((n + 1 for n, step in enumerate(context.history) if step.action == actions[-1]), default=0)
