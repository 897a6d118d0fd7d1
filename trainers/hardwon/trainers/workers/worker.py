"""A rollout worker: plays episodes with the runtime's agent in a process of its own.

    worker = RolloutWorker(setup)
    await worker.load(digest, data)            # a library file
    await worker.enter(scene)
    await worker.play([Dispatch(spec, agent_spec, scene.number)])
    events = await worker.events()             # finished episodes, and requests to the learner's engine
    await worker.deliver([answer])

A worker owns environments and agents. Tokens come from the server of the settings, or else from the learner's engine,
so a worker needs no model.
"""

import asyncio
import pickle
import shutil
import sys
import tempfile
import time
import traceback
import weakref
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from hardwon.memory import ExperienceLibrary
from hardwon.memory.errors import EngineFailure
from hardwon.runtime import Environment
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.config.loading import of
from hardwon.trainers.engines.base import Engine
from hardwon.trainers.engines.factory import open_server
from hardwon.trainers.prompting.factory import open_format
from hardwon.trainers.rollouts.explore import open_world
from hardwon.trainers.rollouts.reporting import Reported, Reporting
from hardwon.trainers.rollouts.rollout import collect

from .agent_pool import AgentPool
from .asking import LearnerEngine, SharedServer
from .messages import Dispatch, Done, Reply, SceneState, Setup, Traces, WorkerEvent

LIBRARY, START = "library", "start"
"""Names of the library files of a scene."""
_SCENE: ContextVar[int] = ContextVar("hardwon_scene")
"""The scene of the running asyncio task."""


@dataclass(slots=True)
class WorkerParts:
    """What the episodes of one call of the player share, opened in this process."""

    state: SceneState
    library: Any
    start: Any


class _Current:
    """Stands for one part of the scene that the running episode belongs to, so that agents outlast a scene."""

    def __init__(self, scenes: "Scenes", part: str) -> None:
        self._scenes, self._part = scenes, part

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(self._scenes.current, self._part), name)


class Scenes:
    """What a worker's agents play on, with the scenes that are being played."""

    def __init__(self, setup: Setup, events: "asyncio.Queue[WorkerEvent]") -> None:
        self.config = of(setup.config)
        self.reported = Reported()
        self.environment: Environment = cast(Environment, Reporting(open_world(self.config.environment), self.reported))
        self.prompts: Any = open_format(
            self.config.model,
            setup.tokenizer,
            environment=self.environment,
            builder=self.config.policy.build_prompts(),
        )
        self.context = setup.context
        self.source = self._open_engine(setup, events)
        self.engine = cast(Engine, self.source)
        self.library = _Current(self, LIBRARY)
        self.start = _Current(self, START) if self.config.uses_library else None
        self._folder = Path(tempfile.mkdtemp(prefix="hardwon-worker-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._libraries: dict[str, ExperienceLibrary] = {}
        self._scenes: dict[int, WorkerParts] = {}
        self._empty = ExperienceLibrary.open(":memory:")

    def _open_engine(self, setup: Setup, events: "asyncio.Queue[WorkerEvent]") -> LearnerEngine | SharedServer:
        """Return what the agents ask."""
        if self.config.engine.url is not None:
            return SharedServer(self._get_state, open_server(self.config, setup.tokenizer, setup.key))
        return LearnerEngine(self._get_state, events)

    def _get_state(self) -> SceneState:
        """Return what the learner said of the scene of the running episode."""
        return self.current.state

    @property
    def current(self) -> WorkerParts:
        """Return the scene of the running episode, or else the newest."""
        return self._scenes[_SCENE.get(max(self._scenes))]

    def load(self, digest: str, data: bytes) -> None:
        """Keep a library file for the scenes that name it."""
        if digest not in self._libraries:
            path = self._folder / f"{digest}.db"
            path.write_bytes(data)
            self._libraries[digest] = ExperienceLibrary.open(path, read_only=True)

    def enter(self, state: SceneState) -> None:
        """Open a scene; its libraries were loaded before."""
        digests = state.libraries
        library = self._libraries[digests[LIBRARY]] if LIBRARY in digests else self._empty
        start = self._libraries[digests[START]] if START in digests else None
        self._scenes[state.number] = WorkerParts(state, library, start)

    def leave(self, number: int) -> list[str]:
        """Close a scene, and the libraries that only older scenes used; return the digests of these."""
        newest = max(self._scenes)
        if number != newest:
            self._scenes.pop(number, None)
        used = {digest for scene in self._scenes.values() for digest in scene.state.libraries.values()}
        unused = [digest for digest in self._libraries if digest not in used]
        for digest in unused:
            self._libraries.pop(digest).close()
            (self._folder / f"{digest}.db").unlink(missing_ok=True)
        return unused

    def close(self) -> None:
        """Close the libraries and the environment."""
        for library in (*self._libraries.values(), self._empty):
            library.close()
        shutil.rmtree(self._folder, ignore_errors=True)  # early: the rest may take longer than a worker is given
        if isinstance(self.source, SharedServer):
            self.source.close()
        self.environment.close()


class RolloutWorker:
    """Plays the episodes that the learner sends. Use it from a single event loop."""

    def __init__(self, setup: Setup) -> None:
        # behind its own, and only what is there: another machine may have other folders
        sys.path.extend(path for path in setup.paths if path not in sys.path and Path(path).exists())
        self._events: asyncio.Queue[WorkerEvent] = asyncio.Queue()
        self._scenes = Scenes(setup, self._events)
        self._agent_pool = AgentPool(self._scenes)
        self._playing: set[asyncio.Task[None]] = set()
        self._polling: asyncio.Task[WorkerEvent] | None = None

    async def load(self, digest: str, data: bytes) -> None:
        """Receive a library file."""
        self._scenes.load(digest, data)

    async def enter(self, state: SceneState) -> None:
        """Open a scene and make it the newest."""
        self._scenes.enter(state)

    async def leave(self, number: int) -> list[str]:
        """Close a scene, and return the digests of the libraries that were dropped."""
        return self._scenes.leave(number)

    async def play(self, dispatches: Sequence[Dispatch]) -> None:
        """Start episodes; each ends with a `Done` among the events."""
        for dispatch in dispatches:
            task = asyncio.get_running_loop().create_task(self._play(dispatch))
            self._playing.add(task)
            task.add_done_callback(self._playing.discard)

    async def _play(self, dispatch: Dispatch) -> None:
        """Play one episode, and report it."""
        _SCENE.set(dispatch.scene)
        session, before = dispatch.spec.session, self._scenes.reported.steps
        try:
            scene = self._scenes.current
            agent = self._agent_pool.get_agent(dispatch.agent_spec)
            (rollout,) = await collect(
                {dispatch.spec.arm: agent}, self._scenes.engine, [dispatch.spec], outcome=dispatch.outcome
            )
        except Exception as error:
            self._events.put_nowait(Done(session, error=_make_portable(error)))
            return
        reported = self._scenes.reported
        traces = Traces(
            reported.steps - before,
            frozenset(reported.names),
            self._scenes.source.take_tokens_read(),
        )
        self._events.put_nowait(Done(session, _name_snapshot(rollout, scene.state.snapshot), traces))

    async def deliver(self, answers: Sequence[Reply]) -> None:
        """Receive answers of the learner's engine."""
        for answer in answers:
            self._scenes.source.deliver(answer)

    async def events(self) -> list[WorkerEvent]:
        """Return what happened since the last call, as soon as there is something; a later call ends this one."""
        if self._polling is not None:
            self._polling.cancel()
        self._polling = polling = asyncio.get_running_loop().create_task(self._events.get())
        await asyncio.wait([polling])
        if polling.cancelled():
            return []
        self._polling = None
        return [polling.result(), *await self._drain()]

    async def _drain(self) -> list[WorkerEvent]:
        """Return the waiting events, and those of the episodes that go on at once, so that they are sent together."""
        events: list[WorkerEvent] = []
        # Seconds in which the events of several episodes are gathered before they are sent.
        latest = time.perf_counter() + 0.002
        while True:
            while not self._events.empty():
                events.append(self._events.get_nowait())
            if len(self._playing) <= self._scenes.source.waiting or time.perf_counter() > latest:
                return events
            await asyncio.sleep(0)

    async def close(self) -> None:
        """End the episodes, and close agents, libraries and environments."""
        for task in [*self._playing]:
            task.cancel()
        await asyncio.gather(*self._playing, return_exceptions=True)
        self._agent_pool.close()
        self._scenes.close()


def _name_snapshot(rollout: Rollout, snapshot: str) -> Rollout:
    """Return a rollout whose rows name the version of the library that the scene shows."""
    return replace(rollout, rows=tuple(replace(row, snapshot=snapshot) for row in rollout.rows))


def _make_portable(error: Exception) -> BaseException:
    """Return an error that can be sent, with its traceback as a note."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return EngineFailure(f"an episode failed in a rollout worker: {type(error).__name__}: {error}")
    return error
