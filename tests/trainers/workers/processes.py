"""A cluster whose workers are objects of the test's process: every message is pickled, and a worker can be killed."""

import asyncio
import pickle
from typing import Any

from hardwon.trainers.workers.messages import WorkerDied
from hardwon.trainers.workers.worker import RolloutWorker


class Process:
    """A worker that counts the events it sends, and dies after so many."""

    def __init__(self, worker: RolloutWorker, dies_after: int | None) -> None:
        self._worker, self._left = worker, dies_after
        self._dead: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def kill(self) -> None:
        if not self._dead.done():
            self._dead.set_result(None)

    async def call(self, method: str, *arguments: Any) -> Any:
        if self._dead.done():
            raise WorkerDied("a rollout worker ended: killed by the test")
        sent = pickle.loads(pickle.dumps(arguments))
        work = asyncio.ensure_future(getattr(self._worker, method)(*sent))
        await asyncio.wait([work, self._dead], return_when=asyncio.FIRST_COMPLETED)
        if self._dead.done():
            work.cancel()
            raise WorkerDied("a rollout worker ended: killed by the test")
        result = pickle.loads(pickle.dumps(work.result()))
        if method == "events" and self._left is not None:
            self._left -= len(result)
            if self._left <= 0:  # what it has sent is lost on the way
                await self._worker.close()
                self.kill()
                raise WorkerDied("a rollout worker ended: killed by the test")
        return result


class Processes:
    """Starts workers; `deaths` says after how many events the first ones die."""

    def __init__(self, *deaths: int) -> None:
        self._deaths = [*deaths]
        self.started: list[Process] = []
        self.closed = False

    async def start(self, setup: Any) -> Any:
        dies_after = self._deaths.pop(0) if self._deaths else None
        self.started.append(Process(RolloutWorker(pickle.loads(pickle.dumps(setup))), dies_after))
        return self.started[-1]

    def put(self, value: Any) -> Any:
        return value

    def close(self) -> None:
        self.closed = True
