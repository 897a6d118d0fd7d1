"""The training step: streams in, parameters moved, metrics out.

    learner = Learner(model, parameters_of(model, "policy"), LearnerSettings(lr=3e-4), role="policy")
    metrics = learner.step(streams, LossSettings(kl=0.01))

Denominators are counted over a whole update before the first token is read, so however it is cut
into micro-batches, the gradient is the same. A call makes epochs x minibatches updates, one unless
told. What it holds beside the parameters is in `state_dict`: a learner that goes on from there makes
the same updates bit for bit on a CPU. It knows no environment, no rollout and no file.
"""

import copy
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hardwon.memory.errors import ConfigError
from hardwon.trainers.models.adapters import activate, has_adapters

from .compiled import Compiled
from .logprobs import (
    Batch,
    collate,
    compute_logprobs,
    find_trained_positions,
    forward,
    get_device_and_dtype,
    recompute_activations,
)
from .losses import MAX_LOG_RATIO, kl, masked_mean, policy_loss
from .parallel import get_team
from .samples import PackedSequence, micro_batches
from .settings import LearnerSettings as LearnerSettings, LossSettings as LossSettings


@dataclass(frozen=True, slots=True)
class _PriorLogprobs:
    """What was known of a stream before the step, for the tokens it is trained on."""

    old: Tensor | None
    """The trainer's own log-probabilities; None: take those of sampling."""
    reference: Tensor | None


@dataclass(slots=True)
class _Tally:
    """What was done in a step, and sums over tokens, from which the metrics are made."""

    updates: int = 0
    skipped: int = 0
    stopped: int = 0
    tokens: int = 0
    trained: int = 0
    norms: list[float] = field(default_factory=list)
    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, other: "_Tally") -> None:
        """Count what was read in an update."""
        self.tokens += other.tokens
        self.trained += other.trained
        for name, value in other.sums.items():
            self.sums[name] += value


class Learner:
    """Moves the parameters of one role; see the module's docstring."""

    def __init__(
        self,
        model: Any,
        parameters: Mapping[str, nn.Parameter] | Iterable[nn.Parameter],
        settings: LearnerSettings | None = None,
        *,
        role: str = "",
    ) -> None:
        """`role` names the adapter of the model that the parameters are of, if it has adapters."""
        self.model, self.role = model, role
        self.settings = settings or LearnerSettings()
        self.parameters = list(parameters.values() if isinstance(parameters, Mapping) else parameters)
        if not self.parameters:
            raise ConfigError("there are no parameters to train; see adapters.parameters_of.")
        self.updates = 0
        """Made so far, those without a signal among them: where the learning rate's schedule stands."""
        self._adam = torch.optim.AdamW(
            self.parameters,
            lr=self.settings.lr,
            betas=self.settings.betas,
            weight_decay=self.settings.weight_decay,
            fused=True,
        )
        self._compiled = Compiled(model) if self.settings.compile else None
        self.reference: Any = None
        """A frozen model that the policy should stay near, where a step is not given one."""
        self.team = get_team()
        if self.team is not None:
            self.team.learners[role] = self
        model.eval()  # the log-probabilities must be those of sampling: no dropout

    @property
    def lr(self) -> float:
        """Learning rate of the next update."""
        settings, n = self.settings, self.updates
        rising = min(1.0, (n + 1) / settings.warmup) if settings.warmup else 1.0
        falling = max(0.0, 1 - n / settings.decay) if settings.decay else 1.0
        return settings.lr * rising * falling

    def step(
        self, streams: Sequence[PackedSequence], loss: LossSettings | None = None, *, reference: Any = None
    ) -> dict[str, float]:
        """Train on the streams and say what came of it.

        `reference` is a frozen model that the policy should stay near; without one, and with adapters, it
        is the base. Streams whose advantages are all 0 are counted in the denominator and not read where
        nothing else than the policy's loss asks for them; a step with no signal at all moves nothing. In a
        team of processes each reads its share, and all make the same step.
        """
        began, loss, tally = time.perf_counter(), loss or LossSettings(), _Tally()
        if self.role:
            activate(self.model, self.role)
        mine, reference = streams, self.reference if reference is None else reference
        if self._together:
            assert self.team is not None
            if self.team.rank == 0:
                self.team.broadcast_job(("step", (self.role, streams, loss)))
            mine = self.team.select_share(streams)
        before = self._before([stream for stream in mine if _has_gradient(stream, loss)], loss, reference)
        with (
            recompute_activations(self.model) if self.settings.recompute else nullcontext(),
            nullcontext() if self._compiled is None else self._compiled.use(),
        ):
            for part in self._parts(streams):
                self._update(part, before, loss, tally)
                if tally.stopped:
                    break
        return _summarize(tally, time.perf_counter() - began)

    def state_dict(self) -> dict[str, Any]:
        """All that a learner of the same parameters needs to go on exactly."""
        return {"adam": self._adam.state_dict(), "updates": self.updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there. The parameters are the caller's to restore."""
        self._adam.load_state_dict(copy.deepcopy(state["adam"]))
        self.updates = int(state["updates"])

    def _parts(self, streams: Sequence[PackedSequence]) -> list[list[PackedSequence]]:
        """The streams of each update: all of them, or traces drawn into minibatches, every epoch anew."""
        settings = self.settings
        if settings.minibatches == 1:
            return [list(streams)] * settings.epochs
        parts = []
        traces: dict[tuple[str, str], list[PackedSequence]] = {}
        for stream in streams:
            traces.setdefault((stream.role, stream.trace), []).append(stream)
        chance = random.Random(f"{settings.seed} {self.updates}")
        for _ in range(settings.epochs):
            order = chance.sample(list(traces.values()), len(traces))
            dealt = (order[n :: settings.minibatches] for n in range(settings.minibatches))
            parts += [[stream for trace in hand for stream in trace] for hand in dealt if hand]
        return parts

    def _before(
        self, streams: Sequence[PackedSequence], loss: LossSettings, reference: Any
    ) -> dict[int, _PriorLogprobs]:
        """By id of stream, what must be read before anything moves."""
        if self._shards and (loss.kl or loss.old == "trainer"):
            raise ConfigError("a sharded base is not read before the step yet: use loss.kl=0 and loss.old=sampled.")
        old: Sequence[Tensor | None] = [None] * len(streams)
        near: Sequence[Tensor | None] = [None] * len(streams)
        if loss.old == "trainer" and not self._moves_once:
            old = self._read(self.model, streams, loss)
        if loss.kl:
            with self._as_reference(reference) as model:
                near = self._read(model, streams, loss)
        return {id(stream): _PriorLogprobs(*values) for stream, *values in zip(streams, old, near, strict=True)}

    def _read(self, model: Any, streams: Sequence[PackedSequence], loss: LossSettings) -> list[Tensor]:
        return compute_logprobs(model, streams, budget=self.settings.budget, temperature=loss.temperature)

    def _as_reference(self, reference: Any) -> AbstractContextManager[Any]:
        if reference is not None:
            return nullcontext(reference)
        if has_adapters(self.model):
            return _Base(self.model)
        raise ConfigError("a divergence is asked for and there is no reference: give reference=frozen(model).")

    @property
    def _together(self) -> bool:
        return self.team is not None and self.team.active

    @property
    def _shards(self) -> bool:
        return self.team is not None and self.team.active and self.team.shards

    @property
    def _moves_once(self) -> bool:
        return self.settings.epochs * self.settings.minibatches == 1

    def _update(
        self, streams: Sequence[PackedSequence], before: Mapping[int, _PriorLogprobs], loss: LossSettings, tally: _Tally
    ) -> None:
        """One update of the optimiser over these streams, or none where there is no usable gradient."""
        denominator, weights = _compute_denominator(streams, self.settings)
        told = _Tally()
        try:
            parts = micro_batches([stream for stream in streams if id(stream) in before], self.settings.budget)
            idle = self.team.find_max(len(parts)) - len(parts) if self.team is not None and self._shards else 0
            for micro in parts:
                self._accumulate(micro, before, weights, denominator, loss, told)
            for _ in range(idle):  # all go through a sharded base equally often
                self._pass_through()
            if self._together:
                self._add_up(told)
            tally.add(told)
            if loss.max_kl is not None and told.sums["kl_old"] > loss.max_kl * told.trained:
                tally.stopped = 1
            else:
                self._move(tally, signal=told.trained > 0)
        finally:
            self._adam.zero_grad(set_to_none=True)

    def _accumulate(
        self,
        micro: Sequence[PackedSequence],
        before: Mapping[int, _PriorLogprobs],
        weights: Mapping[tuple[str, str], float],
        denominator: float,
        loss: LossSettings,
        tally: _Tally,
    ) -> None:
        """Add a micro-batch's gradient."""
        device, dtype = get_device_and_dtype(self.model)
        given = collate(micro, device, dtype)
        new, entropies = forward(self.model, given, temperature=loss.temperature, entropy_gradient=bool(loss.entropy))
        weight = torch.tensor([weights[part.role, part.trace] for part in micro], dtype=dtype).to(device)[
            given.sequence
        ]
        old = _concatenate(before[id(part)].old for part in micro)
        if old is None:
            old = new.detach() if loss.old == "trainer" else given.old
        value, values = _compute_objective(new, old, given, weight, denominator, loss)
        near = _concatenate(before[id(part)].reference for part in micro)
        if near is not None:
            value = value + loss.kl * kl(new, near, weight, denominator=denominator, kind=loss.kl_kind)
            values["kl"] = _sum_kl(new, near)
        if loss.entropy:
            value = value - loss.entropy * masked_mean(entropies, weight, denominator)
        value.backward()  # type: ignore[no-untyped-call]
        tally.tokens += sum(map(len, micro))
        tally.trained += len(given)
        for name, summed in {**values, "entropy": entropies, "loss": value}.items():
            tally.sums[name] += float(summed.detach().sum())

    def _add_up(self, told: _Tally) -> None:
        """The gradient and the sums of all processes."""
        assert self.team is not None
        counted = {"": float(told.tokens), " ": float(told.trained), **told.sums}
        found = self.team.all_reduce(self.parameters, counted)
        told.tokens, told.trained = int(found.pop("")), int(found.pop(" "))
        told.sums.update(found)

    def _pass_through(self) -> None:
        device, dtype = get_device_and_dtype(self.model)
        empty = PackedSequence((0, 0), (False, True), (0.0,) * 2, (0.0,) * 2, (None,) * 2, self.role, "", 0)
        values, _ = forward(self.model, collate([empty], device, dtype))
        (0.0 * values.sum()).backward()  # type: ignore[no-untyped-call]

    def _move(self, tally: _Tally, signal: bool) -> None:
        """Let the optimiser act on the gradient; one that is not finite is dropped and counted."""
        for group in self._adam.param_groups:
            group["lr"] = self.lr
        self.updates += 1
        if not signal:
            return
        norm = float(nn.utils.clip_grad_norm_(self.parameters, self.settings.clip))
        if not math.isfinite(norm):
            tally.skipped += 1
            return
        tally.norms.append(norm)
        tally.updates += 1
        self._adam.step()


class _Base(AbstractContextManager[Any]):
    """The model with its adapters off, in its own context."""

    def __init__(self, model: Any) -> None:
        self._model, self._off = model, model.disable_adapter()

    def __enter__(self) -> Any:
        self._off.__enter__()
        return self._model

    def __exit__(self, *error: Any) -> None:
        self._off.__exit__(*error)


def freeze_copy(model: Any) -> Any:
    """A copy that never changes: the reference of a model that is trained in full."""
    return copy.deepcopy(model).requires_grad_(False).eval()


def _has_gradient(stream: PackedSequence, loss: LossSettings) -> bool:
    """Whether reading the stream can change the gradient."""
    if loss.kl or loss.entropy:
        return any(stream.mask)
    return any(counts and advantage for counts, advantage in zip(stream.mask, stream.advantages, strict=True))


def _compute_denominator(
    streams: Sequence[PackedSequence], settings: LearnerSettings
) -> tuple[float, dict[tuple[str, str], float]]:
    """By what the sum over tokens is divided, and what a token of each trace weighs in it."""
    counts: Counter[tuple[str, str]] = Counter()
    for stream in streams:
        counts[stream.role, stream.trace] += len(find_trained_positions(stream))
    filled = sum(count > 0 for count in counts.values())
    if settings.denominator == "traces":
        return max(1.0, filled), {trace: 1 / max(1, count) for trace, count in counts.items()}
    even = dict.fromkeys(counts, 1.0)
    if settings.denominator == "constant":
        return max(1.0, filled) * settings.constant, even
    return max(1.0, sum(counts.values())), even


def _compute_objective(
    new: Tensor, old: Tensor, given: Batch, weight: Tensor, denominator: float, loss: LossSettings
) -> tuple[Tensor, dict[str, Tensor]]:
    """The policy's loss, and what to sum for the log. Every kind is linear in |A|, so weights go there."""
    advantages = given.advantages * weight
    if loss.kind == "imitation":
        return -(advantages * new).sum() / denominator, {}
    found = policy_loss(
        new,
        old,
        advantages,
        torch.ones_like(new),
        denominator=denominator,
        kind=loss.kind,
        low=loss.low,
        high=loss.high,
        dual=loss.dual,
        sequence=given.sequence,
        rollout=given.old if loss.old == "trainer" else None,
        cap=loss.cap,
    )
    with torch.no_grad():
        ours = old if loss.old == "trainer" else new
        worth = (ours - given.old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().clamp(max=loss.cap)
        return found.value, {
            "clip_fraction": torch.tensor(found.metrics["clip_fraction"] * len(given)),
            "kl_old": _sum_kl(new, old),
            "weight": worth,
            "weight_squared": worth.square(),
        }


def _sum_kl(new: Tensor, other: Tensor) -> Tensor:
    """KL(new || other) in nats, by k3, over all the tokens, without a gradient."""
    return kl(new.detach(), other, torch.ones_like(other), denominator=1)


def _concatenate(parts: Iterable[Tensor | None]) -> Tensor | None:
    found = [part for part in parts if part is not None]
    return torch.cat(found) if found else None


def _summarize(tally: _Tally, seconds: float) -> dict[str, float]:
    """Means over the tokens of all the step's updates; `ess` is the share of them that they are worth as samples."""
    n = max(1, tally.trained)
    sums = dict(tally.sums)
    loss = sums.pop("loss", 0.0) / max(1, tally.updates + tally.skipped + tally.stopped)
    weight, squared = sums.pop("weight", 0.0), sums.pop("weight_squared", 0.0)
    norms = tally.norms or [0.0]
    return {
        "loss": loss,
        **{name: total / n for name, total in sums.items()},
        **({"ess": weight**2 / (squared * n)} if squared else {}),
        "grad_norm": sum(norms) / len(norms),
        "grad_norm_max": max(norms),
        "updates": tally.updates,
        "skipped": tally.skipped,
        "stopped": tally.stopped,
        "tokens": tally.tokens,
        "tokens_trained": tally.trained,
        "tokens_per_second": tally.tokens / max(seconds, 1e-9),
    }
