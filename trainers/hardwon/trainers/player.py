"""The player: plays groups of episodes in a session and returns their rollouts.

    rollouts = await Player(session).play([("train", 7)], config.list_arms(), salt="1")

Episodes use the same agent, loop and library as in production.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hardwon.runtime import Agent
from hardwon.runtime.guidance.base import Guidance, RetrievalGuidance, WarmUpGuidance
from hardwon.runtime.interfaces.arms import Arm
from hardwon.runtime.interfaces.types import Policy

from .algorithms.composers import Composer
from .algorithms.outcomes import Outcome
from .algorithms.samples import Rollout
from .config.kinds import RECALLS, TELLS
from .console import EpisodeCount
from .gating.diversity import DiverseLibrary
from .gating.gate import GatedGuidance
from .gating.other_worlds import OtherWorlds
from .roles.base import TriesCandidates
from .rollouts.candidate import CandidateGuidance
from .rollouts.demonstration import DemonstrationPolicy
from .rollouts.explore import Task
from .rollouts.renaming import Rename
from .rollouts.rollout import GivenAndRecalled, GivenGuidance, Spec, TokenPolicy, collect
from .rollouts.rounds import Read, play_rounds
from .session import Session

CONCURRENT, CONCURRENT_CHATS = 256, 32
"""Episodes that run at once, with a tiny base and with a pretrained one. Each keeps the keys and values of its tokens
in memory: 46 KB a token for a model of 135 million parameters."""


class Player:
    """Plays the episodes of a session. Close it before the session."""

    def __init__(self, session: Session, tell: Callable[[str], None] | None = None) -> None:
        """Play in a session.

        Args:
            session: The session.
            tell: Receives a line of progress now and then while episodes run.
        """
        self._session, self._tell = session, tell
        self._agents: dict[tuple[Arm, float, bool, int], Agent] = {}
        self._policies: dict[float, TokenPolicy] = {}
        self.snapshot = ""
        """Name of the library version in use; stored with every sample."""
        self.iteration = 0
        """Finished iterations of the run."""
        self._warmups: list[WarmUpGuidance] = []

    async def play(
        self,
        worlds: Sequence[Task],
        arms: Mapping[Arm, int],
        *,
        salt: str,
        temperature: float = 1.0,
        learning: bool = False,
        max_steps: int | None = None,
        composer: Composer | None = None,
        read: Read | None = None,
    ) -> list[Rollout]:
        """Play episodes of every arm in every task instance.

        Args:
            worlds: The task instances.
            arms: Episodes per task instance, by arm.
            salt: Distinguishes the random numbers of this call from those of other calls.
            temperature: Sampling temperature of the policy.
            learning: True lets roles sample the guidance that they learn from; false lets them choose greedily.
            max_steps: Steps after which an episode ends; None takes those of the settings.
            composer: Composes the groups, in rounds; None plays every episode from its beginning.
            read: Adds the signals that the composer needs to the rollouts of a round.

        Returns:
            The rollouts, ordered by task instance, then arm, then copy; those of a composer in its own order.
        """
        specs = [
            Spec(fold, seed, arm.name, copy, memory=self._select_memory((fold, seed), arm, worlds), salt=salt)
            for fold, seed in worlds
            for arm, copies in arms.items()
            for copy in range(copies)
        ]
        specs = await self._prepare_specs(specs, arms, learning)
        if learning:
            specs = self._assign_candidates(specs, arms)
        agents = {arm.name: self._get_agent(arm, temperature, learning, max_steps) for arm in arms}
        self._policies[temperature].snapshot = self.snapshot

        async def collect_round(chosen: Sequence[Spec]) -> list[Rollout]:
            return await self._collect(agents, chosen, self._session.config.outcome)

        if composer is None:
            return await collect_round(specs)
        return await play_rounds(composer, specs, collect_round, read or _read_nothing, iteration=self.iteration)

    async def demonstrate(
        self,
        paths: Mapping[Task, Sequence[str]],
        arms: Mapping[Arm, int],
        rename: Callable[[Spec], Rename] = lambda _: str,
    ) -> list[Rollout]:
        """Play recorded paths again in every arm, and return the rollouts with samples to imitate.

        Args:
            paths: The actions to take, by split and seed of the task instance.
            arms: Episodes per task instance, by arm.
            rename: Returns the other names that the samples of an episode show; default: none.
        """
        session = self._session
        builder = session.config.policy.build_prompts()
        policy = DemonstrationPolicy(session.prompts, paths, builder=builder, rename=rename)
        agents = {arm.name: self._build_agent(arm, policy, learning=False) for arm in arms}
        specs = [
            Spec(fold, seed, arm.name, copy, salt="demonstration")
            for fold, seed in paths
            for arm, copies in arms.items()
            for copy in range(copies)
        ]
        try:
            return await self._collect(agents, specs)
        finally:
            for agent in agents.values():
                agent.close()

    async def _collect(
        self, agents: Mapping[str, Agent], specs: Sequence[Spec], outcome: Outcome = "success"
    ) -> list[Rollout]:
        """Run the episodes in batches, and tell how many have ended."""
        progress = EpisodeCount(len(specs), self._tell) if self._tell is not None else None
        rollouts: list[Rollout] = []
        for batch in self._split(specs):
            rollouts += await collect(agents, self._session.engine, batch, outcome=outcome, on_end=progress)
        return rollouts

    def _split(self, specs: Sequence[Spec]) -> list[Sequence[Spec]]:
        """Return the episodes in batches that run at once."""
        most = CONCURRENT if self._session.config.model.is_compact else CONCURRENT_CHATS
        return [specs[at : at + most] for at in range(0, len(specs), most)]

    def close(self) -> None:
        """Close the agents."""
        for agent in self._agents.values():
            agent.close()

    def _select_memory(self, world: Task, arm: Arm, worlds: Sequence[Task]) -> str | None:
        """Return the text shown at the start of an episode: from this task instance or from another."""
        explorer = self._session.explorer
        if arm.memory == "experience":
            return explorer.experience(world)
        if arm.memory == "another":
            candidates = [*worlds, *self._session.config.explore.worlds.all]
            return explorer.experience(candidates[(candidates.index(world) + 1) % len(candidates)])
        return None

    async def _prepare_specs(self, specs: Sequence[Spec], arms: Mapping[Arm, int], learning: bool) -> list[Spec]:
        """Let the roles fill in the guidance of the arms that show a role's text."""
        prepared = dict(enumerate(specs))
        for frozen in (False, True):
            guided = {arm.name for arm in arms if arm.memory in TELLS and arm.frozen is frozen}
            chosen = [at for at, spec in prepared.items() if spec.arm in guided]
            # one role after another: a later one sees the text of an earlier one in `spec.memory`
            for role in self._session.roles.values() if chosen else ():
                given = [prepared[at] for at in chosen]
                # The greedy path stores nothing, so an evaluation leaves no trace in the training buffers.
                answer = role.prepare(given, frozen=frozen) if learning or frozen else role.choose(given)
                prepared.update(zip(chosen, await answer, strict=True))
        return [prepared[at] for at in range(len(specs))]

    def _assign_candidates(self, specs: Sequence[Spec], arms: Mapping[Arm, int]) -> list[Spec]:
        """Let the roles that try candidates assign them to episodes of the arms that recall."""
        recalling = {arm.name for arm in arms if arm.memory in RECALLS and not arm.frozen}
        assigned = dict(enumerate(specs))
        for role in self._session.roles.values():
            if isinstance(role, TriesCandidates):
                places = [at for at, spec in assigned.items() if spec.arm in recalling]
                given = role.assign_candidates([assigned[at] for at in places])
                assigned.update(zip(places, given, strict=True))
        return [assigned[at] for at in range(len(specs))]

    def _get_agent(self, arm: Arm, temperature: float, learning: bool, max_steps: int | None) -> Agent:
        """Return the agent of an arm; agents are cached."""
        session = self._session
        # shared by all arms, so `play` sets the snapshot in one place
        policy = self._policies.setdefault(
            temperature,
            TokenPolicy(
                session.engine,
                session.prompts,
                temperature=temperature,
                settings=session.config.policy,
                context=session.context,
            ),
        )
        max_steps = max_steps or session.config.environment.max_steps
        key = arm, temperature, learning, max_steps
        if key not in self._agents:
            self._agents[key] = self._build_agent(arm, policy, learning=learning, max_steps=max_steps)
        return self._agents[key]

    def _build_agent(self, arm: Arm, policy: Policy, *, learning: bool, max_steps: int | None = None) -> Agent:
        """Return a new agent of an arm."""
        session, recalls = self._session, arm.memory in RECALLS
        config, library = session.config.library, self._select_library(arm, learning)
        return Agent(
            policy,
            library,
            session.environment.clone(),
            arm=arm,
            learn=False,
            guardrails=recalls and config.guardrails,
            guidance=self._build_retrieval(arm, library) if recalls else GivenGuidance(),
            max_steps=max_steps or session.config.environment.max_steps,
            recall_k=config.recall if recalls else 0,
            retries=0,
            planner=config.planner if recalls else None,
            # The loop records the episodes of training, so their trials count; an evaluation makes none.
            withhold=recalls and learning and config.learn and config.withhold,
        )

    def _select_library(self, arm: Arm, learning: bool) -> Any:
        """Return the library that an arm recalls from: frozen or as it is, and varied for training."""
        session = self._session
        library: Any = session.start if arm.frozen and session.start is not None else session.library
        if arm.memory not in RECALLS:
            return library
        source: Any = OtherWorlds(library)
        return DiverseLibrary(source, session.diversity) if learning and session.config.library.diverse else source

    def _build_retrieval(self, arm: Arm, library: Any) -> Guidance:
        """Return the guidance of an arm that recalls. Frozen arms pass no gate: it has learned since the start."""
        gate, config = self._session.gate, self._session.config.library
        guidance: Guidance = CandidateGuidance(RetrievalGuidance())
        if gate is not None and not arm.frozen:
            guidance = GatedGuidance(guidance, gate)
        if arm.memory in TELLS:
            guidance = GivenAndRecalled(guidance)
        if config.warmup_items or config.warmup_iterations:
            guidance = WarmUpGuidance(guidance, library, items=config.warmup_items, iterations=config.warmup_iterations)
            guidance.iteration = self.iteration
            self._warmups.append(guidance)
        return guidance

    def set_iteration(self, iteration: int) -> None:
        """Tell the warm-up gates how many iterations the run has finished."""
        self.iteration = iteration
        for warmup in self._warmups:
            warmup.iteration = iteration


async def _read_nothing(rollouts: list[Rollout]) -> list[Rollout]:
    """Return the rollouts as they are."""
    return rollouts
