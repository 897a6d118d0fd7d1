"""Ask a guide before an episode, and build what it imitates before it learns from outcomes.

A guide that writes or chooses a text imitates the paths of successful episodes. A guide that only decides whether the
recollection is shown learns to tell fitting recollections from others: the first are those that the library gives for a
task instance with a known solution and that name an action of it, the others those of other instances that name none.
"""

import random
import re
from collections.abc import Iterable, Sequence

from hardwon.memory import State, Trajectory
from hardwon.memory.learning.skill_mining import without_circles
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.interfaces.working_memory import WorkingMemory
from hardwon.runtime.loop.tuning import TUNING as LOOP
from hardwon.trainers.gating.other_worlds import OtherWorlds
from hardwon.trainers.rollouts.beginnings import Beginnings
from hardwon.trainers.rollouts.rollout import Spec

from ..base import Parts
from ..marking import find_deciding_steps, format_path
from .speech import GuideQuery, query_of

Lesson = tuple[GuideQuery, str]
"""A query and the guidance to imitate."""
Judged = tuple[GuideQuery, bool]
"""A query, and whether its recollection names an action that solved the task instance."""


class Recollections:
    """Recall at the start of the task instances of a run, as a guide reads it in production."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._beginnings = parts, Beginnings(parts.environment)

    def ask(self, spec: Spec) -> GuideQuery | None:
        """Return the query for an episode, without what the library knows of its own task instance.

        Another role's text for the episode takes the place of the recollection.
        """
        context = self.recall(spec)
        if spec.memory:
            return GuideQuery(context.state, (spec.memory,), (spec.memory,))
        query = query_of(context)
        return None if query is None else query[0]

    def recall(self, spec: Spec) -> Context:
        """Return the situation at the start of an episode with the library's recollection."""
        state, actions = self._beginnings.read(spec)
        working = WorkingMemory()
        working.begin(state)
        recollection = OtherWorlds(self._parts.library, instance=(spec.task, spec.seed)).recall(
            state,
            k=self._parts.recall,
            budget_tokens=LOOP.guidance_tokens,
            level="step",
            actions={action: working.counts(state, action) for action in actions},
            after="",
        )
        return Context(state, actions, recollection)


def explored(spec: Spec, parts: Parts) -> GuideQuery | None:
    """Return the query for an episode: from another role's text, or from the last exploring episode."""
    walks = parts.explored(spec.task, spec.seed)
    if not walks or not walks[-1].steps:
        return None
    first = walks[-1].steps[0].pre
    return GuideQuery(first, (spec.memory,), (spec.memory,)) if spec.memory else build_query(walks[-1])


def build_query(walk: Trajectory) -> GuideQuery:
    """Return the initial situation of an exploring episode with its path as the recalled text.

    The path is labeled insight after a success and warning after a failure. On offer are the path without loops
    and the whole path.
    """
    whole, kept = format_path(walk.steps), format_path(without_circles(walk.steps))
    kind = "insight" if (walk.outcome or 0.0) >= 0.5 else "warning"
    return GuideQuery(walk.steps[0].pre, (f"{whole} {kind}",), tuple(dict.fromkeys((kept, whole))))


def build_lessons(episodes: Iterable[Trajectory]) -> list[Lesson]:
    """Return one lesson per successful episode: say its path without loops; graded ones count from one half."""
    return [
        (build_query(episode), format_path(without_circles(episode.steps)))
        for episode in episodes
        if (episode.outcome or 0.0) >= 0.5 and episode.steps
    ]


def judge_recollections(recollections: Recollections, parts: Parts, *, most: int) -> list[Judged]:
    """Return recollections of explored task instances with a known solution, and whether each fits.

    Each instance comes twice: with what the library recalls for it, and with what it recalls for another one. A
    recollection fits if it names a rewarded action of the solution; without rewards, its last action.
    """
    chance = random.Random(parts.seed)
    pairs: list[tuple[GuideQuery, tuple[str, ...]]] = []
    for split, seed in chance.sample(list(parts.instances), len(parts.instances)):
        if 2 * len(pairs) >= most:
            break
        walk = parts.source(split, seed)
        if walk is None or not walk.steps:
            continue
        query = recollections.ask(Spec(split, seed))
        if query is not None:
            pairs.append((query, find_deeds(walk)))
    judged: list[Judged] = []
    for number, (query, deeds) in enumerate(pairs):
        other = pairs[(number + 1) % len(pairs)][0].recalled
        judged += (_judge(query.state, recalled, deeds) for recalled in dict.fromkeys((query.recalled, other)))
    return judged


def find_deeds(walk: Trajectory) -> tuple[str, ...]:
    """Return the rewarded actions of a solution; without any, its last action."""
    return tuple(dict.fromkeys(step.action for step in find_deciding_steps(walk)))


def _judge(state: State, recalled: tuple[str, ...], deeds: Sequence[str]) -> Judged:
    """Return a query about some recalled lines, and whether one of them names one of the actions."""
    return GuideQuery(state, recalled, recalled), any(_names(line, deeds) for line in recalled)


def _names(line: str, actions: Sequence[str]) -> bool:
    """Return whether a line names one of some actions, as whole words and in any case."""
    return any(re.search(rf"(?<!\w){re.escape(action.lower())}(?!\w)", line.lower()) for action in actions)
