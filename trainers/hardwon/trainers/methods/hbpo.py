"""HBPO (arXiv:2507.15844)."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from hardwon.memory.errors import ConfigError
from hardwon.memory.validation import read_whole
from hardwon.trainers.algorithms.advantages import Advantages, Trace, standardize
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.composers.base import Composer, ComposerParts, group_specs
from hardwon.trainers.algorithms.composers.spec import Spec

from .blocks.trees import group_trees


@PARTS.add(
    "estimator",
    "HBPO",
    "arXiv:2507.15844",
    evidence="C",
    whole=True,
    composer="budgets",
    reading="the formula; the released code adds the second term twice; the scale 2L = 4 x the largest budget is own",
    settings={"tasks.compose.budgets": {}},
    example={"tasks.compose.budgets.turns": "3, 6"},
)
def hbpo(traces: Sequence[Trace], *, scale: float = 4.0) -> Advantages:
    """Compute A = z(R) over a task instance + (mean R of the budget - 4 cos(pi b / 2L)) (HBPO, arXiv:2507.15844).

    R is `reward_budget` for a right answer and 0 for a wrong one. Traces are compared across budgets: it needs the
    composer `budgets`, whose label names the budget b. L is `scale` / 2 times the largest budget.
    """
    advantages: Advantages = {}
    for group in ({trace.id: trace for trace in own} for own in group_trees(traces)):
        budgets = {trace.id: _read_budget(trace.label) for trace in group.values()}
        half = scale / 2 * max(budgets.values())
        if not half:  # no trace had a budget, so there is no scale
            advantages |= {name: [0.0] * len(trace.turns) for name, trace in group.items()}
            continue
        rewards = {
            trace.id: reward_budget(len(trace.turns), budgets[trace.id], half) if trace.outcome > 0 else 0.0
            for trace in group.values()
        }
        own = dict(zip(group, standardize([rewards[name] for name in group]), strict=True))
        for name, trace in group.items():
            same = [rewards[other] for other in group if budgets[other] == budgets[name]]
            gap = fmean(same) - 4 * math.cos(math.pi * budgets[name] / (2 * half))
            advantages[name] = [own[name] + gap if len(group) > 1 else 0.0] * len(trace.turns)
    return advantages


def _read_budget(label: str) -> float:
    """Return the number at the end of a label, or 0 if it ends in none."""
    try:
        return float(label.rpartition(" ")[2])
    except ValueError:
        return 0.0


def reward_budget(length: float, budget: float, scale: float) -> float:
    """Return the reward of a right answer of a length under a budget (HBPO).

    It is min(4 cos(pi n / 2L) - |b - n| / L, 4 cos(pi b / 2L)) with n the length, b the budget and L the scale.
    """
    at_budget = 4 * math.cos(math.pi * budget / (2 * scale))
    return min(4 * math.cos(math.pi * length / (2 * scale)) - abs(budget - length) / scale, at_budget)


BUDGET = "budget "
"""Beginning of the label of an episode with a budget."""


@PARTS.add(
    "composer",
    "HBPO (budgets)",
    "arXiv:2507.15844",
    evidence="C",
    name="budgets",
    method="hbpo",
    reading="budgets are turns in place of tokens; they are told and not enforced",
)
class Budgets(Composer):
    """Divides a group over budgets of turns, which the prompt tells (HBPO, arXiv:2507.15844); see estimator `hbpo`."""

    acted = "told"

    def __init__(self, parts: ComposerParts, *, turns: str = "2, 4, 6, 8") -> None:
        """Create the composer.

        Args:
            parts: Its objects.
            turns: The budgets.
        """
        super().__init__(parts)
        self._budgets = [read_whole(field.strip()) or 0 for field in turns.split(",")]
        if 0 in self._budgets or len({*self._budgets}) < len(self._budgets):
            raise ConfigError(f"turns is {turns!r}; write different whole numbers from 1 on, as 2, 4, 8.")

    def begin(self, specs: Sequence[Spec], iteration: int = 0) -> list[Spec]:
        """Return the episodes, each with a budget; copies take the budgets in turn."""
        self.counts["told"] += len(specs)
        return [
            replace(spec, note=f"{BUDGET}: {turns} steps .", label=f"{BUDGET}{turns}")
            for own in group_specs(specs).values()
            for spec, turns in zip(own, _cycle(self._budgets, len(own)), strict=True)
        ]


def _cycle(values: Sequence[int], number: int) -> list[int]:
    return [values[n % len(values)] for n in range(number)]
