"""Starts in the middle of an episode: the environment is brought to a state by repeating recorded steps.

An environment says with `branches` how that is possible: "replay" if repeating the actions leads to the same state,
None if it must not be done, as where the actions have effects outside. Without the attribute, an environment is
replayed unless it is `Resumable`. Every state is compared with the recorded one. Calls of read-only tools can always be
repeated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hardwon.memory import Diagnosis, Failure, State, Step
from hardwon.memory.errors import CannotBranch, EnvironmentCrashed
from hardwon.memory.library import ExperienceLibrary
from hardwon.runtime.environments.timeout import Watched
from hardwon.runtime.guidance.base import Hint
from hardwon.runtime.interfaces.types import Environment, Info, Resumable
from hardwon.runtime.interfaces.working_memory import WorkingMemory, place

NOT_EXECUTED = (Failure.POLICY_ERROR, Failure.BLOCKED)
"""Failures of steps whose action did not run, so there is nothing to repeat."""


@dataclass(frozen=True, slots=True)
class Reached:
    """Where an environment is after recorded steps."""

    first: State
    state: State
    info: Info
    """Facts of the last executed step, with the newest score."""
    done: bool


def can_branch(environment: Environment, steps: Sequence[Step] = ()) -> bool:
    """Return whether an environment may repeat these steps to begin an episode with them."""
    inner: Any = _unwrap(environment)
    replays: bool = inner.branches == "replay" if hasattr(inner, "branches") else not isinstance(inner, Resumable)
    harmless = getattr(inner, "changes_nothing", None)
    if replays or harmless is None:
        return replays
    return bool(steps) and all(harmless(step.action) for step in steps)


def bring_back(environment: Environment, task: str, seed: int, steps: Sequence[Step]) -> Reached:
    """Reset an environment, repeat recorded steps, and compare every state with the recorded one."""
    first = state = environment.reset(task, seed)
    executed = [step for step in steps if step.diagnosis.failure not in NOT_EXECUTED]
    info, done = Info(), False
    for number, step in enumerate(executed):
        if done or not _equals(state, step.pre):
            raise CannotBranch(_explain(environment, number + 1, "it was over" if done else "it showed another state"))
        before = info
        state, _, done, info = environment.step(step.action)
        if "score" in before and "score" not in info:
            info = info.copy()  # the environment may keep its own
            info["score"] = before["score"]
        if not _equals(state, step.post):
            raise CannotBranch(_explain(environment, number + 1, "it showed another state"))
    return Reached(first, state, info, done)


def start_from(environment: Environment, task: str, seed: int, prefix: Sequence[Step]) -> Reached:
    """Return where an episode that continues a prefix begins."""
    if not can_branch(environment, prefix):
        raise CannotBranch(
            f"{environment.name} cannot begin with {len(prefix)} recorded steps: repeating its actions could have "
            "effects outside. Build the tools anew for each episode (a function of task and seed), or start without "
            "a prefix."
        )
    reached = bring_back(environment, task, seed, prefix)
    if reached.done:
        raise CannotBranch(f"a prefix of {len(prefix)} steps ends the episode {task}#{seed}; give a shorter one.")
    return reached


def restore_environment(environment: Environment, values: dict[str, Any], *, has_acted: bool) -> None:
    """Restore an environment to the state at a checkpoint, from recorded results or by repeating the actions."""
    inner = _unwrap(environment)
    # Steps without an executed action have nothing to repeat.
    steps = [step for step in values["steps"] if step.diagnosis.failure not in NOT_EXECUTED]
    state = values["state"]
    if has_acted and values["outcome"] is not None:
        post, reward, *_ = values["outcome"]
        steps.append(Step(state, values["decision"].action, post, Diagnosis(True), reward, len(values["steps"])))
        state = post
    if isinstance(inner, Resumable):
        inner.restore(values["task"], values["seed"], tuple(steps))
        return
    try:
        bring_back(environment, values["task"], values["seed"], steps)
    except CannotBranch as error:
        raise EnvironmentCrashed(str(error)) from error


def rebuild_memory(library: ExperienceLibrary, first: State, steps: Sequence[Step]) -> WorkingMemory:
    """Return the working memory of an episode after these steps."""
    working = WorkingMemory.of(first, steps)
    # `of` lacks the library's context keys, so failures are added here, as `diagnose` does.
    for step in steps:
        if not step.diagnosis.success and step.action:
            working.fail(step.action, library.episodes.context(step.pre, step.action), step.diagnosis.failure.value)
    return working


def rebuild_hints(steps: Sequence[Step]) -> dict[str, Hint | None]:
    """Return the hints of the situations of recorded steps, by signature, as far as the steps tell."""
    hints: dict[str, Hint | None] = {}
    last: Hint | None = None
    for step in steps:
        sources = (step.why.recalled or (), step.why.similar or ())
        if step.why.memory is not None:
            last = Hint(step.why.memory, *sources)
        # a step with sources and without a text repeats the last text
        hints[step.pre.signature] = last if step.why.memory is not None or any(sources) else None
    return hints


def _equals(state: State, recorded: State) -> bool:
    return place(state) == place(recorded) and state.signature == recorded.signature


def _explain(environment: Environment, number: int, what: str) -> str:
    return (
        f"{environment.name} is not deterministic: replaying the episode did not lead back to the state of step "
        f"{number}, because {what}. Start the episode from its beginning."
    )


def _unwrap(environment: Environment) -> Environment:
    return environment.inner if isinstance(environment, Watched) else environment
