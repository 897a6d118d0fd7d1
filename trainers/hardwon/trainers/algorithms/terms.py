"""Loss terms: what a training step minimizes beside the surrogate of the policy gradient.

    roles.policy.loss.terms: {epo: {weight: 0.001}}

A term may change the advantages of tokens before the first update, by what the frozen policy says about them. During
an update it adds a loss per token, and may free tokens from the clip. A term that is not named costs nothing and
changes nothing.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.logprobs import (
    Batch,
    collate,
    find_trained_positions,
    forward,
    forward_denoised,
    get_device_and_dtype,
    split_by_sequence,
)
from hardwon.trainers.algorithms.samples import PackedSequence, micro_batches


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """The N tokens of a micro-batch that are trained on."""

    new: Tensor
    """Log-probabilities under the current policy, with gradient."""
    entropies: Tensor
    """Entropies in nats, with gradient if a term asks for it."""
    steps: Tensor
    """Step of the episode that a token belongs to."""
    choices: Tensor
    """True where more than one token was possible."""
    sequences: Sequence[PackedSequence]
    """The sequences, in the order of their tokens."""


@dataclass(frozen=True, slots=True)
class FrozenPolicy:
    """The policy before the first update of a step. It is read without a gradient."""

    model: Any
    budget: int
    """Tokens of a micro-batch, padding included."""
    temperature: float

    def read(self, sequences: Sequence[PackedSequence], *, temperature: float = 1.0) -> list[tuple[Tensor, Tensor]]:
        """Return log-probabilities and entropies of the trained tokens of every sequence."""
        hot = self.temperature * temperature
        return [
            (log_p, entropies)
            for log_p, entropies in self._read(sequences, lambda batch: forward(self.model, batch, temperature=hot))
        ]

    def read_denoised(self, sequences: Sequence[PackedSequence], keep: float) -> list[Tensor]:
        """Return the log-probabilities among the tokens that are likely enough; see `forward_denoised`."""
        tensors = self._read(
            sequences, lambda batch: forward_denoised(self.model, batch, keep=keep, temperature=self.temperature)
        )
        return [parts[2] for parts in tensors]

    def _read(
        self, sequences: Sequence[PackedSequence], score: Callable[[Batch], tuple[Tensor, ...]]
    ) -> list[tuple[Tensor, ...]]:
        """Return the tensors that `score` gives, by sequence; empty ones where nothing is trained on."""
        device, dtype = get_device_and_dtype(self.model)
        tensors: dict[int, tuple[Tensor, ...]] = {}
        with torch.no_grad():
            for parts in micro_batches([sequence for sequence in sequences if any(sequence.mask)], self.budget):
                columns = [split_by_sequence(column, parts) for column in score(collate(parts, device, dtype))]
                tensors.update(zip(map(id, parts), zip(*columns, strict=True), strict=True))
        nothing = (torch.zeros(0, device=device, dtype=dtype),) * 3
        return [tensors.get(id(sequence), nothing) for sequence in sequences]


class Term:
    """A term that does nothing: the base class of the others."""

    reads_zero = False
    """Whether sequences without any advantage matter to the term."""
    has_entropy_gradient = False
    """Whether the term differentiates entropies."""

    def __init__(self) -> None:
        self.acted, self.seen = 0.0, 0.0
        """Tokens on which the term acted in this step, and all tokens that it saw."""

    def rewrite(self, sequences: Sequence[PackedSequence], policy: FrozenPolicy) -> list[PackedSequence]:
        """Return the sequences with the advantages that the term sets, before the first update of a step."""
        return list(sequences)

    def prepare(self, sequences: Sequence[PackedSequence], policy: FrozenPolicy) -> None:
        """Take in the sequences of a step before its first update, after all terms have set advantages."""

    def penalize(self, tokens: TokenFacts) -> Tensor | None:
        """Return the loss of every token, (N,), which is weighted and normalized as the surrogate is; None for none."""
        return None

    def find_unclipped(self, tokens: TokenFacts) -> Tensor | None:
        """Return the tokens whose surrogate is not clipped, (N,); None for none."""
        return None

    def end(self) -> dict[str, float]:
        """End a step: return its metrics, and take over what the next step needs."""
        metrics = {"active": self.acted / max(1.0, self.seen)}
        self.acted = self.seen = 0.0
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return everything that an exact resume needs, in plain types."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""


def add_horizon(name: str, horizon: int) -> dict[str, int]:
    """Return the setting `horizon` for a term that has one."""
    return {"horizon": horizon} if "horizon" in inspect.signature(PARTS.get("term", name)).parameters else {}


class Terms:
    """The terms of one learner."""

    def __init__(self) -> None:
        self._settings: Mapping[str, Mapping[str, Any]] = {}
        self._terms: dict[str, Term] = {}
        self._state: Mapping[str, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._terms)

    def open(self, settings: Mapping[str, Mapping[str, Any]]) -> None:
        """Build the terms of these settings, with the state that was loaded; the same settings keep them."""
        if settings == self._settings:
            return
        self._settings = {name: dict(own) for name, own in settings.items()}
        self._terms = {name: PARTS.get("term", name)(**own) for name, own in settings.items()}
        for name in self._terms.keys() & self._state.keys():
            self._terms[name].load_state_dict(self._state[name])

    @property
    def reads_zero(self) -> bool:
        """Return whether sequences without any advantage matter."""
        return any(term.reads_zero for term in self._terms.values())

    @property
    def has_entropy_gradient(self) -> bool:
        """Return whether a term differentiates entropies."""
        return any(term.has_entropy_gradient for term in self._terms.values())

    def begin(self, sequences: Sequence[PackedSequence], policy: FrozenPolicy) -> list[PackedSequence]:
        """Return the sequences of a step with the advantages that the terms set."""
        sequences = list(sequences)
        for term in self._terms.values():
            sequences = term.rewrite(sequences, policy)
        for term in self._terms.values():
            term.prepare(sequences, policy)
        return sequences

    def weigh(
        self, new: Tensor, entropies: Tensor, batch: Batch, sequences: Sequence[PackedSequence]
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the loss that the terms add per token, and the tokens that they free from the clip."""
        if not self._terms:
            return None, None
        tokens = _describe(new, entropies, batch, sequences)
        losses = [loss for term in self._terms.values() if (loss := term.penalize(tokens)) is not None]
        free = [mask for term in self._terms.values() if (mask := term.find_unclipped(tokens)) is not None]
        # a token that could not be another one has nothing to learn
        added = torch.where(tokens.choices, torch.stack(losses).sum(0), 0.0) if losses else None
        return added, torch.stack(free).any(0) if free else None

    def end(self) -> dict[str, float]:
        """End a step and return the metrics of all terms."""
        return {f"term/{name}/{key}": value for name, term in self._terms.items() for key, value in term.end().items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all terms by name."""
        return {name: term.state_dict() for name, term in self._terms.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned, before or after the terms are opened."""
        self._state = dict(state)
        for name in self._terms.keys() & self._state.keys():
            self._terms[name].load_state_dict(self._state[name])


def _describe(new: Tensor, entropies: Tensor, batch: Batch, sequences: Sequence[PackedSequence]) -> TokenFacts:
    """Return the facts about the tokens of a micro-batch."""
    steps = [s.turns[at] if s.turns else 0 for s in sequences for at in find_trained_positions(s)]
    choices = torch.ones(len(batch), dtype=torch.bool, device=new.device)
    choices[batch.bound] = batch.width > 1
    return TokenFacts(new, entropies, torch.tensor(steps, device=new.device), choices, sequences)
