"""Credit of a guide (Mem-π): whether to speak is paid apart from what is said.

Pure functions from the branches of one group to advantages; no tokens, no tensors. One branch abstained,
two or more generated, all in the same world:

    r_j = R_j - cost |m_j| / length          r_0 = R without guidance
    decision   A_D   = mean_j r_j - r_0      of the decision token, +A_D where it generated, -A_D where it abstained
    content    A_C,j = (r_j - mean_j r_j) / (std_j + EPSILON)      of the content's tokens, only where A_D > 0

Were both paid by one advantage, a guide whose hints are bad as yet would learn to be silent before it
finds a good one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from hardwon.trainers.algorithms.advantages import standardize

LEAST = 2
"""Branches that must have generated: with one there is nothing to compare its content with."""


@dataclass(frozen=True, slots=True)
class Branch:
    """What came of one text: outcomes of the episodes that were shown it, and its length in tokens."""

    outcomes: tuple[float, ...]
    tokens: int = 0

    def reward(self, cost: float, length: int) -> float:
        """Mean outcome less what its length costs."""
        return fmean(self.outcomes) - cost * self.tokens / length


@dataclass(frozen=True, slots=True)
class GuideCredit:
    """The advantages of a group."""

    decision: float
    """Of the token that generates; the one that abstains has this with the sign turned."""
    content: tuple[float, ...]
    """Of each generate branch, in order; 0 where generating was no better than abstaining."""
    reward: float
    """Mean of the generate branches."""


def guide_credit(
    abstained: Branch, generated: Sequence[Branch], *, cost: float = 0.05, length: int = 128
) -> GuideCredit:
    """The advantages of one group; see the module's docstring. `cost`: of `length` tokens, in units of success."""
    if len(generated) < LEAST:
        raise ValueError(f"a group has {len(generated)} generate branches; it needs {LEAST} or more beside abstaining.")
    if abstained.tokens:
        raise ValueError(f"the abstain branch has {abstained.tokens} tokens; to abstain is to say nothing.")
    rewards = [branch.reward(cost, length) for branch in generated]
    decision = fmean(rewards) - abstained.reward(cost, length)
    content = standardize(rewards) if decision > 0 else [0.0] * len(rewards)
    return GuideCredit(decision, tuple(content), fmean(rewards))
