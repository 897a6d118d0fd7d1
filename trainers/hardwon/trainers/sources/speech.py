"""Sources of what the policy says about its own episode: tags, predictions, and progress in retrospect."""

import difflib
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from hardwon.runtime.llm.prompts import step_line
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.algorithms.signals import Signals, Values
from hardwon.trainers.config.sources import RetrospectionSettings
from hardwon.trainers.prompting.compact import compact

from .base import SourceParts, Untrained, list_turns, register_source
from .local_judge import DIGITS, LocalAnswers, expect


@register_source("tags")
class TagsSource(Untrained):
    """Gives the tag that the policy chose before every action (RLVMR)."""

    gives = ("tags",)

    def __init__(self, parts: SourceParts) -> None:
        """Create the source; it has no settings."""

    async def read(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, Signals]:
        """Return the tags of every rollout."""
        return {rollout.trajectory.id: self._read(rollout) for group in groups for rollout in group}

    def _read(self, rollout: Rollout) -> Signals:
        steps = rollout.trajectory.steps
        tags = tuple(str(steps[turn].why.extra.get("tag", "")) for turn in list_turns(rollout))
        values: Values = tuple(1.0 if tag else None for tag in tags)
        return Signals({"tags": values}, tags=tags)


@register_source("prediction")
class PredictionSource(Untrained):
    """Gives the mean likeness of what the policy predicted before each action and what it saw after it (Role-Agent)."""

    gives = ("prediction",)

    def __init__(self, parts: SourceParts) -> None:
        """Create the source; it has no settings."""

    async def read(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, Signals]:
        """Return the likeness of every turn, and its mean; neither for a trace without a prediction."""
        return {rollout.trajectory.id: self._read(rollout) for group in groups for rollout in group}

    def _read(self, rollout: Rollout) -> Signals:
        values: list[float | None] = []
        for turn in list_turns(rollout):
            step = rollout.trajectory.steps[turn]
            text = str(step.why.extra.get("prediction", ""))
            values.append(measure_likeness(text, f"{step.post.feedback} {step.post.observation}") if text else None)
        likenesses = [value for value in values if value is not None]
        return Signals({"prediction": tuple(values)}, {"prediction": fmean(likenesses)} if likenesses else {})


def measure_likeness(predicted: str, observed: str) -> float:
    """Return the share of words in matching runs of two texts, from 0 to 1 (the ratio of difflib)."""
    # Words of a prediction and of an observation that are compared: the comparison takes quadratic time.
    a, b = ([word for word in compact(text).split() if word != "."][:100] for text in (predicted, observed))
    return difflib.SequenceMatcher(None, a, b, autojunk=False).ratio()


@register_source("retrospection")
class RetrospectionSource(Untrained):
    """Gives the progress p_t that the policy itself says after the episode, outcome likenesses (RePro).

    p is the expected digit of the answer over nine. A success ends at 1.
    """

    gives = ("retrospection",)

    def __init__(self, parts: SourceParts) -> None:
        settings: RetrospectionSettings = parts.settings
        self._answers = LocalAnswers(parts, frozen=settings.by == "base")

    async def read(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, Signals]:
        """Return the progress after every turn of the policy."""
        return {rollout.trajectory.id: self._read(rollout) for group in groups for rollout in group}

    def _read(self, rollout: Rollout) -> Signals:
        turns = list_turns(rollout)
        questions = [ask_progress(rollout, turn) for turn in turns]
        values = [expect(shares) for shares in self._answers.weigh(questions, DIGITS)] if questions else []
        if values and (rollout.outcome or 0.0) > 0:
            values[-1] = 1.0
        return Signals({"retrospection": tuple(values)})

    def state_dict(self) -> dict[str, Any]:
        """Return the weights of the copy of the base, if there is one."""
        return self._answers.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the copy of the base."""
        self._answers.load_state_dict(state)


def ask_progress(rollout: Rollout, turn: int) -> str:
    """Return the question for the progress after a turn, at the end of an episode."""
    steps = rollout.trajectory.steps
    lines = "\n".join(step_line(step) for step in steps[: turn + 1])
    ending = "solved" if (rollout.outcome or 0.0) > 0 else "failed"
    return (
        f"{steps[0].pre.task}\n{lines}\nThe episode ended later: {ending}.\n"
        "progress after the last of these turns, from 0 to 9 ?"
    )
