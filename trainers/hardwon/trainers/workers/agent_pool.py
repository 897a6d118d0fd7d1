"""The agents that play a run's episodes: one for each arm, temperature and length, built when it is first needed.

    pool = AgentPool(play)
    agent = pool.get_agent(AgentSpec(Arm("control"), temperature=1.0, learning=True, max_steps=6))

The learner's process has a pool, and so has every rollout worker, so that both play with the same agents.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from hardwon.runtime import Agent, Environment
from hardwon.runtime.guidance.base import Guidance, RetrievalGuidance
from hardwon.runtime.interfaces.arms import Arm
from hardwon.runtime.interfaces.types import Policy
from hardwon.trainers.config.kinds import ASKS, LESSONS, PASTES, RECALLS, TELLS
from hardwon.trainers.config.schema import TrainConfig
from hardwon.trainers.engines.base import Engine
from hardwon.trainers.gating.consulting import ConsultedGuidance
from hardwon.trainers.gating.item_guidance import ItemGuidance
from hardwon.trainers.gating.other_worlds import OtherWorlds
from hardwon.trainers.gating.pasted import PastedEpisodes
from hardwon.trainers.rollouts.candidate import CandidateGuidance
from hardwon.trainers.rollouts.rollout import GivenAndRecalled, GivenGuidance, TokenPolicy


class PlayContext(Protocol):
    """What agents play on: a session of the learner, or the scenes of a worker."""

    @property
    def config(self) -> TrainConfig:
        """Return the settings of the run."""
        ...

    @property
    def environment(self) -> Environment:
        """Return the environment; agents work on clones of it."""
        ...

    @property
    def engine(self) -> Engine:
        """Return the engine that the policy asks."""
        ...

    @property
    def prompts(self) -> Any:
        """Return the prompt format of the base."""
        ...

    @property
    def context(self) -> int | None:
        """Return the longest sequence that the policy's model reads, in tokens."""
        ...

    @property
    def library(self) -> Any:
        """Return the library that learns."""
        ...

    @property
    def start(self) -> Any:
        """Return the library at the start of the run, or None."""
        ...


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """What an agent is built for."""

    arm: Arm
    temperature: float = 1.0
    learning: bool = False
    """Whether the episodes are training's: items are withheld for trials."""
    max_steps: int = 50


class AgentPool:
    """The agents of one process. Close it before what they play on."""

    def __init__(self, play: PlayContext) -> None:
        self._play = play
        self._agents: dict[AgentSpec, Agent] = {}
        self._policies: dict[float, TokenPolicy] = {}

    def get_agent(self, agent_spec: AgentSpec) -> Agent:
        """Return the agent of a agent_spec; agents are kept."""
        if agent_spec not in self._agents:
            policy = self.get_policy(agent_spec.temperature)
            self._agents[agent_spec] = self.build_agent(
                agent_spec.arm, policy, learning=agent_spec.learning, max_steps=agent_spec.max_steps
            )
        return self._agents[agent_spec]

    def get_policy(self, temperature: float) -> TokenPolicy:
        """Return the policy with a temperature, which all arms share."""
        play = self._play
        if temperature not in self._policies:
            self._policies[temperature] = TokenPolicy(
                play.engine,
                play.prompts,
                temperature=temperature,
                settings=play.config.policy,
                context=play.context,
            )
        return self._policies[temperature]

    def build_agent(self, arm: Arm, policy: Policy, *, learning: bool, max_steps: int | None = None) -> Agent:
        """Return a new agent of an arm."""
        play, recalls = self._play, arm.memory in RECALLS
        config, library = play.config.library, self._select_library(arm)
        learns = recalls and arm.memory not in PASTES
        return Agent(
            policy,
            library,
            play.environment.clone(),
            arm=arm,
            learn=False,
            guardrails=learns and config.guardrails,
            guidance=self._build_retrieval(arm, library, learning) if recalls else GivenGuidance(),
            max_steps=max_steps or play.config.environment.max_steps,
            recall_k=config.recall if recalls else 0,
            retries=0,
            planner=config.planner if learns else None,
            # The loop records the episodes of training, so their trials count; an evaluation makes none.
            withhold=learns and learning and config.learn and config.withhold,
        )

    def _select_library(self, arm: Arm) -> Any:
        """Return the library that an arm recalls from: frozen or as it is."""
        library = self._find_library(arm)
        return OtherWorlds(library) if arm.memory in RECALLS else library

    def _find_library(self, arm: Arm) -> Any:
        """Return the library of an arm as it is: that of the start if the arm is frozen."""
        return self._play.start if arm.frozen and self._play.start is not None else self._play.library

    def _build_retrieval(self, arm: Arm, library: Any, learning: bool) -> Guidance:
        """Return the guidance of an arm that recalls.

        Frozen arms ask no guide: it has learned since the start.
        """
        if arm.memory in PASTES:
            return PastedEpisodes(library)
        guidance: Guidance = CandidateGuidance(ItemGuidance() if arm.memory in LESSONS else RetrievalGuidance())
        if arm.memory in ASKS and not arm.frozen:
            guidance = ConsultedGuidance(guidance, self._play.engine, self._play.prompts, always=learning)
        if arm.memory in TELLS:
            guidance = GivenAndRecalled(guidance)
        return guidance

    def close(self) -> None:
        """Close the agents."""
        for agent in self._agents.values():
            agent.close()
        self._agents.clear()
