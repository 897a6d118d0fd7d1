"""Credit of a guide (Mem-π): separate advantages for the decision to speak and for the content.

Pure functions from the outcomes of one group to advantages. All branches play the same task instance; one
abstains and at least two speak:

    r_j = R_j - cost |m_j| / length          r_0 = R without guidance
    decision   A_D   = mean_j r_j - r_0      of the decision token, +A_D where it generated, -A_D where it abstained
    content    A_C,j = (r_j - mean_j r_j) / (std_j + EPSILON)      of the content's tokens, only where A_D > 0

With a single advantage for both, a guide with poor hints would learn to abstain before it finds a good one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from hardwon.trainers.algorithms.advantages import center, standardize

LEAST = 2
"""Minimum number of branches that speak: one alone has nothing to compare its content with."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One text of a group: the outcomes of the episodes that were shown it, and its length in tokens."""

    outcomes: tuple[float, ...]
    tokens: int = 0

    def reward(self, cost: float, length: int) -> float:
        """Return the mean outcome minus the cost of the text's length."""
        return fmean(self.outcomes) - cost * self.tokens / length


@dataclass(frozen=True, slots=True)
class GuideCredit:
    """The advantages of a group."""

    decision: float
    """Advantage of the token that speaks; the token that abstains gets its negative."""
    content: tuple[float, ...]
    """Advantage of each speaking branch in order; 0 if speaking was no better than abstaining."""
    reward: float
    """Mean reward of the speaking branches."""


def guide_credit(
    abstained: Branch, generated: Sequence[Branch], *, cost: float = 0.05, length: int = 128
) -> GuideCredit:
    """Return the advantages of one group."""
    if len(generated) < LEAST:
        raise ValueError(
            f"a group has {len(generated)} generate branches; it needs {LEAST} or more besides the abstaining one."
        )
    if abstained.tokens:
        raise ValueError(f"the abstain branch has {abstained.tokens} tokens; it must have 0.")
    rewards = [branch.reward(cost, length) for branch in generated]
    decision = fmean(rewards) - abstained.reward(cost, length)
    content = standardize(rewards) if decision > 0 else [0.0] * len(rewards)
    return GuideCredit(decision, tuple(content), fmean(rewards))


WELL_FORMED = 0.1
"""Share of a subgoal's reward for being well-formed (Hi-Agent)."""


def credit_blueprints(blueprints: Sequence[Branch]) -> GuideCredit:
    """Return the advantages of blueprints: the centered mean outcome of their executions (HiMAC, arXiv:2603.00977).

    Minimal reading: the formulas could not be read. RLAD (arXiv:2510.02263) rewards an abstraction in the same way, by
    the mean success of the solvers that were shown it. Whether to speak gets no credit.
    """
    rewards = [fmean(blueprint.outcomes) for blueprint in blueprints]
    return GuideCredit(0.0, tuple(center(rewards)), fmean(rewards))


def credit_foresight(gains: Sequence[float]) -> GuideCredit:
    """Return the advantages of subgoals: 0.1 for being well-formed + 0.9 q, centered (Hi-Agent, arXiv:2510.14388).

    Minimal reading: q is the reward of the low level's next action plus the change of the state's value. Every text of
    the guide is well-formed: an offer, or words that are not empty.
    """
    rewards = [WELL_FORMED + (1 - WELL_FORMED) * gain for gain in gains]
    return GuideCredit(0.0, tuple(center(rewards)), fmean(rewards))
