"""The training step: packed sequences in, updated parameters and metrics out.

    learner = Learner(model, parameters_of(model, "policy"), LearnerSettings(lr=3e-4), role="policy")
    metrics = learner.step(sequences, LossSettings(kl=0.01))

Denominators are counted over a whole update before the first forward pass, so the gradient does not
depend on the split into micro-batches. A step makes epochs x minibatches updates, by default one.
`state_dict` has all state other than the parameters: on a CPU, a restored learner continues bit for
bit. A learner knows no environment, rollout or file.
"""

import copy
import math
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hardwon.memory.errors import ConfigError
from hardwon.trainers.models.adapters import activate, has_adapters, without_adapters

from .logprobs import (
    Batch,
    collate,
    compute_logprobs,
    find_trained_positions,
    forward,
    get_device_and_dtype,
)
from .losses import MAX_IMPORTANCE, MAX_LOG_RATIO, kl, masked_mean, policy_loss
from .parallel import SingleProcess, join_processes, run_empty_pass
from .samples import PackedSequence, micro_batches
from .settings import LearnerSettings as LearnerSettings, LossSettings as LossSettings
from .terms import FrozenPolicy, Terms
from .updates.checkpointing import needs_checkpointing, recompute_activations
from .updates.tally import Tally, summarize
from .updates.turns import list_parts, move_factors, scale


@dataclass(frozen=True, slots=True)
class _PriorLogprobs:
    """Log-probabilities of a sequence's trained tokens, computed before the step."""

    old: Tensor | None
    """The trainer's log-probabilities; None to use those of sampling."""
    reference: Tensor | None


class Learner:
    """Optimizer of one role's parameters. See the module's docstring."""

    def __init__(
        self,
        model: Any,
        parameters: Mapping[str, nn.Parameter] | Iterable[nn.Parameter],
        settings: LearnerSettings | None = None,
        *,
        role: str = "",
        weight_decay: float = 0.0,
    ) -> None:
        """Prepare the optimizer and switch the model to evaluation mode; the decay of weights is decoupled.

        Raises:
            ConfigError: There are no parameters.
        """
        self.model, self.role = model, role
        self.settings = settings or LearnerSettings()
        self.parameters = list(parameters.values() if isinstance(parameters, Mapping) else parameters)
        if not self.parameters:
            raise ConfigError("there are no parameters to train. Pass those of a role, from adapters.parameters_of.")
        self.updates = 0
        """Number of updates so far, including those without a signal. It drives the learning-rate schedule."""
        self._adam = torch.optim.AdamW(
            self.parameters,
            lr=self.settings.lr,
            betas=(0.9, 0.95),
            weight_decay=weight_decay,
            fused=True,
        )
        self.reference: Any = None
        """Default reference model of the KL term."""
        self._temperature = 1.0
        """Temperature of the step at hand."""
        self._terms = Terms()
        self._processes = join_processes(role, self.step)
        model.eval()  # no dropout: log-probabilities must match those of sampling

    @property
    def lr(self) -> float:
        """Return the learning rate of the next update."""
        settings, n = self.settings, self.updates
        rising = min(1.0, (n + 1) / settings.warmup) if settings.warmup else 1.0
        falling = max(0.0, 1 - n / settings.decay) if settings.decay else 1.0
        return settings.lr * rising * falling

    def step(
        self,
        sequences: Sequence[PackedSequence],
        loss: LossSettings | None = None,
        *,
        reference: Any = None,
        temperature: float = 1.0,
    ) -> dict[str, float]:
        """Train on the sequences, which were sampled at a temperature.

        A sequence whose advantages are all 0 counts in the denominator. It is only read if the loss has a KL
        or entropy term. A step without any signal changes nothing. With several processes, each one reads its
        share, and all of them make the same step.

        Raises:
            ConfigError: The KL term has no reference, or needs log-probabilities that a sharded base cannot give.
        """
        began, loss, tally = time.perf_counter(), loss or LossSettings(), Tally()
        self._temperature = temperature
        if self.role:
            # a local engine shares the model and may have left another role's adapter active
            activate(self.model, self.role)
        own_share = self._processes.share_step(self.role, sequences, loss, temperature)
        self._processes.check_loss(loss, order=self.settings.order)
        self._terms.open(loss.terms)
        if self._terms:
            frozen = FrozenPolicy(self.model, self.settings.budget, temperature)
            own_share = sequences = self._terms.begin(sequences, frozen)
        by_turns = self.settings.order == "reverse-turns"
        reads_zero = self._terms.reads_zero
        before = self._read_prior_logprobs(
            [s for s in own_share if not by_turns and _has_gradient(s, loss, reads_zero=reads_zero)],
            loss,
            self.reference if reference is None else reference,
        )
        if by_turns:
            self._update_by_turns(sequences, loss, reference, tally)
        else:
            # every process splits all sequences in the same way, and `before` has only its own share
            for part in self._split_into_updates(sequences):
                self._update(part, before, loss, tally)
        return {**summarize(tally, time.perf_counter() - began), **self._terms.end()}

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer state, the number of updates, and the state of the loss terms if there are any."""
        terms = {"terms": self._terms.state_dict()} if self._terms else {}
        return {"adam": self._adam.state_dict(), "updates": self.updates, **terms}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned. The caller restores the parameters."""
        # torch adopts the given tensors and Adam updates them in place: copy, so that the caller's state stays
        self._adam.load_state_dict(copy.deepcopy(state["adam"]))
        self.updates = int(state["updates"])
        self._terms.load_state_dict(state.get("terms", {}))

    def _update_by_turns(
        self, sequences: Sequence[PackedSequence], loss: LossSettings, reference: Any, tally: Tally
    ) -> None:
        """Make one update per turn, the last turn first; see `updates.turns`."""
        factors: dict[str, float] = {}
        for turn in list_parts(sequences):
            part = scale(turn, factors)
            priors = self._read_prior_logprobs(part, loss, self.reference if reference is None else reference)
            # read anew: the updates of the later turns have moved the policy
            old = self._compute_logprobs(self.model, part)
            before = {id(s): _PriorLogprobs(own, priors[id(s)].reference) for s, own in zip(part, old, strict=True)}
            self._update(part, before, loss, tally)
            new = self._compute_logprobs(self.model, part)
            factors = move_factors(factors, [(b - a).tolist() for a, b in zip(old, new, strict=True)], part)

    def _split_into_updates(self, sequences: Sequence[PackedSequence]) -> list[list[PackedSequence]]:
        """Return the sequences of each update: all of them, or minibatches of whole traces, drawn anew every epoch."""
        settings = self.settings
        if settings.minibatches == 1:
            return [list(sequences)] * settings.epochs
        parts = []
        # a trace is never split: with denominator=traces, its weight counts all its tokens in one update
        traces: dict[tuple[str, str], list[PackedSequence]] = {}
        for sequence in sequences:
            traces.setdefault((sequence.role, sequence.trace), []).append(sequence)
        # seeded by the number of updates, so a restored learner draws the same minibatches
        chance = random.Random(f"0 {self.updates}")
        for _ in range(settings.epochs):
            order = chance.sample(list(traces.values()), len(traces))
            dealt = (order[n :: settings.minibatches] for n in range(settings.minibatches))
            parts += [[sequence for trace in hand for sequence in trace] for hand in dealt if hand]
        return parts

    def _read_prior_logprobs(
        self, sequences: Sequence[PackedSequence], loss: LossSettings, reference: Any
    ) -> dict[int, _PriorLogprobs]:
        """Return the log-probabilities that must be computed before the first update, by id of sequence."""
        old: Sequence[Tensor | None] = [None] * len(sequences)
        reference_logprobs: Sequence[Tensor | None] = [None] * len(sequences)
        # with a single update, `_accumulate` reads the old policy in its own pass, which saves one pass here
        if loss.old == "trainer" and not self._has_single_update:
            old = self._compute_logprobs(self.model, sequences)
        if loss.kl:
            with self._open_reference(reference) as model:
                reference_logprobs = self._compute_logprobs(model, sequences)
        return {
            id(sequence): _PriorLogprobs(*values)
            for sequence, *values in zip(sequences, old, reference_logprobs, strict=True)
        }

    def _compute_logprobs(self, model: Any, sequences: Sequence[PackedSequence]) -> list[Tensor]:
        return compute_logprobs(model, sequences, budget=self.settings.budget, temperature=self._temperature)

    def _open_reference(self, reference: Any) -> AbstractContextManager[Any]:
        """Return a context that yields the reference model."""
        if reference is not None:
            return nullcontext(reference)
        if has_adapters(self.model):
            return without_adapters(self.model)
        raise ConfigError("the loss has a KL term but there is no reference. Pass reference=freeze_copy(model).")

    @property
    def _has_single_update(self) -> bool:
        return self.settings.epochs * self.settings.minibatches == 1

    def _update(
        self,
        sequences: Sequence[PackedSequence],
        before: Mapping[int, _PriorLogprobs],
        loss: LossSettings,
        tally: Tally,
    ) -> None:
        """Make one optimizer update over these sequences, or none if the gradient is not usable."""
        # counted over the sequences of all processes: their gradients are summed, not averaged
        denominator, weights = _compute_denominator(sequences, self.settings)
        partial = Tally()
        try:
            parts = micro_batches([sequence for sequence in sequences if id(sequence) in before], self.settings.budget)
            # counted before the first pass: no process may wait for another one in the middle of its passes
            idle = self._processes.count_idle_passes(len(parts))
            for micro in parts:
                with self._save_memory(micro):
                    self._accumulate(micro, before, weights, denominator, loss, partial)
            for _ in range(idle):
                with self._save_memory([]):  # the layers of an empty pass wait for those of the others
                    run_empty_pass(self.model, self.role)
            totals = self._processes.sum_update(self.parameters, partial.to_totals())
            tally.add(totals)
            self._apply_gradient(tally, signal=totals["trained"] > 0)
        finally:
            # also after an error: gradients that stay would be added to those of the next update
            self._adam.zero_grad(set_to_none=True)

    def _save_memory(self, micro: Sequence[PackedSequence]) -> AbstractContextManager[None]:
        """Return a context that uses gradient checkpointing if the settings or the size of the batch ask for it."""
        recompute = self.settings.recompute
        # all processes must compute alike, so with several of them nothing depends on the memory of one
        if recompute is None and isinstance(self._processes, SingleProcess):
            recompute = needs_checkpointing(self.model, len(micro) * max(map(len, micro), default=0))
        return recompute_activations(self.model) if recompute else nullcontext()

    def _accumulate(
        self,
        micro: Sequence[PackedSequence],
        before: Mapping[int, _PriorLogprobs],
        weights: Mapping[tuple[object, ...], float],
        denominator: float,
        loss: LossSettings,
        tally: Tally,
    ) -> None:
        """Add the gradient of one micro-batch."""
        device, dtype = get_device_and_dtype(self.model)
        batch = collate(micro, device, dtype)
        is_bonus = bool(loss.entropy) or self._terms.has_entropy_gradient
        new, entropies = forward(self.model, batch, temperature=self._temperature, entropy_gradient=is_bonus)
        added, unclipped = self._terms.weigh(new, entropies, batch, micro)
        if self.settings.denominator == "turns":
            own = [weights[key] for part in micro for key in _list_turn_keys(part)]
            weight = torch.tensor(own, dtype=dtype).to(device)
        else:
            own = [weights[part.role, part.trace] for part in micro]
            weight = torch.tensor(own, dtype=dtype).to(device)[batch.sequence]
        old = _concatenate(before[id(part)].old for part in micro)
        if old is None:
            old = new.detach() if loss.old == "trainer" else batch.old
        value, values = _compute_objective(new, old, batch, weight, denominator, loss, unclipped)
        reference_logprobs = _concatenate(before[id(part)].reference for part in micro)
        if reference_logprobs is not None:
            value = value + loss.kl * kl(new, reference_logprobs, weight, denominator=denominator)
            values["kl"] = _sum_kl(new, reference_logprobs)
        if loss.entropy:
            value = value - loss.entropy * masked_mean(entropies, weight, denominator)
        if added is not None:
            value = value + masked_mean(added, weight, denominator)
        value.backward()  # type: ignore[no-untyped-call]
        tally.tokens += sum(map(len, micro))
        tally.trained += len(batch)
        for name, summed in {**values, "entropy": entropies, "loss": value}.items():
            tally.sums[name] += float(summed.detach().sum())

    def _apply_gradient(self, tally: Tally, signal: bool) -> None:
        """Clip the gradient and step the optimizer. A gradient that is not finite is dropped and counted."""
        for group in self._adam.param_groups:
            group["lr"] = self.lr
        # counted even without a signal, so that the schedule follows the steps; `lr` above reads the old count
        self.updates += 1
        if not signal:
            return
        # the gradient is already summed over all processes, so all of them take or skip the step together
        norm = float(nn.utils.clip_grad_norm_(self.parameters, 1.0))
        if not math.isfinite(norm):
            tally.skipped += 1
            return
        tally.norms.append(norm)
        tally.updates += 1
        self._adam.step()


def freeze_copy(model: Any) -> Any:
    """Return a frozen copy of the model, to be the reference in full fine-tuning."""
    return copy.deepcopy(model).requires_grad_(False).eval()


def _has_gradient(sequence: PackedSequence, loss: LossSettings, *, reads_zero: bool) -> bool:
    """Return whether reading the sequence can change the gradient."""
    if loss.kl or loss.entropy or reads_zero:  # these terms have a gradient even where the advantage is 0
        return any(sequence.mask)
    return any(counts and advantage for counts, advantage in zip(sequence.mask, sequence.advantages, strict=True))


def _compute_denominator(
    sequences: Sequence[PackedSequence], settings: LearnerSettings
) -> tuple[float, Mapping[tuple[object, ...], float]]:
    """Return the divisor of the token sum, and the weight of a token by (role, trace), or by (role, trace, turn)."""
    if settings.denominator == "turns":
        sizes = Counter(key for sequence in sequences for key in _list_turn_keys(sequence))
        return max(1.0, len(sizes)), {key: 1 / size for key, size in sizes.items()}
    counts: Counter[tuple[object, ...]] = Counter()
    for sequence in sequences:
        counts[sequence.role, sequence.trace] += len(find_trained_positions(sequence))
    filled = sum(count > 0 for count in counts.values())
    if settings.denominator == "traces":
        return max(1.0, filled), {trace: 1 / max(1, count) for trace, count in counts.items()}
    even: Mapping[tuple[object, ...], float] = dict.fromkeys(counts, 1.0)
    if settings.denominator == "constant":
        return max(1.0, filled) * settings.constant, even
    return max(1.0, sum(counts.values())), even


def _list_turn_keys(sequence: PackedSequence) -> list[tuple[object, ...]]:
    """Return (role, trace, turn) of every token to train on."""
    turns = sequence.turns or (0,) * len(sequence)
    return [(sequence.role, sequence.trace, turns[at]) for at in find_trained_positions(sequence)]


def _compute_objective(
    new: Tensor,
    old: Tensor,
    batch: Batch,
    weight: Tensor,
    denominator: float,
    loss: LossSettings,
    unclipped: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the policy loss and the values to sum for the metrics.

    Every loss is linear in |A|, so token weights are applied to the advantages.
    """
    advantages = batch.advantages * weight
    if loss.kind == "imitation":
        return -(advantages * new).sum() / denominator, {}
    policy = policy_loss(
        new,
        old,
        advantages,
        torch.ones_like(new),
        denominator=denominator,
        kind=loss.kind,
        low=loss.low,
        high=loss.high,
        sequence=batch.turn if loss.ratio == "turn" else batch.sequence,
        grouped=loss.ratio in ("turn", "sequence"),
        rollout=batch.old if loss.old == "trainer" else None,
        max_mismatch=loss.max_mismatch,
        unclipped=unclipped,
    )
    with torch.no_grad():
        trainer_logprobs = old if loss.old == "trainer" else new
        importance = (trainer_logprobs - batch.old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().clamp(max=MAX_IMPORTANCE)
        return policy.value, {
            # a mean over the micro-batch, turned into a sum, because `summarize` divides by all tokens
            "clip_fraction": torch.tensor(policy.metrics["clip_fraction"] * len(batch)),
            "kl_old": _sum_kl(new, old),
            "weight": importance,
            "weight_squared": importance.square(),
            # how far the weights that train are from those that sampled, an engine of other arithmetic included
            **({"mismatch": _sum_kl(old, batch.old)} if loss.old == "trainer" else {}),
            **({"left_out": torch.tensor(policy.metrics["left_out"] * len(batch))} if loss.max_mismatch else {}),
        }


def _sum_kl(new: Tensor, other: Tensor) -> Tensor:
    """Return KL(new || other) in nats, summed over all tokens with the k3 estimator, without a gradient."""
    return kl(new.detach(), other, torch.ones_like(other), denominator=1)


def _concatenate(parts: Iterable[Tensor | None]) -> Tensor | None:
    """Concatenate the parts that are not None. Return None if there are none."""
    tensors = [part for part in parts if part is not None]
    return torch.cat(tensors) if tensors else None
