"""Stage 1 of the extractor: the lessons of a teacher about explored episodes, to be imitated.

The teacher `rules` names the task with the steps that solved it or, in a failed episode, the first failed step. Your
own is a function from an episode to a lesson, such as one that asks a larger model.
"""

import random
from collections.abc import Callable

from hardwon.memory import Trajectory
from hardwon.memory.learning.skill_mining import find_preparation, without_circles
from hardwon.runtime.guidance.lessons import render_lesson
from hardwon.trainers.algorithms.catalog import import_named
from hardwon.trainers.algorithms.outcomes import measure_outcome

from .base import Parts
from .marking import find_deciding_steps, format_path
from .supervised_stage import Marked
from .writing import LessonWriter

RULES = "rules"
"""Name of the teacher that is built in."""
Teacher = Callable[[Trajectory], str]
"""Returns the lesson of an episode; an empty text for none."""


def open_teacher(name: str, parts: Parts) -> Teacher:
    """Return the teacher of the settings."""
    if name != RULES:
        teacher: Teacher = import_named(name, "roles.extractor.settings.teacher")
        return teacher
    return lambda trajectory: write_by_rules(trajectory, solved=(measure_outcome(trajectory, parts.outcome) or 0.0) > 0)


def write_by_rules(trajectory: Trajectory, *, solved: bool) -> str:
    """Return the lesson of an episode by rules; empty if it shows nothing."""
    steps = trajectory.steps
    if not steps:
        return ""
    task = " ".join(steps[0].pre.task.split()).rstrip(".")
    if solved and any(step.pre.location for step in steps):
        return f"{task}: {format_path(without_circles(list(steps)))}"
    if solved:
        decided = find_deciding_steps(trajectory)[-1]
        number = next(at for at, step in enumerate(steps, 1) if step is decided)
        lesson = render_lesson(decided, find_preparation(steps[:number]))
    else:
        lesson = next((text for step in steps if not step.diagnosis.success and (text := render_lesson(step))), "")
    return f"{task}: {lesson}" if lesson else ""


def mark_lessons(parts: Parts, teacher: Teacher, writer: LessonWriter, *, most: int) -> list[Marked]:
    """Return at most so many questions about explored episodes with the teacher's answers, in random order."""
    episodes = [episode for instance in parts.instances for episode in parts.explored(*instance) if episode.steps]
    taught = [(episode, text) for episode in episodes if (text := teacher(episode))]
    marked = [Marked(writer.ask(episode), None, text, writer.answer(text)) for episode, text in taught]
    return random.Random(parts.seed).sample(marked, min(most, len(marked)))
