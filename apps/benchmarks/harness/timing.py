"""Time calls, summarize times, and measure in new processes.

    row = {"n": steps, **summarize_ms([time_ms(library.recall, state)[0] for state in states])}

Arms that are compared take turns, so that other load on the machine affects all of them alike; see `take_turns`.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

K = TypeVar("K")
Tell = Callable[[str], None]
"""Function that receives lines of progress."""


def time_ms(call: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Call a function, and return the elapsed milliseconds and its result."""
    start = time.perf_counter_ns()
    result = call(*arguments)
    return (time.perf_counter_ns() - start) / 1e6, result


def time_cpu_s(call: Callable[..., object], *arguments: Any) -> float:
    """Return the CPU seconds of this process during a call: other processes hardly matter to them."""
    start = time.process_time()
    call(*arguments)
    return time.process_time() - start


def summarize_ms(times_ms: Sequence[float], digits: int = 3) -> dict[str, float]:
    """Return the median and the 99th percentile."""
    return {f"p{percent}_ms": round(float(np.percentile(times_ms, percent)), digits) for percent in (50, 99)}


def take_turns(arms: Mapping[K, Callable[[], Any]], rounds: int, warm: int = 0) -> Iterator[tuple[int, dict[K, Any]]]:
    """Run all arms once in every round, and yield the number of the round and what each arm returned.

    Args:
        arms: The work of each arm.
        rounds: Number of rounds that count.
        warm: Number of earlier rounds, which are not yielded.
    """
    for number in range(-warm, rounds):
        results = {name: run() for name, run in arms.items()}
        if number >= 0:
            yield number, results


def run_python(code: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    """Run code in a new Python process, and capture its output."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=True
    )


def call_in_new_process(call: Callable[..., Any], *arguments: object) -> Any:
    """Call a function of a module with texts in a new Python process, and return its result."""
    name = call.__name__
    code = f"import json, sys; from {call.__module__} import {name}; print(json.dumps({name}(*sys.argv[1:])))"
    return json.loads(run_python(code, *arguments).stdout.splitlines()[-1])
