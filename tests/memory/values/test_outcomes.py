"""Outcomes of actions: what exactly these words brought at once, also for actions that are not possible yet."""

import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, Outcome, State, Step, Trajectory
from hardwon.memory.values.outcomes import find_named

KITCHEN = "You are in the kitchen. A drawer that is closed, a counter, a key holder. You hold a strainer."
BAD = Diagnosis(False, Failure.PENALTY, evidence="wrong place")


def episode(*acted, task="tidy up", name="", trust="trusted", environment="house"):
    """Return an episode of (action, reward) steps."""
    pre = State(KITCHEN, task=task)
    steps = []
    for action, reward in acted:
        diagnosis = BAD if reward < 0 else Diagnosis(True)
        steps.append(Step(pre, action, State(f"{KITCHEN} {action}", task=task), diagnosis, reward=reward))
    is_paid = any(reward for _, reward in acted)
    return Trajectory(task, tuple(steps), is_paid, id=name, trust=trust, meta={"environment": environment})


def outcomes(library, *listed, text=KITCHEN, task="tidy up"):
    found = library.recall(State(text, task=task), actions=dict.fromkeys(listed, "")).outcomes
    return {action: (outcome.n, outcome.rewarded, outcome.punished) for action, outcome in found.items()}


@pytest.fixture
def taught(library):
    opened = ("open drawer", 0.0)
    library.record(episode(opened, ("put strainer in drawer", 1.0), ("put strainer in counter", -1.0), name="one"))
    library.record(episode(opened, ("put strainer in drawer", 1.0), ("put ladle in counter", 1.0), name="two"))
    return library


def test_outcomes_are_those_of_exactly_these_words(taught):
    """Worked example: two rewards in the drawer, one punishment at the counter; the ladle's reward is another's."""
    assert outcomes(taught, "put strainer in drawer", "put strainer in counter", "put ladle in drawer") == {
        "put strainer in drawer": (2, 2, 0),
        "put strainer in counter": (1, 0, 1),
    }


def test_a_rewarded_action_about_things_here_is_found_although_it_is_not_listed(taught):
    assert outcomes(taught, "open drawer")["put strainer in drawer"] == (2, 2, 0)
    assert [*outcomes(taught, "open drawer", text="You are in the kitchen. A drawer that is closed.")] == [
        "open drawer"
    ]


def test_nothing_is_found_in_an_empty_library_or_without_actions(library, taught):
    with ExperienceLibrary.open(":memory:") as empty:
        assert not outcomes(empty, "open drawer")
    assert not taught.recall(State(KITCHEN, task="tidy up")).outcomes


def test_the_order_of_recording_changes_nothing(taught):
    with ExperienceLibrary.open(":memory:") as other:
        for name in ("two", "one"):
            other.record(taught.episodes.get(name))
        assert outcomes(other, "open drawer") == outcomes(taught, "open drawer")


def test_later_episodes_count_and_forgotten_ones_do_not(taught):
    taught.record(episode(("put strainer in drawer", -1.0), name="three"))
    assert outcomes(taught, "put strainer in drawer") == {"put strainer in drawer": (3, 2, 1)}
    taught.admin.forget(episode="one")
    assert outcomes(taught, "put strainer in drawer") == {"put strainer in drawer": (2, 1, 1)}


def test_an_action_that_was_punished_as_often_as_rewarded_is_nothing_to_work_towards(taught):
    taught.record(episode(("put strainer in drawer", -1.0), ("put strainer in drawer", -1.0)))
    assert [*outcomes(taught, "open drawer")] == ["open drawer"]


@pytest.mark.parametrize("changes", [{"trust": "untrusted"}, {"environment": "office", "task": "file the papers"}])
def test_untrusted_episodes_and_other_worlds_do_not_count(library, changes):
    for name in "abcdef":
        library.record(
            episode(("file letter in cabinet", 1.0), environment="office", task="file the papers", name=name)
        )
        library.record(episode(("open drawer", 0.0), name=f"own {name}"))
    before = outcomes(library, "open drawer")
    for name in "ghi":
        library.record(episode(("put strainer in drawer", 1.0), name=name, **changes))
    assert outcomes(library, "open drawer") == before == {"open drawer": (6, 0, 0)}


def test_a_thing_with_a_number_is_another_one_elsewhere(library):
    library.record(episode(("put strainer in drawer 2", 1.0)))
    assert not outcomes(library, "put strainer in drawer 2", text=f"{KITCHEN} drawer 2")


def test_at_most_three_unlisted_actions_are_returned_the_most_rewarded_first(library):
    places = ("shelf", "basket", "sink", "tray", "oven")
    for at, place in enumerate(places):
        library.record(episode(("open drawer", 0.0), *[(f"put strainer in {place}", 1.0)] * (at + 1)))
    found = outcomes(library, "open drawer", text=f"{KITCHEN} {' '.join(places)}")
    assert [*found][1:] == [f"put strainer in {place}" for place in ("oven", "tray", "sink")]


def test_listed_actions_take_no_place_of_unlisted_ones(library):
    places = ("shelf", "basket", "sink")
    for place in places:
        library.record(episode(("open drawer", 0.0), *[(f"put strainer in {place}", 1.0)] * 2))
    library.record(episode(("open drawer", 0.0), ("put strainer in drawer", 1.0)))
    listed = [f"put strainer in {place}" for place in places]
    assert "put strainer in drawer" in outcomes(library, *listed, text=f"{KITCHEN} {' '.join(places)}")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (" a key holder ", {" key holder "}),
        (" a key and a key holder ", {" key ", " key holder "}),
        (" keys ", set()),
        ("", set()),
    ],
)
def test_a_thing_is_not_named_by_the_name_of_another_one(text, named):
    assert find_named(text, [" key ", " key holder "]) == named


def test_outcomes_add_up_with_the_newest_evidence():
    total = Outcome(2, 1, 0, (1, 5)) + Outcome(3, 0, 2, (4, 9))
    assert (total.n, total.rewarded, total.punished, total.steps) == (5, 1, 2, (4, 5, 9))
    assert total.share == -0.2
    assert Outcome().share == 0.0


CLOSED = ("open drawer", "take strainer")
OPEN = ("close drawer", "put strainer in drawer")


def chain(*acted, name):
    """Return an episode of (action, admissible actions, reward) steps."""
    pre = State(KITCHEN, task="tidy up")
    steps = [
        Step(pre, action, pre, Diagnosis(True), reward=reward, admissible=among) for action, among, reward in acted
    ]
    return Trajectory("tidy up", tuple(steps), True, id=name, meta={"environment": "house"})


def enabler(library, *listed):
    found = library.recall(State(KITCHEN, task="tidy up"), actions=dict.fromkeys(listed, "")).outcomes
    return found["put strainer in drawer"].enabler


def test_the_listed_action_that_made_it_possible_is_named(library):
    """Worked example: take, open, put in two episodes; open, take, put in one. The drawer is closed here."""
    put = ("put strainer in drawer", OPEN, 1.0)
    for name in ("one", "two"):
        library.record(chain(("take strainer", CLOSED, 0.0), ("open drawer", ("open drawer",), 0.0), put, name=name))
    library.record(chain(("open drawer", CLOSED, 0.0), ("take strainer", ("take strainer",), 0.0), put, name="three"))
    assert enabler(library, "open drawer", "dust counter") == "open drawer"
    assert enabler(library, "take strainer", "dust counter") == "take strainer"
    assert enabler(library, *CLOSED) == "open drawer", "in two of three"
    assert enabler(library, "dust counter", "put ladle in drawer") == "", "neither is listed"


def test_an_action_that_was_possible_from_the_start_has_no_enabler(library):
    pre = State(KITCHEN, task="tidy up")
    for name, among in (("one", (*OPEN, "open drawer")), ("two", ())):  # listed from the start; never listed
        acted = (("open drawer", 0.0), ("put strainer in drawer", 1.0))
        steps = (Step(pre, action, pre, Diagnosis(True), reward=r, admissible=among) for action, r in acted)
        library.record(Trajectory("tidy up", tuple(steps), True, id=name, meta={"environment": "house"}))
    assert enabler(library, "open drawer", "look") == ""


def test_only_the_last_time_that_it_became_possible_counts(library):
    """Opened, closed and opened again: the list right before the step decides."""
    steps = [("push drawer", CLOSED, 0.0), ("close drawer", OPEN, 0.0), ("open drawer", CLOSED, 0.0)]
    library.record(chain(*steps, ("look", OPEN, 0.0), ("put strainer in drawer", OPEN, 1.0), name="one"))
    assert enabler(library, "push drawer", "open drawer") == "open drawer"
    assert enabler(library, "push drawer") == ""


def test_enablers_follow_new_and_forgotten_episodes(library):
    put = ("put strainer in drawer", OPEN, 1.0)
    library.record(chain(("pull drawer", CLOSED, 0.0), put, name="one"))
    assert enabler(library, "open drawer", "pull drawer") == "pull drawer"
    for name in ("two", "three"):
        library.record(chain(("open drawer", CLOSED, 0.0), put, name=name))
    assert enabler(library, "open drawer", "pull drawer") == "open drawer"
    for name in ("two", "three"):
        library.admin.forget(episode=name)
    assert enabler(library, "open drawer", "pull drawer") == "pull drawer"
