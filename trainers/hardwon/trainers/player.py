"""The player: plays groups of episodes in a session and returns their rollouts.

    rollouts = await Player(session).play([("train", 7)], config.list_arms(), salt="1")

Episodes use the same agent, loop and library as in production.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from hardwon.runtime import Agent
from hardwon.runtime.interfaces.arms import Arm

from .algorithms.composers import Composer
from .algorithms.outcomes import OutcomeKind
from .algorithms.samples import Rollout
from .config.kinds import TELLS
from .config.program import PROGRAM
from .console import EpisodeCount
from .programs.player import ProgramPlayer
from .rollouts.demonstration import DemonstrationPolicy
from .rollouts.explore import Task
from .rollouts.renaming import Rename
from .rollouts.rollout import Spec, collect
from .rollouts.rounds import Read, play_rounds
from .session import Session
from .workers.agent_pool import AgentPool, AgentSpec
from .workers.pool import WorkerPool

CONCURRENT, CONCURRENT_CHATS = 256, 32
"""Episodes that run at once, with a tiny base and with a pretrained one. Each keeps the keys and values of its tokens
in memory: 46 KB a token for a model of 135 million parameters."""


class Player:
    """Plays the episodes of a session. Close it before the session."""

    def __init__(
        self, session: Session, tell: Callable[[str], None] | None = None, *, pool: WorkerPool | None = None
    ) -> None:
        """Play in a session."""
        self._session, self._tell, self.pool = session, tell, pool
        self._agent_pool = AgentPool(session)
        self._programs = open_programs(session)
        self.snapshot = ""
        """Name of the library version in use; stored with every sample."""
        self.iteration = 0
        """Finished iterations of the run."""

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
        max_steps = max_steps or self._session.config.environment.max_steps
        agent_specs = {arm.name: AgentSpec(arm, temperature, learning, max_steps) for arm in arms}
        collect_round = self._plan_rounds(agent_specs, temperature, max_steps, together=composer is not None)
        if composer is None:
            return await collect_round(specs)
        return await play_rounds(composer, specs, collect_round, read or _read_nothing, iteration=self.iteration)

    async def play_trials(self, specs: Sequence[Spec], arm: Arm, *, temperature: float) -> list[Rollout]:
        """Play the episodes of one arm in which candidates are tried. Nothing is withheld, and no policy learns."""
        max_steps = self._session.config.environment.max_steps
        agent_specs = {arm.name: AgentSpec(arm, temperature, False, max_steps)}
        return await self._plan_rounds(agent_specs, temperature, max_steps, together=False)(specs)

    def _plan_rounds(
        self, agent_specs: Mapping[str, AgentSpec], temperature: float, max_steps: int, *, together: bool
    ) -> Callable[[Sequence[Spec]], Awaitable[list[Rollout]]]:
        """Return what plays episodes: a program, the workers, or the agents of this process."""
        snapshot = self.snapshot

        async def collect_round(chosen: Sequence[Spec]) -> list[Rollout]:
            if self._programs is not None:
                return await self._run_programs(self._programs, chosen, temperature, max_steps, snapshot)
            if self.pool is not None:
                return await self._send(self.pool, agent_specs, chosen, snapshot, together=together)
            self._agent_pool.get_policy(temperature).snapshot = snapshot
            agents = {arm: self._agent_pool.get_agent(agent_spec) for arm, agent_spec in agent_specs.items()}
            return await self._collect(agents, chosen, self._session.config.outcome)

        return collect_round

    async def demonstrate(
        self,
        paths: Mapping[Task, Sequence[str]],
        arms: Mapping[Arm, int],
        rename: Callable[[Spec], Rename] = lambda _: str,
    ) -> list[Rollout]:
        """Play recorded paths again in every arm, and return the rollouts with samples to imitate."""
        session = self._session
        builder = session.config.policy.build_prompts()
        policy = DemonstrationPolicy(session.prompts, paths, builder=builder, rename=rename)
        agents = {arm.name: self._agent_pool.build_agent(arm, policy, learning=False) for arm in arms}
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
        self, agents: Mapping[str, Agent], specs: Sequence[Spec], outcome: OutcomeKind = "success"
    ) -> list[Rollout]:
        """Run the episodes in batches, and tell how many have ended."""
        progress = EpisodeCount(len(specs), self._tell) if self._tell is not None else None
        rollouts: list[Rollout] = []
        for batch in self._split(specs):
            rollouts += await collect(agents, self._session.engine, batch, outcome=outcome, on_end=progress)
        return rollouts

    async def _run_programs(
        self, programs: ProgramPlayer, specs: Sequence[Spec], temperature: float, max_calls: int, snapshot: str
    ) -> list[Rollout]:
        """Let a program play the episodes, and tell how many have ended."""
        progress = EpisodeCount(len(specs), self._tell) if self._tell is not None else None
        return await programs.play(
            specs, temperature=temperature, max_calls=max_calls, snapshot=snapshot, on_end=progress
        )

    async def _send(
        self,
        pool: WorkerPool,
        agent_specs: Mapping[str, AgentSpec],
        specs: Sequence[Spec],
        snapshot: str,
        *,
        together: bool,
    ) -> list[Rollout]:
        """Let the workers run the episodes, in the same batches as `_collect`."""
        progress = EpisodeCount(len(specs), self._tell) if self._tell is not None else None
        rollouts: list[Rollout] = []
        for batch in self._split(specs):
            rollouts += await pool.play(
                batch,
                agent_specs,
                snapshot=snapshot,
                outcome=self._session.config.outcome,
                together=together,
                on_end=progress,
            )
        return rollouts

    def _split(self, specs: Sequence[Spec]) -> list[Sequence[Spec]]:
        """Return the episodes in batches that run at once."""
        config = self._session.config
        most = config.run.at_once or (CONCURRENT if config.model.is_compact else CONCURRENT_CHATS)
        return [specs[at : at + most] for at in range(0, len(specs), most)]

    def close(self) -> None:
        """Close the agents, and end the workers."""
        self._agent_pool.close()
        if self.pool is not None:
            self.pool.close()

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


def open_programs(session: Session) -> ProgramPlayer | None:
    """Return what plays the episodes of a program; None if the run steps an environment itself."""
    config = session.config
    if config.environment.name != PROGRAM:
        return None
    return ProgramPlayer(config, session.engine, session.prompts, session.context)


async def _read_nothing(rollouts: list[Rollout]) -> list[Rollout]:
    """Return the rollouts as they are."""
    return rollouts
