"""What graded episodes teach: `meta["outcome"]` names the figure that takes the place of success."""

from dataclasses import replace

import pytest

from hardwon.memory import Add, Diagnosis, Item, State, Step, Trajectory
from hardwon.memory.learning.skill_mining import SkillMiner
from hardwon.memory.parts.reading import find_counterpart
from hardwon.memory.remote.demonstrations import ServedDemonstrations
from hardwon.memory.upkeep.figures import read_clusters

BOX, CUP = ("open box", "take coin"), ("lift cup", "take coin")


def played(*actions, score, task="find the coin", measure="score", success=False, **fields):
    """An episode whose last action is rewarded by 0.1, whatever its score."""
    steps = tuple(
        Step(State(f"{actions[0]} {n}."), action, State(f"{actions[0]} {n + 1}."), Diagnosis(True), reward, n)
        for n, (action, reward) in enumerate(zip(actions, [0.0] * (len(actions) - 1) + [0.1], strict=True))
    )
    meta = {"outcome": measure} if measure else {}
    return Trajectory(task, steps, success, score, meta=meta, **fields)


def list_skills(library):
    """Return the steps of the skills that are found now."""
    library.evolve()
    return {item.steps for item in library.items.find(["skill"])}


# ---- skills


def test_skills_come_from_episodes_that_end_no_worse_than_the_usual(library):
    """No episode succeeds. Half of them end at .9 and the others at .2: only the actions of the former are skills."""
    for _ in range(4):
        library.record(played(*BOX, score=0.9))
        library.record(played(*CUP, score=0.2))
    assert list_skills(library) == {BOX}


def test_what_is_usual_is_told_by_the_same_task(library):
    """.2 is the best of a hard task, whatever an easy one gives."""
    for _ in range(3):
        library.record(played(*BOX, score=0.9))
        library.record(played(*CUP, score=0.2, task="find the ring"))
    assert list_skills(library) == {BOX, CUP}


def test_an_outcome_of_nothing_teaches_no_skill(library):
    """Degenerate: each ends as well as the others, at 0; nor does a reward that the grade does not count."""
    for _ in range(4):
        library.record(played(*BOX, score=0.0))
        library.record(played(*CUP, score=-2.0))
    assert list_skills(library) == set()


@pytest.mark.parametrize("score", [0.1, 0.3, 0.55, 0.7, 1.0])
def test_equal_outcomes_are_as_good_as_their_mean(score):
    """Also where the sum is rounded up."""
    miner = SkillMiner()
    for number in range(60):
        miner.read(played(*BOX, score=score, id=f"{number}"))
    assert [candidate.n for candidate, _ in miner.candidates() if candidate] == [60]


@pytest.mark.parametrize("success", [True, False])
def test_success_alone_decides_where_episodes_are_not_graded(success):
    """Also after graded episodes of the same task with the full outcome, and whatever the score says."""
    miner = SkillMiner()
    for number in range(3):
        miner.read(played(*CUP, score=1.0, id=f"graded {number}"))
        miner.read(played(*BOX, score=0.1, measure="", success=success, id=f"plain {number}"))
    found = {item.steps for _, item in miner.candidates()}
    assert found == ({CUP, BOX} if success else {CUP})


# ---- items


@pytest.mark.parametrize(
    ("score", "kind", "is_allowed"),
    [
        (1.0, "strategy", True),
        (1.0, "warning", False),
        (0.6, "strategy", True),
        (0.6, "warning", True),
        (0.0, "strategy", False),
        (0.0, "warning", True),
    ],
)
def test_an_episode_graded_between_teaches_both(library, score, kind, is_allowed):
    read = library.episodes.get(library.record(played("open box", "wait", "take coin", score=score)))
    item = Item(kind, "coins are in boxes", source="model", writer="chat:x", provenance=(read.steps[1].id,))
    (admission,) = library.apply([Add(item)], read, [])
    assert ("episode teaches" not in admission.reason) == is_allowed


@pytest.mark.parametrize("measure", ["score", "reward"])
def test_an_episode_graded_far_apart_is_compared_with(library, measure):
    """No episode succeeds; of graded ones, the newest that differs by one half is the other way."""

    def record(name, value):
        made = played(*BOX, score=value, measure=measure, id=name)
        last = replace(made.steps[-1], reward=value)
        return library.record(replace(made, steps=(*made.steps[:-1], last)))

    for name, value in (("far", 0.1), ("like", 0.55), ("own", 0.75)):
        record(name, value)
    assert getattr(find_counterpart(library.episodes.get("own"), library.episodes), "id", "") == "far"
    assert find_counterpart(library.episodes.get("like"), library.episodes) is None


# ---- figures


def test_situations_show_the_mean_of_graded_outcomes(library):
    for score in (0.2, 0.6):
        library.record(played("open box", score=score))
    assert next(row["success"] for row in library.admin.query(read_clusters) if row["steps"]) == pytest.approx(0.4)


def test_demonstrations_are_graded_episodes_from_one_half_and_their_trials_count_by_degrees(library):
    """In the library and in what a client reads from a server; the worse of two ways is seen without any success."""
    for number, (task, score) in enumerate([("find the coin", 0.8), ("find the ring", 0.4)]):
        library.record(played(*BOX, score=score, task=task, id=f"e{number}"))
    index = library.episodes.index_demonstrations()
    assert [task for _, task, _ in index._episodes] == ["find the coin"]
    served = ServedDemonstrations(library.episodes)
    assert served.read(None)._episodes == index._episodes
    for number in range(80):
        index.add("", "find the cup", (), outcome=0.9 if number % 2 else 0.2,
                       trial="withheld" if number % 2 else "followed")  # fmt: skip
    assert index.are_worse("find the cup")
