"""Sources of what the policy says about its own episode: tags, predictions, and progress in retrospect."""

import difflib
from collections.abc import Mapping
from statistics import fmean
from typing import Any, Literal

from hardwon.runtime.llm.prompts import step_line
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.algorithms.signals import Signals, Values
from hardwon.trainers.prompting.compact import compact

from .base import EpisodeSource, SourceParts, list_turns
from .local_judge import DIGITS, LocalAnswers, expect


@PARTS.add("source", "Tags of reasoning", gives=("tags",), name="tags", method="rlvmr")
class TagsSource(EpisodeSource):
    """The tag that the policy chose before every action; it needs roles.policy.settings.speech=tagged."""

    def measure(self, rollout: Rollout) -> Signals:
        """Return the tag of every turn."""
        steps = rollout.trajectory.steps
        tags = tuple(str(steps[turn].why.extra.get("tag", "")) for turn in list_turns(rollout))
        values: Values = tuple(1.0 if tag else None for tag in tags)
        return Signals({"tags": values}, tags=tags)


@PARTS.add("source", "Predictions of observations", gives=("prediction",), name="prediction", method="prediction")
class PredictionSource(EpisodeSource):
    """Likeness of what the policy predicted before an action and saw after it; it needs speech=predicted."""

    def measure(self, rollout: Rollout) -> Signals:
        """Return the likeness of every turn, and its mean; neither for a trace without a prediction."""
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


@PARTS.add("source", "Progress in retrospect", gives=("retrospection",), name="retrospection", method="retrospection")
class RetrospectionSource(EpisodeSource):
    """Progress after every turn that the policy says after the episode, when the outcome is known.

    p is the expected digit of the answer over nine. A success ends at 1.
    """

    def __init__(self, parts: SourceParts, *, by: Literal["policy", "base"] = "policy") -> None:
        """Create the source.

        Args:
            parts: Its objects.
            by: policy is the policy itself, and base the model before training.
        """
        super().__init__(parts)
        self._answers = LocalAnswers(parts, frozen=by == "base")

    def measure(self, rollout: Rollout) -> Signals:
        """Return the progress after every turn of the policy."""
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
