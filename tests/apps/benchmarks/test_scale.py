"""The simulation of a shared library: its laws, its calibration, and what it refuses."""

import json
from dataclasses import replace
from functools import cache

import pytest
from typer.testing import CliRunner

from benchmarks.speed.scale import Figures, calibrate, check, extrapolate, measure
from benchmarks.speed.simulation import Costs, Following, fit_costs, simulate_appends, simulate_lag
from hardwon.apps.cli.app import app
from hardwon.memory.errors import ConfigError

COSTS = Costs(cpu_s=0.0006, crowded_s=0.0006, delay_s=0.001, flush_s=0.002, spread=0.4)
BARE = Costs(cpu_s=0.0004, crowded_s=0.0004, delay_s=0.001, flush_s=0.002, spread=0.4)
FOLLOWING = Following(pause_s=0.02, append_s=0.0006, give_s=0.001, wake_s=0.004, look_s=0.005, entry_s=0.006)


WORK = ("entries of a look under load", "look under load")
"""Figures of a replica while 8 writers wrote; the time that an entry waited for it is checked."""
NAMES = ("appends", "bare INSERTs", "appends beside bare INSERTs", "appends, median time", "lag, median")


def follow(steps_per_s, *, following=FOLLOWING, load_s=3.0, writers=8, cores=2, turns=1):
    return simulate_lag(
        steps_per_s, following, steps_per_entry=50, load_s=load_s, writers=writers, cores=cores, turns=turns, seed=9
    )


@cache
def make_rows():
    """Return figures of a machine that behaves as the simulation says."""
    figures: dict[tuple[str, int], float] = {("cores", 2): 2, ("steps of an entry", 50): 50}
    figures |= {("bootstrap from the log", 9): 8000}
    figures |= {("bootstrap from a snapshot", 9): 50_000, ("CPU time of the server to send a step", 9): 0.001}
    figures |= {
        (f"bytes of a step {where}", 9): 1000
        for where in ("in the log", "in the replica", "in the snapshot", "on the wire")
    }
    figures |= {("CPU time of the server for a look", 1): 0.5}
    for writers in (1, 4, 8):
        log, bare = (simulate_appends(writers, 2, costs, seed=writers) for costs in (COSTS, BARE))
        figures["appends beside bare INSERTs", writers] = log.rate / bare.rate
        figures["lag, median", writers] = follow(375 * writers, writers=writers, turns=30).median_ms
        figures["commit until a look begins, median", writers] = 5
        figures["CPU time of a writing host for an entry", writers] = 1.6
        figures["entries of a look under load", writers] = 1 + writers / 4
        figures["look under load", writers] = 5 + 6 * (1 + writers / 4)
        for name, done, costs in (("appends", log, COSTS), ("bare INSERTs", bare, BARE)):
            figures[name, writers] = done.rate
            figures[f"{name}, median time", writers] = done.median_ms
            figures[f"{name}, 99th percentile", writers] = done.p99_ms
            for who in ("client", "server"):
                figures[f"{name}, CPU time of the {who}", writers] = 500 * costs.cpu_s
    return [{"what": what, "n": n, "value": value} for (what, n), value in figures.items()]


def change(rows, what, factor, n=8):
    return [row | {"value": row["value"] * (factor if (row["what"], row["n"]) == (what, n) else 1)} for row in rows]


def write(path, rows):
    path.write_text(json.dumps({"rows": rows}))
    return path


def test_one_writer_takes_its_three_times_after_each_other():
    rate = simulate_appends(1, 2, COSTS, appends=8000).rate
    assert rate == pytest.approx(1 / (COSTS.cpu_s + COSTS.delay_s + COSTS.flush_s), rel=0.05)


def test_commits_share_a_write_to_the_disk():
    """Without other work, half of the writers wait for a write while the other half is written."""
    disk = Costs(cpu_s=1e-7, crowded_s=1e-7, delay_s=1e-6, flush_s=0.004, spread=0.0)
    assert simulate_appends(1, 2, disk).rate == pytest.approx(250, rel=0.02)
    assert simulate_appends(64, 64, disk).rate == pytest.approx(64 * 250 / 2, rel=0.1)


def test_cores_bound_the_rate():
    assert simulate_appends(200, 2, COSTS, appends=8000).rate == pytest.approx(2 / COSTS.cpu_s, rel=0.05)
    assert simulate_appends(200, 4, COSTS, appends=8000).rate > 1.5 * 2 / COSTS.cpu_s


def test_the_fit_finds_the_costs():
    rate = simulate_appends(4, 2, COSTS, seed=5, appends=8000).rate
    total_s = COSTS.cpu_s + COSTS.delay_s + COSTS.flush_s
    fitted = fit_costs(COSTS.cpu_s, total_s, COSTS.spread, 4, 2, rate, mean_s=COSTS.cpu_s)
    assert fitted.flush_s == pytest.approx(COSTS.flush_s, rel=0.2)
    assert fitted.delay_s + fitted.flush_s == pytest.approx(COSTS.delay_s + COSTS.flush_s)


def test_the_fit_finds_how_much_longer_a_crowded_append_computes():
    """On two cores that four writers share without a disk, and on which other processes may work as well."""
    costs = Costs(cpu_s=0.0002, crowded_s=0.0003, delay_s=0.0, flush_s=1e-6, spread=0.0)
    done = simulate_appends(4, 2, costs, seed=5, appends=8000)
    mean_s = done.waited * costs.crowded_s + (1 - done.waited) * costs.cpu_s
    fitted = fit_costs(costs.cpu_s, costs.cpu_s, 0.0, 4, 2, done.rate, mean_s=mean_s)
    assert fitted.crowded_s == pytest.approx(costs.crowded_s, rel=0.03)
    fitted = fit_costs(costs.cpu_s, costs.cpu_s, 0.0, 4, 2, 0.9 * done.rate, mean_s=mean_s)
    assert simulate_appends(4, 2, fitted, appends=8000).rate == pytest.approx(0.9 * done.rate, rel=0.03)


def test_an_idle_replica_lags_by_one_entry_without_a_pause():
    assert follow(5, load_s=500.0, writers=1).median_ms == pytest.approx(1 + 4 + 5 + 6, rel=0.01)


def test_a_replica_that_is_too_slow_falls_behind_as_long_as_the_load_lasts():
    def lag(share, load_s):
        return follow(share * 50 / FOLLOWING.entry_s, load_s=load_s).p99_ms

    assert lag(2, 20) > 1.8 * lag(2, 10) > 9000
    assert lag(0.5, 60) < 200


def test_a_replica_waits_for_the_cores_of_the_writers():
    """Eight writers that need most of both cores hold up the look of the replica."""
    busy = replace(FOLLOWING, append_s=0.016, give_s=0.015)
    assert follow(3000, following=busy).median_ms > 2 * follow(3000).median_ms
    assert follow(3000, following=busy, cores=16).median_ms < 1.5 * follow(3000, cores=16).median_ms


def test_figures_of_the_simulation_itself_are_reproduced():
    figures = Figures([make_rows()])
    assert all(each.holds for each in check(calibrate(figures), figures))


def test_the_calibration_does_not_see_what_is_checked():
    rows = make_rows()
    other = [row | {"value": row["value"] * (7 if row["n"] == 8 and row["what"] not in WORK else 1)} for row in rows]
    assert set(NAMES) <= {row["what"] for row in other if row not in rows}
    assert calibrate(Figures([rows])) == calibrate(Figures([other]))


def test_looks_without_a_cost_of_an_entry_are_refused():
    """As on a machine where other work decides how long a look takes."""
    with pytest.raises(ConfigError, match=r"12\.5 ms for 1\.2 entries, but 2\.3 ms for 3\.0"):
        calibrate(Figures([change(make_rows(), "look under load", 0.1)]))


def test_looks_under_load_count():
    rows = make_rows()
    slow = [row | {"value": row["value"] + 6 * (row["what"] == "look under load")} for row in rows]
    loaded, alone = (calibrate(Figures([each])).following for each in (slow, rows))
    assert loaded.look_s > alone.look_s + 0.005


def test_replicas_are_fewer_if_a_look_costs_the_server_more():
    def hosts(rows):
        figures = Figures([rows])
        needs = extrapolate(calibrate(figures), figures, 10**8, 16)
        return next(row["value"] for row in needs if row["unit"] == "hosts")

    assert hosts(change(make_rows(), "CPU time of the server for a look", 4, n=1)) < 0.7 * hosts(make_rows())


def test_the_lag_is_that_of_entries_applied_a_few_at_a_time():
    """A new replica applies hundreds together, so its rate would give a lag that is too short."""
    lags = []
    for factor in (1, 2):
        figures = Figures([change(make_rows(), "look under load", factor)])
        lags.append(check(calibrate(figures), figures)[-1].simulated)
    assert lags[1] > 1.5 * lags[0]


@pytest.mark.parametrize("factor", [0.6, 1.6])
def test_each_figure_of_eight_writers_is_checked(factor):
    model = calibrate(Figures([make_rows()]))
    for what in NAMES:
        missed = [each for each in check(model, Figures([change(make_rows(), what, factor)])) if not each.holds]
        assert len(missed) == 1, what


def test_the_command_prints_checks_and_needs(tmp_path):
    good = str(write(tmp_path / "good.json", make_rows()))
    done = CliRunner().invoke(app, ["bench", "scale", good, "--json"])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    needs = {row["what"]: row["value"] for row in result["rows"]}
    assert needs["100,000,000 steps in the log"] == 100
    assert needs["4096 writers on other machines"] > needs["8 writers on other machines"]
    bad = str(write(tmp_path / "bad.json", change(make_rows(), "appends", 2)))
    done = CliRunner().invoke(app, ["bench", "scale", bad])
    assert done.exit_code == 1
    assert "appends per second" in done.output
    assert "nothing is extrapolated" in " ".join(done.output.split())
    refused = json.loads(CliRunner().invoke(app, ["bench", "scale", bad, "--json"]).stdout)
    assert (refused["holds"], refused["rows"]) == (False, [])


def test_several_measurements_give_medians(tmp_path):
    rows = make_rows()
    paths = [write(tmp_path / f"{n}.json", change(rows, "appends", factor)) for n, factor in enumerate((1, 5, 1))]
    assert measure(paths, 1000, 2)["holds"]


def test_figures_that_are_missing_or_no_figures_are_named(tmp_path):
    rows = [row for row in make_rows() if row["what"] != "appends, CPU time of the server"]
    with pytest.raises(ConfigError, match=r"CPU time of the server' for 1 writers.*bench fleet"):
        measure([write(tmp_path / "x.json", rows)], 1000, 2)
    for text in ("{}", "no", '{"rows": [{"what": "x"}]}', '{"rows": 3}'):
        (tmp_path / "y.json").write_text(text)
        with pytest.raises(ConfigError, match=r"y\.json holds no figures"):
            measure([tmp_path / "y.json"], 1000, 2)
    with pytest.raises(ConfigError, match="cannot be read"):
        measure([tmp_path / "none.json"], 1000, 2)
