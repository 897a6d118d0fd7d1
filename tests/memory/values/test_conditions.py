"""Words of the notes that are conditions of an action (decision 030)."""

from dataclasses import replace

import pytest

from hardwon.memory import Diagnosis, Failure, State, Step, Trajectory
from hardwon.memory.situations.keys import NOTHING_TOLD, TOLD
from hardwon.memory.situations.note_keys import complete_told
from hardwon.memory.values.cells import StoredCells
from hardwon.memory.values.saved_tables import prefix_with_world
from hardwon.memory.values.tuning import TUNING
from hardwon.memory.values.value_table import ValueTable

from .test_value_table import table

FRY = "cook {1} in stove"


def recipes(*told, values=None):
    """A table of steps with (words that the notes told, return, whether the task was lost)."""
    values = ValueTable() if values is None else values
    for number, (words, value, lost) in enumerate(told, 1):
        values.add([FRY, *list_keys(words)], value, number, bad=lost, lost=lost, episode=number)
    return values


def list_keys(words):
    return [f"{FRY}{TOLD}", *(f"{FRY} | 1 {word}" for word in words.split())]


def estimate_told(values, words, prefix=""):
    return values.estimate([FRY, *list_keys(words)], prefix=prefix).value


RECIPES = [("fry dice", 1.0, False), ("fry", 1.0, False), ("dice fry", 1.0, False), ("dice", 0.0, True)]


def test_a_word_that_only_went_with_a_condition_promises_nothing():
    """Worked example: all 3 good steps had `fry`. Of 4 steps with a mean of 3/4, 3 with a mean of 1 leave one of 0.

    That one has the precision 1 (1 + 2) / (2 SPREAD). It counts instead of the cell of `dice`, whose mean is 2/3.
    """
    values = recipes(*RECIPES)
    of_all, lacking = values.cell(FRY).precision, 3 / (2 * TUNING.prior_variance)
    of_all = 1 / (1 / of_all + TUNING.key_spread)
    expected = of_all * 0.75 / (of_all + lacking)
    assert estimate_told(values, "dice") == pytest.approx(expected, rel=1e-9)
    assert estimate_told(values, "dice") < 0.25 < 0.9 < estimate_told(values, "dice fry")
    assert values.estimate([FRY, *list_keys("dice")]).lost > 0.5
    assert values.estimate([FRY, *list_keys("dice fry")]).lost < 0.2


def test_without_good_and_bad_steps_no_word_is_a_condition():
    """Degenerate: two good steps are too few, and without a bad step nothing shows that a word was needed."""
    assert estimate_told(recipes(*RECIPES[1:]), "dice") > 0.4, "two good steps with `fry` are too few"
    assert estimate_told(recipes(*RECIPES[:3], ("fry", 0.9, False)), "dice") > 0.9
    assert estimate_told(recipes(), "dice") == 0.0


def test_the_common_key_of_told_steps_changes_no_estimate_unless_a_condition_is_missing():
    """It pools whatever notes ever told, so its many steps would outweigh the few that share a word with the state."""
    values = recipes(*[("fry", 1.0, False)] * 3, ("dice", 0.2, False), ("dice", 0.6, False))
    pooled = [FRY, f"{FRY} | 1 dice"]
    assert values.estimate([FRY, *list_keys("dice")]) == values.estimate(pooled)


@pytest.mark.parametrize(("good", "is_condition"), [(1, True), (2, False)])
def test_a_word_that_too_many_good_steps_lacked_is_no_condition(good, is_condition):
    """3 of 4 good steps had `fry`, which is enough, and then 3 of 5."""
    lost = [("dice", 0.0, True)] * 4
    values = recipes(*RECIPES[:3], *[("dice", 1.0, False)] * good, *lost)
    assert (values.estimate([FRY, *list_keys("dice")]).key == f"{FRY}{TOLD}") is is_condition


def test_steps_without_a_condition_are_worth_no_more_than_all():
    """The steps with `fry` earned nothing yet, and the one without it earned 1, and was bad all the same."""
    values = recipes(*[("fry", 0.0, False)] * 3, ("dice", 1.0, True))
    assert estimate_told(values, "dice") == pytest.approx(values.estimate([FRY]).value) == pytest.approx(0.25)


def test_a_word_without_which_most_steps_were_good_is_no_condition():
    """Of 4 steps without `fry`, 2 were bad, which is enough; of 6, 2 are not. 12 steps had it."""
    values = recipes(*RECIPES[:3] * 4, *[("dice", 0.0, True)] * 2, *[("dice", 1.0, False)] * 2)
    assert values.estimate([FRY, *list_keys("dice")]).key == f"{FRY}{TOLD}"
    recipes(*[("dice", 1.0, False)] * 2, values=values)
    assert values.estimate([FRY, *list_keys("dice")]).key == f"{FRY} | 1 dice"


def test_keys_of_a_stored_table_are_listed_only_if_notes_are_among_them():
    """Most games have no notes, and a large table has many keys."""
    assert StoredCells(StoredCells.arrays(table((["*", "open"], 1.0)).cells)).list_keys(TOLD) == []
    stored = StoredCells(StoredCells.arrays(recipes(*RECIPES).cells))
    assert set(stored.list_keys(TOLD)) == {FRY, *list_keys("fry dice")}
    assert ValueTable(stored).note_keys == {f"{FRY}{TOLD}": set(list_keys("fry dice")[1:])}


def test_before_anything_is_told_a_condition_is_missing():
    """A thing was fried without a recipe, and it went well. Recipes tell that not every thing may be fried."""
    special = f"{FRY} | {NOTHING_TOLD}"
    keys = ["*", FRY, f"{FRY} | first", f"{FRY} | first, raw", special]
    values = recipes(*RECIPES)
    values.add(keys, 1.0, 9)
    alone = table((keys, 1.0)).estimate(keys).value
    mixed = values.estimate(keys)
    assert mixed.value == pytest.approx(alone / 2, rel=0.05), "one step in this context, one that lacked `fry`"
    assert mixed.lost == pytest.approx(0.5, rel=0.1)
    recipes(*[("dice", 0.0, True)] * 400, values=values)
    for number in range(1000, 1199):
        values.add(keys, 1.0, number)
    estimate = values.estimate(keys)
    assert estimate.value == pytest.approx(200 / 250, rel=0.05), "400 steps that lacked it count as 50"
    assert estimate.lost == pytest.approx(50 / 250, rel=0.1)


def test_conditions_depend_neither_on_the_order_of_words_nor_on_the_file():
    """Invariance: words in another order, a table of several worlds, and a table read from its arrays."""
    values = recipes(*RECIPES)
    backwards = recipes(*((" ".join(reversed(words.split())), *rest) for words, *rest in RECIPES))
    assert estimate_told(backwards, "dice") == estimate_told(values, "dice")
    stored = ValueTable(StoredCells(StoredCells.arrays(values.cells)))
    assert estimate_told(stored, "dice") == estimate_told(values, "dice")
    recipes(*[("dice", 1.0, False)] * 2, values=stored)
    assert estimate_told(stored, "dice") > 0.6
    placed = ValueTable()
    for number, (words, value, lost) in enumerate(RECIPES, 1):
        keys = [f"3:{key}" for key in (FRY, *list_keys(words))]
        placed.add(keys, value, number, bad=lost, lost=lost, episode=number)
    assert estimate_told(placed, "dice", prefix="3:") == estimate_told(values, "dice")


def test_steps_without_a_condition_are_worth_what_they_returned():
    """Moving means forget, so they cannot be subtracted: 300 steps of 1 and then 20 of 0 left a mean of -4."""
    values = recipes(*[("fry", 1.0, False)] * 300, *[("dice", 0.0, True)] * 20)
    assert 0.0 <= estimate_told(values, "dice") < 0.1


def test_steps_without_a_condition_weigh_no_more_than_others():
    """At most MEMORY steps count, and their returns may differ: here, 4 of 10 lost."""
    values = recipes(*[("fry", 1.0, False)] * 900, *[("dice", 0.5 * (n % 5 > 1), n % 5 <= 1) for n in range(500)])
    lacking = values._find_lacking(f"{FRY}{TOLD}", ())
    assert lacking.n == 500
    assert lacking.mean == pytest.approx(0.3)
    assert lacking.precision == pytest.approx(
        TUNING.memory * (TUNING.memory + 2) / (TUNING.memory * 0.06 + 2 * TUNING.prior_variance)
    )


def test_the_evidence_of_a_missing_condition_lacked_it():
    """The ids of steps that had the word are no evidence of what happens without it."""
    values = recipes(*RECIPES)
    assert values.estimate([FRY, *list_keys("dice")]).steps == (4,)


def test_keys_of_earlier_versions_get_the_common_key():
    """A log or an export of version 5 has words of the notes alone; steps of both kinds may not be mixed up."""
    assert complete_told(["*", FRY, f"{FRY} | 1 dice"]) == ["*", FRY, f"{FRY} | 1 dice", f"{FRY}{TOLD}"]
    assert complete_told([FRY, *list_keys("dice")]) == [FRY, *list_keys("dice")]
    assert complete_told(["*", FRY, f"{FRY} | 1:told"]) == ["*", FRY, f"{FRY} | 1:told"]


def test_more_steps_with_a_word_than_with_the_action_do_not_fail():
    """A file of other keys must not break recall."""
    values = recipes(*RECIPES)
    for number in range(10, 20):
        values.add([f"{FRY} | 1 fry"], 1.0, number)
    assert values.estimate([FRY, *list_keys("dice")]).key == f"{FRY} | 1 dice"


def test_forms_of_a_world_are_no_words_of_notes():
    """In the table of several worlds, all keys begin with a number."""
    values = ValueTable()
    forms = [prefix_with_world(3, key) for key in ("*", "open {1}", "open {1} | 1 red")]
    values.add(forms, 1.0, 1)
    assert values.note_keys == {f"{forms[1]}{TOLD}": {forms[2]}}


SEEN = "You see a carrot on the stove. The recipe book says fry dice grill onion nothing told."


def cook(notes, *, good, failure=Failure.TASK_LOST, action="cook carrot in stove"):
    pre = State(SEEN, task="cook a meal", notes=notes)
    diagnosis = Diagnosis(good, Failure.NONE if good else failure)
    step = Step(pre, action, State("The end.", task="cook a meal"), diagnosis, float(good), 0)
    return Trajectory("cook a meal", (step,), good)


def fill(library, *more):
    library.record_many([cook(("Wait.",), good=True)] * 20)
    assert library.episodes.count() == 20
    fry, dice = cook(("fry the carrot.",), good=True), cook(("dice the carrot.",), good=False)
    library.record_many([fry, dice] * 6 + [fry] * 4)  # mixed: failures in a row are a change of the world
    library.record_many(more)


def recall(library, *notes):
    state = State(SEEN, task="cook a meal", notes=notes)
    return library.recall(state, actions={"cook carrot in stove": ""}, k=0).estimates["cook carrot in stove"]


def test_an_outage_does_not_hide_a_condition(library):
    """The stove was out of order: that says nothing of what may be fried."""
    fill(library, *[cook(("dice the carrot.",), good=False, failure=Failure.UNAVAILABLE)] * 20)
    assert recall(library, "grill the carrot.").lost > 0.8


def test_steps_with_keys_of_an_earlier_version_count(library):
    """Their keys have the words of the notes alone."""
    fill(library)
    known = recall(library, "grill the carrot.")
    for good, words in [(True, "fry the carrot."), (False, "dice the carrot.")] * 10:
        episode = cook((words,), good=good)
        (step,) = episode.steps
        keys = tuple(key for key in library.episodes.keys(step.pre, step.action) if not key.endswith(TOLD))
        library.record(replace(episode, steps=(replace(step, keys=keys),)))
    assert recall(library, "grill the carrot.").n == known.n + 10


def test_notes_with_the_words_nothing_told_tell_something():
    """They end like the keys of a state without notes."""
    values = recipes(*RECIPES)
    general = ["*", FRY, f"{FRY} | first", f"{FRY} | first, raw"]
    assert values._find_untold([*general, f"{FRY} | 1: - | {NOTHING_TOLD}"], "") is not None
    assert values._find_untold([*general, f"{FRY} | 1: - | 1: fry; 2: {NOTHING_TOLD}"], "") is None
