"""Settings of a server with which it may lose what it acknowledged."""

import logging

from hardwon.memory.errors import LibraryError

from .log import Log

_RISKS = {
    "fsync": "a power failure may damage the database",
    "full_page_writes": "a power failure may damage the database",
    "synchronous_commit": "a crash of the server loses the newest entries",
}
"""Settings that must not be off, with what may happen."""
_QUERY = "SELECT name FROM pg_settings WHERE setting = 'off' AND name = ANY(%(names)s) ORDER BY name"

logger = logging.getLogger("hardwon.memory")
_warned: set[tuple[str, str]] = set()


def list_risks(log: Log) -> tuple[str, ...]:
    """Return a sentence for each setting of the server, as this role gets it, with which entries may be lost."""
    names = [name for (name,) in log.read(_QUERY, {"names": list(_RISKS)})]
    return tuple(f"{name} is off: {_RISKS[name]}. Set it to on, then reload the server." for name in names)


def warn(log: Log) -> None:
    """Log each risk once in a process."""
    try:
        risks = list_risks(log)
    except LibraryError:  # the server is gone again; the next statement tells the caller
        return
    for risk in risks:
        if (log.name, risk) not in _warned:
            _warned.add((log.name, risk))
            logger.warning("%s: %s", log.name, risk)
