"""Lp-Reg: unlikely tokens of bad episodes are held near a denoised copy of the old policy (arXiv:2510.03222)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.logprobs import find_trained_positions
from hardwon.trainers.algorithms.losses import MAX_LOG_RATIO
from hardwon.trainers.algorithms.samples import PackedSequence
from hardwon.trainers.algorithms.terms import FrozenPolicy, Term, TokenFacts


def find_threshold(values: Sequence[float], share: float) -> float | None:
    """Return the log-probability up to which a token is among the lowest `share`; None if that is one token or none."""
    number = math.floor(share * len(values) + 1e-9)
    return sorted(values)[number - 1] if number > 1 else None


@PARTS.add(
    "term",
    "Lp-Reg",
    "arXiv:2510.03222",
    evidence="C",
    name="lp-reg",
    reading="probabilities among the allowed tokens; the lowest share is taken over the tokens of negative advantage",
    settings={"roles.policy.learner.epochs": 2, "roles.policy.loss.low": 0.8, "roles.policy.loss.high": 8},
    example={
        "environment.params": "numLocations=6, includeDoors=0, numDistractorItems=0",
        "roles.policy.loss.terms.lp-reg.share": 0.05,
    },
)
class LowProbability(Term):
    """Replaces the surrogate of spared tokens by -A r, without a clip, + weight x k3(new, proxy).

    Spared are the tokens with A < 0 whose log-probability at sampling is among the lowest `share` of these, if that is
    more than one token, and whose probability is below that of the proxy. The proxy is the old policy without tokens
    of less than `keep` times the largest probability, renormalized; a token that is cut away is not spared.
    """

    def __init__(self, *, share: float = 0.01, keep: float = 0.02, weight: float = 1.0) -> None:
        """Create the term.

        Args:
            share: Share of the tokens with a negative advantage that may be spared.
            keep: Share of the largest probability below which the proxy cuts a token away.
            weight: Weight of the divergence from the proxy.
        """
        super().__init__()
        self._share, self._keep, self._weight = share, keep, weight
        self._proxies: dict[int, Tensor] = {}

    def prepare(self, sequences: Sequence[PackedSequence], policy: FrozenPolicy) -> None:
        """Find the unlikely tokens, and read the proxy of the sequences that have one."""
        negative = [sequence.logprobs[at] for sequence in sequences for at in _find_negative(sequence)]
        threshold = find_threshold(negative, self._share)
        self._proxies = {}
        if threshold is None:
            return
        marked = {
            id(sequence): [
                sequence.advantages[at] < 0 and sequence.logprobs[at] <= threshold
                for at in find_trained_positions(sequence)
            ]
            for sequence in sequences
        }
        chosen = [sequence for sequence in sequences if any(marked[id(sequence)])]
        for sequence, proxy in zip(chosen, policy.read_denoised(chosen, self._keep), strict=True):
            is_low = torch.tensor(marked[id(sequence)], device=proxy.device)
            self._proxies[id(sequence)] = torch.where(is_low, proxy, -torch.inf)

    def _read_proxy(self, tokens: TokenFacts) -> tuple[Tensor, Tensor]:
        """Return the log-probability under the proxy of every token, and which tokens are spared."""
        parts = [
            self._proxies.get(id(sequence), tokens.new.new_full((len(find_trained_positions(sequence)),), -torch.inf))
            for sequence in tokens.sequences
        ]
        proxy = torch.cat(parts).to(tokens.new.dtype)
        # a proxy of -inf marks a token that is not low, or that is cut away
        # A token is below the proxy if its log-probability is lower by more than this.
        return proxy, proxy.isfinite() & (tokens.new.detach() < proxy - 1e-6)

    def find_unclipped(self, tokens: TokenFacts) -> Tensor:
        """Return the tokens that are spared."""
        return self._read_proxy(tokens)[1]

    def penalize(self, tokens: TokenFacts) -> Tensor:
        """Return weight x k3(new, proxy) of the tokens that are spared, and 0 of the others."""
        proxy, spared = self._read_proxy(tokens)
        # a finite value in both branches: torch.where passes nan gradients of the other branch on
        difference = (tokens.new - torch.where(spared, proxy, tokens.new.detach())).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        self.seen += len(spared)
        self.acted += float(spared.sum())
        return self._weight * torch.where(spared, (-difference).exp() - 1 + difference, 0.0)

    def end(self) -> dict[str, float]:
        """End a step and forget its sequences."""
        self._proxies = {}
        return super().end()


def _find_negative(sequence: PackedSequence) -> list[int]:
    """Return the positions of the trained tokens with a negative advantage."""
    return [at for at in find_trained_positions(sequence) if sequence.advantages[at] < 0]
