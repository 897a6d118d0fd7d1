"""Feedback: a client says whether an item helped, which moves the item's score a little, and not too often.

A client that is wrong, or lies, could otherwise talk any item to the top or out of use. So it may speak of an item
once in an episode, and of no more than a few items a minute. HTTP and MCP share these limits.
"""

import time
from collections import OrderedDict, deque
from threading import Lock

from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.errors import TooMuchFeedback

LEAST = 0.1
"""How far one word of feedback moves an item's score towards 1 or 0."""
A_MINUTE = 20
"""Words of feedback that one client may say in a minute."""
REMEMBERED = 100_000
"""Words of feedback that are remembered, and clients whose pace is."""


class Feedback:
    """What clients said of items, as long as the server runs. Safe for many threads."""

    def __init__(self, *, a_minute: int = A_MINUTE) -> None:
        self._a_minute = a_minute
        self._said: OrderedDict[tuple[str, ...], None] = OrderedDict()
        self._times: OrderedDict[str, deque[float]] = OrderedDict()
        self._lock = Lock()

    def give(
        self,
        library: ExperienceLibrary,
        item_id: str,
        helped: bool,
        *,
        client: str,
        episode: str,
        trusted: bool = True,
        writer: str | None = None,
    ) -> Item:
        """Move the score of an item on the word of a client about an episode; return the item.

        What an untrusted client says is bounded for good, see `hardwon.memory.values.opinions`; `writer` is its name
        there.

        Raises: TooMuchFeedback, UnknownName.
        """
        item = library.get(item_id)
        writer = client if writer is None else writer
        key = (client, library.namespace, episode, item.id)
        with self._lock:
            self._admit(client, key, time.monotonic())
        try:
            if not trusted:
                return library.feedback(item.id, helped, writer=writer, episode=episode)
            score = round(item.score + LEAST * (float(helped) - item.score), 4)
            return library.update(item.id, score=score)
        except BaseException:
            with self._lock:
                self._said.pop(key, None)
            raise

    def _admit(self, client: str, key: tuple[str, ...], now: float) -> None:
        if key in self._said:
            raise TooMuchFeedback(
                f"you said already whether {key[-1]} helped in this episode. Speak of it again after the next one."
            )
        times = self._times.setdefault(client, deque(maxlen=self._a_minute))
        self._times.move_to_end(client)
        if len(times) == self._a_minute and now - times[0] < 60:
            wait_s = 60 - (now - times[0])
            raise TooMuchFeedback(
                f"more than {self._a_minute} words of feedback in a minute. Go on in {wait_s:.0f} s, and speak only of "
                "what clearly helped or misled you."
            )
        times.append(now)
        self._said[key] = None
        if len(self._said) > REMEMBERED:
            self._said.popitem(last=False)
        if len(self._times) > REMEMBERED:
            self._times.popitem(last=False)
