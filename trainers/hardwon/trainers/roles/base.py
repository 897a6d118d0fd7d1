"""Roles: the parts that learn. The run knows them only by this protocol.

A role takes what it can learn from out of finished rollouts, says when that is enough, and moves its
weights. Before the episodes of an arm whose guidance is `role`, roles are asked what to show.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from hardwon.memory import ExperienceLibrary, Trajectory
from hardwon.runtime import Environment
from hardwon.trainers.algorithms.advantages import ESTIMATORS, compute_spread
from hardwon.trainers.algorithms.learner import Learner, freeze_copy
from hardwon.trainers.algorithms.samples import Rollout, pack_samples, to_trace
from hardwon.trainers.config.schema import RoleConfig
from hardwon.trainers.engines.base import Engine, Weights
from hardwon.trainers.gating.gate import Gated
from hardwon.trainers.models.adapters import has_adapters, parameters_of
from hardwon.trainers.rollouts.rollout import Spec
from hardwon.trainers.rollouts.transcript import Transcript


class Role(Protocol):
    """A part that learns."""

    name: str
    model: Any
    """What it trains: its own copy of the base, or the base with its adapter."""

    def begin(self) -> None:
        """Training begins, after the warm start: what it is now is what it is compared with later."""
        ...

    async def prepare(self, specs: Sequence[Spec], *, frozen: bool = False) -> Sequence[Spec]:
        """The episodes with what this role gives them to be shown; `frozen`: as it was when training began.

        Asked of the arms whose guidance is `role` alone; groups that are rolled again are asked for by
        themselves, so that there may be several calls before `collect`.
        """
        ...

    async def choose(self, specs: Sequence[Spec]) -> Sequence[Spec]:
        """The same at its best, for an evaluation: nothing is remembered of it."""
        ...

    def wants(self, rollouts: Sequence[Rollout]) -> bool:
        """Whether there is a signal for it in a group's rollouts, all arms of them."""
        ...

    def collect(self, rollouts: Sequence[Rollout]) -> None:
        """Take what can be learnt from, out of an iteration's finished rollouts."""
        ...

    def ready(self) -> bool:
        """Whether there is enough for an update."""
        ...

    def update(self) -> dict[str, float]:
        """Move the weights; what there is to log of it."""
        ...

    def weights(self) -> Weights:
        """What the engine is to load."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that it needs to go on exactly: weights, optimiser, buffers."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        ...


@runtime_checkable
class Reader(Protocol):
    """A role that also reads, beside the rollouts: nobody waits for it while they play."""

    def read(self, ahead: Sequence[tuple[str, int]], salt: str) -> None:
        """Begin to read what waits to be read, the worlds that come next among it; returns at once."""
        ...

    async def written(self, rollouts: Sequence[Rollout] = ()) -> dict[str, float]:
        """The iteration is over: take over what was read; `rollouts`, recorded, may be read next. What to log."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """What a role is built of."""

    config: RoleConfig
    model: Any
    """Its own copy of the base, or the base with an adapter of the role's name."""
    transcript: Transcript
    engine: Engine
    library: ExperienceLibrary
    seed: int = 0
    source: Callable[[str, int], Trajectory | None] = lambda task, seed: None
    """An earlier episode of a world that succeeded, by task and seed, if there is one."""
    gate: Gated | None = None
    """Asked before anything is shown, where there is one."""
    explored: Callable[[str, int], Sequence[Trajectory]] = lambda task, seed: ()
    """All the exploring episodes of a world, by task and seed, however they ended."""
    episodes: Callable[[], Sequence[Trajectory]] = lambda: ()
    """Those of the worlds that are explored before anything is learnt."""
    environment: Environment | None = None
    """What a role that sends teams into worlds makes clones of."""


class PolicyRole:
    """The role that acts: credit within arms, rows as streams, a step of its learner."""

    def __init__(self, parts: Parts, *, name: str = "policy") -> None:
        self.name, self.model = name, parts.model
        self._config = parts.config
        self._parameters = parameters_of(parts.model, name)
        self._learner = Learner(parts.model, self._parameters, parts.config.learner, role=name)
        self._rollouts: list[Rollout] = []

    def begin(self) -> None:
        """Where a divergence from a full model is asked for, the reference is what it is now."""
        if self._config.loss.kl and not has_adapters(self.model):
            self._learner.reference = freeze_copy(self.model)

    async def prepare(self, specs: Sequence[Spec], *, frozen: bool = False) -> Sequence[Spec]:
        """As they are: a policy shows nothing."""
        return specs

    async def choose(self, specs: Sequence[Spec]) -> Sequence[Spec]:
        """As they are."""
        return specs

    def wants(self, rollouts: Sequence[Rollout]) -> bool:
        """Whether any advantage differs from 0."""
        return any(map(any, self.advantages(_finished(rollouts)).values()))

    def collect(self, rollouts: Sequence[Rollout]) -> None:
        """Only the newest: older ones are another policy's."""
        self._rollouts = _finished(rollouts)

    def ready(self) -> bool:
        """Whether there are rollouts."""
        return bool(self._rollouts)

    def update(self) -> dict[str, float]:
        """One step on the rollouts; they are gone then."""
        rollouts, self._rollouts = self._rollouts, []
        advantages = self.advantages(rollouts)
        rows = [row for rollout in rollouts for row in rollout.rows if row.role == self.name]
        metrics = self._learner.step(pack_samples(rows, advantages), self._config.loss)
        return {**metrics, "lr": self._learner.lr, "advantage_spread": compute_spread(advantages)}

    def advantages(self, rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
        """By trace, one a turn, within group, arm and role."""
        credit = self._config.credit
        return ESTIMATORS[credit.name]([to_trace(rollout, self.name) for rollout in rollouts], **credit.settings)

    def weights(self) -> Weights:
        """All parameters, or the adapter's as peft names them."""
        return weights_of(self.model, self.name)

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser, and the reference where there is one."""
        reference = self._learner.reference.state_dict() if self._learner.reference is not None else None
        return {
            "weights": {name: parameter.detach() for name, parameter in self._parameters.items()},
            "learner": self._learner.state_dict(),
            "reference": reference,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        load_weights(self._parameters, state["weights"])
        self._learner.load_state_dict(state["learner"])
        if state["reference"] is not None:
            self._learner.reference = freeze_copy(self.model)
            self._learner.reference.load_state_dict(state["reference"])


def _finished(rollouts: Sequence[Rollout]) -> list[Rollout]:
    return [rollout for rollout in rollouts if rollout.rows and not rollout.failed]


def weights_of(model: Any, role: str) -> Weights:
    """What an engine loads of a role."""
    if not has_adapters(model):
        return model.state_dict()  # type: ignore[no-any-return]
    from peft import get_peft_model_state_dict

    weights: dict[str, Any] = get_peft_model_state_dict(model, adapter_name=role)
    return weights


def load_weights(parameters: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
    """Write saved weights into the parameters of the same names."""
    import torch

    if missing := sorted({*parameters} ^ {*weights}):
        raise ValueError(f"the weights are of another model: {missing[0]!r} and {len(missing) - 1} more differ.")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])


def _extractor(parts: Parts) -> Role:
    from .extractor import ExtractorRole

    return ExtractorRole(parts, parts.source)


def _guide(parts: Parts) -> Role:
    from .guide import GuideRole

    return GuideRole(parts)


def _admission(parts: Parts) -> Role:
    from .admission import AdmissionRole

    return AdmissionRole(parts)


ROLES: dict[str, Callable[[Parts], Role]] = {
    "policy": PolicyRole,
    "guide": _guide,
    "extractor": _extractor,
    "admission": _admission,
}
"""How each role is built, by its name."""
