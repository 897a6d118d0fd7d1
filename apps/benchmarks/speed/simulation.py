"""Simulate a shared library by its events: writers that share a disk, and a replica that follows the log.

Writers are a closed system: each one computes, waits for the disk, and begins again. PostgreSQL commits in groups: one
write of the log to the disk serves every commit that waited when the write began. A commit that comes later waits for
the next write. A follower takes whatever has come since its last look, as one batch; it and the writers wait for the
same cores.
"""

import math
import random
from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from hardwon.memory.errors import require_extra

with require_extra("dev"):
    import simpy

MS = 0.001
OFFER = 375
"""Steps per second that one writer offers while the lag is measured; eight of them offer 3,000."""
LOAD_S = 3.0
"""Seconds of that load at a time."""
WARM = 0.1
"""Share of the writes that is left out, because the writers began together."""
CROWDED_ROUNDS = 2
"""Corrections of the CPU time of an append that had to wait for a core."""
FIT_ROUNDS = 9
"""Halvings of the interval in which the time of a write to the disk is searched."""

Events = Generator[simpy.Event, Any, None]
"""An event that a process of the simulation waits for."""


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
        self._costs, self._random = costs, random.Random(seed)
        self.clock = simpy.Environment()
        self._cores = simpy.Resource(self.clock, cores)
        self._waiting: list[Any] = []
        self._is_flushing = False
        self.done: list[tuple[float, float]] = []
        """Moment and duration of each append."""
        self.begun = self.waited = 0
        """Numbers of appends, and of those that had to wait for a core."""
        for _ in range(writers):
            self.clock.process(self._write())

    def _draw(self, mean_s: float) -> float:
        return self._random.expovariate(1 / mean_s) if mean_s > 0 else 0.0

    def _write(self) -> Events:
        costs, clock = self._costs, self.clock
        yield clock.timeout(self._random.random() * (costs.cpu_s + costs.flush_s))
        while True:
            began = clock.now
            self.begun += 1
            is_crowded = self._cores.count == self._cores.capacity
            self.waited += is_crowded
            with self._cores.request() as core:
                yield core
                yield clock.timeout(self._draw(costs.crowded_s if is_crowded else costs.cpu_s))
            yield clock.timeout(self._draw(costs.delay_s))
            yield self._commit()
            self.done.append((clock.now, clock.now - began))

    def _commit(self) -> Any:
        """Return the event of the end of the write to the disk that has this commit."""
        written = self.clock.event()
        self._waiting.append(written)
        if not self._is_flushing:
            self._is_flushing = True
            self.clock.process(self._flush())
        return written

    def _flush(self) -> Events:
        spread = self._costs.spread
        while self._waiting:
            group, self._waiting = self._waiting, []
            factor = math.exp(self._random.gauss(-spread * spread / 2, spread))
            yield self.clock.timeout(self._costs.flush_s * factor)
            for written in group:
                written.succeed()
        self._is_flushing = False


def simulate_appends(writers: int, cores: int, costs: Costs, *, appends: int = 2000, seed: int = 0) -> Appends:
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


@cache
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
    """Pause after each look at the log, of a replica and of a writing host."""
    append_s: float
    """Time on a core to append an entry, for the writer and the server."""
    give_s: float
    """Time on a core until the entry has a position and the replica is called, for the writing host and the server."""
    wake_s: float
    """Time from the call until the look of an idle replica begins."""
    look_s: float
    """Time of a look, with its round trips and the commit of the replica, whatever it finds."""
    entry_s: float
    """Time to apply one entry, as the few entries of a look; a new replica applies many together, which is quicker."""


class _Followed:
    """Writers, and a replica that follows them, on the same cores."""

    def __init__(self, rate: float, following: Following, writers: int, cores: int, load_s: float, seed: int) -> None:
        self._following, self._random, self._load_s = following, random.Random(seed), load_s
        self.clock = simpy.Environment()
        self._cores = simpy.Resource(self.clock, cores)
        self._commits: list[float] = []
        self._called = self.clock.event()
        self.lags_s: list[float] = []
        self.looks = 0
        for _ in range(writers):
            written = simpy.Container(self.clock)
            self.clock.process(self._write(rate / writers, written))
            self.clock.process(self._give(written))
        self.clock.process(self._follow())

    def _compute(self, took_s: float) -> Events:
        if took_s > 0:
            with self._cores.request() as core:
                yield core
                yield self.clock.timeout(took_s)

    def _write(self, rate: float, written: Any) -> Events:
        """Append entries at random moments, however long the ones before them take."""
        due = 0.0
        while (due := due + self._random.expovariate(rate)) < self._load_s:
            yield self.clock.timeout(max(0.0, due - self.clock.now))
            yield from self._compute(self._following.append_s)
            self._commits.append(self.clock.now)
            yield written.put(1)

    def _give(self, written: Any) -> Events:
        """Give positions to what one host wrote, and call the replica."""
        while True:
            yield written.get(1)
            if written.level:
                yield written.get(written.level)
            yield from self._compute(self._following.give_s)
            if not self._called.triggered:
                self._called.succeed()
            yield self.clock.timeout(self._following.pause_s)

    def _follow(self) -> Events:
        following, at = self._following, 0
        while True:
            if not self._called.triggered:
                yield self._called
                yield self.clock.timeout(following.wake_s)
            self._called = self.clock.event()
            if at < (last := len(self._commits)):
                yield from self._compute(following.look_s + (last - at) * following.entry_s)
                self.lags_s += [self.clock.now - commit for commit in self._commits[at:last]]
                at, self.looks = last, self.looks + 1
            yield self.clock.timeout(following.pause_s)


def simulate_lag(
    steps_per_s: float,
    following: Following,
    *,
    steps_per_entry: int,
    load_s: float,
    writers: int,
    cores: int,
    turns: int = 1,
    seed: int = 0,
) -> Lag:
    """Return the lag of a replica whose log receives entries at random moments.

    A replica that is too slow falls behind for as long as the load lasts, so its lag depends on that time.

    Args:
        steps_per_s: Steps that all writers record per second.
        following: What following takes.
        steps_per_entry: Steps of one entry.
        load_s: Seconds of load at a time.
        writers: Number of writers, each on a host of its own in the sense of `Following.give_s`.
        cores: Number of cores that the writers, the server and the replica share.
        turns: Number of loads; the replica has caught up before each.
        seed: Seed of chance.
    """
    lags_ms: list[float] = []
    looks = 0
    for turn in range(turns):
        one = _Followed(steps_per_s / steps_per_entry, following, writers, cores, load_s, seed + 1000 * turn)
        one.clock.run()
        lags_ms += [lag_s / MS for lag_s in one.lags_s]
        looks += one.looks
    median_ms, p99_ms = (float(np.percentile(lags_ms, percent)) for percent in (50, 99))
    return Lag(median_ms, p99_ms, looks / (turns * load_s))
