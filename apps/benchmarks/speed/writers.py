"""Let several processes write to a shared library in short turns, beside bare INSERTs of the same bytes.

The processes live for the whole measurement. Every turn asks some of them to write for a fraction of a second, and the
turns of one cycle come in random order. So all figures of a cycle see the same disturbances of a busy machine.
"""

import multiprocessing
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Literal

import psycopg

from benchmarks.fixtures import EPISODE, Rooms
from hardwon.memory.fleet.entries import pack_episode_entry
from hardwon.memory.fleet.log import Log
from hardwon.memory.upkeep.write_buffer import redact_and_pack

How = Literal["bare", "log"]
HOWS: tuple[How, ...] = ("bare", "log")
TURN_S = 0.25
"""Seconds for which the processes write at a time."""
DISTINCT = 20
"""Episodes of a process; it writes them again and again under new keys."""
NAMESPACE = "appends"
START_S = 300.0
"""Seconds until the processes must have started."""


@dataclass
class Turns:
    """Figures of one number of writers and one way to write."""

    rates: list[float] = field(default_factory=list)
    """Writes per second in each turn."""
    times_ms: list[float] = field(default_factory=list)
    """Time of each write."""


def make_payloads(count: int, seed: int) -> list[bytes]:
    """Return the payloads of random episodes of `EPISODE` steps."""
    episodes = Rooms(seed).generate_episodes(count * EPISODE, lambda state, action: ("*", action))
    return [pack_episode_entry(redact_and_pack(episode)[1], lambda ids: {}) for episode in episodes]


def measure_turns(url: str, counts: Sequence[int], cycles: int) -> dict[tuple[How, int], Turns]:
    """Return what each number of writers did, by the way to write and the number.

    Args:
        url: Address of the database.
        counts: Numbers of writers.
        cycles: Number of turns of each.
    """
    plan: list[tuple[How, int]] = [(how, count) for count in counts for how in HOWS]
    measured = {turn: Turns() for turn in plan}
    chance = random.Random(0)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS bare (id bigserial PRIMARY KEY, key text UNIQUE, payload bytea)")
    Log(url, NAMESPACE).close()
    with start_processes(_write, url, max(counts)) as pipes:
        for _ in range(cycles):
            for how, count in chance.sample(plan, len(plan)):
                for pipe in pipes[:count]:
                    pipe.send((how, TURN_S))
                answers = [pipe.recv() for pipe in pipes[:count]]
                measured[how, count].times_ms += [1000 * each for times, _ in answers for each in times]
                measured[how, count].rates.append(sum(len(times) / took_s for times, took_s in answers))
    return measured


@contextmanager
def start_processes(target: Callable[[str, int, Any], None], url: str, count: int) -> Iterator[list[Connection]]:
    """Start processes that work on request, yield a pipe to each, and end them afterwards.

    Args:
        target: Function of the address, the number of the process and its pipe. It sends None when it is ready, and
            ends when it receives None.
        url: Address of the database.
        count: Number of processes.
    """
    context = multiprocessing.get_context("spawn")
    ends = [context.Pipe() for _ in range(count)]
    processes = [context.Process(target=target, args=(url, who, end)) for who, (_, end) in enumerate(ends)]
    pipes = [pipe for pipe, _ in ends]
    try:
        for process in processes:
            process.start()
        for pipe in pipes:
            if not pipe.poll(START_S):
                raise TimeoutError(f"a writing process did not start within {START_S:.0f} s")
            pipe.recv()
        yield pipes
    finally:
        for process, pipe in zip(processes, pipes, strict=True):
            if process.is_alive():
                pipe.send(None)
        for process in processes:
            process.join(30)


def _write(url: str, who: int, pipe: Any) -> None:
    """Write in a process of its own, until it is asked to end."""
    payloads, number = make_payloads(DISTINCT, who), 0
    insert = "INSERT INTO bare(key, payload) VALUES (%s, %s)"
    log = Log(url, NAMESPACE)
    with psycopg.connect(url, autocommit=True) as connection:
        pipe.send(None)
        while (request := pipe.recv()) is not None:
            how, turn_s = request
            times: list[float] = []
            began = now = time.perf_counter()
            while now < began + turn_s:
                number, before = number + 1, now
                key, payload = f"{who}-{number}", payloads[number % DISTINCT]
                if how == "bare":
                    connection.execute(insert, (key, payload))
                else:
                    log.append("episode", [(key, payload)])
                now = time.perf_counter()
                times.append(now - before)
            pipe.send((times, now - began))
    log.close()
