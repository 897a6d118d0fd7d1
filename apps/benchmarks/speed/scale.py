"""Extrapolate a shared library to many steps and hosts, from figures of `hardwon bench fleet`.

The simulation is calibrated with the figures of 1 and 4 writers, and with the times of looks at the log. Then it must
reproduce the rates, times and lag of 8 writers within `MARGIN`; the calibration does not see these. If it does not,
nothing is extrapolated.
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hardwon.memory.errors import ConfigError
from hardwon.memory.fleet.follower import SOON_S

from .simulation import LOAD_S, MS, OFFER, Costs, Following, Lag, fit_costs, simulate_appends, simulate_lag

MARGIN = 0.2
"""Largest relative error of a figure that the simulation must reproduce."""
FEW, SOME, MANY = 1, 4, 8
"""Numbers of writers: the first two calibrate, the last one is checked."""
LAG_TURNS = 80
"""Simulated turns of load of one writer; of more writers, fewer."""
LONG_S = 60.0
"""Seconds of load that a replica must bear for a rate to count as sustained."""
NORMAL_99 = 2.326
"""Standard deviations from the median of a normal distribution to its 99th percentile."""
LAG_MS = 1000.0
"""Lag of 99 % of the entries up to which a rate counts as sustained."""
SENDING = 0.5
"""Share of the server's cores that may send entries to replicas."""
FLEETS = (8, 64, 512, 4096)
"""Numbers of writers of the extrapolation."""
_FIT_ROUNDS = 10

Row = dict[str, Any]


class Figures:
    """Measured figures, by name and number of writers; medians if there are several measurements."""

    def __init__(self, measurements: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        found: dict[str, dict[int, list[float]]] = {}
        for rows in measurements:
            for row in rows:
                found.setdefault(str(row["what"]), {}).setdefault(int(row["n"]), []).append(float(row["value"]))
        self._found = found

    def find(self, what: str, n: int | None = None) -> float:
        """Return a figure.

        Args:
            what: Its name.
            n: Its number; None for the only one.

        Raises:
            ConfigError: It was not measured.
        """
        values = self._found.get(what, {})
        chosen = values.get(n) if n is not None else next(iter(values.values()), None)
        if chosen is None:
            raise ConfigError(
                f"the figures lack {what!r}{'' if n is None else f' for {n} writers'}. Measure them again on the "
                "machine of the server: hardwon bench fleet ADDRESS --json"
            )
        return statistics.median(chosen)


def read_figures(paths: Sequence[Path]) -> Figures:
    """Read files that `hardwon bench fleet --json` printed.

    Raises:
        ConfigError: A file cannot be read, or is not one of these.
    """
    measurements = []
    for path in paths:
        try:
            measurements.append([dict(row) for row in json.loads(path.read_text(encoding="utf-8"))["rows"]])
            Figures(measurements)
        except OSError as error:
            raise ConfigError(f"{path} cannot be read ({error.strerror}). Check the path.") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path} holds no figures ({error!r:.80}). Write them with: hardwon bench fleet ADDRESS --json"
            ) from error
    return Figures(measurements)


# -- the model ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """The calibrated simulation."""

    cores: int
    appends: Costs
    bare: Costs
    following: Following
    steps: int
    """Steps of one entry."""


def calibrate(figures: Figures) -> Model:
    """Return the simulation that fits the figures of 1 and 4 writers, and the times of looks."""
    cores, steps = int(figures.find("cores")), int(figures.find("steps of an entry"))
    appends = _calibrate_appends(figures, "appends", cores)
    bare = _calibrate_appends(figures, "bare INSERTs", cores)
    return Model(cores, appends, bare, _calibrate_following(figures, appends.cpu_s), steps)


def _calibrate_appends(figures: Figures, name: str, cores: int) -> Costs:
    median, late = (figures.find(f"{name}, {part}", FEW) for part in ("median time", "99th percentile"))
    alone_s, mean_s = (
        MS * sum(figures.find(f"{name}, CPU time of the {who}", writers) for who in ("client", "server"))
        for writers in (FEW, SOME)
    )
    return fit_costs(
        alone_s, 1 / figures.find(name, FEW), math.log(max(1.0, late / median)) / NORMAL_99, SOME, cores,
        figures.find(name, SOME), mean_s=mean_s,
    )  # fmt: skip


def _calibrate_following(figures: Figures, append_s: float) -> Following:
    """Return what following takes. All of it is measured; no lag is used."""
    look_s, entry_s = _fit_looks(figures)
    host = "CPU time of a writing host for an entry"
    give_s = max(0.0, MS * statistics.mean(figures.find(host, writers) for writers in (FEW, SOME)) - append_s)
    called_s = MS * figures.find("commit until a look begins, median", FEW)
    return Following(
        pause_s=SOON_S, append_s=append_s, give_s=give_s, wake_s=max(0.0, called_s - give_s), look_s=look_s,
        entry_s=entry_s,
    )  # fmt: skip


def _fit_looks(figures: Figures) -> tuple[float, float]:
    """Return the time of a look and of each entry in it: the line through the looks of all numbers of writers.

    These are times of work, and what is simulated is how long an entry waits for it. Without load, an entry takes less:
    nobody else uses the cores and the caches. Close to what a replica can bear, an error of a tenth in the time of an
    entry doubles the lag, so the time is not extrapolated from fewer writers.
    """
    loads = (FEW, SOME, MANY)
    counts, times_ms = (
        [figures.find(name, n) for n in loads] for name in ("entries of a look under load", "look under load")
    )
    entry_ms, look_ms = (float(each) for each in np.polyfit(counts, times_ms, 1))
    if entry_ms <= 0:
        raise ConfigError(
            f"a look at the log takes {times_ms[0]:.1f} ms for {counts[0]:.1f} entries, but {times_ms[-1]:.1f} ms for "
            f"{counts[-1]:.1f}. Measure again on a machine that does nothing else."
        )
    return MS * max(0.0, look_ms), MS * entry_ms


def _simulate_measured_lag(writers: int, model: Model) -> float:
    """Return the median lag in ms under the load of `hardwon bench fleet`."""
    return simulate_lag(
        OFFER * writers, model.following, steps_per_entry=model.steps, load_s=LOAD_S, writers=writers,
        cores=model.cores, turns=LAG_TURNS // writers,
    ).median_ms  # fmt: skip


class Check(NamedTuple):
    """A figure of 8 writers."""

    figure: str
    measured: float
    simulated: float

    @property
    def error(self) -> float:
        """Return the relative error of the simulation."""
        return self.simulated / self.measured - 1

    @property
    def holds(self) -> bool:
        """Return whether the simulation reproduces the figure."""
        return abs(self.error) <= MARGIN


def check(model: Model, figures: Figures) -> list[Check]:
    """Return the figures of 8 writers beside those of the simulation."""
    log, bare = (simulate_appends(MANY, model.cores, costs) for costs in (model.appends, model.bare))
    find = partial(figures.find, n=MANY)
    return [
        Check("appends per second", find("appends"), log.rate),
        Check("bare INSERTs per second", find("bare INSERTs"), bare.rate),
        Check("appends beside bare INSERTs", find("appends beside bare INSERTs"), log.rate / bare.rate),
        Check("median time of an append, ms", find("appends, median time"), log.median_ms),
        Check("median lag, ms", find("lag, median"), _simulate_measured_lag(MANY, model)),
    ]


# -- larger -----------------------------------------------------------------------------------------


def extrapolate(model: Model, figures: Figures, steps: int, cores: int) -> list[Row]:
    """Return what a library of many steps needs.

    Args:
        model: The calibrated simulation.
        figures: What was measured.
        steps: Steps of one namespace.
        cores: Cores of the server.
    """
    rate = find_sustained(model)
    looks_per_s = _simulate_host(model, rate).looks_per_s
    look_ms = figures.find("CPU time of the server for a look")
    sent_ms = rate * figures.find("CPU time of the server to send a step") + looks_per_s * look_ms
    hosts = SENDING * cores / (MS * sent_ms)
    wire = figures.find("bytes of a step on the wire")
    return [
        *_list_sizes(figures, steps),
        _row("steps per second that a replica applies while 99 % are late by at most 1 s", rate, "per second"),
        _row("days until the namespace is that large, at this rate", steps / rate / 86400, "days"),
        _row("replicas that half of the server's cores can feed at this rate", hosts, "hosts"),
        _row("bytes that the server sends to them", hosts * rate * wire / 1e6, "MB per second"),
        *_list_fleets(model, figures, cores),
    ]


def _row(what: str, value: float, unit: str) -> Row:
    return {"what": what, "value": float(f"{value:.3g}"), "unit": unit}


def _list_sizes(figures: Figures, steps: int) -> list[Row]:
    rows = [
        _row(f"{steps:,} steps in the {place}", figures.find(f"bytes of a step in the {place}") * steps / 1e9, "GB")
        for place in ("log", "replica", "snapshot")
    ]
    for source in ("the log", "a snapshot"):
        hours = steps / figures.find(f"bootstrap from {source}") / 3600
        rows.append(_row(f"a new replica from {source}", hours, "hours"))
    return rows


def find_sustained(model: Model) -> float:
    """Return the steps per second at which 99 % of the entries are at most `LAG_MS` late."""
    low, high = 0.0, model.steps / model.following.entry_s
    for _ in range(_FIT_ROUNDS):
        middle = (low + high) / 2
        if _simulate_host(model, middle).p99_ms <= LAG_MS:
            low = middle
        else:
            high = middle
    return low


def _simulate_host(model: Model, steps_per_s: float) -> Lag:
    """Return the lag of a replica on a host of its own: writers and the server do not compute on its cores."""
    apart = replace(model.following, append_s=0.0, give_s=0.0, wake_s=model.following.wake_s + model.following.give_s)
    return simulate_lag(steps_per_s, apart, steps_per_entry=model.steps, load_s=LONG_S, writers=MANY, cores=model.cores)


def _list_fleets(model: Model, figures: Figures, cores: int) -> list[Row]:
    """Return appends of many writers on machines of their own, where the server computes for itself alone."""
    server_s, costs = MS * figures.find("appends, CPU time of the server", FEW), model.appends
    apart = replace(
        costs, cpu_s=server_s, crowded_s=server_s * costs.crowded_s / costs.cpu_s,
        delay_s=costs.delay_s + max(0.0, costs.cpu_s - server_s),
    )  # fmt: skip
    rows = []
    for writers in FLEETS:
        done = simulate_appends(writers, cores, apart, appends=max(2000, 4 * writers))
        rows.append(_row(f"{writers} writers on other machines", done.rate, "appends per second"))
        rows.append(_row(f"{writers} writers, 99th percentile of an append", done.p99_ms, "ms"))
    return rows


def measure(paths: Sequence[Path], steps: int, cores: int) -> dict[str, Any]:
    """Return the checks, and what a large library needs if all of them hold.

    Args:
        paths: Files that `hardwon bench fleet --json` printed.
        steps: Steps of one namespace.
        cores: Cores of the server.
    """
    figures = read_figures(paths)
    model = calibrate(figures)
    checks = check(model, figures)
    holds = all(each.holds for each in checks)
    return {
        "check": [
            {
                "figure": each.figure, "measured": round(each.measured, 2), "simulated": round(each.simulated, 2),
                "error": round(each.error, 3), "holds": each.holds,
            }
            for each in checks
        ],
        "holds": holds,
        "rows": extrapolate(model, figures, steps, cores) if holds else [],
    }  # fmt: skip
