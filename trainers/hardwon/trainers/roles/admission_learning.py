"""Credit for the decisions of an admission, and training of a logistic admission (LTS).

    trainer = AdmissionTrainer(LogisticAdmission(), target=0.4)
    trainer.update([[episode_of(result) for result in runs_of_one_task] for ... ])

The teams are frozen; only the admission is trained. A decision gets a higher advantage if its run beats the
sibling runs, and if another member pulled the shared step in a run with a positive reward. Each YES costs the
current price. `roles.admission` uses the same credit for a role on the shared base.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev

import numpy as np

from hardwon.memory.errors import ConfigError
from hardwon.runtime.teams.sharing_policy import LogisticAdmission, Vector
from hardwon.runtime.teams.team import TeamResult

from .tuning import TUNING

# -- credit ---------------------------------------------------------------------------------------


def run_reward(aggregate: float, first: float, *, earliness: float = 1.0, first_weight: float = 0.5) -> float:
    """Return the reward of a team's run: R = R_agg + first_weight · R_first · earliness."""
    return aggregate + first_weight * first * earliness


def base_advantages(rewards: Sequence[float]) -> list[float]:
    """Return (R - mean) / (std + eps) for each run of one task; 0 if all are equal."""
    mean, std = fmean(rewards), pstdev(rewards)
    return [(reward - mean) / (std + TUNING.epsilon) for reward in rewards]


def credit(base: float, reward: float, used: bool, *, usage_weight: float = 1.0) -> float:
    """Return the advantage of a decision: A_base + usage_weight · 1[pulled by another member and R > 0]."""
    return base + usage_weight * (used and reward > 0)


def with_sparsity(advantage: float, admit: bool, p: float, sparsity: float) -> float:
    """Return the advantage with the exact gradient of the penalty `sparsity · p(YES)` added.

    With d p = p (1 - p) d logit and d log p(decision) = (1[YES] - p) d logit, the penalty equals an advantage of
    -sparsity · p for YES and +sparsity · (1 - p) for NO. It works with any policy gradient.
    """
    return advantage - sparsity * p if admit else advantage + sparsity * (1.0 - p)


class Sparsity:
    """The price of a YES, which rises while more than `target` of the steps are shared and falls otherwise.

    No fixed price works: one above usage_weight times the reuse rate stops all sharing, 0 allows all of it, and the
    reuse rate changes during training. The controller has a proportional and an integral part, so the price drops
    before all sharing stops. With `rate` 0 the price is constant.
    """

    def __init__(self, target: float = 0.4, *, begin: float = 0.0, rate: float = 0.04, most: float = 1.0) -> None:
        """Create a price."""
        if not 0.0 < target < 1.0:
            raise ConfigError(f"target is {target}; it is the share of steps to share and must be between 0 and 1.")
        self.target, self.price = target, begin
        self._sum, self._rate, self._most = begin, rate, most

    def update(self, admitted: float) -> None:
        """Update the price with the share of steps that was shared."""
        over = self._rate * (admitted - self.target)
        # clamped like the price: an unbounded integral would take long to return from a bound
        self._sum = min(max(self._sum + over, 0.0), self._most)
        self.price = min(max(self._sum + 25 * over, 0.0), self._most)

    def state_dict(self) -> dict[str, float]:
        """Return the state of the controller."""
        return {"price": self.price, "sum": self._sum}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore the state that `state_dict` returned."""
        self.price, self._sum = state["price"], state["sum"]


# -- training data -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decided:
    """One decision: its features, the choice, the probability of YES, and whether the step was used."""

    x: Vector
    admit: bool
    p: float
    used: bool = False
    """True if another member pulled the step."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One run of a team: its reward and its decisions."""

    reward: float
    decisions: tuple[Decided, ...]


def episode_of(result: TeamResult, admission: LogisticAdmission, *, limit_s: float | None = None) -> Episode:
    """Return a team's result as training data."""
    ended = [finish.seconds for finish in result.finishes if finish.result is not None]
    earliness = 1.0 if limit_s is None else max(0.0, 1.0 - min(ended, default=limit_s) / limit_s)
    reward = run_reward(result.score, result.first_score, earliness=earliness)
    used = result.used
    decisions = (
        Decided(admission.features(entry.candidate), entry.choice.admit, entry.choice.p, entry.entry in used)
        for entry in result.shared
    )
    return Episode(reward, tuple(decisions))


def advantages(group: Sequence[Episode], *, usage_weight: float = 1.0, sparsity: float = 0.0) -> list[list[float]]:
    """Return the advantage of every decision, for each run of one task."""
    bases = base_advantages([episode.reward for episode in group])
    return [
        [
            with_sparsity(
                credit(base, episode.reward, decision.used, usage_weight=usage_weight),
                decision.admit,
                decision.p,
                sparsity,
            )
            for decision in episode.decisions
        ]
        for base, episode in zip(bases, group, strict=True)
    ]


# -- training of the logistic model----------------------------------------------------------------


@dataclass
class AdmissionTrainer:
    """Trains the weights of a logistic admission."""

    admission: LogisticAdmission
    sparsity: Sparsity = field(default_factory=Sparsity)
    usage_weight: float = 1.0
    """Bonus for a pulled step, in standard deviations of the reward (beta)."""
    lr: float = 0.1
    """Learning rate of Adam."""
    updates: int = 0

    def __post_init__(self) -> None:
        self._mean, self._square = np.zeros_like(self.admission.weights), np.zeros_like(self.admission.weights)

    def update(self, groups: Sequence[Sequence[Episode]]) -> dict[str, float]:
        """Run one step of Adam on groups of runs, one group per task; return the metrics."""
        price = self.sparsity.price
        rows = [
            (decision, value)
            for group in groups
            for episode, values in zip(
                group, advantages(group, usage_weight=self.usage_weight, sparsity=price), strict=True
            )
            for decision, value in zip(episode.decisions, values, strict=True)
        ]
        if not rows:
            return {"decisions": 0.0, "price": price}
        # d log p(decision) / d logit is 1[YES] - p
        slope = np.array([value * (decision.admit - decision.p) for decision, value in rows])
        self._move(slope @ np.stack([decision.x for decision, _ in rows]) / len(rows))
        admitted = fmean(decision.admit for decision, _ in rows)
        self.sparsity.update(admitted)
        reward = fmean(episode.reward for group in groups for episode in group)
        used = sum(decision.used for decision, _ in rows) / max(1, sum(decision.admit for decision, _ in rows))
        return {"decisions": float(len(rows)), "price": price, "admitted": admitted, "used": used, "reward": reward}

    def _move(self, gradient: Vector) -> None:
        """Apply one step of Adam in the direction of the gradient (ascent)."""
        self.updates += 1
        self._mean = 0.9 * self._mean + 0.1 * gradient
        self._square = 0.99 * self._square + 0.01 * gradient**2
        mean, square = self._mean / (1 - 0.9**self.updates), self._square / (1 - 0.99**self.updates)
        self.admission.weights = self.admission.weights + self.lr * mean / (np.sqrt(square) + 1e-8)
