"""DCPO: advantages drawn towards a hotter or colder copy of the policy (arXiv:2601.12730)."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.logprobs import find_trained_positions
from hardwon.trainers.algorithms.samples import PackedSequence
from hardwon.trainers.algorithms.terms import FrozenPolicy, Term


def find_share(entropy: float, target: float, right: float, most: float) -> float:
    """Return the weight alpha = a / (1 + a) with a = min(|target - entropy|, most) / right; 0 without a success."""
    if right <= 0:
        return 0.0
    a = min(abs(target - entropy), most) / right
    return a / (1 + a)


def draw_advantage(advantage: float, alpha: float, is_right: bool, difference: float) -> float:
    """Return (1 - alpha) A + alpha exp(log p_T - log p), the last only for a success."""
    return (1 - alpha) * advantage + (alpha * math.exp(difference) if is_right else 0.0)


@PARTS.add(
    "term",
    "DCPO (distribution-centric)",
    "arXiv:2601.12730",
    evidence="C",
    name="dcpo",
    reading="the target entropy 0.5 is the script's, 0.25 that of the best table; H is the mean over all choices of "
    "the batch, and right means an outcome above 0",
    example={"roles.policy.loss.terms.dcpo.target": 0.5},
)
class Tempered(Term):
    """Replaces the advantage of every token by (1 - alpha) A + alpha [right] exp(log p_T - log p).

    log p_T is that of the frozen policy at `hot` times the temperature of sampling if its mean entropy H is at most
    `target`, and at `cold` times else. alpha grows with |target - H|, up to `most`, over the share of right episodes.
    At H = target, and without a right episode, nothing changes.
    """

    def __init__(self, *, target: float = 0.5, most: float = 0.1, hot: float = 1.2, cold: float = 0.8) -> None:
        """Create the term.

        Args:
            target: Entropy to hold, in nats per choice.
            most: Largest difference from it that counts.
            hot: Factor of the temperature that raises the entropy.
            cold: Factor of the temperature that lowers it.
        """
        super().__init__()
        if target < 0 or most < 0 or not 0 < cold <= 1 <= hot:
            raise ConfigError(
                f"target is {target}, most {most}, hot {hot} and cold {cold}; use target and most from 0 on, and "
                "0 < cold <= 1 <= hot."
            )
        self._target, self._most, self._hot, self._cold = target, most, hot, cold
        self._alpha = 0.0

    def rewrite(self, sequences: Sequence[PackedSequence], policy: FrozenPolicy) -> list[PackedSequence]:
        """Return the sequences with the advantages of the term."""
        plain = policy.read(sequences)
        entropies = [value for _, own in plain for value in own.tolist()]
        outcomes = {sequence.trace: sequence.outcome for sequence in sequences}
        if not entropies:
            return list(sequences)
        entropy, right = fmean(entropies), fmean(outcome > 0 for outcome in outcomes.values())
        self._alpha = alpha = find_share(entropy, self._target, right, self._most)
        self.seen += len(entropies)
        if not alpha:
            return list(sequences)
        self.acted += len(entropies)
        tempered = policy.read(sequences, temperature=self._hot if entropy <= self._target else self._cold)
        drawn = []
        for sequence, (log_p, _), (log_p_tempered, _) in zip(sequences, plain, tempered, strict=True):
            advantages = [*sequence.advantages]
            differences = (log_p_tempered - log_p).tolist()
            for at, difference in zip(find_trained_positions(sequence), differences, strict=True):
                advantages[at] = draw_advantage(advantages[at], alpha, sequence.outcome > 0, difference)
            drawn.append(replace(sequence, advantages=tuple(advantages)))
        return drawn

    def end(self) -> dict[str, float]:
        """End a step and return its weight."""
        return {"alpha": self._alpha, **super().end()}
