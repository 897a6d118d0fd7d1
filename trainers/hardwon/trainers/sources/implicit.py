"""The implicit process reward model of iStar (OPRL): a second policy, trained on pairs of a success and a failure."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.judging.preference import measure_pairs, pair_by_outcome, sum_by_trace, weigh_tokens
from hardwon.trainers.algorithms.learner import Learner, LearnerSettings, LossSettings
from hardwon.trainers.algorithms.logprobs import compute_logprobs, find_trained_positions
from hardwon.trainers.algorithms.samples import PackedSequence, Rollout, pack_samples, to_trace
from hardwon.trainers.algorithms.signals import Signals
from hardwon.trainers.models.adapters import activate, parameters_of

from .base import SourceParts, list_turns

POLICY = "policy"


@PARTS.add("source", "Implicit reward model", gives=("implicit",), name="implicit", method="oprl")
class ImplicitSource:
    """Log-ratio of a second policy, trained on pairs of a success and a failure, to the one that sampled.

    r_t = beta (log pi_phi - log pi_old), summed over the tokens of a turn (arXiv:2509.19199). pi_phi starts as a copy
    of the policy at the first reading, and makes one update an iteration, after the rewards of the iteration were read.
    The reference are the log-probabilities of sampling. It needs the memory of a second model.
    """

    def __init__(self, parts: SourceParts, *, beta: float = 0.05, lr: float = 1e-6) -> None:
        """Create the source.

        Args:
            parts: Its objects.
            beta: Scale of the reward and of the margin between two traces.
            lr: Learning rate of the second policy.
        """
        self._parts, self._beta, self._lr = parts, beta, lr
        self._model: Any = None
        self._learner: Learner | None = None
        self.spent: dict[str, float] = {}

    def _open(self) -> Learner:
        """Return the learner of pi_phi; the first call copies the policy."""
        if self._learner is None:
            self._model = copy.deepcopy(self._parts.model)
            settings = LearnerSettings(lr=self._lr, budget=self._parts.budget, denominator="constant", constant=1)
            # no name: with several processes, a named learner would share its steps
            self._learner = Learner(self._model, parameters_of(self._model, POLICY), settings)
        activate(self._model, POLICY)
        return self._learner

    async def read(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, Signals]:
        """Return the implicit reward of every turn."""
        self._open()
        rollouts = [rollout for group in groups for rollout in group]
        ratios = self._measure(rollouts)
        rewards: dict[tuple[str, int], float] = {}
        for trace, turn, ratio in ratios:
            rewards[trace, turn] = rewards.get((trace, turn), 0.0) + self._beta * ratio
        self.spent = {"tokens": float(sum(len(row.prompt) + len(row.completion) for r in rollouts for row in r.rows))}
        return {
            rollout.trajectory.id: Signals(
                {"implicit": tuple(rewards.get((rollout.trajectory.id, turn), 0.0) for turn in list_turns(rollout))}
            )
            for rollout in rollouts
        }

    def _pack(self, rollouts: Sequence[Rollout]) -> list[PackedSequence]:
        rows = [row for rollout in rollouts for row in rollout.rows if row.role == POLICY]
        return [s for s in pack_samples(rows, {row.trace: [1.0] * len(rows) for row in rows}) if any(s.mask)]

    def _measure(self, rollouts: Sequence[Rollout]) -> list[tuple[str, int, float]]:
        """Return trace, step and log pi_phi - log pi_old of every token that was a choice."""
        sequences = self._pack(rollouts)
        temperature, budget = self._parts.temperature, self._parts.budget
        measured = []
        for sequence, values in zip(
            sequences, compute_logprobs(self._model, sequences, budget=budget, temperature=temperature), strict=True
        ):
            for at, value in zip(find_trained_positions(sequence), values.tolist(), strict=True):
                measured.append((sequence.trace, sequence.turns[at], value - sequence.logprobs[at]))
        return measured

    def learn(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, float]:
        """Make one update on the pairs of a success and a failure; none where all outcomes are equal."""
        rollouts = [rollout for group in groups for rollout in group]
        pairs = pair_by_outcome([to_trace(rollout) for rollout in rollouts])
        if not pairs:
            return {"pairs": 0.0}
        learner = self._open()
        sums = sum_by_trace((trace, ratio) for trace, _, ratio in self._measure(rollouts))
        sums.update({rollout.trajectory.id: sums.get(rollout.trajectory.id, 0.0) for rollout in rollouts})
        loss, accuracy = measure_pairs(pairs, sums, beta=self._beta)
        weights = weigh_tokens(pairs, sums, beta=self._beta)
        sequences = self._pack(rollouts)
        # the learner divides by the number of traces, and the weights hold the mean over pairs already
        traces = len({sequence.trace for sequence in sequences})
        weighted = [replace(s, advantages=(weights.get(s.trace, 0.0) * traces,) * len(s.advantages)) for s in sequences]
        metrics = learner.step(weighted, LossSettings(kind="imitation"), temperature=self._parts.temperature)
        drift = fmean(abs(value) for value in sums.values())
        return {
            "pairs": float(len(pairs)),
            "loss": loss,
            "accuracy": accuracy,
            "drift": drift,
            "grad_norm": metrics["grad_norm"],
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the weights and the optimizer of pi_phi; empty before its first reading."""
        if self._learner is None:
            return {}
        weights = {name: parameter.detach() for name, parameter in parameters_of(self._model, POLICY).items()}
        return {"weights": weights, "learner": self._learner.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the weights and the optimizer of pi_phi."""
        if not state:
            return
        import torch

        learner = self._open()
        with torch.no_grad():
            for name, parameter in parameters_of(self._model, POLICY).items():
                parameter.copy_(state["weights"][name])
        learner.load_state_dict(state["learner"])
