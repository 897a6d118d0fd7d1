"""A sequential test of a lesson: does it help, given the paired differences in outcome so far?

    test = SequentialTest()
    test.add([1.0, 0.0, 1.0])
    test.verdict           # "helps", "useless", or "" while it is open

Two bets are kept against the two hypotheses. The wealth of a bet on d in [-1, 1] is the product of 1 + b d, averaged
over the sizes b of the bet. If the mean of d is 0 or less, the wealth is a supermartingale, so it exceeds 1 / alpha
with a probability of alpha at most, whenever one looks (Ville's inequality; Waudby-Smith and Ramdas, arXiv:2010.09686).
The other bet is against a mean of `TUNING.least_gain` or more.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import exp, fsum, log1p
from statistics import fmean
from typing import Literal

from .tuning import TUNING

Judgment = Literal["", "helps", "useless"]


@dataclass(slots=True)
class SequentialTest:
    """The differences of one lesson, and what they say."""

    differences: list[float] = field(default_factory=list)
    """Outcome with the lesson less the outcome without it, in [-1, 1], for each pair of episodes."""
    verdict: Judgment = ""

    def add(self, differences: Iterable[float]) -> None:
        """Add the differences of further pairs. A verdict is final."""
        self.differences += [max(-1.0, min(1.0, difference)) for difference in differences]
        if not self.verdict and measure_wealth(self.differences) >= 1 / TUNING.false_admissions:
            self.verdict = "helps"
        gain = TUNING.least_gain
        against = [(gain - difference) / (1.0 + gain) for difference in self.differences]
        if not self.verdict and measure_wealth(against) >= 1 / TUNING.missed_gains:
            self.verdict = "useless"

    @property
    def gain(self) -> float:
        """Return the mean difference; 0 without any."""
        return fmean(self.differences) if self.differences else 0.0


def measure_wealth(differences: Iterable[float]) -> float:
    """Return the wealth of a bet that the mean is above 0; 1 before the first difference."""
    given = list(differences)
    return fmean(exp(fsum(log1p(bet * each) for each in given)) for bet in TUNING.bets)
