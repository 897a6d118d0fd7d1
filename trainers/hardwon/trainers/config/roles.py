"""Settings of a role: how it is credited, what it minimizes, and with which optimizer."""

from dataclasses import dataclass, field, replace
from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.outcomes import OutcomeKind
from hardwon.trainers.algorithms.settings import LearnerSettings, LossSettings

from .parsing import naming
from .sources import check_call, check_parts, check_source, find_signals


@dataclass(frozen=True, kw_only=True)
class CreditConfig:
    """Estimation of the advantage of a turn over its siblings."""

    outcome: OutcomeKind = "success"
    """The outcome of an episode: success, score (the environment's own score) or reward (the sum of
    the rewards). The credit of items and of the other roles, and the best checkpoint use the same."""
    name: str = "grpo"
    """Advantage estimator, such as grpo, dr-grpo, rloo, gigpo, slea, hgpo or salt. docs/algorithms.md lists all, with
    the signals that some of them need."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the estimator, such as discount and omega of gigpo."""

    def __post_init__(self) -> None:
        estimator = PARTS.get("estimator", self.name)
        object.__setattr__(self, "settings", check_call(estimator, self.settings, "settings"))


@dataclass(frozen=True, kw_only=True)
class RoleConfig:
    """How one role learns."""

    learner: LearnerSettings = field(default_factory=LearnerSettings)
    """The optimizer."""
    loss: LossSettings = field(default_factory=LossSettings)
    """The loss."""
    credit: CreditConfig = field(default_factory=CreditConfig)
    """Advantage estimation within group, arm and role. Only the policy uses it."""
    phase: int = 1
    """Updates before the next ready role takes its turn. One role is trained at a time."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of this kind of role."""
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Sources of signals about the turns, by name with their settings, such as entropy: {}. A MODULE:CLASS of your own
    is one as well. Only the policy uses them."""
    shape: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Shapers that change outcomes or rewards before credit, in this order, by name with their settings, such as
    density: {k: 2}. Only the policy uses them."""

    extra: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Extra examples beside the rollouts, by name with their settings, such as gate: {successes: 0}. Only the policy
    uses them."""

    def __post_init__(self) -> None:
        for name, settings in self.sources.items():
            find_signals(name)
            check_source(name, settings)
        object.__setattr__(self, "shape", check_parts("shaper", self.shape, "shape"))
        object.__setattr__(self, "extra", check_parts("extra", self.extra, "extra"))
        terms = check_parts("term", self.loss.terms, "loss.terms")
        for name, settings in terms.items():
            with naming(f"loss.terms.{name}"):  # it checks the ranges of its settings
                PARTS.get("term", name)(**settings)
        object.__setattr__(self, "loss", replace(self.loss, terms=terms))
        if self.extra and self.loss.kind != "imitation":
            raise ConfigError(
                f"extra has {', '.join(self.extra)}, whose examples have no log-probabilities of sampling, and "
                f"loss.kind is {self.loss.kind}; set loss.kind=imitation, which is -A log p for the rollouts as well."
            )

    @property
    def needs(self) -> dict[str, tuple[str, ...]]:
        """Return the signals that the estimator and each shaper need, by the setting that names them."""
        shapers = {f"shape.{name}": PARTS.find("shaper", name).needs for name in self.shape}
        return {f"credit.name={self.credit.name}": PARTS.find("estimator", self.credit.name).needs, **shapers}
