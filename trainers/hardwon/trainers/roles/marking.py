"""Questions with known answers for stage 1 of the admission, from explored episodes.

A step is worth sharing if it solves the instance that the whole team works on, and is not if the solution does without
it or if it was shared before. What is between the two is left out.
"""

from collections.abc import Callable, Sequence

from hardwon.memory import Step, Trajectory
from hardwon.memory.learning.skill_mining import without_circles
from hardwon.runtime.teams.sharing import build_key, shorten
from hardwon.runtime.teams.sharing_policy import SharingInput as SharedStep
from hardwon.trainers.algorithms.samples import Ids

from .base import Parts
from .supervised_stage import Marked, balance


def find_deciding_steps(walk: Trajectory) -> tuple[Step, ...]:
    """Return the rewarded steps of a solution; without any, its last step."""
    steps = without_circles(list(walk.steps))
    rewarded = tuple(step for step in steps if step.reward > 0 and step.action)
    return rewarded or tuple(steps[-1:])


def mark_steps(
    parts: Parts,
    value: Callable[[Sequence[Step]], str],
    ask: Callable[[SharedStep], Ids],
    *,
    most: int,
) -> list[Marked]:
    """Return questions about the steps of explored episodes, as many to share as to hold back."""
    marked: list[Marked] = []
    for instance in parts.instances:
        walk = parts.source(*instance)
        if walk is None:
            continue
        needed = {step.action for step in without_circles(list(walk.steps))}
        deciding = {step.action for step in find_deciding_steps(walk)}
        for episode in parts.explored(*instance):
            keys: list[str] = []
            for number, step in enumerate(episode.steps, 1):
                key = shorten(build_key(step))
                decides = step.action in deciding and step.diagnosis.success
                if decides or step.action not in needed:
                    shared = SharedStep(
                        step.pre.task, tuple(keys), step.action, key, value(episode.steps[:number]),
                        step.diagnosis.success, step.diagnosis.progress,
                    )  # fmt: skip
                    is_new = key not in keys
                    marked.append(Marked(ask(shared), decides and is_new, f"{step.pre.task} {step.action}"))
                keys.append(key)
    return balance(marked, most, parts.seed)


def format_path(steps: Sequence[Step]) -> str:
    """Return steps as a text of places and actions."""
    return " ".join(f"{step.pre.location.lower()} : {step.action} ." for step in steps)
