"""Adapter for LangMem without a language model: its two tools on LangGraph's InMemoryStore with a vector index.

An agent with LangMem stores through `manage_memory` and reads through `search_memory`; both tools are called directly
here. Each tenant is a namespace. The store is in memory, so nothing is durable.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langgraph.store.memory import InMemoryStore
from langmem import create_manage_memory_tool, create_search_memory_tool

from .probe import LookUp


class LangMem:
    """A store with the tools of every tenant."""

    def __init__(self, look_up: LookUp) -> None:
        # Without `fields`, the store would embed the JSON around each text instead of the text.
        index: Any = {"dims": look_up.dim, "embed": look_up.list_vectors, "fields": ["content"]}
        self._store = InMemoryStore(index=index)
        self._tools: dict[str, tuple[Any, Any]] = {}

    def _open_tools(self, tenant: str) -> tuple[Any, Any]:
        if tenant not in self._tools:
            # Braces would be read as placeholders of the namespace.
            namespace = ("memories", tenant.replace("{", "(").replace("}", ")"))
            self._tools[tenant] = (
                create_manage_memory_tool(namespace=namespace, store=self._store),
                create_search_memory_tool(namespace=namespace, store=self._store),
            )
        return self._tools[tenant]

    def add_batch(self, tenant: str, texts: Sequence[str]) -> None:
        """Create the memories one by one; the tool takes one text."""
        for text in texts:
            self._open_tools(tenant)[0].invoke({"content": text, "action": "create"})

    def search(self, tenant: str, text: str, k: int) -> list[str]:
        """Return the k nearest texts."""
        found = json.loads(self._open_tools(tenant)[1].invoke({"query": text, "limit": k}))
        return [item["value"]["content"] for item in found]

    def close(self) -> None:
        """Do nothing: the store is in memory."""


def open_memory(folder: Path, look_up: LookUp, variant: str) -> LangMem:
    """Open an empty store."""
    return LangMem(look_up)
