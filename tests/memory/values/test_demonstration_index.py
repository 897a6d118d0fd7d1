"""Indexes of demonstrations: what the successes of a library did, and what their actions were about."""

from hardwon.memory import Diagnosis, State, Step
from hardwon.memory.values.demonstration_index import DemonstrationIndex, list_kept

TASK = "put a watch in shelf"


def make_steps(*actions):
    """Return steps of (action, location, admissible actions), or of (action, location before, location after)."""
    steps = []
    for t, (action, place, more) in enumerate(actions):
        after = more if isinstance(more, str) else place
        pre, post = (State("You are here.", task=TASK, location=at) for at in (place, after))
        steps.append(Step(pre, action, post, Diagnosis(True), t=t, admissible=() if isinstance(more, str) else more))
    return steps


FREE, HOLDING = ("take watch from table", "wait"), ("move watch to table", "move watch to shelf", "wait")
PATH = (
    ("take watch from table", "table", FREE),
    ("move watch to table", "table", HOLDING),
    ("take watch from table", "table", FREE),
    ("move watch to shelf", "table", HOLDING),
)


def test_what_was_undone_is_no_part_of_a_success():
    """The agent put the watch back and took it again: the last time alone is needed."""
    assert list_kept(make_steps(*PATH)) == (("take watch from table", "table"), ("move watch to shelf", "table"))


def test_a_repeated_action_is_kept_where_something_changed():
    """Two coats of paint: after the first one, something else is possible."""
    path = (("paint door", "yard", ("paint door",)), ("paint door", "yard", ("paint door", "open door")))
    assert len(list_kept(make_steps(*path))) == 2


def test_without_admissible_actions_nothing_is_left_out():
    """Imported steps do not say what was possible."""
    path = [("press bell", "door", ()), ("press bell", "door", ())]
    assert len(list_kept(make_steps(*path))) == 2


def test_moves_and_failures_are_no_part_of_a_success():
    steps = make_steps(("walk to shelf", "table", "shelf"), ("move watch to shelf", "shelf", HOLDING))
    assert list_kept(steps) == (("move watch to shelf", "shelf"),)


def test_detours_do_not_hide_what_a_task_names():
    """Each watch was put back twice, so most places that a thing was moved to are not named by the task."""
    index = DemonstrationIndex()
    for number in range(4):
        index.add(f"e{number}", TASK, make_steps(*PATH[:2], *PATH), outcome=1.0)
    assert index.is_named("move {1} to {2}", 1, TASK)
    assert not index.is_named("take {1} from {2}", 1, TASK)
    (demonstration, *_) = index.list_demonstrations(TASK)
    assert demonstration.actions == ("take watch from table", "move watch to shelf")


def test_what_a_success_did_by_chance_does_not_hide_what_its_task_names():
    """Nor does what tasks with other words named."""
    index = DemonstrationIndex()
    chance = [(f"take {thing} from table", "table", FREE) for thing in ("vase", "pen", "box")]
    index.add("e0", TASK, make_steps(*chance, *PATH[:1], *PATH[3:]), outcome=1.0)
    for number in range(1, 4):
        index.add(f"e{number}", "look under the lamp", make_steps(*chance), outcome=1.0)
    assert index.is_named("take {1} from {2}", 0, TASK)
    assert not index.is_named("take {1} from {2}", 0, "look under the lamp")
    index.add("e9", "look under the lamp with a pen", make_steps(*chance), outcome=1.0)
    index.add("e10", "look under the lamp with a box", make_steps(*chance), outcome=1.0)
    index.add("e11", "look under the lamp with a vase", make_steps(*chance), outcome=1.0)
    assert index.is_named("take {1} from {2}", 0, "look under the lamp")


def test_an_action_reveals_if_it_opens_a_place_for_other_things():
    """Opening an empty drawer counts, closing it does not, and neither does looking at what was there before."""
    shut, ajar = ("open drawer", "look at drawer"), ("close drawer", "put soap in drawer", "look at drawer")
    steps = make_steps(
        ("take soap from table", "table", ("take soap from table", "go to drawer")),
        ("go to drawer", "table", ("go to drawer", "put soap in table")),
        ("open drawer", "drawer", shut),
        ("look at drawer", "drawer", ajar),
        ("close drawer", "drawer", ajar),
        ("wait", "drawer", shut),
    )
    index = DemonstrationIndex()
    index.add("e", "put soap in drawer", steps, outcome=1.0)
    assert index.reveals("open {1}") == 1.0
    assert index.reveals("close {1}") == index.reveals("look at {1}") == 0.0


def test_words_are_unsolved_that_failed_although_a_demonstration_led_and_that_no_success_had():
    """Names of things are not, nor are words that no task had, which are taken for names."""
    index = DemonstrationIndex()
    index.add("e1", TASK, make_steps(*PATH), outcome=1.0)
    for trial in ("withheld", None):
        index.add(f"e2-{trial}", "put a shiny watch in shelf", make_steps(*PATH), outcome=0.0, trial=trial)
        assert index.list_unsolved("put a shiny watch in shelf") == frozenset()
    index.add("e3", "put a shiny watch in shelf", make_steps(*PATH), outcome=0.0, trial="followed")
    assert index.list_unsolved("put a shiny watch in shelf") == {"shiny"}
    assert index.list_unsolved(TASK) == index.list_unsolved("put a torch in shelf") == frozenset()
    index.add("e4", "put a shiny shelf in watch", make_steps(*PATH), outcome=1.0, trial="followed")
    assert index.list_unsolved("put a shiny watch in shelf") == frozenset()
