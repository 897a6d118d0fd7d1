"""The pool: the learner's side of the rollout workers.

    pool = WorkerPool(session, cluster, workers=8)
    rollouts = await pool.play(specs, agent_specs, snapshot="library@3")

The pool hands out episodes, answers the requests of the workers in its inference proxy, unless a server does, and
returns the rollouts in order. If a worker dies, another one takes its place and plays its unfinished episodes again,
under the same session names.
"""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hardwon.memory.errors import EngineFailure
from hardwon.trainers.algorithms.outcomes import OutcomeKind
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.config.schema import as_dict
from hardwon.trainers.engines.factory import read_api_key
from hardwon.trainers.engines.server import ServerEngine
from hardwon.trainers.rollouts.reporting import Reporting
from hardwon.trainers.rollouts.rollout import Spec

from .agent_pool import AgentSpec, PlayContext
from .inference_proxy import InferenceProxy
from .libraries import Libraries
from .messages import Dispatch, Done, Inquiry, Reply, SceneState, Setup, WorkerDied
from .ray_cluster import RayCluster, RayWorker


class Host(PlayContext, Protocol):
    """The session whose episodes are played."""

    @property
    def out(self) -> Path:
        """Return the folder of the run."""
        ...

    @property
    def tokenizer(self) -> Any:
        """Return the tokenizer of the run."""
        ...


def open_pool(host: Host) -> "WorkerPool | None":
    """Return the workers of the settings, or None if the learner's own process plays."""
    workers = host.config.rollouts.workers
    return WorkerPool(host, RayCluster(workers), workers=workers) if workers else None


def build_setup(host: Host) -> Setup:
    """Return what the workers of a session are started with."""
    paths = tuple(str(Path(path).absolute()) for path in sys.path)  # an empty one is the current folder
    key = None if host.config.engine.url is None else read_api_key()
    return Setup(as_dict(host.config), host.tokenizer, host.context, paths, key)


@dataclass(slots=True, eq=False)
class _Member:
    """A worker of the pool with what it is doing."""

    handle: RayWorker
    pump: "asyncio.Task[None] | None" = None
    playing: dict[str, Dispatch] = field(default_factory=dict)
    outbox: list[Reply] = field(default_factory=list)
    loaded: set[str] = field(default_factory=set)
    since: float = 0.0
    """When its oldest running episode began, or 0 while it has none."""


class WorkerPool:
    """Plays episodes in workers. Use it from a single event loop, and close it before the session."""

    def __init__(self, host: Host, cluster: RayCluster, *, workers: int) -> None:
        self._host, self._cluster, self._setup = host, cluster, cluster.put(build_setup(host))
        self._workers = workers
        self._proxy = InferenceProxy(host.engine, host.tokenizer)
        self._libraries = Libraries(host.out / "workers", cluster.put)
        self._members: list[_Member] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._results: dict[str, asyncio.Future[Rollout]] = {}
        self._scenes: dict[int, SceneState] = {}
        self._starting = asyncio.Lock()
        self._number = 0
        self._deaths = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._busy, self._counted = 0.0, time.perf_counter()
        self.counts: Counter[str] = Counter()
        """Episodes that were played again, and workers that were replaced, since the last `drain_metrics`."""

    # -- playing ----------------------------------------------------------------------------------

    async def play(
        self,
        specs: Sequence[Spec],
        agent_specs: Mapping[str, AgentSpec],
        *,
        snapshot: str = "",
        outcome: OutcomeKind = "success",
        together: bool = False,
        on_end: Callable[[], None] | None = None,
    ) -> list[Rollout]:
        """Play episodes and return their rollouts in order."""
        async with self._starting:
            await self._gather()
        scene = await self._open_scene(snapshot)
        # announced first, as without workers: a round of the engine waits for all of them
        for spec in specs:
            await self._host.engine.begin(spec.session)
        loop = asyncio.get_running_loop()
        results = [self._results.setdefault(spec.session, loop.create_future()) for spec in specs]
        if on_end is not None:
            for result in results:
                result.add_done_callback(lambda _: on_end())
        try:
            dispatches = [Dispatch(spec, agent_specs[spec.arm], scene.number, outcome) for spec in specs]
            await self._hand_out(dispatches, together=together)
            return [await result for result in results]
        finally:
            sessions = [spec.session for spec in specs]
            for session in sessions:
                if not (result := self._results.pop(session)).done():
                    result.cancel()
                    await self._host.engine.end(session)
                elif not result.cancelled():
                    result.exception()  # seen: the first error was raised for all
            self._proxy.forget(sessions)
            await self._close_scene(scene)

    async def _gather(self) -> None:
        """Start the workers, or take them over from an event loop that has ended."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            for member in self._members:
                member.playing.clear()
                self._watch(member)
        missing = self._workers - len(self._members)
        if missing > 0:
            handles = await asyncio.gather(*(self._cluster.start(self._setup) for _ in range(missing)))
            self._members += [_Member(handle) for handle in handles]
            for member in self._members[-missing:]:
                self._watch(member)
            self._busy, self._counted = 0.0, time.perf_counter()

    def _watch(self, member: _Member) -> None:
        """Read the events of a worker from now on."""
        member.pump = asyncio.get_running_loop().create_task(self._pump(member))

    async def _open_scene(self, snapshot: str) -> SceneState:
        """Open a scene in every worker."""
        host, self._number = self._host, self._number + 1
        libraries = {"library": host.library, "start": host.start} if host.config.uses_library else {}
        digests = {name: self._libraries.read(name, each.path) for name, each in libraries.items() if each is not None}
        scene = SceneState(
            self._number,
            snapshot,
            digests,
            dict(host.engine.versions()),
            host.engine.hold() if isinstance(host.engine, ServerEngine) else {},
        )
        self._scenes[scene.number] = scene
        await asyncio.gather(*(self._try(member, self._enter(member, scene)) for member in self._members))
        return scene

    async def _enter(self, member: _Member, scene: SceneState) -> None:
        """Open a scene in one worker, which gets the library files that it lacks."""
        for digest in {*scene.libraries.values()} - member.loaded:
            member.loaded.add(digest)
            await member.handle.call("load", digest, self._libraries.get(digest))
        await member.handle.call("enter", scene)

    async def _leave(self, member: _Member, scene: SceneState) -> None:
        """Close a scene in one worker, which drops the library files that no other scene needs."""
        member.loaded -= {*await member.handle.call("leave", scene.number)}

    async def _close_scene(self, scene: SceneState) -> None:
        """Close a scene in every worker."""
        self._scenes.pop(scene.number, None)
        await asyncio.gather(*(self._try(member, self._leave(member, scene)) for member in self._members))
        self._libraries.keep({digest for member in self._members for digest in member.loaded})
        if isinstance(self._host.engine, ServerEngine):
            self._host.engine.release(scene.served)

    async def _hand_out(self, dispatches: Sequence[Dispatch], *, together: bool = False) -> None:
        """Give episodes to the workers that have the fewest; those of a group to one worker if they belong together."""
        homes: dict[str, _Member] = {}
        given: dict[int, list[Dispatch]] = {}
        for dispatch in dispatches:
            key = dispatch.spec.group if together else dispatch.spec.session
            member = homes.setdefault(key, min(self._members, key=lambda each: len(each.playing)))
            member.since = member.since or time.perf_counter()
            member.playing[dispatch.spec.session] = dispatch
            given.setdefault(self._members.index(member), []).append(dispatch)
        members = [*self._members]
        await asyncio.gather(
            *(self._try(members[at], members[at].handle.call("play", part)) for at, part in given.items())
        )

    async def _try(self, member: _Member, call: Awaitable[None]) -> None:
        """Await a call of a worker; if the worker is dead, its pump notices that, too, and replaces it."""
        with suppress(WorkerDied):
            await call

    # -- what the workers send --------------------------------------------------------------------

    async def _pump(self, member: _Member) -> None:
        """Handle the events of a worker until it dies; then replace it."""
        try:
            while True:
                for event in await member.handle.call("events"):
                    if isinstance(event, Inquiry):
                        self._spawn(self._serve(member, event))
                    else:
                        await self._finish(member, event)
        except WorkerDied as error:
            await self._replace(member, error)
        except Exception as error:
            self._fail(error)

    def _spawn(self, work: Any) -> None:
        """Run a task in the background; an error fails the episodes that wait."""

        async def watched() -> None:
            try:
                await work
            except Exception as error:
                self._fail(error)

        task = asyncio.get_running_loop().create_task(watched())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _fail(self, error: Exception) -> None:
        """Give all waiting calls an error."""
        for result in self._results.values():
            if not result.done():
                result.set_exception(error)

    async def _serve(self, member: _Member, inquiry: Inquiry) -> None:
        """Reply a request. Answers that are ready at the same time, as after a round, are sent together."""
        if inquiry.session not in member.playing:
            return  # of a call that has ended
        answer = await self._proxy.answer(inquiry)
        member.outbox.append(answer)
        if len(member.outbox) == 1:
            await asyncio.sleep(0)  # the other answers of the round are appended now
            answers, member.outbox = member.outbox, []
            await self._try(member, member.handle.call("deliver", answers))

    async def _finish(self, member: _Member, done: Done) -> None:
        """Count a finished episode, once."""
        if member.playing.pop(done.session, None) is None:
            return
        self._deaths = 0
        if not member.playing:
            self._busy += time.perf_counter() - member.since
            member.since = 0.0
        await self._host.engine.end(done.session)
        result = self._results.get(done.session)
        if result is None or result.done():
            return
        if done.error is not None or done.rollout is None:
            result.set_exception(done.error or EngineFailure(f"{done.session} ended without a rollout."))
            return
        if isinstance(self._host.engine, ServerEngine):
            self._host.engine.tokens_read += done.traces.tokens
        if isinstance(self._host.environment, Reporting):
            self._host.environment.reported.steps += done.traces.steps
            self._host.environment.reported.names |= done.traces.reported
        result.set_result(done.rollout)

    async def _replace(self, member: _Member, error: WorkerDied) -> None:
        """Start another worker for one that died, and give it the unfinished episodes."""
        self._deaths += 1
        self.counts["replaced"] += 1
        # Deaths per worker, without a finished episode between them, after which a run gives up.
        if self._deaths >= 3 * self._workers:
            self._fail(error)
            return
        try:
            fresh = _Member(await self._cluster.start(self._setup))
            entered: set[int] = set()
            while missing := [scene for scene in self._scenes.values() if scene.number not in entered]:
                for scene in missing:
                    entered.add(scene.number)
                    await self._enter(fresh, scene)
        except WorkerDied as again:
            await self._replace(member, again)
            return
        except Exception as other:
            self._fail(other)
            return
        # nothing is awaited here: an episode is handed to the old member or to the fresh one
        unfinished = [*member.playing.values()]
        fresh.playing, fresh.since = {dispatch.spec.session: dispatch for dispatch in unfinished}, member.since
        self._members[self._members.index(member)] = fresh
        self.counts["replayed"] += len(unfinished)
        self._watch(fresh)
        await self._try(fresh, fresh.handle.call("play", unfinished))

    # -- figures, and the end ---------------------------------------------------------------------

    def drain_metrics(self) -> dict[str, float]:
        """Return the share of time in which workers had no episode, and counts, since the last call."""
        now = time.perf_counter()
        for member in self._members:
            if member.since:
                self._busy += now - member.since
                member.since = now
        total = max((now - self._counted) * max(1, len(self._members)), 1e-9)
        metrics = {
            "rollouts/worker_idle": min(1.0, max(0.0, 1.0 - self._busy / total)),
            "rollouts/workers_replaced": float(self.counts["replaced"]),
            "rollouts/episodes_replayed": float(self.counts["replayed"]),
        }
        self.counts.clear()
        self._busy, self._counted = 0.0, now
        return metrics

    def close(self) -> None:
        """End the workers."""
        for member in self._members:
            if member.pump is not None:
                with suppress(RuntimeError):  # its event loop has ended
                    member.pump.cancel()
        self._members.clear()
        self._cluster.close()
        self._libraries.close()
