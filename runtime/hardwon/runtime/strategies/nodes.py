"""The nodes of an agent with strategies: each episode runs the nodes of the strategy that was chosen for it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from hardwon.memory import ExperienceLibrary
from hardwon.runtime.interfaces.types import Environment, Policy
from hardwon.runtime.loop.budgets import StepLimit
from hardwon.runtime.loop.nodes import Nodes
from hardwon.runtime.loop.state import EpisodeState, LiveEpisode, StateUpdate
from hardwon.runtime.policies.ranked import RankedPolicy

from .components import as_policy, resolve_planner
from .guide import StrategyChoice, StrategyGuide
from .strategy import CHAT_ONLY, Strategy

AWAITED = ("aguide", "aplan", "adecide", "aact", "afinish")
"""The stages that are awaited."""


class Chooser(Protocol):
    """Chooses a strategy for every episode."""

    strategies: tuple[Strategy, ...]

    def choose(
        self, task: str, library: ExperienceLibrary, environment: str = "", *, learns: bool = False
    ) -> StrategyChoice:
        """Return how to play an episode; see `StrategyGuide.choose`."""
        ...


@dataclass(frozen=True)
class NodesByStrategy:
    """The stages of the loop; each runs the nodes of the episode's strategy."""

    base: Nodes
    variants: Mapping[str, Nodes]
    tests: Mapping[str, Nodes]
    """The nodes of each strategy in a test: they record, and neither explore nor withhold items."""
    chooser: Chooser

    def begin(self, episode: EpisodeState) -> StateUpdate:
        """Reset the environment, and choose the strategy by the task of the first state."""
        update = self.base.begin(episode)
        task = update["state"].task if "state" in update else episode["task"]
        environment = self.base.live[episode["thread"]].environment.name
        choice = self.chooser.choose(task, self.base.library, environment, learns=self.base.settings.learn)
        skills: Any = None if self.variants[choice.strategy].planner is None else {}
        return {**update, "strategy": choice.strategy, "is_test": choice.is_test, "skills": skills}

    def _select(self, episode: EpisodeState) -> Nodes:
        """Return the nodes of an episode."""
        return (self.tests if episode.get("is_test") else self.variants)[episode["strategy"]]

    def with_live(self, live: Mapping[str, LiveEpisode]) -> "NodesByStrategy":
        """Return these nodes for the episodes of another dictionary."""
        variants = {name: nodes.with_live(live) for name, nodes in self.variants.items()}
        tests = {name: nodes.with_live(live) for name, nodes in self.tests.items()}
        return replace(self, base=self.base.with_live(live), variants=variants, tests=tests)

    def close(self) -> None:
        """Close what the planners opened."""
        for nodes in (self.base, *self.variants.values()):
            nodes.close()

    def __getattr__(self, stage: str) -> Callable[[EpisodeState], Any]:
        if stage.startswith("_") or not hasattr(Nodes, stage):
            raise AttributeError(stage)
        if stage in AWAITED:  # LangGraph awaits functions that are declared as asynchronous

            async def run_awaited(episode: EpisodeState) -> Any:
                return await getattr(self._select(episode), stage)(episode)

            return run_awaited
        return lambda episode: getattr(self._select(episode), stage)(episode)


def build_nodes_by_strategy(
    base: Nodes, strategies: Chooser | Sequence[Strategy], environment: Environment
) -> NodesByStrategy:
    """Return nodes for every strategy."""
    guide = StrategyGuide(strategies) if isinstance(strategies, Sequence) else strategies
    variants = {strategy.name: _build_variant(base, strategy, environment) for strategy in guide.strategies}
    tests = {
        name: replace(nodes, settings=replace(nodes.settings, explore=False, withhold=False))
        for name, nodes in variants.items()
    }
    return NodesByStrategy(base, variants, tests, guide)


def _build_variant(base: Nodes, strategy: Strategy, environment: Environment) -> Nodes:
    budget = base.settings.budget if strategy.max_steps is None else StepLimit(strategy.max_steps)
    level = strategy.level or base.settings.level
    settings = replace(base.settings, level=level, recall_k=strategy.recall_k, budget=budget)
    planner = resolve_planner(strategy.planner, base.library, environment) if strategy.planner else base.planner
    return replace(base, policy=_open_policy(base.policy, strategy), settings=settings, planner=planner)


def _open_policy(own: Policy, strategy: Strategy) -> Policy:
    """Return the policy of a strategy: the agent's own, or the named one with the strategy's settings."""
    policy = own
    if any(getattr(strategy, name) != value for name, value in CHAT_ONLY.items()):
        from hardwon.runtime.policies.chat import ChatPolicy

        settings = {name: getattr(strategy, name) for name in CHAT_ONLY}
        policy = ChatPolicy(strategy.policy, **settings)
    elif strategy.policy:
        policy = as_policy(strategy.policy)
    return RankedPolicy(policy, n=strategy.best_of) if strategy.best_of > 1 else policy
