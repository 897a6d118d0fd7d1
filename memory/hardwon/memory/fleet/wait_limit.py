"""A limit on how long a caller waits for a server that took a statement and does not answer.

The limits of TCP notice a machine that is gone, but not a server that is stopped or stuck: its machine still answers.
"""

import socket
import threading
import time
import weakref
from contextlib import suppress


class WaitLimit:
    """Shuts a connection down if a wait for it exceeds a limit, which ends the wait with an error."""

    def __init__(self, limit_s: float) -> None:
        """Watch nothing yet."""
        self._limit_s = limit_s
        self._descriptor = -1
        self._deadline = 0.0
        self._thread: threading.Thread | None = None
        self.is_exhausted = False
        """Whether the last wait was ended."""

    def begin(self, descriptor: int) -> None:
        """Begin to wait for a connection."""
        self._descriptor, self.is_exhausted = descriptor, False
        self._deadline = time.monotonic() + self._limit_s
        if self._thread is None:
            self._thread = threading.Thread(
                target=_watch,
                args=(weakref.ref(self), self._limit_s / 4),
                name="hardwon waits for a server",
                daemon=True,
            )
            self._thread.start()

    def end(self) -> None:
        """End the wait, because the server has answered."""
        self._deadline = 0.0

    def check(self) -> None:
        """Shut the connection down if the wait is too long."""
        deadline = self._deadline
        if deadline and time.monotonic() > deadline:
            self._deadline, self.is_exhausted = 0.0, True
            with suppress(OSError), socket.fromfd(self._descriptor, socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.shutdown(socket.SHUT_RDWR)


def _watch(wait: "weakref.ref[WaitLimit]", every_s: float) -> None:
    """Check a wait now and then, until nobody has it any more."""
    while True:
        time.sleep(every_s)
        watched = wait()
        if watched is None:
            return
        watched.check()
        del watched
