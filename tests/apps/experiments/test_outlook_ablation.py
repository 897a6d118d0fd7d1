"""`examples/experiments/outlook_ablation.py`: each part is away inside its context, and there again afterward."""

from pathlib import Path

import pytest
from examples.experiments.outlook_ablation import PARTS, VERB_FREE, build_plan, format_rows, summarize

from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory
from hardwon.memory.situations.episode_map import EpisodeMap
from hardwon.memory.situations.outlook_keys import OutlookKeys
from hardwon.memory.values.outlook import Forms, Rows
from hardwon.memory.values.outlook_episodes import EpisodeReader
from hardwon.runtime.policies import outlook as policy

HALL = State("A box is closed. A door leads to the yard.", location="hall", task="find the coin")
YARD = State("A lawn. A door leads to the hall.", location="yard", task="find the coin")
OPEN = State("A box is open. There is a coin. A door leads to the yard.", location="hall", task="find the coin")
EPISODE = (
    Step(HALL, "go to yard", YARD, Diagnosis(True), admissible=("open box", "go to yard")),
    Step(YARD, "go to hall", HALL, Diagnosis(True), t=1, admissible=("go to hall",)),
    Step(HALL, "open box", OPEN, Diagnosis(True), t=2, admissible=("open box", "go to yard")),
    Step(OPEN, "take coin", OPEN, Diagnosis(True), reward=1.0, t=3, admissible=("take coin", "go to yard")),
)


def look():
    """What a library of three episodes foresees in the yard and in the hall, and the settings that parts change."""
    with ExperienceLibrary.open(":memory:") as library:
        for seed in range(3):
            library.record(Trajectory("find the coin", EPISODE, True, 1.0, seed=seed))
        walk = EpisodeMap()
        walk.add(EPISODE[0])
        there = library.foresee(YARD, ["go to hall"], walk)
        hall = library.foresee(HALL, ["open box", "go to yard"]).by_action
    (keys,) = OutlookKeys().list(HALL, ["open box"], EpisodeMap())
    return {
        "novelty": any(EpisodeReader(Rows(), Forms(), OutlookKeys()).read(EPISODE).novelty),
        "told": keys[VERB_FREE] != "",
        "unlock": hall["open box"].value - hall["open box"].gain > 0.1,
        "elsewhere": bool(there.elsewhere),
        "promise": policy.HOPE > 0,
        "fresh": policy.SLIGHT < 1,
        "returns": policy.RETURNS > 0,
    }


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_away_and_nothing_else(part):
    whole = dict.fromkeys([*PARTS][1:], True)
    with PARTS[part]():
        assert look() == whole | ({} if part == "nothing" else {part: False})
    assert look() == whole


def test_cells_that_are_not_finished_are_left_out():
    plan = build_plan(Path("runs"), (3, 4), (10, 20), "50-51")

    def test(at, seed, task, success):
        fields = {"phase": "test", "trained": at, "agent_seed": seed, "seed": task, "success": success}
        return {**fields, "score": float(success), "ending": "success" if success else "task_lost"}

    rows = [test(10, seed, task, seed == 3) for seed in (3, 4) for task in (50, 51)]
    (figures,) = summarize("novelty", plan, [*rows, test(20, 3, 50, True)])
    assert (figures["solved"], figures["mean"], figures["lost"]) == ([2, 0], 1.0, [0, 2])
    assert format_rows([figures])[-1].startswith("| novelty | 10 | 1.0 of 2 (0 to 2) | 2, 0 | 0.5 |")
