"""Sources that read only what the world and the loop recorded: progress, needless turns, parts of a reference."""

import math
import re
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Literal

from hardwon.memory.learning.skill_mining import without_circles
from hardwon.runtime.environments.calls import parse_call
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.algorithms.signals import Signals, Values

from .base import EpisodeSource, SourceParts, list_turns


@PARTS.add("source", "Progress of the world", gives=("progress",), name="progress", method="mrt")
class ProgressSource(EpisodeSource):
    """Progress that each turn made."""

    def __init__(self, parts: SourceParts, *, of: Literal["reward", "diagnosis"] = "reward") -> None:
        """Create the source.

        Args:
            parts: Its objects.
            of: reward is the reward of the step, which is the change of the score in worlds with one, and diagnosis the
                progress that the loop's diagnosis saw.
        """
        super().__init__(parts)
        self._of = of

    def measure(self, rollout: Rollout) -> Signals:
        """Return the progress of every turn."""
        steps = [rollout.trajectory.steps[t] for t in list_turns(rollout)]
        by_diagnosis = self._of == "diagnosis"
        return Signals(
            {"progress": tuple(step.diagnosis.progress if by_diagnosis else float(step.reward) for step in steps)}
        )


@PARTS.add("source", "Redundant turns", gives=("redundant",), name="redundant", method="decs")
class RedundantSource(EpisodeSource):
    """Whether a turn was needless: a refused step, or part of a circle back to an earlier state."""

    def measure(self, rollout: Rollout) -> Signals:
        """Return 1 for every turn whose step is not part of the cleaned path."""
        steps = rollout.trajectory.steps
        kept = {id(step) for step in without_circles([s for s in steps if s.action and s.diagnosis.success])}
        return Signals({"redundant": tuple(float(id(steps[t]) not in kept) for t in list_turns(rollout))})


@PARTS.add("source", "Answers", gives=("answers",), name="answers", method="scope")
class AnswersSource(EpisodeSource):
    """The answer that an episode ended with, and the policy's confidence in the episode.

    The confidence is exp(mean log p) of the policy's choices (SCOPE). The authors average the log-probabilities of the
    most likely tokens, which engines do not give here. An episode without a readable answer has neither. Ground truth
    is not read.
    """

    def __init__(self, parts: SourceParts, *, pattern: str = ".+") -> None:
        """Create the source.

        Args:
            parts: Its objects.
            pattern: Regular expression of an answering action, case ignored. The last action of the policy that it
                matches as a whole is the answer; of a pattern with a group, the group.
        """
        super().__init__(parts)
        self._pattern = re.compile(pattern, re.IGNORECASE)

    def measure(self, rollout: Rollout) -> Signals:
        """Return the answer of an episode."""
        turns, steps = list_turns(rollout), rollout.trajectory.steps
        answer = find_answer(self._pattern, [steps[turn].action for turn in turns])
        values: Values = (1.0 if answer else None,) * len(turns)
        chosen = [
            logprob
            for row in rollout.rows
            if row.role == "policy"
            for logprob, counts in zip(row.logprobs, row.mask, strict=True)
            if counts
        ]
        scores = {"confidence": math.exp(fmean(chosen))} if answer and chosen else {}
        return Signals({"answers": values}, scores, facts={"answer": answer})


def find_answer(pattern: re.Pattern[str], actions: Sequence[str]) -> str:
    """Return the answer of the last action that the pattern matches, in lower case; empty if there is none."""
    for action in reversed(actions):
        if (match := pattern.fullmatch(" ".join(action.split()))) is not None:
            text = next((group for group in match.groups() if group), match.group())
            return " ".join(text.lower().split())
    return ""


@PARTS.add("source", "Verified part of a reference (LearNAT)", gives=("part",), name="part", method="learnat")
class PartSource(EpisodeSource):
    """Share of a reference's actions that the episode contains in order, after every turn.

    The reference is an explored success of the task instance; without one, nothing is known (LearNAT).
    """

    def measure(self, rollout: Rollout) -> Signals:
        """Return the verified part after every turn."""
        best, turns = self._parts.find_reference(rollout), list_turns(rollout)
        if best is None:
            return Signals({"part": (None,) * len(turns)})
        reference = [step.action for step in without_circles(best.steps)]
        actions = [step.action for step in rollout.trajectory.steps]
        return Signals({"part": tuple(measure_part(actions[: t + 1], reference) for t in turns)})


def measure_part(actions: Sequence[str], reference: Sequence[str]) -> float:
    """Return the share of the reference's actions that some actions contain in order; 0 with one that is not in it.

    Worked example (row 53): of the reference c1, c2, c3, the actions c1, c3 are 2/3, and c1, x are closed: 0. The order
    of the arguments of a call does not matter.
    """
    wanted, done = [_normalize(action) for action in reference], [_normalize(action) for action in actions]
    if not wanted or any(action not in wanted for action in done):
        return 0.0
    longest = [0] * (len(wanted) + 1)  # the longest common subsequence, row by row
    for action in done:
        diagonal = 0
        for n, expected in enumerate(wanted, 1):
            above = longest[n]
            longest[n] = diagonal + 1 if action == expected else max(above, longest[n - 1])
            diagonal = above
    return longest[-1] / len(wanted)


def _normalize(action: str) -> object:
    """Return an action without the order of its named arguments."""
    if (call := parse_call(action)) is None:
        return " ".join(action.split())
    name, positional, named = call
    return name, repr(positional), repr(sorted(named.items()))


_WORD = re.compile(r"[a-z0-9]+")


@PARTS.add("source", "Entities of a reference", gives=("entities",), name="entities", method="rubric")
class EntitiesSource(EpisodeSource):
    """Share of the reference's entities that a trace named: the words of the actions of an explored success.

    Without one, it is 0 (LongTraceRL).
    """

    def measure(self, rollout: Rollout) -> Signals:
        """Return the share of the entities that an episode named."""
        best = self._parts.find_reference(rollout)
        entities = _list_words(step.action for step in best.steps if step.diagnosis.success) if best else set()
        named = _list_words(rollout.trajectory.steps[t].action for t in list_turns(rollout))
        return Signals(trace={"entities": len(entities & named) / len(entities) if entities else 0.0})


def _list_words(texts: Iterable[str]) -> set[str]:
    """Return the lower-case words of some texts."""
    return {word for text in texts for word in _WORD.findall(text.lower())}
