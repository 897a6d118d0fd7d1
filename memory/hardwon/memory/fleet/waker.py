"""A wait that ends when a time is over, another thread calls, or a descriptor becomes readable."""

import os
import select
from contextlib import suppress


class Waker:
    """Lets one thread sleep until something happens. `wake` may be called by any thread."""

    def __init__(self) -> None:
        self._reads, self._writes = os.pipe()
        os.set_blocking(self._reads, False)
        os.set_blocking(self._writes, False)

    def wake(self) -> None:
        """End the current wait, or the next one."""
        with suppress(BlockingIOError, OSError):  # full: it wakes anyway; closed: nobody waits any more
            os.write(self._writes, b"x")

    def wait(self, seconds: float, descriptor: int | None) -> None:
        """Sleep until `wake` is called, the descriptor can be read, or the time is over."""
        poll = select.poll()
        poll.register(self._reads, select.POLLIN)
        if descriptor is not None:
            poll.register(descriptor, select.POLLIN)
        poll.poll(max(0.0, seconds) * 1000)
        with suppress(BlockingIOError):
            while os.read(self._reads, 4096):
                pass

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self._reads)
        os.close(self._writes)
