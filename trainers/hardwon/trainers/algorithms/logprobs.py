"""Forward pass: log-probabilities and entropies of the tokens that streams are trained on.

The trunk reads every token; the head sees only the places whose next token counts, so the logits of
a whole batch never exist. Where a row was sampled among a few allowed tokens, only those are scored,
as the engine did. Streams are padded on the right and need no mask: attention is causal, so no token
sees the padding behind it. It follows that the models must be causal, with a plain linear head.
This file knows no loss and no optimiser.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from hardwon.memory.errors import ConfigError

from .samples import PackedSequence, micro_batches

MAX_LOGITS = 2**26
"""Logits held at once, in numbers; more of them are made in pieces, again in the backward pass."""
MAX_NARROW = 8
"""Allowed tokens are scored one by one where their most are below the vocabulary by this factor."""
SCALED = ("final_logit_softcapping", "logits_scaling", "logit_scale")
"""Settings of models that do something to the logits after the head, which is not done here."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Streams as tensors. B streams, T the longest of them, N tokens that count, K the most allowed."""

    tokens: Tensor
    """(B, T), padded on the right."""
    places: Tensor
    """(N,) where the N tokens stand in `tokens` flattened."""
    allowed: Tensor
    """(M, K) of the M tokens with allowed sets; short rows repeat the token that was said."""
    width: Tensor
    """(M,) how many of those count."""
    bound: Tensor
    """(M,) which of the N those are."""
    sequence: Tensor
    """(N,) which of the B streams the token is in."""
    old: Tensor
    """(N,) log-probability when sampled."""
    advantages: Tensor
    """(N,)"""

    def __len__(self) -> int:
        return len(self.places)


def collate(
    streams: Sequence[PackedSequence], device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Batch:
    """The streams as tensors. A stream's first token cannot be trained on: nothing comes before it."""
    longest = max(len(stream) for stream in streams)
    places: list[int] = []
    sequence: list[int] = []
    old: list[float] = []
    advantages: list[float] = []
    bound: list[int] = []
    sets: list[tuple[int, ...]] = []
    said: list[int] = []
    for number, stream in enumerate(streams):
        for at in find_trained_positions(stream):
            if (allowed := stream.allowed[at]) is not None:
                if stream.tokens[at] not in allowed:
                    raise ValueError(f"token {stream.tokens[at]} of trace {stream.trace!r} is not among its allowed.")
                bound.append(len(places))
                sets.append(allowed)
                said.append(stream.tokens[at])
            places.append(number * longest + at)
            sequence.append(number)
            old.append(stream.logprobs[at])
            advantages.append(stream.advantages[at])
    widest = max(map(len, sets), default=0)

    def tensor(values: Any, dtype: torch.dtype = torch.long) -> Tensor:
        return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)

    return Batch(
        tensor([[*stream.tokens, *(0,) * (longest - len(stream))] for stream in streams]),
        tensor(places),
        tensor([[*ids, *(last,) * (widest - len(ids))] for ids, last in zip(sets, said, strict=True)]),
        tensor([len(ids) for ids in sets]),
        tensor(bound),
        tensor(sequence),
        tensor(old, dtype),
        tensor(advantages, dtype),
    )


def find_trained_positions(stream: PackedSequence) -> list[int]:
    """Where the tokens stand that the loss is of."""
    if stream.mask and stream.mask[0]:
        raise ValueError(f"trace {stream.trace!r} is to be trained on its first token; nothing comes before it.")
    return [at for at, counts in enumerate(stream.mask) if counts]


def forward(
    model: Any, given: Batch, *, temperature: float = 1.0, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies in nats of the N tokens, float32 or wider.

    Both are among the allowed tokens where there are any, at the temperature. The entropies carry a
    gradient only where it is asked for.
    """
    causal = unwrap_causal(model)
    with autocast(given.tokens.device):
        hidden = causal.base_model(input_ids=given.tokens, use_cache=False).last_hidden_state
        # the hidden state of a token speaks of the next one
        hidden = hidden.flatten(0, 1).index_select(0, given.places - 1)
        targets = given.tokens.flatten().index_select(0, given.places)
        head = causal.get_output_embeddings()
        return _score_tokens(head, hidden, targets, given, temperature, entropy_gradient)


def _score_tokens(
    head: nn.Module, hidden: Tensor, targets: Tensor, given: Batch, temperature: float, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Free tokens against the whole vocabulary, bound ones against their allowed."""
    if not len(given.bound):
        return _score_in_chunks(_score_unconstrained, head, hidden, targets, temperature, entropy_gradient)
    sets = (given.allowed, given.width)
    bound = _score_in_chunks(
        _score_constrained, head, hidden[given.bound], targets[given.bound], temperature, entropy_gradient, *sets
    )
    if len(given.bound) == len(targets):
        return bound
    unbound = torch.ones(len(targets), dtype=torch.bool, device=targets.device)
    unbound[given.bound] = False
    others = unbound.nonzero().squeeze(1)
    free = _score_in_chunks(_score_unconstrained, head, hidden[others], targets[others], temperature, entropy_gradient)
    order = torch.cat([given.bound, others]).argsort()
    return torch.cat([bound[0], free[0]])[order], torch.cat([bound[1], free[1]])[order]


def _score_in_chunks(
    score: Any, head: Any, hidden: Tensor, targets: Tensor, temperature: float, entropy_gradient: bool, *sets: Tensor
) -> tuple[Tensor, Tensor]:
    """The scores of all, so many places at a time that the logits fit; recomputed for the gradient."""
    size = max(1, MAX_LOGITS // int(head.out_features))
    if len(hidden) <= size:
        return score(head, temperature, entropy_gradient, hidden, targets, *sets)  # type: ignore[no-any-return]
    pieces = [
        checkpoint(score, head, temperature, entropy_gradient, *parts, use_reentrant=False)
        for parts in zip(*(torch.split(tensor, size) for tensor in (hidden, targets, *sets)), strict=True)
    ]
    return torch.cat([piece[0] for piece in pieces]), torch.cat([piece[1] for piece in pieces])


def _score_unconstrained(
    head: nn.Module, temperature: float, entropy_gradient: bool, hidden: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    log_p = functional.log_softmax(_upcast(head(hidden)) / temperature, dim=-1)
    return log_p.gather(1, targets[:, None]).squeeze(1), _compute_entropy(log_p, entropy_gradient)


def _score_constrained(
    head: nn.Module,
    temperature: float,
    entropy_gradient: bool,
    hidden: Tensor,
    targets: Tensor,
    allowed: Tensor,
    width: Tensor,
) -> tuple[Tensor, Tensor]:
    if type(head) is nn.Linear and allowed.shape[1] * MAX_NARROW < head.out_features:
        logits = torch.bmm(functional.embedding(allowed, head.weight), hidden[:, :, None]).squeeze(2)
        if head.bias is not None:
            logits = logits + head.bias[allowed]
    else:
        logits = head(hidden).gather(1, allowed)
    outside = torch.arange(allowed.shape[1], device=allowed.device) >= width[:, None]
    log_p = functional.log_softmax((_upcast(logits) / temperature).masked_fill(outside, -torch.inf), dim=-1)
    here = ((allowed == targets[:, None]) & ~outside).to(torch.uint8).argmax(1)
    return log_p.gather(1, here[:, None]).squeeze(1), _compute_entropy(
        log_p.masked_fill(outside, -1e9), entropy_gradient
    )


def _upcast(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _compute_entropy(log_p: Tensor, gradient: bool) -> Tensor:
    """-sum p log p, where an impossible token has a log p of -1e9 or so, whose p is exactly 0."""
    log_p = log_p if gradient else log_p.detach()
    return -(log_p.exp() * log_p).sum(-1)


def split_by_sequence(values: Tensor, streams: Sequence[PackedSequence]) -> Iterator[Tensor]:
    """What was computed of a batch's tokens, stream by stream."""
    yield from torch.split(values, [len(find_trained_positions(stream)) for stream in streams])


def compute_logprobs(
    model: Any, streams: Sequence[PackedSequence], *, budget: int, temperature: float = 1.0
) -> list[Tensor]:
    """For each stream the log-probabilities of the tokens it is trained on, without a gradient."""
    device, dtype = get_device_and_dtype(model)
    found: dict[int, Tensor] = {}
    with torch.no_grad():
        for parts in micro_batches([stream for stream in streams if any(stream.mask)], budget):
            values, _ = forward(model, collate(parts, device, dtype), temperature=temperature)
            found.update(zip(map(id, parts), split_by_sequence(values, parts), strict=True))
    return [found.get(id(stream), torch.zeros(0, device=device, dtype=dtype)) for stream in streams]


def unwrap_causal(model: Any) -> Any:
    """The causal LM under peft's wrapping, which leaves its adapters in the layers. Refused: see SCALED."""
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    if scaled := [name for name in SCALED if getattr(causal.config, name, None) not in (None, 1, 1.0)]:
        raise ConfigError(f"{type(causal).__name__} has {scaled[0]}, which training does not apply; use another model.")
    return causal


def get_device_and_dtype(model: Any) -> tuple[torch.device, torch.dtype]:
    """Device of a model, and the precision its log-probabilities have: float32, or float64 for such a model."""
    first = next(model.parameters())
    return first.device, torch.float64 if first.dtype == torch.float64 else torch.float32


def autocast(device: torch.device) -> AbstractContextManager[Any]:
    """bfloat16 on a GPU, nothing on a CPU, where it gains nothing."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")


@contextmanager
def recompute_activations(model: nn.Module) -> Iterator[None]:
    """Gradient checkpointing here: layers keep their inputs only, and are run again in the backward pass.

    transformers does so in layers that are in training mode. Their parts stay as they are, so dropout
    stays off; and outside of here the layers use their key-value cache, which the engine needs.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    unwrap_causal(model).gradient_checkpointing_enable({"use_reentrant": False})
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    before = [layer.training for layer in layers]
    try:
        for layer in layers:
            layer.training = True
        yield
    finally:
        for layer, training in zip(layers, before, strict=True):
            layer.training = training
