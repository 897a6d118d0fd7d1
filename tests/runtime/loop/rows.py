"""A library that is nothing but rows of episodes, for tests of what reads them."""

from types import SimpleNamespace
from typing import Any


def fake_library(rows: list[dict[str, Any]], **more: Any) -> Any:
    """Return a library with these rows, newest first, as `episodes.find` and `revision` give them."""

    def find(*, limit=None, offset=0):
        return rows[offset:] if limit is None else rows[offset : offset + limit]

    return SimpleNamespace(revision=(len(rows), 0), episodes=SimpleNamespace(find=find), **more)
