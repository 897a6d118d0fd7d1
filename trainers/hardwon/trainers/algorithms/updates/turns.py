"""SeeUPO: one update per turn of the episodes, from the last turn to the first (arXiv:2602.06554).

    factors = {}
    for part in list_parts(sequences):                        # the last turn first
        update(scale(part, factors))
        factors = move_factors(factors, log_ratios, part)     # by how the update moved this turn

The advantage of a turn is multiplied by how much the updates of the later turns of its episode have moved these. It was
read in a third party's reproduction and in the abstract; evidence F A.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from hardwon.trainers.algorithms.samples import PackedSequence

LOW, HIGH = 0.8, 1.2
"""Bounds of the ratio of a turn, and of the factor."""


def list_parts(sequences: Sequence[PackedSequence]) -> list[list[PackedSequence]]:
    """Return the sequences of each turn, the last turn first.

    A part holds only the sequences that train on tokens of its turn, up to the last of these; all other tokens are
    context. Episodes that are shorter have no part in the turns that they lack.
    """
    turns = {turn for sequence in sequences for turn in _list_trained(sequence)}
    parts = []
    for turn in sorted(turns, reverse=True):
        own = [_keep_turn(sequence, turn) for sequence in sequences if turn in _list_trained(sequence)]
        parts.append(own)
    return parts


def _list_trained(sequence: PackedSequence) -> set[int]:
    """Return the turns of which a sequence trains tokens; the whole of one without turns is turn 0."""
    turns = sequence.turns or (0,) * len(sequence)
    return {turn for turn, counts in zip(turns, sequence.mask, strict=True) if counts}


def _keep_turn(sequence: PackedSequence, turn: int) -> PackedSequence:
    """Return the sequence with the tokens of one turn to train on, cut after the last of them."""
    turns = sequence.turns or (0,) * len(sequence)
    mask = tuple(counts and own == turn for own, counts in zip(turns, sequence.mask, strict=True))
    end = max(at for at, counts in enumerate(mask) if counts) + 1
    return replace(
        sequence,
        tokens=sequence.tokens[:end],
        mask=mask[:end],
        logprobs=sequence.logprobs[:end],
        advantages=sequence.advantages[:end],
        allowed=sequence.allowed[:end],
        turns=turns[:end],
    )


def scale(part: Sequence[PackedSequence], factors: Mapping[str, float]) -> list[PackedSequence]:
    """Return the sequences with their advantages times the factor of their episode, which is 1 at first."""
    return [
        replace(sequence, advantages=tuple(factors.get(sequence.trace, 1.0) * value for value in sequence.advantages))
        for sequence in part
    ]


def move_factors(
    factors: Mapping[str, float], differences: Sequence[Sequence[float]], part: Sequence[PackedSequence]
) -> dict[str, float]:
    """Return the factors after a turn: clip(factor x clip(exp(mean log-ratio of the turn))), by trace.

    Args:
        factors: The factors so far, by trace.
        differences: Log-probability after the update minus before it, of the trained tokens of each sequence.
        part: The sequences of the turn.
    """
    ratios: dict[str, list[float]] = defaultdict(list)
    for sequence, values in zip(part, differences, strict=True):
        ratios[sequence.trace] += values
    moved = dict(factors)
    for trace, values in ratios.items():
        moved[trace] = _clip(factors.get(trace, 1.0) * _clip(math.exp(fmean(values))))
    return moved


def _clip(value: float) -> float:
    return min(HIGH, max(LOW, value))
