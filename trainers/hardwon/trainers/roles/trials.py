"""Trials of candidates: an item is stored after it has helped in other worlds than its own.

    trials = Trials(worlds=2)
    trials.add(Trial(item, group="train#7", episode=trajectory.id))
    ratings = trials.rate({"train#8": situation, ...})  # which task instances to play
    specs = trials.assign(specs, read_situation)      # before the rollouts
    trials.collect(rollouts)                          # after them
    for trial in trials.take_judged(): ...

Half of the episodes of an arm in a task instance are shown what recall gives today. The other half is shown that, and
one candidate. The difference in outcome is what the candidate adds: a text that repeats a recalled item adds nothing.
A candidate is never tried in the task instance that it was learned from. A trial in an instance that it is not about
shows nothing, and recall would not show it there either. So instances that a waiting candidate is about are played: of
`TUNING.looked_at` times as many, those that share the rarest words with a candidate.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any

from hardwon.memory import Item
from hardwon.memory.situations.phrases import content_words
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.rollouts.candidate import repeats
from hardwon.trainers.rollouts.rollout import Spec

from .item_reward import Use, is_gain, worth
from .tuning import TUNING


@dataclass(slots=True)
class Trial:
    """A candidate and what its trials have shown so far."""

    item: Item
    """The candidate; its id names it until it is stored."""
    group: str
    """Task instance that it was learned from."""
    episode: str
    """Id of the episode that it was learned from."""
    uses: list[Use] = field(default_factory=list)
    """Outcomes with and without the candidate, by task instance and arm."""
    is_known: bool = False
    """Whether it repeated an item that was recalled where it was tried."""

    def reward(self, *, tokens: int, cost: float, length: int) -> float:
        """Return what the candidate adds, less its cost; 0 if it repeats what is recalled anyway."""
        if self.is_known:
            return 0.0
        return worth(self.uses, tokens=tokens, cost=cost, length=length) or 0.0

    @property
    def helped(self) -> bool:
        """Return whether the candidate gained more than chance explains."""
        return not self.is_known and is_gain(self.uses)


@dataclass(frozen=True, slots=True)
class _Assignment:
    """The candidate of a task instance in one arm, and the episodes that are shown it."""

    candidate: str
    sessions: frozenset[str]


class Trials:
    """The candidates on trial, and where each of them is tried."""

    def __init__(self, *, worlds: int) -> None:
        """Create an empty collection."""
        self._worlds = worlds
        self._trials: dict[str, Trial] = {}
        self._assigned: dict[tuple[str, str], _Assignment] = {}

    def __len__(self) -> int:
        return len(self._trials)

    def add(self, trial: Trial) -> list[str]:
        """Add a candidate, unless one that says the same waits already."""
        if any(repeats(trial.item, other.item) for other in self._trials.values()):
            return [trial.item.id]
        self._trials[trial.item.id] = trial
        untried = [name for name, other in self._trials.items() if not other.uses]
        dropped = untried[: max(0, len(self._trials) - TUNING.max_waiting)]
        for name in dropped:
            del self._trials[name]
        return dropped

    # -- before and after the rollouts ----------------------------------------------------------------

    def rate(self, situations: Mapping[str, str]) -> dict[str, float]:
        """Return how much the waiting candidates have to do with task instances; 0 is nothing.

        A word counts less, the more candidates and the more of these instances have it: a place that all of them have
        says nothing.
        """
        words, frequency = self._read_words()
        texts = {group: content_words(situation.lower()) for group, situation in situations.items()}
        common = Counter(word for each in texts.values() for word in each)
        return {
            group: max(
                (
                    sum(1.0 / (frequency[word] * common[word]) for word in sorted(words[trial.item.id] & text))
                    for trial in self._trials.values()
                    if trial.group != group
                ),
                default=0.0,
            )
            for group, text in texts.items()
        }

    def _read_words(self) -> tuple[dict[str, frozenset[str]], Counter[str]]:
        """Return the words of each candidate, and the number of candidates that have each word."""
        words = {trial.item.id: content_words(trial.item.text.lower()) for trial in self._trials.values()}
        return words, Counter(word for each in words.values() for word in each)

    def assign(self, specs: Sequence[Spec], read_situation: Callable[[Spec], str]) -> list[Spec]:
        """Return the episodes, half of those of each task instance and arm with a candidate."""
        copies: dict[tuple[str, str], list[Spec]] = {}
        for spec in specs:
            copies.setdefault((spec.group, spec.arm), []).append(spec)
        chosen: dict[str, Item] = {}
        for key, group in copies.items():
            half = sorted(group, key=lambda spec: spec.copy)[: len(group) // 2]
            candidate = self._choose(group[0], read_situation) if half else None
            if candidate is not None:
                sessions = frozenset(spec.session for spec in half)
                self._assigned[key] = _Assignment(candidate.id, sessions)
                chosen.update(dict.fromkeys(sessions, candidate))
        return [replace(spec, candidate=chosen.get(spec.session)) for spec in specs]

    def _choose(self, spec: Spec, read_situation: Callable[[Spec], str]) -> Item | None:
        """Return the candidate that has most to do with a situation, or None if none is left to try."""
        under_way = Counter(assignment.candidate for assignment in self._assigned.values())
        free = [
            trial
            for name, trial in self._trials.items()
            if trial.group != spec.group and len(trial.uses) + under_way[name] < self._worlds
        ]
        if not free:
            return None
        # a word that all candidates share says nothing about which of them fits
        words, frequency = self._read_words()
        situation = content_words(read_situation(spec).lower())

        def fit(trial: Trial) -> tuple[float, int]:
            shared = words[trial.item.id] & situation
            return sum(1.0 / frequency[word] for word in sorted(shared)), len(trial.uses) + under_way[trial.item.id]

        # the first of equal ones, which has waited longest
        return max(free, key=fit).item

    def collect(self, rollouts: Iterable[Rollout]) -> int:
        """Add the outcomes of the assigned episodes; return the number of trials that say something.

        A half without a finished episode says nothing, and neither does one in which nothing could be shown.
        """
        halves: dict[tuple[str, str], tuple[list[Rollout], list[Rollout]]] = {}
        for rollout in rollouts:
            key = (rollout.group, rollout.trajectory.arm)
            if key in self._assigned and rollout.outcome is not None:
                with_it, without = halves.setdefault(key, ([], []))
                is_shown = rollout.trajectory.id in self._assigned[key].sessions
                (with_it if is_shown else without).append(rollout)
        count = 0
        for key, (with_it, without) in sorted(halves.items()):
            trial = self._trials.get(self._assigned[key].candidate)
            if trial is not None and (use := _compare(with_it, without)) is not None:
                trial.uses.append(use)
                trial.is_known = trial.is_known or all(rollout.tried != "shown" for rollout in with_it)
                count += 1
        # those of replaced groups are never collected and may be tried again
        self._assigned = {}
        return count

    def take_judged(self) -> list[Trial]:
        """Remove and return the candidates that were tried often enough, or that repeat what is recalled anyway."""
        judged = [trial for trial in self._trials.values() if trial.is_known or len(trial.uses) >= self._worlds]
        for trial in judged:
            del self._trials[trial.item.id]
        return judged

    # -- state ----------------------------------------------------------------------------------------

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the candidates as plain values. Between two iterations, none is assigned."""
        return [asdict(trial) for trial in self._trials.values()]

    def load_state_dict(self, state: Iterable[Mapping[str, Any]]) -> None:
        """Restore the state that `state_dict` returned."""
        self._assigned, self._trials = {}, {}
        for saved in state:
            uses = [Use(tuple(use["shown"]), tuple(use["control"])) for use in saved["uses"]]
            trial = Trial(Item(**saved["item"]), saved["group"], saved["episode"], uses, saved["is_known"])
            self._trials[trial.item.id] = trial


def _compare(with_it: Sequence[Rollout], without: Sequence[Rollout]) -> Use | None:
    """Return the outcomes of both halves, or None if they cannot be compared.

    An episode that recalled the candidate's text anyway adds nothing: it counts as the mean of the other half.
    """
    control = tuple(sorted(rollout.outcome for rollout in without if rollout.outcome is not None))
    tried = [rollout for rollout in with_it if rollout.tried]
    if not control or not tried:
        return None
    same = fmean(control)
    outcomes = sorted(
        rollout.outcome if rollout.tried == "shown" and rollout.outcome is not None else same for rollout in tried
    )
    return Use(tuple(outcomes), control)
