"""Accept client feedback on whether an item helped, with limits on its effect and rate.

Without limits, a mistaken or malicious client could move any item to the top or out of use. A client may therefore
rate an item once per episode, and only a few items per minute. HTTP and MCP share these limits.
"""

from collections import OrderedDict
from threading import Lock

from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.errors import TooMuchFeedback


class Feedback:
    """Limits on client feedback. Thread-safe.

    The library keeps the number of ratings in the last minute, so that several processes share the limit. The ratings
    of an episode are kept in this process; for untrusted clients the library keeps them as well.
    """

    def __init__(self, *, a_minute: int = 20) -> None:
        self._per_minute = a_minute
        self._rated: OrderedDict[tuple[str, ...], None] = OrderedDict()
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
        """Move the score of an item by a client's feedback on one episode."""
        item = library.items.get(item_id)
        writer = client if writer is None else writer
        key = (client, library.namespace, episode, item.id)
        # Reserve the rating before the write: two calls at once must not both pass the limit.
        with self._lock:
            self._admit(key)
        try:
            library.admin.count_rating(client, most=self._per_minute)
            if not trusted:
                return library.feedback(item.id, helped, writer=writer, episode=episode)
            score = round(item.score + 0.1 * (float(helped) - item.score), 4)
            return library.items.update(item.id, score=score)
        except BaseException:
            with self._lock:  # a failed write does not use up the rating of this episode
                self._rated.pop(key, None)
            raise

    def _admit(self, key: tuple[str, ...]) -> None:
        if key in self._rated:
            raise TooMuchFeedback(
                f"you have already rated {key[-1]} in this episode. Rate it again after the next episode."
            )
        self._rated[key] = None
        if len(self._rated) > 100_000:
            self._rated.popitem(last=False)
