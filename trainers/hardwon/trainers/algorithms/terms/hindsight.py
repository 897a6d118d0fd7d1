"""HeRL: a bounded loss for the revisions of failed episodes (arXiv:2603.20046)."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.logprobs import find_trained_positions
from hardwon.trainers.algorithms.losses import MAX_LOG_RATIO
from hardwon.trainers.algorithms.samples import REVISED, PackedSequence

from .base import TERMS, FrozenPolicy, Term, TokenFacts


@TERMS.add(
    "HeRL (loss of revisions)",
    "arXiv:2603.20046",
    evidence="C",
    name="hindsight",
    method="herl",
    reading="r is the ratio to the log-probabilities of sampling, as in the formula; in the authors' code the old "
    "policy is the present one, so r is 1",
    settings={"tasks.compose.revise": {}, "roles.policy.credit.outcome": "score"},
    example={
        "environment.game": "twc",
        "environment.params": "numLocations=1, numItemsToPutAway=2, includeDoors=0, limitInventorySize=0",
        "arms.control": 2,
        "roles.policy.loss.terms.hindsight.weight": 0.5,
        "run.groups": 8,
    },
)
class Hindsight(Term):
    """Replaces the surrogate of the revisions of the composer `revise` by -weight A r / (r + 1), with r = pi / pi_old.

    Where r is 1, its gradient is weight A / 4; it is bounded, however far the revision is from the policy. Episodes
    that are no revision have the run's own loss.
    """

    reads_zero = True  # the advantages of revisions are moved into the term

    def __init__(self, *, weight: float = 0.5) -> None:
        """Create the term.

        Args:
            weight: Weight of a revision.
        """
        super().__init__()
        if weight < 0:
            raise ConfigError(f"weight is {weight}; use 0 or more.")
        self._weight = weight
        self._advantages: dict[str, tuple[float, ...]] = {}

    def rewrite(self, sequences: Sequence[PackedSequence], policy: FrozenPolicy) -> list[PackedSequence]:
        """Return the sequences, those of revisions without the advantages, which the term keeps."""
        rewritten = []
        for sequence in sequences:
            if sequence.trace.endswith(f"+{REVISED}"):
                silent = replace(sequence, advantages=(0.0,) * len(sequence))
                self._advantages[_name(silent)] = sequence.advantages
                sequence = silent
            rewritten.append(sequence)
        return rewritten

    def penalize(self, tokens: TokenFacts) -> Tensor:
        """Return -weight A r / (r + 1) of the tokens of revisions, and 0 of the others."""
        advantages, old = [], []
        for sequence in tokens.sequences:
            own = self._advantages.get(_name(sequence), sequence.advantages)
            is_revised = _name(sequence) in self._advantages
            for at in find_trained_positions(sequence):
                advantages.append(own[at] if is_revised else 0.0)
                old.append(sequence.logprobs[at])
        weights = torch.tensor(advantages, dtype=tokens.new.dtype, device=tokens.new.device)
        before = torch.tensor(old, dtype=tokens.new.dtype, device=tokens.new.device)
        self.seen += len(weights)
        self.acted += float((weights != 0).sum())
        # r / (r + 1) is the logistic function of log r
        return -self._weight * weights * torch.sigmoid((tokens.new - before).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))

    def end(self) -> dict[str, float]:
        """End a step and forget its sequences."""
        self._advantages = {}
        return super().end()


def _name(sequence: PackedSequence) -> str:
    """Return a key of a sequence: a trace can have several, which differ in their tokens."""
    return f"{sequence.trace}/{hash(sequence.tokens)}"
