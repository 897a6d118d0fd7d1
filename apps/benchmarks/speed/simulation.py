"""Simulate a shared library by its events: writers that share a disk, and a replica that follows the log.

Writers are a closed system: each one computes, waits for the disk, and begins again. PostgreSQL commits in groups: one
write of the log to the disk serves every commit that waited when the write began. A commit that comes later waits for
the next write. A follower takes whatever has come since its last look, as one batch.
"""

import heapq
import math
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NamedTuple

import numpy as np

MS = 0.001
OFFER = 375
"""Steps per second that one writer offers while the lag is measured; eight of them offer 3,000."""
LOAD_S = 3.0
"""Seconds of that load at a time."""
WARM = 0.1
"""Share of the writes that is left out, because the writers began together."""
CROWDED_ROUNDS = 2
"""Corrections of the CPU time of an append that had to wait for a core."""
FIT_ROUNDS = 12
"""Halvings of the interval in which the time of a write to the disk is searched."""


class Clock:
    """The order of events: the earliest one first, and those of the same moment as they were set."""

    def __init__(self) -> None:
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = count()
        self.now = 0.0

    def set(self, delay_s: float, event: Callable[..., None], *values: Any) -> None:
        """Let an event happen after a delay."""
        heapq.heappush(self._events, (self.now + delay_s, next(self._numbers), event, values))

    def step(self) -> None:
        """Let the next event happen."""
        self.now, _, event, values = heapq.heappop(self._events)
        event(*values)


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Times of one append."""

    cpu_s: float
    """Time on a core."""
    crowded_s: float
    """The same for an append that had to wait for a core: others used its caches meanwhile."""
    delay_s: float
    """Time in which neither a core nor the disk works for it: wake-ups and the network."""
    flush_s: float
    """Mean time of a write of the log to the disk."""
    spread: float
    """Standard deviation of the logarithm of that time."""


class Appends(NamedTuple):
    """Figures of the simulated writers."""

    rate: float
    """Appends per second."""
    median_ms: float
    p99_ms: float
    waited: float = 0.0
    """Share of the appends that had to wait for a core."""


class _Machine:
    """Writers, cores and one disk."""

    def __init__(self, writers: int, cores: int, costs: Costs, seed: int) -> None:
        self._costs, self._free = costs, cores
        self._random, self.clock = random.Random(seed), Clock()
        self._ready: list[int] = []
        self._waiting: list[int] = []
        self._is_flushing = False
        self._began = [0.0] * writers
        self.done: list[tuple[float, float]] = []
        """Moment and duration of each append."""
        self.begun = self.waited = 0
        """Numbers of appends, and of those that had to wait for a core."""
        for writer in range(writers):
            self.clock.set(self._random.random() * (costs.cpu_s + costs.flush_s), self._begin, writer)

    def _draw(self, mean_s: float) -> float:
        return self._random.expovariate(1 / mean_s) if mean_s > 0 else 0.0

    def _begin(self, writer: int) -> None:
        self._began[writer] = self.clock.now
        self.begun += 1
        if self._free:
            self._free -= 1
            self.clock.set(self._draw(self._costs.cpu_s), self._compute, writer)
        else:
            self.waited += 1
            self._ready.append(writer)

    def _compute(self, writer: int) -> None:
        self.clock.set(self._draw(self._costs.delay_s), self._commit, writer)
        if self._ready:
            self.clock.set(self._draw(self._costs.crowded_s), self._compute, self._ready.pop(0))
        else:
            self._free += 1

    def _commit(self, writer: int) -> None:
        self._waiting.append(writer)
        self._flush()

    def _flush(self) -> None:
        if self._waiting and not self._is_flushing:
            self._is_flushing, group, self._waiting = True, self._waiting, []
            spread = self._costs.spread
            factor = math.exp(self._random.gauss(-spread * spread / 2, spread))
            self.clock.set(self._costs.flush_s * factor, self._end_flush, group)

    def _end_flush(self, group: list[int]) -> None:
        self._is_flushing = False
        self._flush()
        for writer in group:
            self.done.append((self.clock.now, self.clock.now - self._began[writer]))
            self._begin(writer)


def simulate_appends(writers: int, cores: int, costs: Costs, *, appends: int = 4000, seed: int = 0) -> Appends:
    """Return the rate and the times of appends.

    Args:
        writers: Number of writers; each begins the next append when the last one is durable.
        cores: Number of cores that compute for them.
        costs: What one append takes.
        appends: Number of appends to simulate.
        seed: Seed of chance.
    """
    machine = _Machine(writers, cores, costs, seed)
    while len(machine.done) < appends:
        machine.clock.step()
    done = machine.done[int(WARM * appends) :]
    times_ms = [took_s / MS for _, took_s in done]
    rate = (len(done) - 1) / (done[-1][0] - done[0][0])
    median_ms, p99_ms = (float(np.percentile(times_ms, percent)) for percent in (50, 99))
    return Appends(rate, median_ms, p99_ms, machine.waited / machine.begun)


def fit_costs(
    cpu_s: float, time_s: float, spread: float, writers: int, cores: int, rate: float, *, mean_s: float
) -> Costs:
    """Return the costs with which one writer takes a given time, and several writers reach a given rate.

    The time of one writer is CPU time, delay and the write to the disk. The rate of several writers tells the last two
    apart: they wait for the disk together, but each has its own delay. Their CPU time says how much longer an append
    computes that had to wait for a core.

    Args:
        cpu_s: CPU time of an append of one writer.
        time_s: Mean time of an append of one writer.
        spread: Standard deviation of the logarithm of the time of a write to the disk.
        writers: Number of writers with the rate.
        cores: Number of cores.
        rate: Their appends per second.
        mean_s: CPU time of one of their appends.
    """

    def build(flush_s: float) -> tuple[Costs, Appends]:
        costs = Costs(
            cpu_s=cpu_s, crowded_s=max(cpu_s, mean_s), delay_s=max(0.0, time_s - cpu_s - flush_s), flush_s=flush_s,
            spread=spread,
        )  # fmt: skip
        for _ in range(CROWDED_ROUNDS):
            share = simulate_appends(writers, cores, costs).waited
            if share:
                costs = replace(costs, crowded_s=max(cpu_s, cpu_s + (mean_s - cpu_s) / share))
        return costs, simulate_appends(writers, cores, costs)

    low, high = 0.01 * time_s, max(0.02 * time_s, time_s - cpu_s)
    for _ in range(FIT_ROUNDS):
        middle = (low + high) / 2
        if build(middle)[1].rate > rate:
            low = middle
        else:
            high = middle
    costs, done = build((low + high) / 2)
    # The cores also work for others, as the kernel and the server's own processes, in proportion to the appends.
    return replace(costs, crowded_s=costs.crowded_s * max(1.0, done.rate / rate))


class Lag(NamedTuple):
    """Lags of entries until a replica holds them."""

    median_ms: float
    p99_ms: float
    looks_per_s: float
    """Looks at the log that found entries, per second of load."""


@dataclass(frozen=True, kw_only=True)
class Following:
    """Times of following the log."""

    pause_s: float
    """Pause before each look at the log: of the writer's host, which reports new entries, and of the replica."""
    wake_s: float
    """Time until an idle replica is awake, after the pause of the writer's host."""
    look_s: float
    """Time of a look, with its round trips and the commit of the replica, whatever it finds."""
    entry_s: float
    """Time to apply one entry, as the few entries of a look; a new replica applies many together, which is quicker."""


def simulate_lag(
    steps_per_s: float, following: Following, *, steps_per_entry: int, load_s: float, turns: int = 1, seed: int = 0
) -> Lag:
    """Return the lag of a replica whose log receives entries at random moments.

    A replica that is too slow falls behind for as long as the load lasts, so its lag depends on that time.

    Args:
        steps_per_s: Steps that all writers record per second.
        following: What following takes.
        steps_per_entry: Steps of one entry.
        load_s: Seconds of load at a time.
        turns: Number of loads; the replica has caught up before each.
        seed: Seed of chance.
    """
    chance = random.Random(seed)
    lags_ms: list[float] = []
    looks = 0
    for _ in range(turns):
        arrivals, moment = [], 0.0
        while (moment := moment + chance.expovariate(steps_per_s / steps_per_entry)) < load_s:
            arrivals.append(moment)
        later_ms, count = _follow(arrivals, following)
        lags_ms, looks = lags_ms + later_ms, looks + count
    median_ms, p99_ms = (float(np.percentile(lags_ms, percent)) for percent in (50, 99))
    return Lag(median_ms, p99_ms, looks / (turns * load_s))


def _follow(arrivals: Sequence[float], following: Following) -> tuple[list[float], int]:
    """Return the lag of each entry in ms, and the number of looks."""
    lags_ms: list[float] = []
    now, at, looks = 0.0, 0, 0
    while at < len(arrivals):
        now = max(now, arrivals[at] + following.pause_s + following.wake_s) + following.pause_s
        last = bisect_right(arrivals, now)
        now += following.look_s + (last - at) * following.entry_s
        lags_ms += [(now - each) / MS for each in arrivals[at:last]]
        at, looks = last, looks + 1
    return lags_ms, looks
