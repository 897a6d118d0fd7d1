"""Rollout workers as Ray actors.

    cluster = RayCluster(workers=8)

Ray places the workers on the machines of its cluster, moves messages and library files, and notices dead workers.
"""

import asyncio
import importlib
import os
import tempfile
from contextlib import suppress
from typing import Any

from hardwon.memory.errors import ConfigError, EngineUnreachable, require_extra

from .messages import WorkerDied
from .worker import RolloutWorker

TRIES = 3
"""Attempts to start Ray on this machine; a busy machine may need more than one."""
PLACED_S = 300.0
"""Seconds to wait for a place and the start of a worker."""


class RayCluster:
    """Starts workers on a Ray cluster, and Ray itself if no cluster runs."""

    def __init__(self, workers: int, kind: type[RolloutWorker] = RolloutWorker) -> None:
        """Connect to a cluster."""
        self._ray = ray = _import_ray()
        self._actors: list[Any] = []
        self._owns = not ray.is_initialized()
        if self._owns:
            _connect(workers)
        self._check_room(workers)
        # 1 CPU each: Ray then spreads the workers over the machines of the cluster
        # Calls that a worker answers at once: one waits for events, and the others are short.
        self._kind = ray.remote(num_cpus=1, max_restarts=0, max_concurrency=1000)(kind)

    def _check_room(self, workers: int) -> None:
        """Check that the cluster has a CPU for every worker."""
        most = int(self._ray.cluster_resources().get("CPU", 0))
        if most < workers:
            self.close()
            raise ConfigError(
                f"rollouts.workers is {workers}, and the Ray cluster has {most} CPUs; lower it, or add machines."
            )

    async def start(self, setup: Any) -> "RayWorker":
        """Start an actor, and wait until it answers."""
        actor = self._kind.remote(setup)
        self._actors.append(actor)
        worker = RayWorker(self._ray, actor)
        try:
            await asyncio.wait_for(worker.call("deliver", ()), PLACED_S)
        except TimeoutError as error:
            raise EngineUnreachable(
                f"Ray started no rollout worker within {PLACED_S:.0f} s; see `ray status` for what holds its CPUs."
            ) from error
        return worker

    def put(self, value: Any) -> Any:
        """Store a value in Ray's object store."""
        return self._ray.put(value)

    def close(self) -> None:
        """End the actors, and leave the cluster, or stop Ray if this run has started it."""
        with suppress(Exception):  # those that do not close themselves in time, or are dead, are killed
            self._ray.get([actor.close.remote() for actor in self._actors], timeout=5.0)
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors.clear()
        if self._owns:
            self._ray.shutdown()


class RayWorker:
    """An actor as the pool sees it. Its methods are those of `RolloutWorker`."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self.actor = ray, actor

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the actor.

        Raises:
            WorkerDied: The actor has ended.
        """
        try:
            return await getattr(self.actor, method).remote(*arguments)
        except self._ray.exceptions.RayActorError as error:
            raise WorkerDied(f"a rollout worker ended: {str(error).strip().splitlines()[-1]}") from error
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error


def _import_ray() -> Any:
    """Return the module, which most installations do not have."""
    with require_extra("ray"):
        return importlib.import_module("ray")


def _connect(workers: int) -> None:
    """Connect to the cluster of RAY_ADDRESS or to one that runs here, or else start Ray on this machine."""
    ray = _import_ray()
    # no report to Ray's makers, and no line of every actor in the run's output
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    try:
        ray.init(address="auto", **quiet)
        return
    except ConnectionError as error:
        if address := os.environ.get("RAY_ADDRESS"):
            raise EngineUnreachable(
                f"no Ray cluster answers at RAY_ADDRESS={address}: {error}. Start one with `ray start --head`, or "
                "unset RAY_ADDRESS."
            ) from error
    folder = _choose_folder()
    for attempt in range(TRIES):
        try:
            ray.init(
                address="local",
                num_cpus=workers,
                include_dashboard=False,
                object_store_memory=200_000_000,
                **quiet,
                **({} if folder is None else {"_temp_dir": folder}),
            )
            return
        except Exception as error:
            ray.shutdown()
            if attempt == TRIES - 1:
                raise EngineUnreachable(
                    f"Ray did not start on this machine: {str(error).splitlines()[0]} Its logs are in "
                    f"{folder or '/tmp/ray'}/session_latest/logs. Start it with `ray start --head`, or set "
                    "rollouts.workers=0."
                ) from error


def _choose_folder() -> str | None:
    """Return a short temporary folder if Ray's own would be too long for the path of a socket; else None."""
    chosen = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    # Bytes of the path of Ray's temporary folder: its sockets are 60 bytes longer, and Linux allows 107.
    return "/tmp/ray" if len(chosen.encode()) > 40 else None
