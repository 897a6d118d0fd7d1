"""EPO: an entropy bonus that keeps the entropy of every turn near its history (arXiv:2509.22576)."""

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.terms import Term, TokenFacts


def find_phase(step: int, over: int) -> float:
    """Return the factor of the smoothing penalty at a step of a run.

    1 - .2 (1 - exp(-2 p)) in the first half of `over` steps and .8 exp(-3 p) in the second, with p from 0 to 1 in each.
    """
    half = max(1, over) / 2
    if step <= half:
        return 1 - 0.2 * (1 - math.exp(-2 * step / half))
    return 0.8 * math.exp(-3 * min(1.0, (step - half) / half))


def measure_deviation(entropies: Tensor, history: Tensor, low: float, high: float) -> Tensor:
    """Return max(0, H - high x history) + max(0, low x history - H) of every token."""
    return torch.relu(entropies - high * history) + torch.relu(low * history - entropies)


@PARTS.add(
    "term",
    "EPO",
    "arXiv:2509.22576",
    evidence="C",
    name="epo",
    reading="a hinge in place of the released code's penalty, which is piecewise constant and has no gradient; the "
    "entropy is a token's, and the two phases of the schedule take half of `over` each (own)",
    example={"roles.policy.loss.terms.epo.low": 0.95, "roles.policy.loss.terms.epo.high": 1.05},
)
class EntropySmoothing(Term):
    """Adds -weight (H - smooth b w) per token, with w = max(0, H - high Hm) + max(0, low Hm - H).

    H is the entropy of the token's choices and Hm the mean of the entropies at the same step of an episode in the
    training steps so far; b is `find_phase`. Without a history, and before half of the horizon, w is 0.
    """

    reads_zero = True
    has_entropy_gradient = True

    def __init__(
        self,
        *,
        weight: float = 0.001,
        smooth: float = 0.1,
        low: float = 0.8,
        high: float = 1.2,
        over: int = 150,
        horizon: int | None = None,
    ) -> None:
        """Create the term.

        Args:
            weight: Weight of the entropy bonus, in nats per token.
            smooth: Weight of the penalty within the bonus.
            low: Share of the historical entropy below which the penalty begins.
            high: Share of the historical entropy above which the penalty begins.
            over: Training steps of the schedule of the penalty.
            horizon: Steps of an episode, of which the later half is smoothed; a run fills in environment.max_steps.
        """
        super().__init__()
        if not 0 <= low <= high or over < 1:
            raise ConfigError(f"low is {low}, high {high} and over {over}; use 0 <= low <= high, and over from 1 on.")
        self._weight, self._smooth, self._low, self._high, self._over = weight, smooth, low, high, over
        self._first = math.ceil((horizon or 0) / 2)
        self._steps = 0
        self._history: dict[int, tuple[float, int]] = {}
        """Sum of the mean entropies of a turn, and their number, by the step of the episode."""
        self._now: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._penalty = 0.0

    def penalize(self, tokens: TokenFacts) -> Tensor:
        """Return the loss of every token, and take its entropy into the history of the next steps."""
        entropies, steps = tokens.entropies, tokens.steps.tolist()
        for step, value, counts in zip(steps, entropies.tolist(), tokens.choices.tolist(), strict=True):
            if counts:
                self._now[step][0] += value
                self._now[step][1] += 1
        means = [self._history[step][0] / self._history[step][1] if step in self._history else None for step in steps]
        smoothed = [mean is not None and step >= self._first for mean, step in zip(means, steps, strict=True)]
        history = entropies.new_tensor([mean or 0.0 for mean in means])
        where = torch.tensor(smoothed, device=entropies.device) & tokens.choices
        deviation = torch.where(where, measure_deviation(entropies, history, self._low, self._high), 0.0)
        self.seen += len(steps)
        self.acted += float((deviation > 0).sum())
        self._penalty += float(deviation.detach().sum())
        factor = self._smooth * find_phase(self._steps, self._over)
        return -self._weight * (entropies - factor * deviation)

    def end(self) -> dict[str, float]:
        """End a step: the mean entropy of every step of the episodes becomes part of the history."""
        for step, (total, number) in self._now.items():
            before, times = self._history.get(step, (0.0, 0))
            self._history[step] = before + total / number, times + 1
        metrics = {"penalty": self._penalty / max(1.0, self.seen), **super().end()}
        self._now.clear()
        self._penalty = 0.0
        self._steps += 1
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return the history and the number of steps."""
        return {"steps": self._steps, "history": [[step, *values] for step, values in self._history.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the history and the number of steps."""
        self._steps = int(state["steps"])
        self._history = {int(step): (float(total), int(times)) for step, total, times in state["history"]}
