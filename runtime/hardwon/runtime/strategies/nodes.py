"""The nodes of an agent with strategies: each episode runs the nodes of the strategy that was chosen for it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hardwon.runtime.interfaces.types import Environment, Policy
from hardwon.runtime.loop.budgets import StepLimit
from hardwon.runtime.loop.nodes import Nodes
from hardwon.runtime.loop.state import EpisodeState, Live, Update
from hardwon.runtime.policies.ranked import RankedPolicy

from .components import as_policy, resolve_planner
from .guide import StrategyGuide
from .strategy import CHAT_ONLY, Strategy

AWAITED = ("aguide", "aplan", "adecide", "aact", "afinish")
"""The stages that are awaited."""


@dataclass(frozen=True)
class NodesByStrategy:
    """The stages of the loop; each runs the nodes of the episode's strategy."""

    base: Nodes
    variants: Mapping[str, Nodes]
    chooser: StrategyGuide

    def begin(self, episode: EpisodeState) -> Update:
        """Reset the environment, and choose the strategy by the task of the first state."""
        update = self.base.begin(episode)
        task = update["state"].task if "state" in update else episode["task"]
        environment = self.base.live[episode["thread"]].environment.name
        name = self.chooser.choose(task, self.base.library, environment, learns=self.base.settings.learn)
        return {**update, "strategy": name, "skills": None if self.variants[name].planner is None else {}}

    def with_live(self, live: Mapping[str, Live]) -> "NodesByStrategy":
        """Return these nodes for the episodes of another dictionary."""
        variants = {name: nodes.with_live(live) for name, nodes in self.variants.items()}
        return replace(self, base=self.base.with_live(live), variants=variants)

    def close(self) -> None:
        """Close what the planners opened."""
        for nodes in (self.base, *self.variants.values()):
            nodes.close()

    def __getattr__(self, stage: str) -> Callable[[EpisodeState], Any]:
        if stage.startswith("_") or not hasattr(Nodes, stage):
            raise AttributeError(stage)
        if stage in AWAITED:  # LangGraph awaits functions that are declared as asynchronous

            async def run_awaited(episode: EpisodeState) -> Any:
                return await getattr(self.variants[episode["strategy"]], stage)(episode)

            return run_awaited
        return lambda episode: getattr(self.variants[episode["strategy"]], stage)(episode)


def build_nodes_by_strategy(
    base: Nodes, strategies: StrategyGuide | Sequence[Strategy], environment: Environment
) -> NodesByStrategy:
    """Return nodes for every strategy.

    Args:
        base: The nodes of the agent's own settings, which a strategy changes in part.
        strategies: The strategies, or a guide with its own price.
        environment: The environment, which a planner may clone.
    """
    guide = strategies if isinstance(strategies, StrategyGuide) else StrategyGuide(strategies)
    variants = {strategy.name: _build_variant(base, strategy, environment) for strategy in guide.strategies}
    return NodesByStrategy(base, variants, guide)


def _build_variant(base: Nodes, strategy: Strategy, environment: Environment) -> Nodes:
    budget = base.settings.budget if strategy.max_steps is None else StepLimit(strategy.max_steps)
    settings = replace(base.settings, level=strategy.level, recall_k=strategy.recall_k, budget=budget)
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
