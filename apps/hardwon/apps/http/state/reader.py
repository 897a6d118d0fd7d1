"""The extractor of a server: reads recorded episodes one after another, beside the requests.

A model takes seconds for an episode, so a request that records one does not wait for it. What is waiting when the
server stops is not read; the library's rules have read it by then.
"""

import logging
import queue
import threading
from collections.abc import Iterable

from hardwon.apps.shared.reading import read_recorded
from hardwon.memory.errors import HardwonError
from hardwon.memory.learning.extraction import Extractor

from .shelf import Shelf
from .watch import Measures

logger = logging.getLogger(__name__)


class BackgroundReader:
    """Reads episodes with an extractor in a thread of its own, which starts with the first episode."""

    def __init__(self, shelf: Shelf, extractor: Extractor, measures: Measures, *, most: int = 10_000) -> None:
        """Create a reader."""
        self._shelf, self._extractor, self._measures = shelf, extractor, measures
        self._waiting: queue.Queue[tuple[str, str]] = queue.Queue(most)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def submit(self, namespace: str, episodes: Iterable[str]) -> None:
        """Let recorded episodes be read, and return at once."""
        with self._lock:
            if self._thread is None and not self._stopping.is_set():
                self._thread = threading.Thread(target=self._run, name="hardwon-episode-reader", daemon=True)
                self._thread.start()
        for episode in episodes:
            try:
                self._waiting.put_nowait((namespace, episode))
            except queue.Full:
                self._measures.extracted.labels("skipped").inc()

    def wait(self) -> None:
        """Wait until all submitted episodes are read."""
        self._waiting.join()

    def close(self) -> None:
        """Finish the episode that is being read, and leave the rest."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                namespace, episode = self._waiting.get(timeout=0.2)
            except queue.Empty:
                continue
            try:
                self._measures.extracted.labels("read" if self._read(namespace, episode) else "passed over").inc()
            except HardwonError as error:  # such as an item that another process deleted meanwhile
                self._measures.extracted.labels("failed").inc()
                logger.warning("the extractor failed at episode %s: %s", episode, error)
            except Exception:  # one episode must not end the reading of all others
                self._measures.extracted.labels("failed").inc()
                logger.exception("the extractor failed at episode %s", episode)
            finally:
                self._waiting.task_done()

    def _read(self, namespace: str, episode: str) -> bool:
        """Read one episode and apply what the extractor proposes; return whether there was something to read."""
        admissions = read_recorded(
            episode,
            self._extractor,
            reading=lambda: self._shelf.reading(namespace),
            recording=lambda: self._shelf.recording(namespace),
        )
        return admissions is not None
