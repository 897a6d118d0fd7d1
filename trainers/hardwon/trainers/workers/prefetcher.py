"""Playing ahead: the workers play the groups of coming iterations while the learner updates the weights."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

Groups = TypeVar("Groups")


class Prefetcher(Generic[Groups]):
    """Plays the groups of at most `most` coming iterations, so that no weights are older than that many updates."""

    def __init__(
        self, play: Callable[[int], Coroutine[Any, Any, Groups]], most: int, last: int, count: Callable[[], int]
    ) -> None:
        """Play nothing yet."""
        self._play, self._most, self._last, self._count = play, most, last, count
        self._tasks: dict[int, asyncio.Task[Groups]] = {}
        self._states: dict[int, int] = {}

    async def take(self, number: int) -> Groups:
        """Begin to play what may be played by now, and return the groups of an iteration when they are complete."""
        for following in range(number, min(number + self._most, self._last) + 1):
            if following not in self._states:
                self._states[following] = self._count()
                self._tasks[following] = asyncio.get_running_loop().create_task(self._play(following))
                await asyncio.sleep(0)  # it draws its task instances before the next one does
        groups = await self._tasks.pop(number)
        self._states = {each: state for each, state in self._states.items() if each > number}
        return groups

    def get_state(self, number: int) -> int | None:
        """Return the position in the order of the task instances before an iteration; None if it has not begun."""
        return self._states.get(number)

    async def cancel(self) -> None:
        """End what is still played."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()
