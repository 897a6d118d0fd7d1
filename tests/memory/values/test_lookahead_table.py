"""Lookahead values: gains, risks and what actions make possible, fitted to steps."""

import random
from dataclasses import replace

import numpy as np
import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, State, Step, Trajectory
from hardwon.memory.situations.episode_map import EpisodeMap
from hardwon.memory.situations.lookahead_keys import COLUMNS, SPECIAL, LookaheadKeys
from hardwon.memory.values import lookahead_table
from hardwon.memory.values.filed_lookahead import EpisodeReader
from hardwon.memory.values.lookahead import look_around
from hardwon.memory.values.lookahead_table import EpisodeRows, Forms, Mean, Rows, fit, fit_nothing

KNOWS = Diagnosis(True)


def keys(name):
    """The keys of an action that shares none with another one."""
    return ("", *[f"{name} {n}" for n in range(1, COLUMNS)])


def fitted(*episodes, rows):
    return fit(rows, Forms(), LookaheadKeys(), episodes)


def opens_box(rows, opened):
    """An episode in which opening a box makes it possible to take a coin."""
    box, coin = rows.file(keys("open box")), rows.file(keys("take coin"))
    return EpisodeRows(
        [box, coin], [0.0, 1.0], [0.0, 0.0], [False, False], [False, False], [True, True], [(0, coin, 0, 0)] * opened
    )


def test_what_a_step_makes_possible_is_worth_the_discounted_gain():
    rows = Rows()
    (box,) = fitted(*[opens_box(rows, True)] * 3, rows=rows).judge([keys("open box")])
    assert (box.gain, box.unlock, box.value) == pytest.approx((0.0, 1.0, 0.9))


def test_nothing_is_unlocked_before_it_was_seen():
    rows = Rows()
    (box,) = fitted(*[opens_box(rows, False)] * 3, rows=rows).judge([keys("open box")])
    assert (box.unlock, box.value) == (0.0, 0.0)


def reads_note(rows, before, after):
    """An episode in which reading changes the keys of `take pear`, which pays `before` and `after`."""
    read, old, new = (rows.file(keys(name)) for name in ("read", "take pear", "take told pear"))
    return EpisodeRows(
        [read, old, new, new], [0.0, before, after, after], [0.0] * 4, [False] * 4, [False] * 4,
        [True, False, False, False], [(0, new, old, 0)],
    )  # fmt: skip


@pytest.mark.parametrize(("before", "after", "unlock"), [(0.2, 1.0, 0.8), (1.0, 1.0, 0.0), (1.0, 0.2, 0.0)])
def test_only_the_increase_of_a_value_counts(before, after, unlock):
    """An action that stays as good, or gets worse, contributes nothing, whatever its value is."""
    rows = Rows()
    table = fitted(*[reads_note(rows, before, after)] * 3, rows=rows)
    (read,) = table.judge([keys("read")])
    assert read.unlock == pytest.approx(unlock / table.scale if before < after else 0.0)


def test_keys_whose_steps_agree_weigh_more_than_keys_whose_steps_differ():
    steps = np.array([[1]] * 4 + [[2]] * 4 + [[3]] * 4)
    none, all_, half = Mean.of(steps, np.array([0.0] * 4 + [1.0] * 4 + [0.0, 1.0] * 2), 4).weight[1:]
    assert none == pytest.approx(all_)
    assert half < all_


def test_a_lost_task_costs_more_than_its_reward_brings():
    rows = Rows()
    row = rows.file(keys("eat"))
    lost = EpisodeRows([row], [0.0], [0.0], [True], [False], [True], [])
    (eat,) = fitted(*[lost] * 5, rows=rows).judge([keys("eat")])
    assert (eat.lost, eat.value) == pytest.approx((1.0, -1.9))


@pytest.mark.parametrize(("gain", "unlock"), [(0.09, 0.0), (0.5, 0.5)])
def test_a_slight_increase_counts_as_none(gain, unlock):
    """Otherwise two actions that undo each other would unlock each other."""
    rows = Rows()
    paid = EpisodeRows([rows.file(keys("pay"))], [1.0], [0.0], [False], [False], [True], [])
    opening, slight = rows.file(keys("open box")), rows.file(keys("take dust"))
    opens = EpisodeRows(
        [opening, slight], [0.0, gain], [0.0] * 2, [False] * 2, [False] * 2, [True] * 2, [(0, slight, 0, 0)]
    )
    table = fitted(paid, paid, opens, rows=rows)
    (box,) = table.judge([keys("open box")])
    assert box.unlock * table.scale == pytest.approx(unlock)


def with_form(form, name):
    """The keys of an action that shares only its form with others."""
    return ("", form, *[f"{name} {n}" for n in range(2, COLUMNS)])


def tries(rows, form, paid):
    """Episodes in which each action of a form is tried once, and opens a door before."""
    episodes = []
    for number, reward in enumerate(paid):
        door, row = rows.file(keys("open door")), rows.file(with_form(form, f"{form} {number}"))
        new = rows.file(with_form(form, f"{form} untried"))
        opened = [(0, row, 0, 0), (0, new, 0, 0)]
        episodes.append(
            EpisodeRows([door, row], [0.0, reward], [0.0] * 2, [False] * 2, [False] * 2, [True] * 2, opened)
        )
    return episodes


def test_the_chance_of_an_action_is_the_share_of_its_kind_that_was_paid_divided_among_its_tries():
    rows = Rows()
    table = fitted(*tries(rows, "lift", [1.0, 0.0, 0.0]), rows=rows)
    untried, once, other = table.judge(
        [with_form("lift", "never filed"), with_form("lift", "lift 1"), with_form("sing", "sing 1")]
    )
    assert (untried.chance, once.chance) == pytest.approx((2 / 5, 1 / 5))
    assert other.chance == pytest.approx(1 / 2)  # nothing is known about its form


def test_tries_of_one_action_say_little_about_another_one():
    rows = Rows()
    often = rows.file(with_form("lift", "lift 1"))
    episode = EpisodeRows([often] * 20, [0.0] * 20, [0.0] * 20, [False] * 20, [False] * 20, [True] * 20, [])
    once, other = fitted(episode, rows=rows).judge([with_form("lift", "lift 1"), with_form("lift", "lift 2")])
    assert (once.chance, other.chance) == pytest.approx((1 / 3 / 21, 1 / 3))


def test_the_way_to_what_was_never_tried_promises_more_than_the_way_to_what_was_tried_in_vain():
    promises = []
    for number in (1, 20):
        rows = Rows()
        (door,) = fitted(*tries(rows, "lift", [0.0] * number), rows=rows).judge([keys("open door")])
        assert door.unlock == 0.0
        promises.append(door.promise)
    new, stale = promises
    assert new > 2 * stale


def test_a_new_action_counts_as_never_tried():
    """Its keys have the id of the empty key, which every action has in some columns."""
    rows = Rows()
    lift = ("", "lift", *[""] * (COLUMNS - 2))
    row = rows.file(lift)
    episode = EpisodeRows([row] * 9, [0.0] * 9, [0.0] * 9, [False] * 9, [False] * 9, [True] * 9, [])
    (new,) = fitted(episode, rows=rows).judge([keys("sing")])
    assert new.n == 0


def test_lookahead_values_do_not_depend_on_what_was_judged_before(monkeypatch):
    """Whether actions are judged together, one by one, again, or after others took their place."""
    rows = Rows()
    episodes = [opens_box(rows, True), *tries(rows, "lift", [1.0, 0.0]), reads_note(rows, 0.2, 1.0)]
    names = [keys("open box"), keys("take coin"), keys("read"), with_form("lift", "lift 1"), keys("sing"), keys("read")]
    together = fitted(*episodes, rows=rows).judge(names)
    assert len(set(together)) == 5
    monkeypatch.setattr(lookahead_table, "RECENT", 2)
    table = fitted(*episodes, rows=rows)
    for _ in range(2):
        assert [table.judge([columns])[0] for columns in names] == together
    assert table.judge(names) == together
    assert fitted(*episodes[:1], rows=rows).judge(names) != together  # another fit judges anew


def test_an_action_is_computed_once(monkeypatch):
    rows = Rows()
    table = fitted(opens_box(rows, True), rows=rows)
    looked_up = []

    def find(rows, columns):
        looked_up.append(columns)
        return [0] * COLUMNS

    monkeypatch.setattr(Rows, "find", find)
    for _ in range(2):
        table.judge([keys("open box"), keys("read"), keys("read")])
    assert looked_up == [keys("open box"), keys("read")]


def test_equal_actions_share_a_row_however_many_were_filed_between_them(monkeypatch):
    monkeypatch.setattr(lookahead_table, "RECENT", 1)
    rows = Rows()
    filed = [rows.file(keys(name)) for name in ("read", "sing", "read", "sing", "wait")]
    assert filed == [1, 2, 1, 2, 3]


def test_tables_that_are_stacked_are_estimated_one_by_one():
    """With keys 1 and 2 in the first two columns, which weigh 1 and 2."""
    gain = Mean(np.array([0.0, 1.0, 4.0]), np.array([0.0, 2.0, 1.0]))
    lost = Mean(np.array([0.0, 0.5, 0.5]), np.array([0.0, 0.0, 1.0]))
    ids = np.zeros((2, COLUMNS), dtype=np.int32)
    ids[0, :2] = 1, 2
    stacked = Mean.stack([gain, lost]).estimate(ids)
    assert stacked.tolist() == [[(2 * 1.0 + 2 * 4.0) / 4, 0.0], [0.5, 0.0]]
    assert stacked.tolist() == [gain.estimate(ids).tolist(), lost.estimate(ids).tolist()]


def test_without_episodes_every_lookahead_value_is_zero():
    assert [value.value for value in fit_nothing().judge([keys("open box")])] == [0.0]
    assert fit_nothing().judge([]) == []


def test_keys_of_later_episodes_are_unknown_to_an_earlier_fit():
    rows = Rows()
    table = fitted(opens_box(rows, True), rows=rows)
    rows.file(keys("close box"))
    assert table.judge([keys("close box")])[0].value == 0.0


# ---- from steps


def state(text, *notes, location="hall", task="find the coin"):
    return State(text, location=location, task=task, notes=notes)


def walk(box="box", coin="coin"):
    """An episode: open a box, take the coin in it."""
    closed, opened = state(f"A {box} is closed."), state(f"A {box} is open. There is a {coin}.")
    taken = state(f"A {box} is open. You carry a {coin}.")
    first = Step(closed, f"open {box}", opened, KNOWS, admissible=(f"open {box}", "wait"))
    second = Step(opened, f"take {coin}", taken, KNOWS, reward=1.0, t=1, admissible=(f"take {coin}", "wait"))
    return Trajectory("find the coin", (first, second), True, 1.0)


def learn(episodes):
    rows, forms, computed = Rows(), Forms(), LookaheadKeys()
    read = [EpisodeReader(rows, forms, computed).read(episode.steps) for episode in episodes]
    return fit(rows, forms, computed, read)


def test_a_library_looks_ahead_to_what_its_steps_showed():
    with ExperienceLibrary.open(":memory:") as library:
        now = walk().steps[0].pre
        assert not any(one.value for one in library.look_ahead(now, ("open box", "wait")).by_action.values())
        library.record_many([replace(walk(), id=f"e{n}") for n in range(4)])
        here = library.look_ahead(now, ("open box", "wait")).by_action
        assert here["open box"].unlock > 0.3
        assert here["open box"].unlock > here["wait"].unlock


def test_lookahead_values_follow_new_episodes():
    with ExperienceLibrary.open(":memory:") as library:
        now = walk().steps[0].pre
        for first in (0, 4):
            library.record_many([replace(walk(), id=f"e{first + n}") for n in range(4)])
            assert library.look_ahead(now, ("open box", "wait")).by_action["open box"].n == first + 4


def test_what_was_forgotten_is_not_in_the_lookahead_values(path):
    with ExperienceLibrary.open(path) as library:
        library.record_many([replace(walk(), id=f"e{n}") for n in range(4)])
        now = walk().steps[0].pre
        assert library.look_ahead(now, ("open box", "wait")).by_action["open box"].n == 4
        library.admin.forget(episode="e2")
        assert library.look_ahead(now, ("open box", "wait")).by_action["open box"].n == 3
    with ExperienceLibrary.open(path) as library:
        assert library.look_ahead(now, ("open box", "wait")).by_action["open box"].n == 3


def test_other_names_change_nothing_but_the_narrow_keys():
    table = learn([walk()] * 4)
    named = table.keys.list(walk().steps[0].pre, ("open box",), EpisodeMap())[0]
    renamed = table.keys.list(walk("chest", "ring").steps[0].pre, ("open chest",), EpisodeMap())[0]
    assert [one == two for one, two in zip(named[:6], renamed[:6], strict=True)] == [True] * 6
    assert named[SPECIAL + 1] != renamed[SPECIAL + 1]
    assert table.judge([renamed])[0].unlock > 0.3


def test_the_order_of_episodes_does_not_matter():
    episodes = [walk(), walk("chest"), walk("jar", "ring"), walk()]
    shuffled = random.Random(1).sample(episodes, len(episodes))
    asked = [walk().steps[0].pre, walk("jar").steps[0].pre]
    first, second = (
        [table.judge(table.keys.list(one, ("wait", "open box"), EpisodeMap())) for one in asked]
        for table in (learn(episodes), learn(shuffled))
    )
    for some, others in zip(first, second, strict=True):
        assert [one.value for one in some] == pytest.approx([other.value for other in others])


def test_a_state_without_location_and_notes_has_a_lookahead_value_and_no_elsewhere():
    table = learn([walk()] * 4)
    found = look_around(table, State("A box is closed.", task="find the coin"), ("open box",), EpisodeMap())
    assert found.by_action["open box"].value > 0
    assert found.elsewhere == ()


def test_a_step_that_lost_the_task_and_one_without_effect_are_counted():
    now = state("A box is closed.")
    dead = Step(now, "wait", now, Diagnosis(False, Failure.NO_EFFECT), admissible=("wait", "smash box"))
    lost = Step(now, "smash box", now, Diagnosis(False, Failure.TASK_LOST), t=1, admissible=("wait", "smash box"))
    again = replace(dead, t=1)
    table = learn([Trajectory("find the coin", (dead, again, replace(lost, t=2)), False)] * 4)
    wait, smash = table.judge(table.keys.list(now, ("wait", "smash box"), EpisodeMap()))
    assert smash.lost > 0.5 > wait.lost
    assert wait.dead > 0.4  # the first answer was new


# ---- the map

HALL = "You are in the hall. To the north you see the kitchen."
KITCHEN = "You are in the kitchen. To the south you see the hall. There is a stove."


def rooms():
    """A step from the hall to the kitchen."""
    hall = state(HALL)
    kitchen = state(KITCHEN, location="kitchen")
    return Step(hall, "move north", kitchen, KNOWS, admissible=("move north", "take lamp"))


def trained_to_move():
    steps = [replace(rooms(), id=None) for _ in range(3)]
    return learn([Trajectory("find the coin", (step,), False) for step in steps])


def test_the_way_back_is_read_from_the_text():
    table, episode = trained_to_move(), EpisodeMap()
    episode.add(rooms())
    now = rooms().post
    (far,) = [one for one in look_around(table, now, ("move south", "wait"), episode).elsewhere if one.action[0] == "t"]
    assert (far.action, far.location, far.first, far.steps) == ("take lamp", "hall", "move south", 1)


def test_what_was_tried_elsewhere_is_not_offered_again():
    table, episode = trained_to_move(), EpisodeMap()
    took = Step(state(HALL), "take lamp", state(HALL), KNOWS, admissible=("move north", "take lamp"))
    episode.add(took)
    episode.add(rooms())
    found = look_around(table, rooms().post, ("move south",), episode).elsewhere
    assert "take lamp" not in [one.action for one in found]


def test_without_a_sentence_about_the_way_there_is_none():
    table, episode = trained_to_move(), EpisodeMap()
    episode.add(rooms())
    blind = replace(rooms().post, observation="You are in the kitchen.")
    assert look_around(table, blind, ("move south",), episode).elsewhere == ()


def test_what_was_taken_is_imagined_with_what_stands_elsewhere():
    """After 20 offers of a form, it is tried in thought with a thing that was taken since and a thing over there."""
    stove = state(KITCHEN, location="kitchen")
    heats = Step(stove, "heat pie in stove", stove, KNOWS, admissible=("heat pie in stove", "touch stove"))
    table = learn(
        [*[Trajectory("find the coin", (heats,), False)] * 21, Trajectory("find the coin", (rooms(),), False)]
    )
    episode = EpisodeMap()
    back = Step(
        replace(stove, facts={"carried": []}), "move north", replace(state(HALL), facts={"carried": []}), KNOWS,
        admissible=("move north", "touch stove"),
    )  # fmt: skip
    episode.add(back)
    now = replace(state(HALL), facts={"carried": ["a pie"]})
    found = look_around(table, now, ("move north", "eat pie"), episode).elsewhere
    assert "heat pie in stove" in [one.action for one in found]
    empty = replace(now, facts={"carried": []})
    found = look_around(table, empty, ("move north", "eat pie"), episode).elsewhere
    assert "heat pie in stove" not in [one.action for one in found]
