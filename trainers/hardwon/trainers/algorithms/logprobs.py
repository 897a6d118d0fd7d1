"""Forward pass: log-probabilities and entropies of the tokens to train on.

The trunk reads every token, but the head is applied only where the next token counts, so the logits of
a whole batch never exist at once. Where sampling was limited to a few allowed tokens, only those are
scored, as in the engine. Sequences are padded on the right and need no attention mask: with causal
attention, no token sees the padding behind it. Models must therefore be causal, with a plain linear
head. This module knows no loss and no optimizer.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from hardwon.memory.errors import ConfigError

from .samples import PackedSequence, micro_batches

MAX_LOGITS = 2**26
"""Largest number of logits in memory at once.

Above it, logits are computed in chunks, and again in the backward pass.
"""
MAX_NARROW = 8
"""Allowed tokens are scored one by one where they are fewer than the vocabulary by this factor."""
SCALED = ("final_logit_softcapping", "logits_scaling", "logit_scale")
"""Config keys of models that transform the logits after the head. Training does not apply these transformations."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences as tensors: B sequences, T tokens in the longest, N tokens that count, at most K allowed tokens."""

    tokens: Tensor
    """(B, T), padded on the right."""
    places: Tensor
    """(N,) positions of the N tokens in `tokens` flattened."""
    allowed: Tensor
    """(M, K) allowed tokens of the M constrained tokens; short rows are padded with the sampled token."""
    width: Tensor
    """(M,) number of allowed tokens before the padding."""
    bound: Tensor
    """(M,) indices of the constrained tokens among the N."""
    sequence: Tensor
    """(N,) index of the token's sequence among the B."""
    turn: Tensor
    """(N,) index of the token's turn among all turns of the sequences."""
    old: Tensor
    """(N,) log-probability at sampling."""
    advantages: Tensor
    """(N,)"""

    def __len__(self) -> int:
        return len(self.places)


def collate(
    sequences: Sequence[PackedSequence], device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Batch:
    """Convert sequences to tensors.

    Args:
        sequences: Sequences to pad and stack.
        device: Device of the tensors.
        dtype: Dtype of log-probabilities and advantages.

    Returns:
        The batch; see `Batch` for the shapes.

    Raises:
        ValueError: A token is not among its allowed tokens, or the first token of a sequence is to be trained on.
    """
    longest = max(len(sequence) for sequence in sequences)
    places: list[int] = []
    sequence_ids: list[int] = []
    old: list[float] = []
    advantages: list[float] = []
    bound: list[int] = []
    sets: list[tuple[int, ...]] = []
    sampled: list[int] = []
    turns: list[int] = []
    units: dict[tuple[int, int], int] = {}
    for number, sequence in enumerate(sequences):
        for at in find_trained_positions(sequence):
            if (allowed := sequence.allowed[at]) is not None:
                if sequence.tokens[at] not in allowed:
                    raise ValueError(
                        f"token {sequence.tokens[at]} of trace {sequence.trace!r} is not among its allowed tokens."
                    )
                bound.append(len(places))
                sets.append(allowed)
                sampled.append(sequence.tokens[at])
            places.append(number * longest + at)
            sequence_ids.append(number)
            turn = sequence.turns[at] if sequence.turns else 0
            turns.append(units.setdefault((number, turn), len(units)))
            old.append(sequence.logprobs[at])
            advantages.append(sequence.advantages[at])
    widest = max(map(len, sets), default=0)

    def tensor(values: Any, dtype: torch.dtype = torch.long) -> Tensor:
        return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)

    return Batch(
        tensor([[*sequence.tokens, *(0,) * (longest - len(sequence))] for sequence in sequences]),
        tensor(places),
        tensor([[*ids, *(last,) * (widest - len(ids))] for ids, last in zip(sets, sampled, strict=True)]),
        tensor([len(ids) for ids in sets]),
        tensor(bound),
        tensor(sequence_ids),
        tensor(turns),
        tensor(old, dtype),
        tensor(advantages, dtype),
    )


def find_trained_positions(sequence: PackedSequence) -> list[int]:
    """Return the positions of the tokens to train on.

    Raises:
        ValueError: The first token is among them. It has no context to be predicted from.
    """
    # in a flattened batch, the position before a first token belongs to the previous row
    if sequence.mask and sequence.mask[0]:
        raise ValueError(
            f"trace {sequence.trace!r} is to be trained on its first token, which has no context. Mask it out."
        )
    return [at for at, counts in enumerate(sequence.mask) if counts]


def forward(
    model: Any, batch: Batch, *, temperature: float = 1.0, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Compute log-probabilities and entropies of the N tokens that count.

    Args:
        model: Causal LM, with or without adapters.
        batch: Sequences to read.
        temperature: Temperature at which the tokens were sampled.
        entropy_gradient: Whether the entropies carry a gradient.

    Returns:
        Log-probabilities and entropies in nats, each (N,), in float32 or wider. Both are relative to the
        allowed tokens where there are any.
    """
    log_p, entropies, *_ = _score_batch(model, batch, _Scoring(temperature, entropy_gradient))
    return log_p, entropies


def forward_denoised(
    model: Any, batch: Batch, *, keep: float, temperature: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute what `forward` does, and log-probabilities among the tokens that are likely enough.

    Args:
        model: Causal LM, with or without adapters.
        batch: Sequences to read.
        keep: Share of the largest probability below which a token is cut away.
        temperature: Temperature at which the tokens were sampled.

    Returns:
        Log-probabilities, entropies, and log-probabilities among the tokens that are kept, each (N,). The last is -inf
        for a token that is cut away.
    """
    log_p, entropies, denoised = _score_batch(model, batch, _Scoring(temperature, keep=keep))
    return log_p, entropies, denoised


@dataclass(frozen=True, slots=True)
class _Scoring:
    """What is computed of every token."""

    temperature: float = 1.0
    entropy_gradient: bool = False
    keep: float | None = None
    """See `forward_denoised`; None leaves it out."""


def _score_batch(model: Any, batch: Batch, scoring: _Scoring) -> tuple[Tensor, ...]:
    """Return the figures of `scoring` for the N tokens that count."""
    causal = unwrap_causal(model)
    with autocast(batch.tokens.device):
        hidden = causal.base_model(input_ids=batch.tokens, use_cache=False).last_hidden_state
        # the hidden state at position t predicts token t + 1
        hidden = hidden.flatten(0, 1).index_select(0, batch.places - 1)
        targets = batch.tokens.flatten().index_select(0, batch.places)
        head = causal.get_output_embeddings()
        return _score_tokens(head, hidden, targets, batch, scoring)


def _score_tokens(
    head: nn.Module, hidden: Tensor, targets: Tensor, batch: Batch, scoring: _Scoring
) -> tuple[Tensor, ...]:
    """Score unconstrained tokens against the whole vocabulary and constrained ones against their allowed tokens."""
    if not len(batch.bound):
        return _score_in_chunks(_score_unconstrained, head, hidden, targets, scoring)
    sets = (batch.allowed, batch.width)
    bound = _score_in_chunks(_score_constrained, head, hidden[batch.bound], targets[batch.bound], scoring, *sets)
    if len(batch.bound) == len(targets):
        return bound
    unbound = torch.ones(len(targets), dtype=torch.bool, device=targets.device)
    unbound[batch.bound] = False
    unconstrained = unbound.nonzero().squeeze(1)
    free = _score_in_chunks(_score_unconstrained, head, hidden[unconstrained], targets[unconstrained], scoring)
    # back to the order of the batch, in which `old`, `advantages` and `sequence` are stored
    order = torch.cat([batch.bound, unconstrained]).argsort()
    return tuple(torch.cat(parts)[order] for parts in zip(bound, free, strict=True))


def _score_in_chunks(
    score: Any, head: Any, hidden: Tensor, targets: Tensor, scoring: _Scoring, *sets: Tensor
) -> tuple[Tensor, ...]:
    """Score tokens in chunks whose logits fit in MAX_LOGITS.

    With more than one chunk, the logits are recomputed in the backward pass.
    """
    size = max(1, MAX_LOGITS // int(head.out_features))
    if len(hidden) <= size:
        return score(head, scoring, hidden, targets, *sets)  # type: ignore[no-any-return]
    pieces = [
        checkpoint(score, head, scoring, *parts, use_reentrant=False)
        for parts in zip(*(torch.split(tensor, size) for tensor in (hidden, targets, *sets)), strict=True)
    ]
    return tuple(torch.cat(parts) for parts in zip(*pieces, strict=True))


def _score_unconstrained(head: nn.Module, scoring: _Scoring, hidden: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    """Score tokens against the whole vocabulary."""
    log_p = functional.log_softmax(_upcast(head(hidden)) / scoring.temperature, dim=-1)
    chosen = log_p.gather(1, targets[:, None]).squeeze(1)
    entropies = _compute_entropy(log_p, scoring.entropy_gradient)
    return (chosen, entropies) if scoring.keep is None else (chosen, entropies, _denoise(log_p, chosen, scoring.keep))


def _denoise(log_p: Tensor, chosen: Tensor, keep: float) -> Tensor:
    """Return the log-probability of the chosen token among those of at least `keep` times the largest, or -inf."""
    log_p, chosen = log_p.detach(), chosen.detach()
    bound = log_p.max(dim=-1).values + math.log(keep)
    mass = log_p.masked_fill(log_p < bound[:, None], -torch.inf).logsumexp(-1)
    return torch.where(chosen < bound, -torch.inf, chosen - mass)


def _score_constrained(
    head: nn.Module, scoring: _Scoring, hidden: Tensor, targets: Tensor, allowed: Tensor, width: Tensor
) -> tuple[Tensor, ...]:
    """Score tokens against their allowed tokens, (n, K) padded behind `width`."""
    if type(head) is nn.Linear and allowed.shape[1] * MAX_NARROW < head.out_features:
        # a few allowed tokens: gather their rows of the head instead of computing the whole vocabulary
        logits = torch.bmm(functional.embedding(allowed, head.weight), hidden[:, :, None]).squeeze(2)
        if head.bias is not None:
            logits = logits + head.bias[allowed]
    else:
        logits = head(hidden).gather(1, allowed)
    # the padding repeats the sampled token, which must not be counted twice
    outside = torch.arange(allowed.shape[1], device=allowed.device) >= width[:, None]
    log_p = functional.log_softmax((_upcast(logits) / scoring.temperature).masked_fill(outside, -torch.inf), dim=-1)
    # uint8, because argmax does not support bool; it finds the first match
    index = ((allowed == targets[:, None]) & ~outside).to(torch.uint8).argmax(1)
    chosen = log_p.gather(1, index[:, None]).squeeze(1)
    entropies = _compute_entropy(log_p.masked_fill(outside, -1e9), scoring.entropy_gradient)
    return (chosen, entropies) if scoring.keep is None else (chosen, entropies, _denoise(log_p, chosen, scoring.keep))


def _upcast(logits: Tensor) -> Tensor:
    """Convert logits to float32, unless they are float64."""
    return logits if logits.dtype == torch.float64 else logits.float()


def _compute_entropy(log_p: Tensor, gradient: bool) -> Tensor:
    """Return -sum p log p. Impossible tokens must have a finite log p so low (-1e9) that p is exactly 0."""
    log_p = log_p if gradient else log_p.detach()
    return -(log_p.exp() * log_p).sum(-1)


def split_by_sequence(values: Tensor, sequences: Sequence[PackedSequence]) -> Iterator[Tensor]:
    """Split values of a batch's N tokens into one tensor per sequence."""
    yield from torch.split(values, [len(find_trained_positions(sequence)) for sequence in sequences])


def compute_logprobs(
    model: Any, sequences: Sequence[PackedSequence], *, budget: int, temperature: float = 1.0
) -> list[Tensor]:
    """Compute the log-probabilities of the tokens to train on, without a gradient."""
    device, dtype = get_device_and_dtype(model)
    # by identity: micro_batches reorders the sequences, and hashing one would read all its tokens
    values_by_id: dict[int, Tensor] = {}
    with torch.no_grad():
        for parts in micro_batches([sequence for sequence in sequences if any(sequence.mask)], budget):
            values, _ = forward(model, collate(parts, device, dtype), temperature=temperature)
            values_by_id.update(zip(map(id, parts), split_by_sequence(values, parts), strict=True))
    return [values_by_id.get(id(sequence), torch.zeros(0, device=device, dtype=dtype)) for sequence in sequences]


def unwrap_causal(model: Any) -> Any:
    """Return the causal LM inside a peft wrapper. Its layers keep their adapters.

    Raises:
        ConfigError: The model transforms its logits after the head; see SCALED.
    """
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    if scaled := [name for name in SCALED if getattr(causal.config, name, None) not in (None, 1, 1.0)]:
        raise ConfigError(
            f"{type(causal).__name__} scales its logits ({scaled[0]}), which training cannot do. Choose another model."
        )
    return causal


def get_device_and_dtype(model: Any) -> tuple[torch.device, torch.dtype]:
    """Return the device of a model and the dtype of its log-probabilities: float32, or float64 for such a model."""
    parameter = next(model.parameters())
    return parameter.device, torch.float64 if parameter.dtype == torch.float64 else torch.float32


def autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context that computes in bfloat16 on a GPU. It does nothing on a CPU, where bfloat16 is not faster."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")
