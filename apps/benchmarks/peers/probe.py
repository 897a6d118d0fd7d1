"""The measurements of one memory, identical for all systems: adding, searching, tenants and durability.

A text is identified by its row in `texts.jsonl`, and its vector is the same row of `vectors.npy`, computed once for all
systems. Answers are reported as row numbers; -1 stands for a text that is not in the data.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

K = 5
ONE = "main"
"""The tenant of all phases except `search_tenants`."""

Tell = Callable[[dict[str, Any]], None]


class LookUp:
    """The embedder of every system: looks up precomputed vectors by text."""

    def __init__(self, data: Path) -> None:
        lines = [json.loads(line) for line in (data / "texts.jsonl").read_text(encoding="utf-8").splitlines()]
        self.texts: list[str] = [line["text"] for line in lines]
        self.terms: list[str] = [line["terms"] for line in lines]
        """A full-text query of the rarest words of each text."""
        self.vectors: Any = np.load(data / "vectors.npy")
        self.dim = int(self.vectors.shape[1])
        # Some systems strip what they are asked.
        self._rows = {text.strip(): row for row, text in enumerate(self.texts)}

    def get_vector(self, text: str) -> Any:
        """Return the vector of a text.

        Returns:
            A float32 unit vector of shape (dim,).

        Raises:
            KeyError: If the text is not in the data.
        """
        return self.vectors[self._rows[text.strip()]]

    def list_vectors(self, texts: Sequence[str]) -> list[list[float]]:
        """Return the vectors of the texts as lists of floats."""
        return [self.get_vector(text).tolist() for text in texts]

    def find_rows(self, texts: Sequence[str]) -> list[int]:
        """Return the row number of each text, or -1 if it is not in the data."""
        return [self._rows.get(text.strip(), -1) for text in texts]


class MemoryAdapter(Protocol):
    """The interface that each script implements for its system. `hybrid` is optional."""

    def add(self, tenant: str, text: str) -> None:
        """Add one text. It must be as durable as the system promises when this returns."""
        ...

    def add_batch(self, tenant: str, texts: Sequence[str]) -> None:
        """Add several texts with one call."""
        ...

    def search(self, tenant: str, text: str, k: int) -> list[str]:
        """Return the k nearest texts of a tenant by vector search."""
        ...

    def hybrid(self, tenant: str, text: str, terms: str, k: int) -> list[str]:
        """Return the k best texts of a tenant by vector and full-text search."""
        ...

    def close(self) -> None:
        """Release the files."""
        ...


Opener = Callable[[Path, LookUp, str], MemoryAdapter]


def run(phase: str, opener: Opener, variant: str, folder: Path, data: Path, rest: Sequence[str], tell: Tell) -> None:
    """Open the memory in `folder` and run one phase.

    Args:
        phase: "single", "load", "tenants", "adding", "find" or "rank".
        opener: Opens the system under test.
        variant: Passed to `opener`.
        folder: Holds the files of the memory.
        data: Holds `texts.jsonl` and `vectors.npy`.
        rest: Arguments of the phase, each as JSON.
        tell: Receives the events.
    """
    look_up = LookUp(data)
    # The vectors are loaded and the memory is not open yet: the baseline of the memory's own consumption.
    tell({"rss_before_mb": _rss_mb()})
    memory = opener(folder, look_up, variant)
    phases = {
        "single": add_singly,
        "load": load_and_search,
        "tenants": search_tenants,
        "adding": add_and_acknowledge,
        "find": find_rows,
        "rank": rank_texts,
    }
    phases[phase](memory, look_up, [json.loads(word) for word in rest], tell)
    memory.close()


def add_singly(memory: MemoryAdapter, look_up: LookUp, rest: Sequence[Any], tell: Tell) -> None:
    """Add texts one by one, in slices of the sizes read from stdin. `rest` is []."""

    def add_each(texts: Sequence[str]) -> None:
        for text in texts:
            memory.add(ONE, text)

    _add_slices(add_each, look_up, tell)


def load_and_search(memory: MemoryAdapter, look_up: LookUp, rest: Sequence[Any], tell: Tell) -> None:
    """Add texts in batches, then search; `rest` is [n, queries].

    The sizes of the batches, then the numbers of searches, are read from stdin. The queries are the rows from n on.
    """
    n, queries = rest
    _add_slices(lambda texts: memory.add_batch(ONE, texts), look_up, tell)
    query_rows = range(n, n + queries)
    tell({"first_search_ms": _time_call(memory.search, ONE, look_up.texts[0], K)[0]})
    rows = cycle(query_rows)
    while size := int(sys.stdin.readline() or 0):
        timings = [_time_call(memory.search, ONE, look_up.texts[row], K) for row in islice(rows, size)]
        tell(
            {"dense": [timing[:2] for timing in timings], "found": [look_up.find_rows(timing[2]) for timing in timings]}
        )
    if hasattr(memory, "hybrid"):
        # Warm up: the first query may build the index.
        memory.hybrid(ONE, look_up.texts[0], look_up.terms[0], K)
        timings = [_time_call(memory.hybrid, ONE, look_up.texts[row], look_up.terms[row], K) for row in query_rows]
        tell({"hybrid": [timing[:2] for timing in timings]})
    tell({"rss_mb": _rss_mb()})


def search_tenants(memory: MemoryAdapter, look_up: LookUp, rest: Sequence[Any], tell: Tell) -> None:
    """Distribute rows over tenants, then search one tenant per query.

    `rest` is [number of tenants, first row, number of rows, query rows].
    """
    number, first, count, queries = rest
    for tenant in range(number):
        memory.add_batch(f"tenant{tenant}", look_up.texts[first + tenant : first + count : number])
    rows = [
        look_up.find_rows(memory.search(f"tenant{nth % number}", look_up.texts[row], K))
        for nth, row in enumerate(queries)
    ]
    tell({"found": rows})


def add_and_acknowledge(memory: MemoryAdapter, look_up: LookUp, rest: Sequence[Any], tell: Tell) -> None:
    """Wait for a line on stdin, then add rows and report each. `rest` is [first row, number of rows]."""
    first, count = rest
    tell({"ready": True})
    sys.stdin.readline()
    for row in range(first, first + count):
        memory.add(ONE, look_up.texts[row])
        tell({"added": row})


def find_rows(memory: MemoryAdapter, look_up: LookUp, rest: Sequence[Any], tell: Tell) -> None:
    """Report which of the given rows are found by a search for their own text. `rest` is [rows]."""
    rows = [row for row in rest[0] if row in look_up.find_rows(memory.search(ONE, look_up.texts[row], K))]
    tell({"found": rows})


def rank_texts(memory: MemoryAdapter, look_up: LookUp, rest: Sequence[Any], tell: Tell) -> None:
    """Add the notes of each tenant, and report the best rows for each of its queries.

    `rest` is [file, k]. The file holds a list of [tenant, rows of the notes, rows of the queries] as JSON; it is a file
    because a command line is too short. The rows of each tenant are reported as one event.
    """
    path, k = rest
    for tenant, notes, queries in json.loads(Path(path).read_text(encoding="utf-8")):
        memory.add_batch(tenant, [look_up.texts[row] for row in notes])
        tell({"found": [look_up.find_rows(memory.search(tenant, look_up.texts[row], k)) for row in queries]})


def _add_slices(add: Callable[[Sequence[str]], None], look_up: LookUp, tell: Tell) -> None:
    """Read slice sizes from stdin until 0; add the next texts and report the time of each slice.

    The reported times are wall-clock and CPU seconds.
    """
    added = 0
    tell({"ready": True})
    while size := int(sys.stdin.readline() or 0):
        texts = look_up.texts[added : added + size]
        began, cpu = time.perf_counter(), time.process_time()
        add(texts)
        tell({"slice": [time.perf_counter() - began, time.process_time() - cpu]})
        added += size


def _time_call(call: Callable[..., list[str]], *arguments: Any) -> tuple[float, float, list[str]]:
    """Return the wall-clock and CPU milliseconds of a call, and its result."""
    cpu, began = time.process_time_ns(), time.perf_counter_ns()
    result = call(*arguments)
    return (time.perf_counter_ns() - began) / 1e6, (time.process_time_ns() - cpu) / 1e6, result


def _rss_mb() -> float:
    """Return the current resident memory in MB, or the peak where the current value is unavailable."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # ru_maxrss is in bytes on macOS and in KiB on Linux.
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3
