"""Writers: under which name, and with which trust, a caller's episodes and items come into the library."""

from hardwon.memory.doors import writer_name
from hardwon.memory.records import Trust

from .auth import LOCAL, Caller


def door_of(caller: Caller) -> tuple[str, Trust]:
    """Return the writer's name of a caller, and its trust: a token that may write is trusted, nobody else is."""
    if caller is LOCAL:  # any program of this machine: nobody asked it who it is
        return "http", "trusted"
    return writer_name("token", caller.name), "trusted" if caller.write else "untrusted"
