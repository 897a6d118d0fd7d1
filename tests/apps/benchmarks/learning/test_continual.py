"""`hardwon bench continual`: paired gains, negative ones too, of streams that continue where they stopped."""

import sys

import pytest

from benchmarks.learning import continual as bench
from benchmarks.learning.continual import HintCounter, Stream, compare, run, sum_costs
from hardwon.memory import ExperienceLibrary, State
from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.runtime.interfaces.types import Context

OWN = "test_continual:Doors"
STREAM = Stream(environments=(OWN,), episodes=8, orders=1, policy="episodic")


class Doors:
    """One of three doors leads out, always the same one, and the others end the episode."""

    name = "doors"

    def reset(self, task="", seed=0):
        return State("You see three doors.", task="leave")

    def step(self, action):
        is_out = action == "open door f"
        return State("It is over.", task="leave"), float(is_out), True, {"success": is_out, "lost": not is_out}

    def admissible(self, state):
        return [f"open door {letter}" for letter in "adf"]

    def clone(self):
        return Doors()

    def close(self):
        pass


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Make the doors importable by the name of this file, and the parts short."""
    monkeypatch.setitem(sys.modules, "test_continual", sys.modules[__name__])
    monkeypatch.setattr(bench, "PART", 4)


def without_times(played):
    """Return the episodes without what the clock says."""
    return {key: [{**row, "cpu_s": 0} for row in rows] for key, rows in played.items()}


def test_a_library_gains_where_the_same_door_leads_out(tmp_path, hardwon_json):
    printed = hardwon_json("bench", "continual", "--environments", OWN, "--episodes", 8, "--out", tmp_path)
    of_doors = {row["minus"]: row for row in printed["rows"] if row["environment"] == OWN}
    assert all(row["pairs"] == 24 and row["gain"] > 0 for row in of_doors.values())
    assert [row["episodes"] for row in printed["costs"]] == [24, 24, 24]


def test_one_arm_remembers_one_forgets_and_one_learns_nothing(tmp_path, monkeypatch):
    """Episodes in the library before and after each: of the stateful, the stateless and the empty arm."""
    seen, play = [], bench._play

    def watch(agent, *given):
        before, row = agent.library.episodes.count(), play(agent, *given)
        seen.append((before, agent.library.episodes.count()))
        return row

    monkeypatch.setattr(bench, "_play", watch)
    run(STREAM, tmp_path, print)
    assert seen == [*((n, n + 1) for n in range(8)), *[(0, 1)] * 8, *[(0, 0)] * 8]


def test_orders_are_permutations_of_the_same_tasks():
    stream = Stream(environments=("wiki-1", "errands"), episodes=9, orders=3, policy="episodic")
    orders = [stream.list_tasks(order) for order in range(3)]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])
    assert orders[0] != orders[1] != orders[2]
    assert len(set(orders[0])) == 9


def test_a_stopped_run_goes_on_from_its_last_part(tmp_path, monkeypatch):
    """The library of an interrupted part is taken from before it, so the figures are those of a run without a stop."""
    whole = run(STREAM, tmp_path / "whole", print)
    play, count = bench._play, 0

    def stop(*given):
        nonlocal count
        count += 1
        if count == 7:
            raise KeyboardInterrupt
        return play(*given)

    monkeypatch.setattr(bench, "_play", stop)
    with pytest.raises(KeyboardInterrupt):
        run(STREAM, tmp_path / "cut", print)
    said: list[str] = []
    assert without_times(run(STREAM, tmp_path / "cut", said.append)) == without_times(whole)
    assert count == 7 + 3 * 8 - 4
    assert said[0].startswith("order 1 of 1, stateful: 8 of 8 episodes")
    assert "min left" in said[0]
    with ExperienceLibrary.open(tmp_path / "cut" / "order-0" / "4" / "library.db") as library:
        assert library.episodes.count() == 8
    with pytest.raises(ConfigError, match="another setup"):
        run(Stream(environments=(OWN,), episodes=9, orders=1, policy="episodic"), tmp_path / "cut", print)


def test_negative_gains_are_reported_by_order():
    """By hand: the orders lose one, two and one of four tasks, and a broken one of the third is left out."""

    def play(*successes):
        costs = {"cpu_s": 0.5, "hint_tokens": 8}
        return [
            {"environment": OWN, "seed": n, "success": success, "steps": 2 + n, **costs}
            for n, success in enumerate(successes)
        ]

    stream = Stream(environments=(OWN,), episodes=4, orders=3, policy="episodic")
    played = {(arm, order): play(True, True, True, True) for arm in ("stateless", "empty") for order in range(3)}
    for order, outcomes in enumerate([(1, 0, 1, 1), (0, 0, 1, 1), (1, None, 1, 0)]):
        played["stateful", order] = play(*outcomes)
    row = compare(stream, played)[0]
    assert (row["pairs"], row["gain"], row["by_order"], row["worst"]) == (11, -0.364, [-0.25, -0.5, -0.333], -0.5)
    assert (row["stateful"], row["other"], row["last_quarter"], row["below"]) == (0.636, 1.0, -0.333, True)
    costs = {"steps": 3.5, "cpu_s": 0.5, "hint_tokens": 8}
    assert sum_costs(stream, played)[0] == {"environment": OWN, "arm": "stateful", "episodes": 12, **costs}


def test_hints_are_counted_in_tokens(script):
    """Four characters are a token, and a step without a hint costs none."""
    policy = HintCounter(script("go east", reads="text"))
    for hint in ("12345678", None):
        assert policy.decide(Context(State("a room"), guidance=hint)).action == "go east"
    assert (policy.tokens, policy.reads) == (3, "text")


@pytest.mark.parametrize(
    ("environments", "error"),
    [
        (["chess"], UnknownName),
        (["errands", "errands"], ConfigError),
        ([], ConfigError),
        ([*bench.WORLDS], ConfigError),
    ],
)
def test_what_cannot_be_measured_is_refused(environments, error):
    with pytest.raises(error):
        Stream(environments=tuple(environments), episodes=8, orders=3, policy="episodic")
