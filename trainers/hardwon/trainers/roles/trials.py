"""Trials of lessons: each is recalled in episodes of other task instances, and paired with equal ones without it.

    trials = Trials(specs_of, pairs=160)
    trials.add(Trial(item, group="train#7"))
    while specs := trials.plan(salt):
        trials.collect(await play(specs))
    judged = trials.take()

The episodes belong to the trials alone: the policy learns from none of them. A lesson is tried in the instances that
share its rarest words, and never in the one that it was written about. `sequential` says when there are enough pairs.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hardwon.memory import Item
from hardwon.memory.situations.phrases import content_words
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.rollouts.explore import Task
from hardwon.trainers.rollouts.rollout import Spec

from .sequential import SequentialTest
from .tuning import TUNING


@dataclass(slots=True)
class Trial:
    """A lesson on trial."""

    item: Item
    """The lesson; its id names it until it is stored."""
    group: str
    """Task instance that it was written about."""
    episode: str
    """Id of the episode that it was written about."""
    test: SequentialTest = field(default_factory=SequentialTest)
    hits: int = 0
    """Number of pairs in which recall found it and it was shown."""
    is_known: bool = False
    """Whether a recalled item says the same."""
    is_over: bool = False
    """Whether no further pair is played."""


class Trials:
    """The lessons of an iteration, and the episodes in which they are tried."""

    def __init__(self, instances: Sequence[Task], read: Callable[[Task], str], *, pairs: int) -> None:
        """Create an empty collection.

        Args:
            instances: The task instances of training.
            read: Returns the task and the first observation of an instance.
            pairs: Largest number of pairs for a lesson.
        """
        self._instances, self._read, self._pairs = instances[: TUNING.looked_at], read, pairs
        self._words: Mapping[Task, frozenset[str]] = {}
        self._common: Counter[str] = Counter()
        self._trials: list[Trial] = []
        self._planned: dict[str, tuple[Trial, str]] = {}
        """By session with a lesson: its trial, and the session without one."""

    def add(self, trial: Trial) -> None:
        """Add a lesson."""
        self._trials.append(trial)

    def plan(self, arm: str, salt: str) -> list[Spec]:
        """Return the next episodes to play in an arm, with and without lessons; none if every trial is over.

        The episodes without a lesson are shared by the lessons that are tried in an instance.
        """
        specs: dict[str, Spec] = {}
        for trial in self._trials:
            if trial.is_over or not (chosen := self._choose(trial)):
                continue
            done = len(trial.test.differences)
            for number in range(done, min(done + TUNING.pairs_at_once, self._pairs)):
                split, seed = chosen[number % len(chosen)]
                plain = Spec(split, seed, arm, number, salt=f"{salt}/plain")
                candidate = replace(plain, salt=f"{salt}/{trial.item.id}", candidate=trial.item)
                specs |= {plain.session: plain, candidate.session: candidate}
                self._planned[candidate.session] = trial, plain.session
        return list(specs.values())

    def collect(self, rollouts: Iterable[Rollout]) -> int:
        """Add the differences of the planned episodes; return their number. A trial without any new one is over.

        Episodes that broke say nothing. A lesson that recall does not find, or that a recalled item says as well, adds
        nothing.
        """
        played = {rollout.trajectory.id: rollout for rollout in rollouts}
        new: dict[str, list[float]] = {}
        for session, (trial, plain) in self._planned.items():
            with_it, without = played[session], played[plain]
            if with_it.outcome is None or without.outcome is None or not with_it.tried:
                continue
            trial.is_known = trial.is_known or with_it.tried == "known"
            trial.hits += with_it.tried == "shown"
            gain = 0.0 if with_it.tried == "missed" else with_it.outcome - without.outcome
            new.setdefault(trial.item.id, []).append(gain)
        for trial in {trial.item.id: trial for trial, _ in self._planned.values()}.values():
            trial.test.add(new.get(trial.item.id, []))
            is_last = len(trial.test.differences) >= self._pairs or trial.item.id not in new
            trial.is_over = is_last or trial.is_known or bool(trial.test.verdict)
        self._planned = {}
        return sum(map(len, new.values()))

    def take(self) -> list[Trial]:
        """Remove and return the trials."""
        trials, self._trials = self._trials, []
        return trials

    def _choose(self, trial: Trial) -> list[Task]:
        """Return the instances that a lesson is about: those that share the rarest words with it, the best first.

        An instance with less than half of the fit of the best one is about something else. If no word is shared, the
        lesson may hold anywhere.
        """
        if not self._words:
            texts = {instance: self._read(instance) for instance in self._instances}
            self._words = {instance: content_words(text.lower()) for instance, text in texts.items()}
            self._common = Counter(word for words in self._words.values() for word in words)
        named = content_words(trial.item.text.lower())
        fits = {
            instance: sum(1.0 / self._common[word] for word in sorted(named & words))
            for instance, words in self._words.items()
            if f"{instance[0]}#{instance[1]}" != trial.group
        }
        best = max(fits.values(), default=0.0)
        order = sorted(fits, key=lambda instance: (-fits[instance], instance))
        return [instance for instance in order if fits[instance] >= best / 2][: TUNING.instances_tried]
