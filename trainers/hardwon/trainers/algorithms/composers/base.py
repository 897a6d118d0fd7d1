"""The protocol of composers: which episodes a group consists of, played in rounds.

    round = composer.begin(specs, iteration)      # the plain episodes, as the arms name them
    while round:
        done += played(round)
        round = composer.more(done)               # what the episodes so far call for, until nothing
    rollouts = composer.finish(done)

A decision reads only episodes that have ended, in the order of their specs, so the order in which they end changes
nothing. The number of episodes per task instance and arm is bounded by the run, see `Composer.budget`. Evaluations
always play plain episodes.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hardwon.memory import Step, Trajectory
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.samples import Rollout

from .spec import Spec


class EndedEpisode(NamedTuple):
    """An episode and how it ended."""

    spec: Spec
    rollout: Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposerParts:
    """The objects that a composer is built from."""

    seed: int = 0
    demonstrate: Callable[[str, int], Trajectory | None] = lambda task, seed: None
    """Returns a success of a task instance that was checked by playing it, by split and seed, or None."""
    walk: Callable[[str, int, Sequence[str]], Trajectory | None] = lambda task, seed, actions: None
    """Returns the steps of some actions in a task instance, or None if they cannot be taken."""


class Composer:
    """Plays every episode from its beginning, in one round: the base class of the others."""

    acted = "episodes"
    """Name of the count that tells that the mechanism acted."""

    def __init__(self, parts: ComposerParts) -> None:
        self.parts = parts
        self.counts: Counter[str] = Counter()
        """How often the mechanism acted, by name, since the metrics were last read."""
        self.iteration = 0
        """Finished iterations when the group began."""

    @property
    def budget(self) -> float:
        """Return the most episodes per task instance and arm, as a multiple of the arm's own number."""
        return 1.0

    def begin(self, specs: Sequence[Spec], iteration: int = 0) -> list[Spec]:
        """Return the episodes of the first round."""
        self.iteration = iteration
        return list(specs)

    def more(self, done: Sequence[EndedEpisode]) -> list[Spec]:
        """Return the episodes of the next round; none ends the group."""
        return []

    def finish(self, done: Sequence[EndedEpisode]) -> list[Rollout]:
        """Return the rollouts that the run goes on with."""
        return [played.rollout for played in done]

    def observe(self, rollouts: Sequence[Rollout]) -> None:
        """Take in the rollouts of an iteration when it has ended."""

    def drain_metrics(self) -> dict[str, float]:
        """Return how often the mechanism acted since the last call."""
        metrics = {f"compose/{name}": float(number) for name, number in self.counts.items()}
        self.counts.clear()
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return everything that an exact resume needs, in plain types."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""


def open_composer(settings: Mapping[str, Mapping[str, Any]], parts: ComposerParts) -> Composer | None:
    """Return the composer of the settings; None if they name none.

    Raises:
        UnknownName: There is no such composer.
    """
    for name, own in settings.items():
        composer: Composer = PARTS.get("composer", name)(parts, **own)
        return composer
    return None


def group_specs(specs: Sequence[Spec]) -> dict[tuple[str, str], list[Spec]]:
    """Return the episodes by task instance and arm, in their order."""
    groups: dict[tuple[str, str], list[Spec]] = {}
    for spec in specs:
        groups.setdefault((spec.group, spec.arm), []).append(spec)
    return groups


def group_played(done: Sequence[EndedEpisode]) -> dict[tuple[str, str], list[EndedEpisode]]:
    """Return the played episodes by task instance and arm, in their order."""
    groups: dict[tuple[str, str], list[EndedEpisode]] = {}
    for played in done:
        groups.setdefault((played.spec.group, played.spec.arm), []).append(played)
    return groups


def branch_off(parent: EndedEpisode, keep: int, copy: int, *, label: str = "", max_steps: int | None = None) -> Spec:
    """Return an episode that keeps the first steps of another one and decides the rest anew."""
    steps: tuple[Step, ...] = parent.rollout.trajectory.steps[:keep]
    if not keep:
        return replace(parent.spec, copy=copy, label=label, max_steps=max_steps)
    return replace(
        parent.spec, copy=copy, prefix=steps, parent=parent.spec.session, label=label, max_steps=max_steps, note=""
    )


def list_solution(parts: ComposerParts, spec: Spec) -> frozenset[str]:
    """Return the actions of a demonstration of an episode's task instance, which no note may name."""
    path = parts.demonstrate(spec.task, spec.seed)
    return frozenset() if path is None else frozenset(step.action for step in path.steps)


def has_succeeded(rollout: Rollout) -> bool:
    """Return whether an episode counts and has an outcome above 0."""
    return (rollout.outcome or 0.0) > 0
