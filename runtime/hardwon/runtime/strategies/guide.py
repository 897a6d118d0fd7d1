"""The guide of strategies: it chooses one for every episode by what the library's episodes achieved, and at what cost.

Agent("episodic", library, environment, strategies=StrategyGuide([Strategy(name="plain"), ...]))
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import ConfigError
from hardwon.memory.records.episodes import read_outcome
from hardwon.runtime.interfaces.methods import METHODS
from hardwon.runtime.loop.episode_tally import EpisodeRow, EpisodeTally

from .strategy import Strategy
from .tuning import TUNING

STRATEGY = "strategy"
"""Key of an episode's metadata: the name of its strategy."""
TEST = "test"
"""Key of an episode's metadata: its policy did not explore."""


@dataclass(frozen=True, slots=True)
class StrategyTrial:
    """One recorded episode of a strategy."""

    strategy: str
    task: str
    success: float
    """The outcome, in [0, 1]."""
    tokens: int
    environment: str = ""
    score: float = 0.0
    """The score that the environment gave."""
    is_test: bool = False
    """Whether the policy did not explore."""


class StrategyChoice(NamedTuple):
    """How an episode is played."""

    strategy: str
    is_test: bool = False
    """Whether the policy of a learning agent must not explore."""


@METHODS.add(
    "EGuR (guide of strategies)",
    "arXiv:2511.11519",
    evidence="A P",
    reach="`Agent(..., strategies=[Strategy(name=...), ...])`, `hardwon run ... --strategies FILE.toml --arms "
    "step,strategies`",
    reading="strategies are records of settings and not generated code; one is run for a task, chosen by a bound on "
    "its mean success less its cost, in place of k that a model proposes; the memory is the recorded episodes",
)
class StrategyGuide:
    """Chooses the strategy with the best record: success minus the price of its tokens.

    EGuR (arXiv:2511.11519) proposes k strategies for a problem, runs all, and keeps what outcome and cost say about
    them. Its formulas could not be read; the score here is the mean of success - price * tokens / 1000.
    """

    def __init__(self, strategies: Sequence[Strategy], *, price: float = 0.05) -> None:
        """Create a guide."""
        names = [strategy.name for strategy in strategies]
        if not names or len(set(names)) != len(names):
            raise ConfigError(f"the strategies are {names}; give at least one, each with its own name.")
        if price < 0:
            raise ConfigError(f"price is {price}; use 0 or more.")
        self.strategies = tuple(strategies)
        self._price = price
        self._trials: tuple[ExperienceLibrary, EpisodeTally[list[StrategyTrial]]] | None = None

    def choose(
        self, task: str, library: ExperienceLibrary, environment: str = "", *, learns: bool = False
    ) -> StrategyChoice:
        """Return the strategy for a task."""
        if len(self.strategies) == 1:
            return StrategyChoice(self.strategies[0].name)
        trials = self._select_trials(task, library, environment)
        names = [strategy.name for strategy in self.strategies]
        counts = {name: sum(trial.strategy == name for trial in trials) for name in names}
        if learns and (untried := [name for name in names if not counts[name]]):
            return StrategyChoice(untried[0])
        if learns and (waiting := find_waiting(names, counts)):
            return StrategyChoice(waiting)
        scores = self.score(trials)
        bonus = TUNING.exploration_bonus if learns else 0.0
        total = max(1, len(trials))

        def rate(name: str) -> float:
            return scores[name] + bonus * math.sqrt(math.log(total) / counts[name])

        tried = [name for name in names if name in scores]
        return StrategyChoice(max(tried, key=rate) if tried else names[0])

    def score(self, trials: Sequence[StrategyTrial]) -> dict[str, float]:
        """Return the mean of success - price * tokens / 1000 of every strategy with episodes."""
        gains: dict[str, list[float]] = {}
        for trial in trials:
            gains.setdefault(trial.strategy, []).append(trial.success - self._price * trial.tokens / 1000)
        return {name: fmean(values) for name, values in gains.items()}

    def _select_trials(self, task: str, library: ExperienceLibrary, environment: str) -> list[StrategyTrial]:
        """Return the episodes of the task if there are enough, or else those of all tasks of the environment."""
        if self._trials is None or self._trials[0] is not library:
            self._trials = library, EpisodeTally(library, list[StrategyTrial], add_trial)
        names = {strategy.name for strategy in self.strategies}
        trials = [
            trial
            for trial in self._trials[1].read()
            if trial.strategy in names and environment in ("", trial.environment)
        ]
        same = [trial for trial in trials if trial.task == task]
        return same if len(same) >= max(TUNING.min_task_episodes, len(names)) else trials


def find_waiting(names: Sequence[str], counts: Mapping[str, int]) -> str | None:
    """Return the strategy with fewer episodes of two that are on trial, `NAME` and `NAME-next`; None without a trial.

    A trial is paired: both play half of the episodes, whatever their record.
    """
    for name in names:
        if f"{name}-next" in names:
            return min((name, f"{name}-next"), key=lambda each: counts[each])
    return None


def read_trials(library: ExperienceLibrary) -> list[StrategyTrial]:
    """Return the trusted episodes of a library that were played with a strategy, oldest first."""
    return EpisodeTally(library, list[StrategyTrial], add_trial).read()


def add_trial(trials: list[StrategyTrial], row: EpisodeRow) -> None:
    """Add the trial of an episode, if it was played with a strategy."""
    meta = row["meta"]
    if STRATEGY in meta:
        tokens = int(meta.get("prompt_tokens", 0)) + int(meta.get("completion_tokens", 0))
        environment = str(meta.get("environment", ""))
        success, score = read_outcome(row) or 0.0, float(row["score"])
        trials.append(
            StrategyTrial(meta[STRATEGY], row["task"], success, tokens, environment, score, bool(meta.get(TEST)))
        )
