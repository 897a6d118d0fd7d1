"""SCOPE (beyond majority voting): the paper has no identifier."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

from hardwon.trainers.algorithms.advantages import Trace
from hardwon.trainers.algorithms.catalog import PARTS


@PARTS.add(
    "shaper",
    "SCOPE (beyond majority voting)",
    "SCOPE: confidence-weighted pseudo-labels in subgroups",
    evidence="C",
    needs=("answers",),
    reading="confidence is exp(mean log p) where an engine gives no top-k; unreadable answers do not vote",
    example={"roles.policy.shape.scope.votes": 4},
)
def scope(siblings: Sequence[Trace], *, votes: int = 32, balance: float = 0.7, seed: int = 0) -> list[Trace]:
    """Set the outcome to whether a trace's answer is the pseudo-label of its subgroup (SCOPE).

    A subgroup's label is the answer with the largest summed confidence among `votes` traces drawn from all. The size
    of subgroups is chosen from 1, 2, 4, ... n: dominated ones (share of reward, number of labels) are dropped, then the
    least distance sqrt(balance (1 - r')^2 + (1 - balance) (1 - d')^2) of the min-max values wins. Only for worlds with
    an answer and no outcome. A trace without a readable answer keeps its outcome.

    Args:
        siblings: Traces of one group.
        votes: Traces that vote for a label, at most.
        balance: Weight of the share of reward against the number of labels.
        seed: Seed of the draws.
    """
    voters = [
        (trace, str(trace.facts["answer"]), trace.scores.get("confidence", 1.0))
        for trace in siblings
        if trace.facts.get("answer")
    ]
    if not any("answer" in trace.facts for trace in siblings):
        siblings[0].read_signal("answers")  # raises: no source gives answers
    if not voters:
        return list(siblings)
    pairs = [(answer, confidence) for _, answer, confidence in voters]
    sizes = [2**n for n in range(len(voters).bit_length()) if 2**n <= len(voters)]
    labels = {size: label_subgroups(pairs, size, votes, seed) for size in sizes}
    figures = {
        size: (sum(a == b for (a, _), b in zip(pairs, own, strict=True)) / len(own), len({*own}))
        for size, own in labels.items()
    }
    chosen = labels[choose_size(figures, balance)]
    rewarded = {trace.id: float(answer == label) for (trace, answer, _), label in zip(voters, chosen, strict=True)}
    return [replace(trace, outcome=rewarded.get(trace.id, trace.outcome)) for trace in siblings]


def label_subgroups(pairs: Sequence[tuple[str, float]], size: int, votes: int, seed: int) -> list[str]:
    """Return the pseudo-label of every answer: that of its subgroup of a size, by summed confidence."""
    labels: list[str] = []
    for start in range(0, len(pairs), size):
        chance = random.Random(f"{seed}:{size}:{start}")
        drawn = chance.sample(list(pairs), min(votes, len(pairs)))
        sums: dict[str, float] = defaultdict(float)
        for answer, confidence in drawn:
            sums[answer] += confidence
        best = max(sorted(sums), key=lambda answer: sums[answer])
        labels += [best] * min(size, len(pairs) - start)
    return labels


def choose_size(figures: dict[int, tuple[float, int]], balance: float) -> int:
    """Return the size of subgroups with the best compromise of the share of reward and the number of labels."""
    kept = {
        size: own
        for size, own in figures.items()
        if not any(other[0] >= own[0] and other[1] >= own[1] and other != own for other in figures.values())
    }
    shares, labels = [own[0] for own in kept.values()], [own[1] for own in kept.values()]

    def measure(size: int) -> float:
        share = (kept[size][0] - min(shares)) / ((max(shares) - min(shares)) or 1)
        count = (kept[size][1] - min(labels)) / ((max(labels) - min(labels)) or 1)
        return sqrt(balance * (1 - share) ** 2 + (1 - balance) * (1 - count) ** 2)

    return min(kept, key=lambda size: (measure(size), size))
