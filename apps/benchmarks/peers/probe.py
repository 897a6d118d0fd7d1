"""What is measured of one memory, the same for all: adding, searching, tenants, and what survives.

Texts are named by their row in `texts.jsonl`; their vectors are the rows of `vectors.npy`, made once
for every system. Answers are told as rows; -1 is a text that was never given.
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
"""The tenant of everything but the tenants' phase."""

Tell = Callable[[dict[str, Any]], None]


class LookUp:
    """The embedder of every system: the vectors that were made beforehand, by text."""

    def __init__(self, data: Path) -> None:
        lines = [json.loads(line) for line in (data / "texts.jsonl").read_text(encoding="utf-8").splitlines()]
        self.texts: list[str] = [line["text"] for line in lines]
        self.terms: list[str] = [line["terms"] for line in lines]
        """Of every text, a full-text query of its rarest words."""
        self.vectors: Any = np.load(data / "vectors.npy")
        self.dim = int(self.vectors.shape[1])
        self._rows = {text: row for row, text in enumerate(self.texts)}

    def one(self, text: str) -> Any:
        """(dim,) float32, of length 1. Raises KeyError for a text that is not of the data."""
        return self.vectors[self._rows[text.strip()]]

    def lists(self, texts: Sequence[str]) -> list[list[float]]:
        """The vectors as lists of floats."""
        return [self.one(text).tolist() for text in texts]

    def rows(self, texts: Sequence[str]) -> list[int]:
        """The rows of answers."""
        return [self._rows.get(text.strip(), -1) for text in texts]


class Memory(Protocol):
    """What a script makes of its system. `hybrid` may be missing."""

    def add(self, tenant: str, text: str) -> None:
        """Add one text; it is kept when this returns, as far as the system promises that."""
        ...

    def add_batch(self, tenant: str, texts: Sequence[str]) -> None:
        """Add some texts by one call."""
        ...

    def search(self, tenant: str, text: str, k: int) -> list[str]:
        """The k nearest texts of a tenant, by vector."""
        ...

    def hybrid(self, tenant: str, text: str, terms: str, k: int) -> list[str]:
        """The same by vector and words."""
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...


Opener = Callable[[Path, LookUp, str], Memory]


def run(phase: str, opener: Opener, variant: str, folder: Path, data: Path, rest: Sequence[str], tell: Tell) -> None:
    """Open the memory in its folder and run one phase."""
    look_up = LookUp(data)
    tell({"rss_before_mb": _rss_mb()})
    memory = opener(folder, look_up, variant)
    phases = {"single": single, "load": load, "tenants": tenants, "adding": adding, "find": find}
    phases[phase](memory, look_up, [json.loads(word) for word in rest], tell)
    memory.close()


def single(memory: Memory, look_up: LookUp, rest: Sequence[Any], tell: Tell) -> None:
    """[]: add texts one by one, as many as stdin says at a time."""

    def one_by_one(texts: Sequence[str]) -> None:
        for text in texts:
            memory.add(ONE, text)

    _slices(one_by_one, look_up, tell)


def load(memory: Memory, look_up: LookUp, rest: Sequence[Any], tell: Tell) -> None:
    """[n, queries]: add texts by calls of as many as stdin says, then search with the rows from n on, likewise."""
    n, queries = rest
    _slices(lambda texts: memory.add_batch(ONE, texts), look_up, tell)
    asked = range(n, n + queries)
    tell({"first_search_ms": _timed(memory.search, ONE, look_up.texts[0], K)[0]})
    rows = cycle(asked)
    while size := int(sys.stdin.readline() or 0):
        timed = [_timed(memory.search, ONE, look_up.texts[row], K) for row in islice(rows, size)]
        tell({"dense": [each[:2] for each in timed], "found": [look_up.rows(each[2]) for each in timed]})
    if hasattr(memory, "hybrid"):
        memory.hybrid(ONE, look_up.texts[0], look_up.terms[0], K)
        timed = [_timed(memory.hybrid, ONE, look_up.texts[row], look_up.terms[row], K) for row in asked]
        tell({"hybrid": [each[:2] for each in timed]})
    tell({"rss_mb": _rss_mb()})


def tenants(memory: Memory, look_up: LookUp, rest: Sequence[Any], tell: Tell) -> None:
    """[tenants, first row, rows, queries]: rows dealt out to tenants; every query asks one of them."""
    number, first, count, queries = rest
    for tenant in range(number):
        memory.add_batch(f"tenant{tenant}", look_up.texts[first + tenant : first + count : number])
    found = [
        look_up.rows(memory.search(f"tenant{nth % number}", look_up.texts[row], K)) for nth, row in enumerate(queries)
    ]
    tell({"found": found})


def adding(memory: Memory, look_up: LookUp, rest: Sequence[Any], tell: Tell) -> None:
    """[first, count]: wait for a line on stdin, then add rows and acknowledge each."""
    first, count = rest
    tell({"ready": True})
    sys.stdin.readline()
    for row in range(first, first + count):
        memory.add(ONE, look_up.texts[row])
        tell({"added": row})


def find(memory: Memory, look_up: LookUp, rest: Sequence[Any], tell: Tell) -> None:
    """[rows]: those that a search for their own words finds."""
    found = [row for row in rest[0] if row in look_up.rows(memory.search(ONE, look_up.texts[row], K))]
    tell({"found": found})


def _slices(add: Callable[[Sequence[str]], None], look_up: LookUp, tell: Tell) -> None:
    """For every number on stdin add the next texts and tell [seconds of wall, of CPU]; 0 ends it."""
    done = 0
    tell({"ready": True})
    while size := int(sys.stdin.readline() or 0):
        texts = look_up.texts[done : done + size]
        began, cpu = time.perf_counter(), time.process_time()
        add(texts)
        tell({"slice": [time.perf_counter() - began, time.process_time() - cpu]})
        done += size


def _timed(call: Callable[..., list[str]], *arguments: Any) -> tuple[float, float, list[str]]:
    """Milliseconds of wall and of CPU, and what the call gave."""
    cpu, began = time.process_time_ns(), time.perf_counter_ns()
    result = call(*arguments)
    return (time.perf_counter_ns() - began) / 1e6, (time.process_time_ns() - cpu) / 1e6, result


def _rss_mb() -> float:
    """Resident memory now; where that cannot be read, the most there was."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3
