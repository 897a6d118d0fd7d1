"""LangGraph's SqliteStore. Many Pythons' sqlite3 cannot load its vector extension, so pysqlite3 takes its place.

`text_fields` is what the store reads; `fields`, which its documentation names, it does not.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pysqlite3

sys.modules["sqlite3"] = pysqlite3

from langgraph.store.base import PutOp  # noqa: E402
from langgraph.store.sqlite import SqliteStore  # noqa: E402

from .probe import LookUp  # noqa: E402


class LangGraph:
    """A namespace is a tenant."""

    def __init__(self, path: Path, look_up: LookUp) -> None:
        index: Any = {"dims": look_up.dim, "embed": look_up.lists, "text_fields": ["text"]}
        self._opened = SqliteStore.from_conn_string(str(path), index=index)
        self._store = self._opened.__enter__()
        self._store.setup()
        self._look_up = look_up

    def _key(self, text: str) -> str:
        return str(self._look_up.rows([text])[0])

    def add(self, tenant: str, text: str) -> None:
        """One put."""
        self._store.put((tenant,), self._key(text), {"text": text})

    def add_batch(self, tenant: str, texts: Sequence[str]) -> None:
        """One batch of puts."""
        self._store.batch([PutOp((tenant,), self._key(text), {"text": text}) for text in texts])

    def search(self, tenant: str, text: str, k: int) -> list[str]:
        """Its vector search."""
        return [item.value["text"] for item in self._store.search((tenant,), query=text, limit=k)]

    def close(self) -> None:
        """Leave the store's context."""
        self._opened.__exit__(None, None, None)


def open_memory(folder: Path, look_up: LookUp, variant: str) -> LangGraph:
    """One file in this folder."""
    return LangGraph(folder / "store.db", look_up)
