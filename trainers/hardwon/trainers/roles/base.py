"""The protocol of the trainable roles, and the policy as a role.

A role collects what it can learn from out of finished rollouts, reports when it has enough, and updates its
weights. Before the episodes of an arm with guidance `role`, the roles provide the text to show.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from hardwon.memory import ExperienceLibrary, Trajectory
from hardwon.runtime import Environment
from hardwon.trainers.algorithms.advantages import compute_spread
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.learner import Learner, freeze_copy
from hardwon.trainers.algorithms.outcomes import OutcomeKind
from hardwon.trainers.algorithms.samples import PackedSequence, Rollout, Sample, pack_samples, to_trace
from hardwon.trainers.algorithms.shapers import shape
from hardwon.trainers.config.policy import PolicySettings
from hardwon.trainers.config.schema import RoleConfig
from hardwon.trainers.engines.base import Engine, Weights
from hardwon.trainers.models.adapters import has_adapters, parameters_of, read_adapter
from hardwon.trainers.prompting.base import PromptFormat
from hardwon.trainers.rollouts.rollout import Spec

Play = Callable[[Sequence[Spec]], Awaitable[Sequence[Rollout]]]
"""Plays episodes of an arm that recalls, for trials."""


class Role(Protocol):
    """A trainable component with its own learner, weights and version."""

    name: str
    model: Any
    """The model that it trains: its own copy of the base, or the base with its adapter."""

    def begin(self, tell: Callable[[str], None] = lambda _: None) -> None:
        """Prepare for training after the warm start, such as by freezing a reference model.

        Args:
            tell: Receives a line of progress now and then.
        """
        ...

    async def prepare(self, specs: Sequence[Spec], *, frozen: bool = False) -> Sequence[Spec]:
        """Return the episodes with the text that this role wants to show.

        Called only for arms with guidance `role`. Rerolled groups are prepared separately, so several calls can
        precede one `collect`.

        Args:
            specs: The episodes to prepare.
            frozen: Use the weights of the start of training.
        """
        ...

    async def choose(self, specs: Sequence[Spec]) -> Sequence[Spec]:
        """Return the episodes with the role's best text, for an evaluation; store nothing for training."""
        ...

    def wants(self, rollouts: Sequence[Rollout]) -> bool:
        """Return whether the role can learn from a group, given its rollouts of all arms."""
        ...

    def collect(self, rollouts: Sequence[Rollout]) -> None:
        """Take over the training data of an iteration's finished rollouts."""
        ...

    def read(self, salt: str) -> None:
        """Start reading recorded episodes in the background and return at once. The rollouts never wait for it."""
        ...

    async def written(self, rollouts: Sequence[Rollout] = ()) -> dict[str, float]:
        """Take over the finished readings at the end of an iteration, and return the metrics to log by name."""
        ...

    async def try_candidates(self, play: Play, arm: str, salt: str) -> dict[str, float]:
        """Try items in episodes of their own before they are stored, and return the metrics to log by name.

        Args:
            play: Plays episodes of the arm; each shows the candidate of its spec besides what recall gives.
            arm: Name of an arm that shows all that is recalled.
            salt: Distinguishes the random numbers of this iteration from those of others.
        """
        ...

    def ready(self) -> bool:
        """Return whether there is enough data for an update."""
        ...

    def update(self) -> dict[str, float]:
        """Run one optimizer step, and return the metrics to log by name."""
        ...

    def weights(self) -> Weights:
        """Return the weights that the engine loads."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything that an exact resume needs: weights, optimizer state and buffers."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """The objects that a role is built from."""

    config: RoleConfig
    model: Any
    """The role's own copy of the base, or the base with an adapter of the role's name."""
    prompts: PromptFormat
    engine: Engine
    library: ExperienceLibrary
    seed: int = 0
    source: Callable[[str, int], Trajectory | None] = lambda task, seed: None
    """Returns a successful earlier episode of a task instance, by split and seed, or None."""
    demonstrate: Callable[[str, int], Trajectory | None] | None = None
    """Returns a success of a task instance to imitate, as the settings say where from; None takes `source`."""
    explored: Callable[[str, int], Sequence[Trajectory]] = lambda task, seed: ()
    """Returns all exploring episodes of a task instance, by split and seed, whatever their outcome."""
    episodes: Callable[[], Sequence[Trajectory]] = lambda: ()
    """Returns the exploring episodes that are played before training."""
    instances: Sequence[tuple[str, int]] = ()
    """Split and seed of the task instances that are explored before training."""
    trained: Sequence[tuple[str, int]] = ()
    """Split and seed of the task instances of training."""
    recall: int = 5
    """Maximum number of items, and of similar steps, that a recall shows."""
    environment: Environment | None = None
    """The environment, to be cloned by roles that play episodes themselves."""
    outcome: OutcomeKind = "success"
    """The kind of outcome of an episode."""
    policy: PolicySettings = field(default_factory=PolicySettings)
    """How the policy answers, for roles that play episodes themselves."""
    temperature: float = 1.0
    """Temperature at which the role's tokens are sampled."""


class LearningRole:
    """Base of all roles: a learner of the role's own weights."""

    def __init__(self, parts: Parts, name: str) -> None:
        self.name, self.model, self._parts = name, parts.model, parts
        self._parameters = parameters_of(parts.model, name)
        self._learner = Learner(parts.model, self._parameters, parts.config.learner, role=name)

    async def prepare(self, specs: Sequence[Spec], *, frozen: bool = False) -> Sequence[Spec]:
        """Return the episodes unchanged."""
        return specs

    async def choose(self, specs: Sequence[Spec]) -> Sequence[Spec]:
        """Return the episodes unchanged."""
        return specs

    def read(self, salt: str) -> None:
        """Read nothing."""

    async def written(self, rollouts: Sequence[Rollout] = ()) -> dict[str, float]:
        """Return no metrics: nothing was read."""
        return {}

    async def try_candidates(self, play: Play, arm: str, salt: str) -> dict[str, float]:
        """Return no metrics: there is nothing to try."""
        return {}

    def weights(self) -> Weights:
        """Return all parameters, or the adapter's parameters under peft's names."""
        return weights_of(self.model, self.name)

    def state_dict(self) -> dict[str, Any]:
        """Return weights and optimizer state."""
        weights = {name: parameter.detach() for name, parameter in self._parameters.items()}
        return {"weights": weights, "learner": self._learner.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        load_weights(self._parameters, state["weights"])
        self._learner.load_state_dict(state["learner"])


class PolicyRole(LearningRole):
    """The role that acts: it learns from advantages within group and arm."""

    def __init__(self, parts: Parts, *, name: str = "policy") -> None:
        super().__init__(parts, name)
        self._config = parts.config
        self._rollouts: list[Rollout] = []
        self._loss, self._temperature = parts.config.loss, parts.temperature
        self._shaped: dict[str, float] = {}
        """Share of traces that each shaper changed when the advantages were last computed."""
        self._demonstrate = parts.demonstrate or parts.source
        self._render = parts.prompts.rows if parts.prompts else None

    def change_loss(self, *, entropy: float, temperature: float) -> None:
        """Change what follows a schedule: the weight of the entropy, and the temperature of sampling."""
        self._loss, self._temperature = replace(self._loss, entropy=entropy), temperature

    def begin(self, tell: Callable[[str], None] = lambda _: None) -> None:
        """Freeze a copy of the model as the reference if the loss has a KL term and there are no adapters."""
        if self._config.loss.kl and not has_adapters(self.model):
            self._learner.reference = freeze_copy(self.model)

    def wants(self, rollouts: Sequence[Rollout]) -> bool:
        """Return whether any advantage of the group differs from 0, or an example takes its place."""
        advantages, examples, _ = self._add_examples(_select_finished(rollouts))
        return bool(examples) or any(map(any, advantages.values()))

    def collect(self, rollouts: Sequence[Rollout]) -> None:
        """Keep only these rollouts: older ones were sampled from an earlier policy."""
        self._rollouts = _select_finished(rollouts)

    def ready(self) -> bool:
        """Return whether the rollouts have an advantage, an example, or a loss term that needs neither."""
        loss = self._loss
        return bool(self._rollouts) and (bool(loss.kl or loss.entropy or loss.terms) or self.wants(self._rollouts))

    def update(self) -> dict[str, float]:
        """Run one optimizer step on the collected rollouts and drop them."""
        rollouts, self._rollouts = self._rollouts, []
        advantages, examples, counts = self._add_examples(rollouts)
        # A rollout can hold samples of several roles; this learner moves only its own parameters.
        rows = [row for rollout in rollouts for row in rollout.rows if row.role == self.name]
        outcomes = {rollout.trajectory.id: rollout.outcome or 0.0 for rollout in rollouts}
        sequences = pack_samples(rows, advantages, outcomes=outcomes)
        metrics = self._learner.step([*sequences, *examples], self._loss, temperature=self._temperature)
        return {
            **metrics,
            **counts,
            **{f"shape/{name}": share for name, share in self._shaped.items()},
            "lr": self._learner.lr,
            "advantage_spread": compute_spread(advantages),
            # 1.0 while prompts are append-only; more means that tokens are read and trained again
            "samples_per_rollout": len(sequences) / len({row.trace for row in rows}) if rows else 0.0,
        }

    def _add_examples(
        self, rollouts: Sequence[Rollout]
    ) -> tuple[dict[str, list[float]], list[PackedSequence], dict[str, float]]:
        """Return the advantages, the sequences to imitate beside the rollouts, and counts of them."""
        advantages, examples, counts = self.advantages(rollouts), list[PackedSequence](), dict[str, float]()
        for name, settings in self._config.extra.items():
            extra = PARTS.get("extra", name)
            advantages, added, metrics = extra(rollouts, advantages, self._demonstrate, self._render, **settings)
            examples, counts = [*examples, *added], {**counts, **metrics}
        return advantages, examples, counts

    def advantages(self, rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
        """Return the advantages by trace, one per turn, within group, arm and role."""
        credit = self._config.credit
        self._shaped = {}
        traces = shape([to_trace(rollout, self.name) for rollout in rollouts], self._config.shape.items(), self._shaped)
        advantages: dict[str, list[float]] = PARTS.get("estimator", credit.name)(traces, **credit.settings)
        weights = {rollout.trajectory.id: rollout.weight for rollout in rollouts if rollout.weight != 1}
        for name, weight in weights.items():
            advantages[name] = [weight * value for value in advantages[name]]
        return advantages

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimizer state, and the reference model if there is one."""
        reference = self._learner.reference.state_dict() if self._learner.reference is not None else None
        return {**super().state_dict(), "reference": reference}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        super().load_state_dict(state)
        if state["reference"] is not None:
            self._learner.reference = freeze_copy(self.model)
            self._learner.reference.load_state_dict(state["reference"])


def _select_finished(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Return the rollouts that have samples and did not fail."""
    return [rollout for rollout in rollouts if rollout.rows and not rollout.failed]


def weights_of(model: Any, role: str) -> Weights:
    """Return the weights of a role that an engine loads: the whole model, or the role's adapter."""
    if not has_adapters(model):
        return model.state_dict()  # type: ignore[no-any-return]
    return read_adapter(model, role)


def load_weights(parameters: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
    """Copy saved weights into the parameters of the same names."""
    import torch

    if differing := sorted({*parameters} ^ {*weights}):
        raise ValueError(
            f"the weights belong to another model: {differing[0]!r} and {len(differing) - 1} more names differ."
        )
    # in place, because the optimizer holds these parameters
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])


def row_of(saved: Mapping[str, Any]) -> Sample:
    """Return a sample from its saved values; checkpoints turn tuples into lists."""
    allowed = tuple(None if each is None else tuple(each) for each in saved["allowed"])
    flat = {name: tuple(saved[name]) for name in ("prompt", "completion", "logprobs", "mask")}
    return Sample(**{**saved, **flat, "allowed": allowed})
