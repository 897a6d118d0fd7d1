"""Adapter for LangGraph's SqliteStore.

The sqlite3 of many Python builds cannot load the store's vector extension, so pysqlite3 replaces it. The index option
is called `text_fields` because the store ignores `fields`, the name in its documentation.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pysqlite3

# Must precede the import of langgraph, which imports sqlite3.
sys.modules["sqlite3"] = pysqlite3

from langgraph.store.base import PutOp  # noqa: E402
from langgraph.store.sqlite import SqliteStore  # noqa: E402

from .probe import LookUp  # noqa: E402


class LangGraph:
    """A SqliteStore in which each tenant is a namespace."""

    def __init__(self, path: Path, look_up: LookUp) -> None:
        index: Any = {"dims": look_up.dim, "embed": look_up.list_vectors, "text_fields": ["text"]}
        self._opened = SqliteStore.from_conn_string(str(path), index=index)
        self._store = self._opened.__enter__()
        self._store.setup()
        self._look_up = look_up

    def _key(self, text: str) -> str:
        return str(self._look_up.find_rows([text])[0])

    def add(self, tenant: str, text: str) -> None:
        """Store one text with one put."""
        self._store.put((tenant,), self._key(text), {"text": text})

    def add_batch(self, tenant: str, texts: Sequence[str]) -> None:
        """Store all texts with one batch of puts."""
        self._store.batch([PutOp((tenant,), self._key(text), {"text": text}) for text in texts])

    def search(self, tenant: str, text: str, k: int) -> list[str]:
        """Return the k nearest texts by the store's vector search."""
        return [item.value["text"] for item in self._store.search((tenant,), query=text, limit=k)]

    def close(self) -> None:
        """Exit the store's context."""
        self._opened.__exit__(None, None, None)


def open_memory(folder: Path, look_up: LookUp, variant: str) -> LangGraph:
    """Open the store with one database file in `folder`."""
    return LangGraph(folder / "store.db", look_up)
