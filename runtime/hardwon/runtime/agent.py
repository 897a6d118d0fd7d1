"""The agent: a policy, a library and an environment, run as a LangGraph loop.

    agent = Agent(policy=EpisodicPolicy(), library=library, environment=TextWorldExpress("coin"))
    result = agent.run(seed=0)

With a checkpointer, `agent.resume(thread_id)` continues an interrupted episode. If the environment breaks, the agent
retries the episode on a fresh clone. An episode whose last attempt breaks is excluded: it never counts as a score of 0.
"""

import copy
import uuid
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from hardwon.memory import ExperienceLibrary, Step, Trajectory
from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.memory.learning.extraction import Extractor
from hardwon.memory.upkeep.argument_types import check_types
from hardwon.memory.validation import check_count, check_library
from hardwon.runtime.interfaces.usage import ModelUsage

from .environments.timeout import Watched
from .guidance.base import Guidance, RetrievalGuidance
from .interfaces.arms import Arm
from .interfaces.extension import Budget, Recaller, Router
from .interfaces.types import Environment, Policy
from .interfaces.working_memory import WorkingMemory
from .loop.budgets import as_budget
from .loop.enforcement import mode_of
from .loop.graph import build_graph
from .loop.nodes import Nodes
from .loop.starts import rebuild_memory, restore_environment
from .loop.state import EpisodeState, LiveEpisode, Settings
from .planning.plans import Planner
from .strategies.automatic import AUTO, open_automatic
from .strategies.components import as_policy as as_policy, resolve_planner
from .strategies.nodes import Chooser, NodesByStrategy, build_nodes_by_strategy
from .strategies.strategy import Strategy

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langgraph.checkpoint.base import BaseCheckpointSaver

NO_USAGE = ModelUsage()
NO_START: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one episode."""

    trajectory: Trajectory
    usage: ModelUsage
    """Tokens, calls and cost of all attempts of the episode."""
    thread_id: str
    """The thread of the last attempt. Pass it to `Agent.resume` if you use a checkpointer."""

    @property
    def success(self) -> bool | None:
        """Return whether the task was solved; None if the environment broke and the episode is excluded."""
        return self.trajectory.success

    @property
    def score(self) -> float:
        """Return the environment's own score, in [0, 1]."""
        return self.trajectory.score

    @property
    def blocked(self) -> int:
        """Return how many actions guardrails refused."""
        return sum(len(step.why.blocked or ()) for step in self.trajectory.steps)


@dataclass(frozen=True, slots=True)
class Event:
    """One finished stage of a running episode."""

    stage: str
    """The name of the stage, such as `recall` or `act`."""
    update: dict[str, Any]
    """The fields of the episode's state that the stage changed."""


@dataclass(frozen=True, slots=True)
class _GraphCall:
    """One call of the episode graph: `invoke` or `get_state`, whose awaited twins have the prefix `a`."""

    method: Literal["invoke", "get_state"]
    fused: bool
    arguments: tuple[Any, ...]


_Run = Generator[_GraphCall, Any, Result]
"""A run that yields graph calls and receives their results. It never waits itself, so `run` and `arun` share it."""


class Agent:
    """Runs episodes of one environment with a policy and a library.

    One agent can run many `arun` calls concurrently: each episode gets its own clone of the environment.
    """

    @check_types
    def __init__(
        self,
        policy: "Policy | BaseChatModel | str",
        library: ExperienceLibrary,
        environment: Environment,
        *,
        arm: Arm | str = "retrieved",
        level: Literal["step", "task"] = "step",
        learn: bool = True,
        guardrails: 'bool | Literal["warn", "block"]' = True,
        guidance: Guidance | None = None,
        max_steps: int | Budget = 50,
        recall_k: int = 5,
        seed: int = 0,
        retries: int = 1,
        step_timeout_s: float = 60.0,
        checkpointer: "BaseCheckpointSaver[Any] | None" = None,
        planner: Planner | str | None = None,
        extractor: "Extractor | None" = None,
        withhold: bool | None = None,
        recaller: Recaller | Router | None = None,
        strategies: Chooser | Sequence[Strategy] = (),
    ) -> None:
        """Create an agent. It clones the environment as needed and leaves the library open.

        Args:
            policy: A policy, a LangChain chat model, or the name of one, such as `"openai:gpt-5"`; see `as_policy`.
                `"auto"` chooses between `"episodic"` and `"lookahead"` for every episode, by its own tests of them.
            library: The experience that the agent recalls from and, if `learn` is set, records to.
            environment: The environment to act in.
            arm: The condition recorded with each episode. A name stands for an arm that recalls from the library;
                `"control"` stands for one without memory, whose policy gets no hints and no skills.
            level: Recall at every step, or `"task"` to recall by task.
            learn: Record episodes and evolve the library.
            guardrails: `"block"` or True refuses forbidden actions, `"warn"` only repeated failures, False none.
            guidance: The component that writes hints; by default a `RetrievalGuidance`.
            max_steps: The steps after which an episode ends, at least 1, or a budget: `LearnedBudget(library)`.
            recall_k: The maximum number of items and similar steps that a step recalls.
            seed: The seed of the agent's own random choices, such as exploration and withheld items.
            retries: How many fresh environments to try after one breaks, at least 0.
            step_timeout_s: Seconds that the environment may take for one call, unless it enforces its own limit.
            checkpointer: A LangGraph checkpointer, which makes `resume` possible.
            planner: `"skills"`, `"demonstrations"`, `"search"`, your own, or None for no plans; see `resolve_planner`.
            extractor: Reads every recorded episode and proposes items, in addition to the library's rules.
            withhold: Withhold items and try forbidden actions at random to measure their worth; None means `learn`.
            recaller: What answers recalls in place of the library: `RoutedRecall(library, stores)`, or your own.
            strategies: Alternatives to `policy`, `planner`, `level`, `recall_k` and `max_steps`; each episode uses one.

        Raises:
            ConfigError: A number is out of range, a chat model's settings are invalid, or there are strategies beside
                `"auto"`.
            UnknownName: The policy or the planner has an unknown name.
        """
        check_library(library)
        check_count("recall_k", recall_k)
        if retries < 0:
            raise ConfigError(f"retries is {retries}; use 0 to try an episode once, or more.")
        if policy == AUTO:
            if strategies:
                raise ConfigError(f"the policy {AUTO} has its own strategies; name another policy beside yours.")
            policy, strategies = "episodic", open_automatic(planner, level, Arm.of(arm))
        self.library, self.policy = library, as_policy(policy)
        self._retries, self._step_timeout_s, self._checkpointer = retries, step_timeout_s, checkpointer
        mode, budget = mode_of(guardrails), as_budget(max_steps)
        settings = Settings(Arm.of(arm), level, learn, mode, budget, recall_k, seed, withhold)
        planned = resolve_planner(planner, library, environment)
        nodes = Nodes(self.policy, library, guidance or RetrievalGuidance(), settings, {}, planned, recaller, extractor)
        self._install(environment, build_nodes_by_strategy(nodes, strategies, environment) if strategies else nodes)

    def _install(self, environment: Environment, nodes: Nodes | NodesByStrategy) -> None:
        """Use these nodes for all episodes, each in an environment of its own that is cloned from this one."""
        self._environment = environment
        # Environments are expensive to start: episodes borrow one from this list and return it when they end.
        self._idle: list[Environment] = [_add_timeout(environment, self._step_timeout_s)]
        # The nodes find the environments of running episodes in this dictionary.
        self._live: dict[str, LiveEpisode] = {}
        self._nodes: Nodes | NodesByStrategy = nodes.with_live(self._live)
        self._graphs: dict[tuple[bool, bool], Any] = {}

    def run(self, task: str = "", seed: int = 0, *, thread_id: str | None = None) -> Result:
        """Run one episode from its start.

        Args:
            task: The task in the environment's own terms: a split, a request, or empty for its default.
            seed: The seed of the task instance; the same task and seed give the same episode.
            thread_id: The name under which checkpoints are stored; random by default.

        Returns:
            The trajectory, the usage of all attempts, and the thread.

        Raises:
            ConfigError: An episode is already running under this thread.
        """
        return self._drive(self._run_attempts(task, seed, thread_id))

    async def arun(
        self,
        task: str = "",
        seed: int = 0,
        *,
        thread_id: str | None = None,
        prefix: Sequence[Step] = (),
        max_steps: int | None = None,
    ) -> Result:
        """Run one episode and await the policy, so that many episodes share one process.

        Args:
            task: As for `run`.
            seed: As for `run`.
            thread_id: As for `run`.
            prefix: Steps of a recorded episode of the same task and seed to begin with. They are repeated in the
                environment and belong to the trajectory; the policy decides what follows.
            max_steps: Steps after which this episode ends, prefix included; None takes the agent's.

        Raises:
            ConfigError: An episode is already running under this thread.
            CannotBranch: Repeating the prefix leads elsewhere, ends the episode, or must not be done.
        """
        start = {"prefix": tuple(prefix), "max_steps": max_steps} if prefix or max_steps else {}
        return await self._adrive(self._run_attempts(task, seed, thread_id, start=start))

    def stream(self, task: str = "", seed: int = 0, *, thread_id: str | None = None) -> Iterator[Event]:
        """Run one episode and yield an event after each stage.

        The arguments are those of `run`. A broken environment is not retried.

        Yields:
            One event per stage. The update of the last one, `finish`, contains the trajectory.

        Raises:
            ConfigError: An episode is already running under this thread.
        """
        with self._open_stream(task, seed, thread_id) as (start, options):
            for update in self._get_graph(fused=False).stream(start, **options):
                yield from _to_events(update)

    async def astream(self, task: str = "", seed: int = 0, *, thread_id: str | None = None) -> AsyncIterator[Event]:
        """Run one episode, await the policy, and yield an event after each stage.

        Arguments, events and errors are those of `stream`.
        """
        with self._open_stream(task, seed, thread_id) as (start, options):
            async for update in self._get_graph(fused=False, asynchronous=True).astream(start, **options):
                for event in _to_events(update):
                    yield event

    def resume(self, thread_id: str) -> Result:
        """Continue an interrupted episode; an episode that has ended is returned unchanged.

        Args:
            thread_id: The thread that `run`, `arun` or `stream` was given.

        Returns:
            The same result as that of an uninterrupted run.

        Raises:
            ConfigError: The agent has no checkpointer.
            UnknownName: The checkpointer has no episode under this thread.
            EnvironmentCrashed: Replaying the actions does not lead back to the checkpointed state.
        """
        return self._drive(self._resume_attempts(thread_id))

    async def aresume(self, thread_id: str) -> Result:
        """Continue an interrupted episode, awaiting the policy and the checkpointer.

        Arguments, result and errors are those of `resume`.
        """
        return await self._adrive(self._resume_attempts(thread_id))

    def joined(self, policy: Policy, around: Callable[[Environment], Environment]) -> "Agent":
        """Return a copy of this agent with another policy and a wrapped environment, as a member of a team.

        The copy has its own environments: close it when you are done. This agent does not change.

        Args:
            policy: The policy of the copy.
            around: Wraps a clone of this agent's environment.

        Raises:
            ConfigError: This agent has strategies, which would choose another policy.
        """
        if isinstance(self._nodes, NodesByStrategy):
            raise ConfigError("a member of a team has a policy of its own; give the team an agent without strategies.")
        twin = copy.copy(self)
        twin.policy = policy
        # The copy is shallow, so everything that holds environments must be replaced.
        twin._install(around(self._environment.clone()), replace(self._nodes, policy=policy))
        return twin

    def close(self) -> None:
        """Close the environments; the library stays open."""
        for environment in self._idle:
            environment.close()
        self._idle.clear()
        self._nodes.close()

    # ---- one body for the synchronous and the asynchronous methods

    def _drive(self, run: _Run) -> Result:
        """Answer the graph calls of a run."""
        # If a call raises, `throw` unwinds the run, so that its steps are stored and its environment is returned.
        with closing(run):
            answer = None
            while isinstance(call := _advance(run, answer), _GraphCall):
                graph = self._get_graph(fused=call.fused)
                try:
                    answer = getattr(graph, call.method)(*call.arguments, **self._options(call))
                except BaseException as error:
                    run.throw(error)
        return call

    async def _adrive(self, run: _Run) -> Result:
        """Answer the graph calls of a run by awaiting them."""
        with closing(run):
            answer = None
            while isinstance(call := _advance(run, answer), _GraphCall):
                graph = self._get_graph(fused=call.fused, asynchronous=True)
                try:
                    answer = await getattr(graph, f"a{call.method}")(*call.arguments, **self._options(call))
                except BaseException as error:
                    run.throw(error)
        return call

    def _run_attempts(
        self,
        task: str,
        seed: int,
        thread_id: str | None,
        first: int = 0,
        spent: ModelUsage = NO_USAGE,
        start: Mapping[str, Any] = NO_START,
    ) -> _Run:
        """Run an episode, from attempt `first` on, until an attempt is not broken or no retry is left."""
        attempt = first
        while True:
            thread = _build_thread_id(thread_id, attempt)
            state = cast(EpisodeState, {**self._initial_state(thread, task, seed, attempt), **start})
            with self._open_episode(state):
                final = yield _GraphCall("invoke", self._checkpointer is None, (state, _build_config(thread)))
            spent += final["usage"]
            if not final.get("failed") or attempt >= self._retries:
                return Result(final["trajectory"], spent, final["thread"])
            attempt += 1

    def _resume_attempts(self, thread_id: str) -> _Run:
        """Continue the latest attempt of an episode, then retry if that attempt broke."""
        if self._checkpointer is None:
            raise ConfigError("resume needs a checkpointer: Agent(..., checkpointer=SqliteSaver(...)).")
        snapshots = []
        for attempt in range(self._retries + 1):
            config = _build_config(_build_thread_id(thread_id, attempt))
            snapshots.append((yield _GraphCall("get_state", False, (config,))))
        snapshot = _select_latest(thread_id, snapshots)
        final = snapshot.values
        if snapshot.next:
            with self._restore_episode(snapshot):
                # An input of None makes LangGraph continue from the checkpoint.
                final = yield _GraphCall("invoke", False, (None, _build_config(final["thread"])))
        if final.get("failed") and final["attempt"] < self._retries:
            retry, start = (
                final["attempt"] + 1,
                {name: final[name] for name in ("prefix", "max_steps") if name in final},
            )
            return (
                yield from self._run_attempts(final["task"], final["seed"], thread_id, retry, final["usage"], start)
            )
        return Result(final["trajectory"], final["usage"], final["thread"])

    # ---- episodes and graphs

    @contextmanager
    def _open_stream(
        self, task: str, seed: int, thread_id: str | None
    ) -> Iterator[tuple[EpisodeState, dict[str, Any]]]:
        """Open an episode and yield its start and the options of the graph's stream."""
        thread = _build_thread_id(thread_id, 0)
        state = self._initial_state(thread, task, seed, 0)
        with self._open_episode(state):
            yield state, {"config": _build_config(thread), "stream_mode": "updates", **self._durability()}

    @contextmanager
    def _restore_episode(self, snapshot: Any) -> Iterator[None]:
        """Open an episode with its working memory and environment as they were at a checkpoint."""
        values = snapshot.values
        with self._open_episode(values, is_resumed=True) as live:
            # Without `first` the episode was interrupted before its reset, and there is nothing to restore.
            if "first" in values:
                live.working = rebuild_memory(self.library, values["first"], values["steps"])
                restore_environment(live.environment, values, has_acted="diagnose" in snapshot.next)
            yield

    def _initial_state(self, thread: str, task: str, seed: int, attempt: int) -> EpisodeState:
        ref = uuid.uuid4().hex  # a thread that is used again has another episode
        return {
            "thread": thread, "id": ref, "task": task, "seed": seed, "attempt": attempt,
            "episode": self.library.episodes.count(),
        }  # fmt: skip

    @contextmanager
    def _open_episode(self, state: EpisodeState, *, is_resumed: bool = False) -> Iterator[LiveEpisode]:
        """Reserve an environment and a working memory for one episode; discard the environment if it breaks."""
        thread = state["thread"]
        if thread in self._live:
            raise ConfigError(
                f"An episode already runs under thread {thread!r}. Give this one another thread_id, or wait for it."
            )
        environment = self._idle.pop() if self._idle else self._clone_environment()
        ref = state["id"]
        live = self._live[thread] = LiveEpisode(environment, WorkingMemory(), ref, is_resumed)
        try:
            yield live
        except BaseException as error:
            self._store_cut(live, error)
            raise
        finally:
            del self._live[thread]
            if getattr(environment, "broken", False):
                environment.close()
            else:
                self._idle.append(environment)

    def _store_cut(self, live: LiveEpisode, error: BaseException) -> None:
        """Store the steps of an episode that an error ends; if it is resumed, the whole episode takes their place."""
        if live.reached is not None:
            ending, failed = type(error).__name__, f"{type(error).__name__}: {error}"
            self._nodes.store_cut(cast(EpisodeState, {**live.reached, "ending": ending, "failed": failed}))

    def _clone_environment(self) -> Environment:
        return _add_timeout(self._environment.clone(), self._step_timeout_s)

    def _get_graph(self, *, fused: bool, asynchronous: bool = False) -> Any:
        key = (fused, asynchronous)
        if key not in self._graphs:  # compiling takes milliseconds, so only the graphs in use are built
            self._graphs[key] = build_graph(
                self._nodes, fused=fused, asynchronous=asynchronous, checkpointer=self._checkpointer
            )
        return self._graphs[key]

    def _options(self, call: _GraphCall) -> dict[str, Any]:
        return self._durability() if call.method == "invoke" else {}

    def _durability(self) -> dict[str, Any]:
        # "sync" writes each checkpoint before the next stage starts: a killed process loses no finished stage.
        return {"durability": "sync"} if self._checkpointer is not None else {}


def _advance(run: _Run, answer: Any) -> _GraphCall | Result:
    """Return the next graph call of a run, or its result."""
    try:
        return run.send(answer)
    except StopIteration as end:
        result: Result = end.value
        return result


def _to_events(update: Mapping[str, dict[str, Any] | None]) -> Iterator[Event]:
    return (Event(stage, changes or {}) for stage, changes in update.items())


def _add_timeout(environment: Environment, timeout_s: float) -> Watched:
    """Wrap an environment so that a call that hangs raises.

    An environment with `keeps_time` enforces its own limit and is called directly: passing each call through a thread
    costs more than a step.
    """
    return Watched(environment, timeout_s=None if getattr(environment, "keeps_time", False) else timeout_s)


def _build_thread_id(thread_id: str | None, attempt: int) -> str:
    name = thread_id or uuid.uuid4().hex
    # A thread per attempt, or a retry would continue from the checkpoint of the broken attempt.
    return name if attempt == 0 else f"{name}-retry{attempt}"


def _build_config(thread: str) -> dict[str, Any]:
    # LangGraph's limit on stages, set out of reach: `max_steps` ends episodes instead.
    return {"recursion_limit": 1_000_000, "configurable": {"thread_id": thread}}


def _select_latest(thread_id: str, snapshots: list[Any]) -> Any:
    """Return the checkpoint of the attempt that ran last."""
    begun = [snapshot for snapshot in snapshots if snapshot.values]
    if not begun:
        raise UnknownName(f"The checkpointer has no episode under thread {thread_id!r}. Start one with run().")
    return max(begun, key=lambda snapshot: snapshot.created_at or "")
