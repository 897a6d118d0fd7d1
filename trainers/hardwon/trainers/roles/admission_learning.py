"""Learning what to share: credit for the decisions of an admission, and a logistic model that learns from it (LTS).

    trainer = AdmissionTrainer(LogisticAdmission(), target=0.4)
    trainer.update([[episode_of(result) for result in runs_of_one_task] for ... ])

The teams are frozen; all that moves are the weights of the admission. A decision is better than its
siblings when its run is, when what was shared was pulled by another team in a run that came to
something, and when it is not one YES too many. Pure functions of numbers, then thirty lines of numpy:
no engine, no environment. `admission_role` uses the same credit for a role on the shared base.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev

import numpy as np

from hardwon.memory.errors import ConfigError
from hardwon.runtime.teams.sharing_policy import LogisticAdmission, Vector
from hardwon.runtime.teams.team import TeamResult

EPS = 1e-6
"""Keeps runs that are all equal from being divided by nothing."""


# -- credit ---------------------------------------------------------------------------------------


def run_reward(aggregate: float, first: float, *, earliness: float = 1.0, first_weight: float = 0.5) -> float:
    """What a run of a team is worth.

        R = R_agg + first_weight · R_first · earliness

    aggregate: score of the answer of all together. first: score of the team that finished first.
    earliness: in [0, 1], how much of the limit was left then; 1 leaves the time out.
    """
    return aggregate + first_weight * first * earliness


def base_advantages(rewards: Sequence[float]) -> list[float]:
    """Of each of the runs of one task: (R - mean) / (std + eps); 0 for all where all are equal."""
    mean, std = fmean(rewards), pstdev(rewards)
    return [(reward - mean) / (std + EPS) for reward in rewards]


def credit(base: float, reward: float, used: bool, *, usage_weight: float = 1.0) -> float:
    """Of one decision: A = A_base + usage_weight · 1[pulled by another team and R > 0].

    What nobody pulled, and what was pulled in a run that came to nothing, gets no bonus.
    """
    return base + usage_weight * (used and reward > 0)


def with_sparsity(advantage: float, admit: bool, p: float, sparsity: float) -> float:
    """The advantage with the gradient of `sparsity · p(YES)` folded in, exactly.

    d p = p (1 - p) d logit, and d log p(decision) = (1[YES] - p) d logit, so that the penalty is an
    advantage of -sparsity · p for YES and +sparsity · (1 - p) for NO: any policy gradient will do.
    """
    return advantage - sparsity * p if admit else advantage + sparsity * (1.0 - p)


class Sparsity:
    """The price of a YES, which rises while more than `target` of the steps are shared, and falls below.

    A price above usage_weight times the rate of reuse shuts everything out, and 0 lets everything in;
    no fixed price is right while that rate is learnt. A proportional and an integral part: the price is
    back down before everything is shut out. `rate` 0 holds it where it begins.
    """

    def __init__(self, target: float = 0.4, *, begin: float = 0.0, rate: float = 0.04, most: float = 1.0) -> None:
        """rate: of the integral part, a step; the proportional part is 25 times that. most: bound of the price."""
        if not 0.0 < target < 1.0:
            raise ConfigError(f"target is {target}; it is the share of steps that may be shared, between 0 and 1.")
        self.target, self.price = target, begin
        self._sum, self._rate, self._most = begin, rate, most

    def saw(self, admitted: float) -> None:
        """So large a share of the steps was shared."""
        over = self._rate * (admitted - self.target)
        self._sum = min(max(self._sum + over, 0.0), self._most)
        self.price = min(max(self._sum + 25 * over, 0.0), self._most)

    def state_dict(self) -> dict[str, float]:
        """Where it stands."""
        return {"price": self.price, "sum": self._sum}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from there."""
        self.price, self._sum = state["price"], state["sum"]


# -- what is learnt from --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decided:
    """One decision: what was seen, what was decided and how probable YES was, and whether it was of use."""

    x: Vector
    admit: bool
    p: float
    used: bool = False
    """Another team pulled it."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One run of a team: its reward and its decisions."""

    reward: float
    decisions: tuple[Decided, ...]


def episode_of(
    result: TeamResult, admission: LogisticAdmission, *, limit_s: float | None = None, first_weight: float = 0.5
) -> Episode:
    """A run of a team as it is learnt from; `limit_s` is the time in which finishing early pays."""
    ended = [finish.seconds for finish in result.finishes if finish.result is not None]
    earliness = 1.0 if limit_s is None else max(0.0, 1.0 - min(ended, default=limit_s) / limit_s)
    reward = run_reward(result.score, result.first_score, earliness=earliness, first_weight=first_weight)
    used = result.used
    decisions = (
        Decided(admission.features(one.candidate), one.choice.admit, one.choice.p, one.entry in used)
        for one in result.shared
    )
    return Episode(reward, tuple(decisions))


def advantages(group: Sequence[Episode], *, usage_weight: float = 1.0, sparsity: float = 0.0) -> list[list[float]]:
    """Of every decision of every run of one task."""
    bases = base_advantages([episode.reward for episode in group])
    return [
        [
            with_sparsity(credit(base, episode.reward, one.used, usage_weight=usage_weight), one.admit, one.p, sparsity)
            for one in episode.decisions
        ]
        for base, episode in zip(bases, group, strict=True)
    ]


# -- the logistic model learns --------------------------------------------------------------------


@dataclass
class AdmissionTrainer:
    """Moves the weights of a logistic admission; see the module's docstring."""

    admission: LogisticAdmission
    sparsity: Sparsity = field(default_factory=Sparsity)
    usage_weight: float = 1.0
    """The bonus of what was pulled, in standard deviations of a run's reward: beta."""
    lr: float = 0.1
    """Learning rate of Adam."""
    updates: int = 0

    def __post_init__(self) -> None:
        self._mean, self._square = np.zeros_like(self.admission.weights), np.zeros_like(self.admission.weights)

    def update(self, groups: Sequence[Sequence[Episode]]) -> dict[str, float]:
        """One step on the runs of some tasks, a group for each; what there is to log of it."""
        price = self.sparsity.price
        rows = [
            (one, value)
            for group in groups
            for episode, values in zip(
                group, advantages(group, usage_weight=self.usage_weight, sparsity=price), strict=True
            )
            for one, value in zip(episode.decisions, values, strict=True)
        ]
        if not rows:
            return {"decisions": 0.0, "price": price}
        slope = np.array([value * (one.admit - one.p) for one, value in rows])
        self._move(slope @ np.stack([one.x for one, _ in rows]) / len(rows))
        admitted = fmean(one.admit for one, _ in rows)
        self.sparsity.saw(admitted)
        reward = fmean(episode.reward for group in groups for episode in group)
        used = sum(one.used for one, _ in rows) / max(1, sum(one.admit for one, _ in rows))
        return {"decisions": float(len(rows)), "price": price, "admitted": admitted, "used": used, "reward": reward}

    def _move(self, gradient: Vector) -> None:
        """Adam, uphill."""
        self.updates += 1
        self._mean = 0.9 * self._mean + 0.1 * gradient
        self._square = 0.99 * self._square + 0.01 * gradient**2
        mean, square = self._mean / (1 - 0.9**self.updates), self._square / (1 - 0.99**self.updates)
        self.admission.weights = self.admission.weights + self.lr * mean / (np.sqrt(square) + 1e-8)
