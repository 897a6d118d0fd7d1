"""Sources that read the policy itself: entropies of its choices."""

from collections.abc import Mapping, Sequence
from statistics import fmean

import torch

from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.logprobs import collate, forward, get_device_and_dtype, split_by_sequence
from hardwon.trainers.algorithms.samples import PackedSequence, Rollout, micro_batches, pack_samples
from hardwon.trainers.algorithms.signals import Signals
from hardwon.trainers.models.adapters import activate

from .base import SourceParts, Untrained, list_turns


@PARTS.add("source", "Entropy of choices", gives=("entropy",), name="entropy", method="empg")
class EntropySource(Untrained):
    """Mean entropy of a turn's choices among the allowed tokens, by the policy that sampled."""

    async def read(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, Signals]:
        """Return the entropy of every turn; None for a turn without a choice."""
        rollouts = [rollout for group in groups for rollout in group]
        measured = measure_entropies(self._parts, rollouts)
        self.spent = {"tokens": float(sum(len(row.prompt) + len(row.completion) for r in rollouts for row in r.rows))}
        return {
            rollout.trajectory.id: Signals(
                {"entropy": tuple(measured.get((rollout.trajectory.id, turn)) for turn in list_turns(rollout))}
            )
            for rollout in rollouts
        }


def measure_entropies(parts: SourceParts, rollouts: Sequence[Rollout]) -> dict[tuple[str, int], float]:
    """Return the mean entropy of the choices of a turn, in nats, by trace and step. Other turns are absent."""
    rows = [row for rollout in rollouts for row in rollout.rows if row.role == "policy"]
    ones = {row.trace: [1.0] * len(rows) for row in rows}
    sequences = [sequence for sequence in pack_samples(rows, ones) if any(sequence.mask)]
    activate(parts.model, "policy")
    device, dtype = get_device_and_dtype(parts.model)
    measured: dict[tuple[str, int], list[float]] = {}
    with torch.no_grad():
        for batch in micro_batches(sequences, parts.budget):
            _, entropies = forward(parts.model, collate(batch, device, dtype), temperature=parts.temperature)
            for sequence, values in zip(batch, split_by_sequence(entropies, batch), strict=True):
                for turn, value in zip(_list_trained_turns(sequence), values.tolist(), strict=True):
                    measured.setdefault((sequence.trace, turn), []).append(value)
    return {key: fmean(values) for key, values in measured.items()}


def _list_trained_turns(sequence: PackedSequence) -> list[int]:
    """Return the step of every token that was a choice."""
    return [turn for turn, counts in zip(sequence.turns, sequence.mask, strict=True) if counts]
