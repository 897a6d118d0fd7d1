"""Sources that read only what the world and the loop recorded: progress, needless turns, parts of a reference."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from hardwon.memory.learning.skill_mining import without_circles
from hardwon.runtime.environments.calls import parse_call
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.algorithms.signals import Signals, Values
from hardwon.trainers.config.sources import AnswersSettings, ProgressSettings

from .base import SourceParts, Untrained, list_turns, register_source


@register_source("progress")
class ProgressSource(Untrained):
    """Gives the progress of every turn: its reward, or what the diagnosis saw."""

    gives = ("progress",)

    def __init__(self, parts: SourceParts) -> None:
        self._settings: ProgressSettings = parts.settings

    async def read(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, Signals]:
        """Return the progress of every turn."""
        return {
            rollout.trajectory.id: Signals({"progress": self._measure(rollout)})
            for group in groups
            for rollout in group
        }

    def _measure(self, rollout: Rollout) -> Values:
        steps = rollout.trajectory.steps
        if self._settings.of == "diagnosis":
            return tuple(steps[t].diagnosis.progress for t in list_turns(rollout))
        return tuple(float(steps[t].reward) for t in list_turns(rollout))


@register_source("redundant")
class RedundantSource(Untrained):
    """Gives 1 for a turn that cleaning drops, because it was refused or led back to an earlier state, and else 0."""

    gives = ("redundant",)

    def __init__(self, parts: SourceParts) -> None:
        """Create the source; it has no settings."""

    async def read(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, Signals]:
        """Return whether each turn was needless."""
        return {rollout.trajectory.id: Signals({"redundant": _mark(rollout)}) for group in groups for rollout in group}


def _mark(rollout: Rollout) -> Values:
    """Return 1 for every turn whose step is not part of the cleaned path."""
    steps = rollout.trajectory.steps
    kept = {id(step) for step in without_circles([s for s in steps if s.action and s.diagnosis.success])}
    return tuple(float(id(steps[t]) not in kept) for t in list_turns(rollout))


@register_source("answers")
class AnswersSource(Untrained):
    """Gives the answer of an episode, and exp(mean log p) of the policy's choices in it as `confidence` (SCOPE).

    The authors average the log-probabilities of the most likely tokens, which engines do not give here. An episode
    without a readable answer has neither. Ground truth is not read.
    """

    gives = ("answers",)

    def __init__(self, parts: SourceParts) -> None:
        settings: AnswersSettings = parts.settings
        self._pattern = re.compile(settings.pattern, re.IGNORECASE)

    async def read(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, Signals]:
        """Return the answer of every rollout."""
        return {rollout.trajectory.id: self._read(rollout) for group in groups for rollout in group}

    def _read(self, rollout: Rollout) -> Signals:
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


@register_source("part")
class PartSource(Untrained):
    """Gives the verified part of a reference after every turn; None without a reference (LearNAT).

    The reference is an explored success of the task instance.
    """

    gives = ("part",)

    def __init__(self, parts: SourceParts) -> None:
        self._reference = parts.reference

    async def read(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, Signals]:
        """Return the verified part after every turn."""
        return {
            rollout.trajectory.id: Signals({"part": self._measure(rollout)}) for group in groups for rollout in group
        }

    def _measure(self, rollout: Rollout) -> Values:
        task, _, seed = rollout.group.rpartition("#")
        best, turns = self._reference(task, int(seed)), list_turns(rollout)
        if best is None:
            return (None,) * len(turns)
        reference = [step.action for step in without_circles(best.steps)]
        actions = [step.action for step in rollout.trajectory.steps]
        return tuple(measure_part(actions[: t + 1], reference) for t in turns)


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


@register_source("entities")
class EntitiesSource(Untrained):
    """Gives the share of the reference's entities that the actions of a trace name (LongTraceRL).

    The entities are the words of the actions of an explored success of the task instance. Without one, it is 0.
    """

    gives = ("entities",)

    def __init__(self, parts: SourceParts) -> None:
        self._reference = parts.reference

    async def read(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, Signals]:
        """Return the share of every rollout."""
        signals = {}
        for rollout in [rollout for group in groups for rollout in group]:
            task, _, seed = rollout.group.rpartition("#")
            best = self._reference(task, int(seed))
            entities = _list_words(step.action for step in best.steps if step.diagnosis.success) if best else set()
            named = _list_words(rollout.trajectory.steps[t].action for t in list_turns(rollout))
            share = len(entities & named) / len(entities) if entities else 0.0
            signals[rollout.trajectory.id] = Signals(trace={"entities": share})
        return signals


def _list_words(texts: Iterable[str]) -> set[str]:
    """Return the lower-case words of some texts."""
    return {word for text in texts for word in _WORD.findall(text.lower())}
