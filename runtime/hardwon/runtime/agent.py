"""An agent: a policy, a library and an environment, run as a LangGraph loop.

    agent = Agent(policy=EpisodicPolicy(), library=library, environment=TextWorldExpress("coin"))
    result = agent.run(seed=0)

With a checkpointer an episode that was killed goes on where it was: `agent.resume(thread_id)`.
What the environment breaks is retried on a fresh one, then excluded; it never counts as a zero.
"""

import copy
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from hardwon.memory import Diagnosis, ExperienceLibrary, Step, Trajectory
from hardwon.memory.errors import ConfigError, EnvironmentCrashed, UnknownName
from hardwon.memory.learning.extraction import Extractor

from .environments.timeout import Watched
from .guidance.base import Guidance, RetrievalGuidance
from .interfaces.types import Environment, Policy, Resumable, Usage
from .interfaces.working_memory import WorkingMemory, place
from .loop.enforcement import mode_of
from .loop.graph import build_graph
from .loop.nodes import Nodes
from .loop.state import EpisodeState, Live, Settings
from .planning.plans import Planner, SkillPlanner

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langgraph.checkpoint.base import BaseCheckpointSaver

NO_USAGE = Usage()
RECURSION_LIMIT = 1_000_000
"""LangGraph counts stages; episodes are ended by `max_steps` instead."""


@dataclass(frozen=True, slots=True)
class Result:
    """How an episode went."""

    trajectory: Trajectory
    usage: Usage
    thread_id: str

    @property
    def success(self) -> bool | None:
        """None when the environment failed and the episode is excluded."""
        return self.trajectory.success

    @property
    def score(self) -> float:
        """The environment's own score in [0, 1]."""
        return self.trajectory.score

    @property
    def blocked(self) -> int:
        """Actions that guardrails kept from being run."""
        return sum(len(step.why.get("blocked", ())) for step in self.trajectory.steps)


@dataclass(frozen=True, slots=True)
class Event:
    """One stage of a running episode, and what it changed."""

    stage: str
    update: dict[str, Any]


class Agent:
    """Runs episodes; see the module's docstring. Safe for many concurrent `arun`s."""

    def __init__(
        self,
        policy: "Policy | BaseChatModel | str",
        library: ExperienceLibrary,
        environment: Environment,
        *,
        arm: str = "retrieved",
        level: Literal["step", "task"] = "step",
        learn: bool = True,
        guardrails: 'bool | Literal["warn", "block"]' = True,
        guidance: Guidance | None = None,
        max_steps: int = 50,
        recall_k: int = 5,
        seed: int = 0,
        retries: int = 1,
        step_timeout_s: float = 60.0,
        checkpointer: "BaseCheckpointSaver[Any] | None" = None,
        planner: "Planner | Literal['skills'] | None" = None,
        extractor: "Extractor | None" = None,
    ) -> None:
        """`guardrails`: "block" or True refuses what they forbid, "warn" only its repetition; see `loop.enforcement`.

        retries: fresh environments tried when one breaks. `seed`: of the agent's own chance.

        planner: "skills" plans with the library's skills and remedies; None lets the policy choose step by step.
        extractor: reads every episode that is learnt from, beside the library's own rules.

        Raises: ConfigError for a number that cannot work, and what `ChatPolicy` raises for a model.
        """
        if max_steps < 1:
            raise ConfigError(f"max_steps is {max_steps}; an episode needs at least 1.")
        if retries < 0:
            raise ConfigError(f"retries is {retries}; use 0 to try an episode once, or more.")
        self.library = library
        self._environment = environment
        self._retries = retries
        self._step_timeout_s = step_timeout_s
        self._idle: list[Environment] = [_watched(environment, step_timeout_s)]
        self._live: dict[str, Live] = {}
        self._settings = Settings(arm, level, learn, mode_of(guardrails), max_steps, recall_k, seed)
        self.policy = as_policy(policy)
        self._nodes = Nodes(
            self.policy,
            library,
            guidance or RetrievalGuidance(),
            self._settings,
            self._live,
            _as_planner(planner, library),
            extractor,
        )
        self._checkpointer = checkpointer
        self._graphs: dict[tuple[bool, bool], Any] = {}

    def run(self, task: str = "", seed: int = 0, *, thread_id: str | None = None) -> Result:
        """Run one episode from its start."""
        return self._retried(task, seed, thread_id)

    async def arun(self, task: str = "", seed: int = 0, *, thread_id: str | None = None) -> Result:
        """The same, awaiting the policy, so that many episodes share one process."""
        return await self._aretried(task, seed, thread_id)

    def stream(self, task: str = "", seed: int = 0, *, thread_id: str | None = None) -> Iterator[Event]:
        """Run one episode, yielding every stage as it ends; the last one, `finish`, has the trajectory."""
        thread = _thread(thread_id, 0)
        with self._episode(thread):
            start = self._start(thread, task, seed, 0)
            graph = self._graph(fused=False)
            for update in graph.stream(start, self._config(thread), stream_mode="updates", **self._durability()):
                for stage, changed in update.items():
                    yield Event(stage, changed or {})

    async def astream(self, task: str = "", seed: int = 0, *, thread_id: str | None = None) -> AsyncIterator[Event]:
        """The same, awaiting the policy."""
        thread = _thread(thread_id, 0)
        with self._episode(thread):
            start = self._start(thread, task, seed, 0)
            graph = self._graph(fused=False, asynchronous=True)
            updates = graph.astream(start, self._config(thread), stream_mode="updates", **self._durability())
            async for update in updates:
                for stage, changed in update.items():
                    yield Event(stage, changed or {})

    def resume(self, thread_id: str) -> Result:
        """Go on with an episode that was interrupted; one that had ended is returned as it was.

        Raises: ConfigError without a checkpointer, UnknownName for a thread it does not hold,
        EnvironmentCrashed when the environment does not come back to the same state.
        """
        graph = self._checkpointed()
        snapshot = _newest(thread_id, [graph.get_state(config) for config in self._configs(thread_id)])
        final = snapshot.values
        if snapshot.next:
            with self._brought_back(snapshot):
                final = graph.invoke(None, self._config(final["thread"]), **self._durability())
        if final.get("failed") and final["attempt"] < self._retries:
            return self._retried(final["task"], final["seed"], thread_id, final["attempt"] + 1, final["usage"])
        return Result(final["trajectory"], final["usage"], final["thread"])

    async def aresume(self, thread_id: str) -> Result:
        """The same, awaiting the policy and the checkpointer."""
        graph = self._checkpointed(asynchronous=True)
        snapshot = _newest(thread_id, [await graph.aget_state(config) for config in self._configs(thread_id)])
        final = snapshot.values
        if snapshot.next:
            with self._brought_back(snapshot):
                final = await graph.ainvoke(None, self._config(final["thread"]), **self._durability())
        if final.get("failed") and final["attempt"] < self._retries:
            return await self._aretried(final["task"], final["seed"], thread_id, final["attempt"] + 1, final["usage"])
        return Result(final["trajectory"], final["usage"], final["thread"])

    def _checkpointed(self, *, asynchronous: bool = False) -> Any:
        if self._checkpointer is None:
            raise ConfigError("resume needs a checkpointer: Agent(..., checkpointer=SqliteSaver(...)).")
        return self._graph(fused=False, asynchronous=asynchronous)

    def _configs(self, thread_id: str) -> list[dict[str, Any]]:
        return [self._config(_thread(thread_id, attempt)) for attempt in range(self._retries + 1)]

    @contextmanager
    def _brought_back(self, snapshot: Any) -> Iterator[None]:
        """The working memory and the environment of an episode as they were at a checkpoint."""
        values = snapshot.values
        with self._episode(values["thread"]) as live:
            if "first" in values:
                live.working = WorkingMemory.of(values["first"], values["steps"])
                for step in values["steps"]:
                    if not step.diagnosis.success and step.action:
                        context = self.library.context(step.pre, step.action)
                        live.working.fail(step.action, context, step.diagnosis.failure.value)
                _bring_back(live.environment, values, acted="diagnose" in snapshot.next)
            yield

    def joined(self, policy: Policy, around: Callable[[Environment], Environment]) -> "Agent":
        """This agent with another policy and something around its environment: for a team, which sits in between.

        Close it when it is done; this one stays as it is.
        """
        twin = copy.copy(self)
        twin.policy, twin._environment = policy, around(self._environment.clone())
        twin._idle, twin._live, twin._graphs = [_watched(twin._environment, self._step_timeout_s)], {}, {}
        twin._nodes = replace(self._nodes, policy=policy, live=twin._live)
        return twin

    def close(self) -> None:
        """Close the environments; the library stays open."""
        for environment in self._idle:
            environment.close()
        self._idle.clear()

    def _retried(self, task: str, seed: int, thread_id: str | None, first: int = 0, spent: Usage = NO_USAGE) -> Result:
        attempt = first
        while True:
            thread = _thread(thread_id, attempt)
            with self._episode(thread):
                graph = self._graph(fused=self._checkpointer is None)
                start = self._start(thread, task, seed, attempt)
                final = graph.invoke(start, self._config(thread), **self._durability())
            spent += final["usage"]
            if not final.get("failed") or attempt >= self._retries:
                return Result(final["trajectory"], spent, final["thread"])
            attempt += 1

    async def _aretried(
        self, task: str, seed: int, thread_id: str | None, first: int = 0, spent: Usage = NO_USAGE
    ) -> Result:
        attempt = first
        while True:
            thread = _thread(thread_id, attempt)
            with self._episode(thread):
                graph = self._graph(fused=self._checkpointer is None, asynchronous=True)
                start = self._start(thread, task, seed, attempt)
                final = await graph.ainvoke(start, self._config(thread), **self._durability())
            spent += final["usage"]
            if not final.get("failed") or attempt >= self._retries:
                return Result(final["trajectory"], spent, final["thread"])
            attempt += 1

    def _start(self, thread: str, task: str, seed: int, attempt: int) -> EpisodeState:
        return {"thread": thread, "task": task, "seed": seed, "attempt": attempt, "episode": self.library.episodes}

    @contextmanager
    def _episode(self, thread: str) -> Iterator[Live]:
        """An environment and a working memory for one episode; a broken environment is not used again."""
        if thread in self._live:
            raise ConfigError(f"an episode runs under thread {thread!r} already; give this one another thread_id.")
        environment = self._idle.pop() if self._idle else self._fresh()
        live = self._live[thread] = Live(environment, WorkingMemory())
        try:
            yield live
        finally:
            del self._live[thread]
            if getattr(environment, "broken", False):
                environment.close()
            else:
                self._idle.append(environment)

    def _fresh(self) -> Environment:
        return _watched(self._environment.clone(), self._step_timeout_s)

    def _graph(self, *, fused: bool, asynchronous: bool = False) -> Any:
        key = (fused, asynchronous)
        if key not in self._graphs:
            self._graphs[key] = build_graph(
                self._nodes, fused=fused, asynchronous=asynchronous, checkpointer=self._checkpointer
            )
        return self._graphs[key]

    def _durability(self) -> dict[str, Any]:
        return {"durability": "sync"} if self._checkpointer is not None else {}

    def _config(self, thread: str) -> dict[str, Any]:
        return {"recursion_limit": RECURSION_LIMIT, "configurable": {"thread_id": thread}}


def _watched(environment: Environment, timeout_s: float) -> Watched:
    """Under watch; one that keeps time itself is called without a thread between, which costs more than a step."""
    return Watched(environment, timeout_s=None if getattr(environment, "keeps_time", False) else timeout_s)


def as_policy(policy: "Policy | BaseChatModel | str") -> Policy:
    """A policy as it is; a chat model or the name of one as a `ChatPolicy`; `episodic` and `random` by name."""
    from .policies.episodic import EpisodicPolicy, RandomPolicy

    if isinstance(policy, str) and policy in ("episodic", "random"):
        return EpisodicPolicy() if policy == "episodic" else RandomPolicy()
    if isinstance(policy, str) and ":" not in policy:
        raise UnknownName.of("policy", policy, ["episodic", "random", "PROVIDER:MODEL such as openai:gpt-5"])
    if isinstance(policy, Policy):
        return policy
    from .policies.chat import ChatPolicy

    return ChatPolicy(policy)


def _as_planner(planner: "Planner | str | None", library: ExperienceLibrary) -> Planner | None:
    if isinstance(planner, str):
        if planner != "skills":
            raise UnknownName.of("planner", planner, ["skills"])
        return SkillPlanner(library)
    return planner


def _thread(thread_id: str | None, attempt: int) -> str:
    name = thread_id or uuid.uuid4().hex
    return name if attempt == 0 else f"{name}-retry{attempt}"


def _newest(thread_id: str, snapshots: list[Any]) -> Any:
    """The checkpoint of the attempt that ran last."""
    begun = [snapshot for snapshot in snapshots if snapshot.values]
    if not begun:
        raise UnknownName(f"no episode was checkpointed under thread {thread_id!r}. Start one with run().")
    return max(begun, key=lambda snapshot: snapshot.created_at or "")


def _bring_back(environment: Environment, values: dict[str, Any], *, acted: bool) -> None:
    """Bring an environment to where the checkpoint was: restored, or by repeating the actions.

    `acted`: the last action was run and is not among the steps yet, for it was not diagnosed.
    """
    inner = environment.inner if isinstance(environment, Watched) else environment
    steps = [step for step in values["steps"] if step.diagnosis.failure not in ("policy_error", "blocked")]
    state = values["state"]
    if acted and values["outcome"] is not None:
        post, reward, *_ = values["outcome"]
        steps.append(Step(state, values["decision"].action, post, Diagnosis(True), reward, len(values["steps"])))
        state = post
    if isinstance(inner, Resumable):
        inner.restore(values["task"], values["seed"], tuple(steps))
        return
    here = environment.reset(values["task"], values["seed"])
    for step in steps:
        here, *_ = environment.step(step.action)
    if place(here) != place(state):
        raise EnvironmentCrashed(
            f"{environment.name} did not come back to the state of step {len(steps)}: it is not deterministic. "
            "Start the episode again with run()."
        )
