"""The policy `auto`: the strategies without a model, of which each episode uses one.

    Agent("auto", library, environment)

No strategy is best everywhere: chains of effects solve what returns cannot, and lose where returns suffice. They share
the library, so each learns from the episodes of the other. While the agent learns, one of four episodes is a test: it
is played as a frozen agent plays, and recorded. A frozen agent uses the strategy with the best recent tests.
"""

import math
from collections.abc import Sequence

from hardwon.memory import ExperienceLibrary
from hardwon.runtime.interfaces.arms import Arm
from hardwon.runtime.loop.episode_tally import EpisodeTally

from .guide import StrategyChoice, StrategyTrial, add_trial
from .strategy import Strategy
from .tuning import TUNING

AUTO = "auto"
"""Name of the policy."""


class AutomaticGuide:
    """Chooses among strategies by the tests that the agent makes of them."""

    def __init__(self, strategies: Sequence[Strategy]) -> None:
        """Create a guide; the first strategy is used until there are records."""
        self.strategies = tuple(strategies)
        self._names = [strategy.name for strategy in self.strategies]
        self._trials: tuple[ExperienceLibrary, EpisodeTally[list[StrategyTrial]]] | None = None

    def choose(
        self, task: str, library: ExperienceLibrary, environment: str = "", *, learns: bool = False
    ) -> StrategyChoice:
        """Return the strategy for an episode, and whether the episode is a test."""
        if len(self._names) == 1:
            return StrategyChoice(self._names[0])
        trials = self._read_trials(library, environment)
        if not learns:
            return StrategyChoice(max(self._names, key=lambda name: rate_strategy(trials, name)))
        tests = [trial.strategy for trial in trials if trial.is_test]
        # By their share and not by the number of the episode: of episodes that run at once, all have the same number.
        if (len(tests) + 1) * TUNING.test_every <= len(trials) + 1:
            return StrategyChoice(min(self._names, key=tests.count), is_test=True)
        return StrategyChoice(self._choose_explorer([trial for trial in trials if not trial.is_test][-TUNING.window :]))

    def _choose_explorer(self, trials: Sequence[StrategyTrial]) -> str:
        """Return the strategy with the highest upper bound on what it achieves while it explores."""
        gains = {name: [_measure(trial) for trial in trials if trial.strategy == name] for name in self._names}

        def bound(name: str) -> float:
            if not (own := gains[name]):
                return math.inf
            return sum(own) / len(own) + TUNING.exploration_bonus * math.sqrt(math.log(len(trials)) / len(own))

        return max(self._names, key=bound)

    def _read_trials(self, library: ExperienceLibrary, environment: str) -> list[StrategyTrial]:
        """Return the episodes of these strategies, oldest first."""
        if self._trials is None or self._trials[0] is not library:
            self._trials = library, EpisodeTally(library, list[StrategyTrial], add_trial)
        trials = self._trials[1].read()
        return [each for each in trials if each.strategy in self._names and environment in ("", each.environment)]


def rate_strategy(trials: Sequence[StrategyTrial], name: str) -> float:
    """Return what a strategy achieves when it does not explore, in [0, 1]; 0.5 without any episode.

    The mean over its recent tests and, with less weight, its recent other episodes, shrunk to 0.5 by one test.
    """
    own = [trial for trial in trials if trial.strategy == name]
    tests = [_measure(trial) for trial in own if trial.is_test][-TUNING.counted_tests :]
    explored = [_measure(trial) for trial in own if not trial.is_test][-TUNING.counted_tests :]
    return (sum(tests) + TUNING.explored * sum(explored) + 0.5) / (len(tests) + TUNING.explored * len(explored) + 1)


def _measure(trial: StrategyTrial) -> float:
    """Return the mean of success and score: before the first success, the score tells the strategies apart."""
    return (trial.success + trial.score) / 2


def open_automatic(planner: object, level: str, arm: Arm) -> AutomaticGuide:
    """Return the guide of the policy `auto`."""
    own = planner is None
    episodic = Strategy(name="episodic", policy="episodic", planner="demonstrations" if own else None)
    lookahead = Strategy(name="lookahead", policy="lookahead")
    return AutomaticGuide((episodic, lookahead) if level == "step" and arm.has_memory else (episodic,))
