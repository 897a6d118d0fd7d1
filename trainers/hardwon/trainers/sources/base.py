"""The protocol of signal sources, and how a run reads them.

A source reads the finished rollouts of a group right after they were played, before the run asks whether any role can
learn from them. Failed rollouts are not read, and an evaluation reads nothing.
"""

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from hardwon.memory import Trajectory
from hardwon.runtime import Environment
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.algorithms.signals import Signals, count_missing
from hardwon.trainers.config.sources import check_source, find_signals, import_source
from hardwon.trainers.engines.base import Engine
from hardwon.trainers.prompting.base import PromptFormat


class Source(Protocol):
    """Finds out something about the turns of the policy that the environment does not report.

    It is called with its `SourceParts`, and its settings as keyword arguments. Your own class names the signals in
    `gives`. Attributes that are optional: `spent`, counts such as calls and tokens of the last reading, and `rates`,
    shares of the last reading, both by name.
    """

    async def read(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, Signals]:
        """Return the signals of the rollouts by id of the trajectory."""
        ...

    def learn(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, float]:
        """Train on the rollouts of an iteration if there is anything to train; return metrics to log."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything that an exact resume needs."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        ...


class Untrained:
    """The part of a source that has nothing to learn and no state."""

    def __init__(self, parts: "SourceParts") -> None:
        self._parts = parts

    def learn(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, float]:
        """Return no metrics: there is nothing to train."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore nothing."""


class EpisodeSource(Untrained, ABC):
    """The part of a source that reads each episode by itself."""

    async def read(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, Signals]:
        """Return the signals of the rollouts by id of the trajectory."""
        return {rollout.trajectory.id: self.measure(rollout) for group in groups for rollout in group}

    @abstractmethod
    def measure(self, rollout: Rollout) -> Signals:
        """Return the signals of an episode."""


@dataclass(frozen=True, slots=True)
class SourceParts:
    """The objects that a source is built from."""

    model: Any
    """The policy's model in this process, which the learner trains."""
    prompts: PromptFormat
    engine: Engine
    environment: Environment
    seed: int = 0
    temperature: float = 1.0
    """Temperature at which the policy's tokens are sampled."""
    budget: int = 4096
    """Tokens of a micro-batch when log-probabilities are computed."""
    reference: Callable[[str, int], Trajectory | None] = lambda task, seed: None
    """Returns an explored success of a task instance, by split and seed, or None."""

    def find_reference(self, rollout: Rollout, shift: int = 0) -> Trajectory | None:
        """Return an explored success of a rollout's task instance, or of one that comes so many seeds later."""
        task, _, seed = rollout.group.rpartition("#")
        return self.reference(task, int(seed) + shift)


def open_source(name: str, settings: Mapping[str, Any], parts: SourceParts) -> Source:
    """Return a source by its name, or your own by `MODULE:CLASS`."""
    kind = import_source(name) if ":" in name else PARTS.get("source", name)
    source: Source = kind(parts, **check_source(name, settings))
    return source


class Sources:
    """The sources of a run, in the order of the settings; a later one sees the signals of the earlier ones."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self._sources = sources
        self._sums: dict[str, float] = defaultdict(float)
        self._turns: dict[str, int] = defaultdict(int)

    def __bool__(self) -> bool:
        return bool(self._sources)

    async def read(
        self, rollouts: Sequence[Rollout], *, only: Collection[str] | None = None, without: Collection[str] = ()
    ) -> list[Rollout]:
        """Return the rollouts with the signals of the sources, in the same order."""
        rollouts = list(rollouts)
        for name, source in self._sources.items():
            gives = {*find_signals(name)}
            if (only is not None and gives.isdisjoint(only)) or not gives.isdisjoint(without):
                continue
            began = time.perf_counter()
            readings = await source.read(group_finished(rollouts))
            self._sums[f"signal/{name}/seconds"] += time.perf_counter() - began
            for kind, number in getattr(source, "spent", {}).items():
                self._sums[f"signal/{name}/{kind}"] += number
            for kind, share in getattr(source, "rates", {}).items():
                self._sums[f"signal/{name}/{kind}"] = share
            rollouts = [_attach(rollout, readings) for rollout in rollouts]
            self._count(name, rollouts, readings)
        return rollouts

    def _count(self, name: str, rollouts: Sequence[Rollout], readings: Mapping[str, Signals]) -> None:
        """Count the values of a source, and those that are missing; a value of a whole trace counts as one."""
        for rollout in rollouts:
            if rollout.failed or not rollout.rows:
                continue
            signals = readings.get(rollout.trajectory.id)
            columns: list[Sequence[float | None]] = (
                [(None,)] if signals is None else [*signals.turns.values()] or [(0.0,)]
            )
            for values in columns:
                self._turns[name] += len(values)
                self._sums[f"signal/{name}/missing_turns"] += count_missing(values)

    def learn(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Train the sources that learn on the rollouts of an iteration, and return their metrics."""
        groups = group_finished(rollouts)
        return {
            f"signal/{name}/{key}": value
            for name, source in self._sources.items()
            for key, value in source.learn(groups).items()
        }

    def drain_metrics(self) -> dict[str, float]:
        """Return the metrics since the last call: the share of turns without a value, counts and seconds."""
        shares = {
            f"signal/{name}/missing": self._sums[f"signal/{name}/missing_turns"] / max(1, number)
            for name, number in self._turns.items()
        }
        metrics = {**self._sums, **shares}
        self._sums.clear()
        self._turns.clear()
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all sources by name."""
        return {name: source.state_dict() for name, source in self._sources.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the states of all sources."""
        for name, source in self._sources.items():
            source.load_state_dict(state[name])


def group_finished(rollouts: Sequence[Rollout]) -> list[list[Rollout]]:
    """Return the rollouts that have samples and did not fail, by task instance, arm and root."""
    groups: dict[tuple[str, str, str], list[Rollout]] = defaultdict(list)
    for rollout in rollouts:
        if rollout.rows and not rollout.failed:
            groups[rollout.group, rollout.trajectory.arm, rollout.root].append(rollout)
    return list(groups.values())


def _attach(rollout: Rollout, readings: Mapping[str, Signals]) -> Rollout:
    """Return the rollout with the signals that a source found."""
    if rollout.failed or not rollout.rows or rollout.trajectory.id not in readings:
        return rollout
    return replace(rollout, signals=rollout.signals.merge(readings[rollout.trajectory.id]))


def list_turns(rollout: Rollout, role: str = "policy") -> list[int]:
    """Return the steps of the episode that the role has samples of, in order, each once."""
    return list(dict.fromkeys(sample.turn for sample in rollout.rows if sample.role == role))
