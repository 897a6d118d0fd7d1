"""What becomes of the items that an extractor proposes: they are stored after a trial in other worlds.

    proposals.offer(reading, counts)        # its candidates wait for trials
    specs = proposals.assign(specs)         # half of the episodes are shown one
    proposals.collect(rollouts)
    proposals.judge(counts)                 # those that helped are stored, and all of them are paid

A proposal only adds. The steps that it rests on stay: their effects are measured like all others, and recall leaves out
what hurts.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hardwon.memory import ExperienceLibrary, Item, Trajectory
from hardwon.memory.errors import UnknownName
from hardwon.memory.records import Add, Admission
from hardwon.memory.trust.instructions import instruction_in
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.rollouts.beginnings import Beginnings
from hardwon.trainers.rollouts.rollout import Spec

from .item_reward import Buffer
from .note_generators import Written
from .trials import Trial, Trials


@dataclass(frozen=True, slots=True)
class Reading:
    """The verdicts about one episode."""

    trajectory: Trajectory
    written: tuple[Written, ...]
    group: str = ""
    """Task instance of the episode."""


class Proposals:
    """Tries what an extractor proposes, stores what helped, and pays for it through the buffer."""

    def __init__(
        self,
        library: ExperienceLibrary,
        buffer: Buffer,
        measure_length: Callable[[str], int],
        beginnings: Beginnings,
        *,
        worlds: int,
        explores: float,
        reward: Mapping[str, Any],
    ) -> None:
        """Create it on a library."""
        self._library, self._buffer, self._measure_length = library, buffer, measure_length
        self._beginnings, self._explores, self._reward = beginnings, explores, reward
        self.trials = Trials(worlds=worlds)

    def offer(self, reading: Reading, counts: "Counter[str]") -> None:
        """Let the candidates of a reading wait for trials, and buffer their verdicts.

        A skipped candidate is tried as well with the probability `explores`.
        """
        for written in reading.written:
            name = written.row.trace
            counts["returned"] += not written.is_kept
            if not written.is_kept and random.Random(f"{name} explored").random() >= self._explores:
                continue
            if not _may_be_shown(written.item, reading.trajectory):
                # nothing of an untrusted source is shown to a policy: the library keeps it in quarantine
                if written.is_kept:
                    self._library.apply([Add(written.item)], reading.trajectory, [])
                continue
            self._buffer.add(written.row, written.keeps + (1.0 - written.keeps) * self._explores)
            trial = Trial(replace(written.item, id=name), reading.group, reading.trajectory.id)
            dropped = self.trials.add(trial)
            counts["proposed"] += name not in dropped
            for other in dropped:
                self._buffer.forget(other)

    def assign(self, specs: Sequence[Spec]) -> Sequence[Spec]:
        """Return the episodes, some of them with a candidate."""
        return self.trials.assign(specs, self._read_situation) if len(self.trials) else specs

    def rate(self, specs: Sequence[Spec]) -> list[float]:
        """Return how much the waiting candidates have to do with the task instances of episodes; see `Trials.rate`."""
        ratings = self.trials.rate({spec.group: self._read_situation(spec) for spec in specs})
        return [ratings[spec.group] for spec in specs]

    def _read_situation(self, spec: Spec) -> str:
        """Return the task and the first observation of an episode."""
        state, _ = self._beginnings.read(spec)
        return f"{state.task}\n{state.observation}"

    def collect(self, rollouts: Sequence[Rollout]) -> None:
        """Take over the outcomes of the episodes with candidates."""
        self.trials.collect(rollouts)

    def judge(self, counts: "Counter[str]") -> None:
        """Store the candidates that helped, and pay the verdicts about all that were tried often enough."""
        for trial in self.trials.take_judged():
            length = self._measure_length(trial.item.title)
            reward = trial.reward(tokens=length, **self._reward)
            counts["judged"] += 1
            counts["known"] += trial.is_known
            if trial.helped and reward > 0:
                answer = self._store(trial, reward)
                counts[answer.status] += 1
                if answer.status == "merged":  # the library has it, even where it was not recalled
                    reward = 0.0
                elif answer.status == "rejected":  # a refusal by the library gives no reward signal
                    self._buffer.forget(trial.item.id)
                    continue
            self._buffer.settle(trial.item.id, reward)
        counts["waiting"] = len(self.trials)

    def _store(self, trial: Trial, reward: float) -> Admission:
        """Add a candidate that helped to the library, with a score by its gain."""
        item = replace(trial.item, id="", score=min(1.0, 0.5 + 0.5 * reward))
        try:
            episode = self._library.trajectory(trial.episode)
        except UnknownName as gone:
            return Admission("rejected", f"its episode was forgotten: {gone}")
        (answer,) = self._library.apply([Add(item)], episode, [])
        return answer


def _may_be_shown(item: Item, trajectory: Trajectory) -> bool:
    """Return whether a candidate comes from a trusted episode and does not read like an instruction to a model."""
    return trajectory.trust == "trusted" and item.trust == "trusted" and not instruction_in(item.text)
