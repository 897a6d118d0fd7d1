"""Rollouts: groups of episodes through the runtime's own loop, with every sampled token kept.

A rollout is `Agent.arun` whose policy asks the engine; nothing of the loop is built again here. All
episodes of a batch run at once; one that is over is waited for by nobody. What the environment or
the policy broke is typed, excluded and counted, never a zero.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Literal

from hardwon.memory.errors import PolicyFailure
from hardwon.runtime import Agent
from hardwon.runtime.guidance.base import Hint
from hardwon.runtime.interfaces.types import Context, Decision, Usage
from hardwon.trainers.algorithms.samples import Rollout, Sample, compute_anchor
from hardwon.trainers.engines.base import Completion, Engine, Request

from .transcript import Transcript


@dataclass(frozen=True, slots=True)
class Spec:
    """One episode to run: the same task and seed in every arm and copy make a group."""

    task: str
    seed: int
    arm: str = "control"
    copy: int = 0
    memory: str | None = None
    """Text that this episode is shown at its start, where the arm's guidance is `GivenGuidance`."""
    salt: str = ""
    """What tells this batch's chance from another's: the iteration, the run's seed."""

    @property
    def group(self) -> str:
        """Task and seed."""
        return f"{self.task}#{self.seed}"

    @property
    def session(self) -> str:
        """A name of its own; chance is drawn from it, so that a run can be repeated."""
        return f"{self.salt}/{self.group}/{self.arm}/{self.copy:03}"


@dataclass(slots=True)
class _Episode:
    spec: Spec
    rows: list[Sample] = field(default_factory=list)
    shown: str | None = None


_EPISODE: ContextVar[_Episode] = ContextVar("hardwon_episode")
"""The episode that the running task belongs to."""


def playing() -> str:
    """Name of the episode that the running task belongs to; empty outside of any."""
    episode = _EPISODE.get(None)
    return "" if episode is None else episode.spec.session


class GivenGuidance:
    """Shows the memory that the episode's `Spec` names, at its start; asks no library."""

    def propose(self, context: Context) -> Hint | None:
        """The text of the spec, or nothing."""
        memory = _EPISODE.get().spec.memory
        return Hint(memory) if memory else None


class TokenPolicy:
    """A policy that reads the transcript and says an action, token by token, through the engine."""

    name = "tokens"
    reads: Literal["values", "text"] = "text"

    def __init__(
        self,
        engine: Engine,
        transcript: Transcript,
        *,
        temperature: float = 1.0,
        snapshot: str = "",
        role: str = "policy",
    ) -> None:
        self._engine, self._transcript = engine, transcript
        self._temperature, self._role = temperature, role
        self.snapshot = snapshot
        """Names the library that is consulted, on every row."""

    async def adecide(self, context: Context) -> Decision:
        """An admissible action that is not forbidden, sampled; its row is kept with the episode."""
        if not context.actions:
            raise PolicyFailure("TokenPolicy chooses among admissible actions and this environment lists none.")
        alone = _EPISODE.get(None) is None
        episode = _Episode(Spec("", 0)) if alone else _EPISODE.get()
        turn = len(context.history)
        memory = context.guidance if context.guidance != episode.shown else None
        open_actions = [action for action in context.actions if action not in context.forbidden]
        trie, said = self._transcript.choices(open_actions or context.actions)
        chance = random.Random(f"{episode.spec.session}:{turn}:{len(context.forbidden)}")
        prompt = self._transcript.prompt(context.history, context.state, memory)
        request = Request(
            prompt,
            self._role,
            trie,
            temperature=self._temperature,
            session="" if alone else episode.spec.session,
            chance=chance,
        )
        completion = await self._engine.generate(request)
        del episode.rows[turn:]  # of an attempt that a guardrail refused
        episode.rows.append(self._row(episode, context, request, completion))
        episode.shown = context.guidance or episode.shown
        why = {"said": list(completion.tokens), **({"memory": memory} if memory else {})}
        spent = Usage(len(prompt), sum(completion.mask), calls=1)
        return Decision(said[completion.tokens], why, spent)

    def decide(self, context: Context) -> Decision:
        """The same, for a loop that does not await."""
        return asyncio.run(self.adecide(context))

    def _row(self, episode: _Episode, context: Context, request: Request, said: Completion) -> Sample:
        shown = context.guidance or episode.shown
        return Sample(
            request.prompt,
            said.tokens,
            said.logprobs,
            said.mask,
            said.allowed,
            self._role,
            said.version,
            episode.spec.arm,
            self.snapshot,
            compute_anchor(context.state.signature, shown),
            episode.spec.session,
            len(context.history),
        )


async def collect(agents: Mapping[str, Agent], engine: Engine, specs: Sequence[Spec]) -> list[Rollout]:
    """Run the episodes, all at once, each with the agent of its arm; in the order of the specs."""
    for spec in specs:
        await engine.begin(spec.session)
    return list(await asyncio.gather(*(_run(agents[spec.arm], engine, spec) for spec in specs)))


async def _run(agent: Agent, engine: Engine, spec: Spec) -> Rollout:
    episode = _Episode(spec)
    _EPISODE.set(episode)
    try:
        result = await agent.arun(spec.task, spec.seed, thread_id=spec.session)
    finally:
        await engine.end(spec.session)
    trajectory = replace(result.trajectory, id=spec.session, arm=spec.arm)
    failed = "" if trajectory.success is not None else trajectory.ending
    if trajectory.ending == "policy_error":
        failed = trajectory.ending
    return Rollout(trajectory, () if failed else tuple(episode.rows), spec.group, failed)
