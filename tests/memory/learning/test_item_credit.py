import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from hardwon.apps.shared.lists import count_uses
from hardwon.memory import ExperienceLibrary, Item, State
from hardwon.memory.guardrails.tuning import TUNING as GUARDRAILS
from hardwon.memory.learning.item_credit import shared_error
from hardwon.memory.learning.tuning import TUNING
from hardwon.memory.upkeep.figures import estimate_difference, measure_items

DRAWER = State("You see a wooden drawer. It is closed.", task="find the spoon")


def used(episode, refs, success, **why):
    """An episode that was shown items."""
    made = episode("open drawer", success=success)
    steps = tuple(replace(step, why={"recalled": list(refs), **why}) for step in made.steps)
    return replace(made, steps=steps, arm="retrieved")


def add(library, title, **fields):
    """The id of a new insight about the drawer."""
    return str(library.add(Item("insight", title, signatures=(DRAWER.signature,), **fields)).item_id)


def titles(library):
    """The titles of the items recalled."""
    return [hit.what.title for hit in library.recall(DRAWER).items]


def item(name, utility):
    return Item("insight", name, score=0.5 + utility / 2, id=name)


def test_one_item_alone_moves_by_the_difference_to_the_baseline():
    """score <- score + alpha (dR - score) of systems.md §7.5, on u = 2 score - 1, by hand: 0.4 + 0.1 (0.75 - 0.4)."""
    ((_, score),) = shared_error([item("a", 0.4)], {"a": 98}, {"a": 0.25}, 1.0)
    assert 2 * score - 1 == pytest.approx(0.4 + TUNING.min_score_rate * (0.75 - 0.4))


def test_the_first_use_counts_half():
    """What an item claims of itself weighs as much as one use: alpha = 1 / (uses + 2)."""
    ((_, score),) = shared_error([item("a", 0.0)], {"a": 0}, {"a": 0.0}, 1.0)
    assert 2 * score - 1 == pytest.approx(0.5)


def test_a_bystander_of_an_explained_success_gains_nothing():
    """systems.md §7 (credit is not given to bystanders): the good item explains the outcome, no error is left."""
    both = [item("good", 0.5), item("by", 0.0)]
    moved = shared_error(both, {"good": 9, "by": 9}, {"good": 0.5, "by": 0.5}, 1.0)
    assert [score for _, score in moved] == [0.75, 0.5]


def test_a_bad_surprise_is_charged_by_promise():
    """w = (max(u, 0) + CAUTION) / sum: the item that promised most pays most."""
    moved = {
        one.id: 2 * score - 1
        for one, score in shared_error(
            [item("loud", 0.8), item("quiet", 0.0)], {"loud": 98, "quiet": 98}, {"loud": 0.2, "quiet": 0.2}, 0.0
        )
    }
    total = 0.8 + 2 * TUNING.caution
    assert moved["loud"] == pytest.approx(0.8 - TUNING.min_score_rate * (0.8 + TUNING.caution) / total)
    assert moved["quiet"] == pytest.approx(-TUNING.min_score_rate * TUNING.caution / total)


def test_no_item_no_credit():
    assert shared_error([], {}, {}, 1.0) == []


@given(
    st.lists(st.floats(-1, 1), min_size=1, max_size=6),
    st.floats(0, 1),
    st.sampled_from([0.0, 1.0]),
    st.randoms(use_true_random=False),
)
def test_the_order_in_which_items_were_shown_does_not_matter(utilities, baseline, outcome, chance):
    items = [item(f"i{n}", round(u, 3)) for n, u in enumerate(utilities)]
    uses, baselines = {one.id: 3 for one in items}, {one.id: baseline for one in items}
    shuffled = chance.sample(items, len(items))
    first = {one.id: score for one, score in shared_error(items, uses, baselines, outcome)}
    second = {one.id: score for one, score in shared_error(shuffled, uses, baselines, outcome)}
    assert first == pytest.approx(second)


def test_the_control_arm_is_the_baseline_where_there_is_one(library, episode):
    """systems.md §7.5: dR is the difference to control: no better than control is worth nothing."""
    ref = add(library, "x")
    for _ in range(3):
        library.record(replace(episode("open drawer", success=True), arm="control"))
    library.record(used(episode, [ref], True))
    assert library.items.get(ref).score == 0.5
    assert library.items.usages(ref)[0]["control_outcome"] == 1.0


def test_the_control_of_the_same_seed_comes_first(library, episode):
    """Common random numbers: the pair says more than the task."""
    ref = add(library, "x")
    library.record(replace(episode("open drawer", success=False), arm="control", seed=1))
    library.record(replace(episode("open drawer", success=True), arm="control", seed=2))
    library.record(replace(used(episode, [ref], True), arm="retrieved", seed=1))
    assert library.items.usages(ref)[0]["control_outcome"] == 0.0


def test_episodes_that_withheld_an_item_are_its_baseline(library, episode):
    """The counterfactual: it does no better than when it was held back."""
    ref = add(library, "x")
    library.record(used(episode, [], True, withheld=[ref]))
    library.record(used(episode, [], False))
    library.record(used(episode, [ref], True))
    assert library.items.get(ref).score == 0.5


def test_without_a_control_episodes_of_the_task_without_the_item_are_the_baseline(library, episode):
    """They failed, it succeeded: alpha 1/2 of a difference of 1."""
    ref = add(library, "x")
    library.record(used(episode, [], False))
    library.record(used(episode, [ref], True))
    assert library.items.get(ref).score == 0.75


def test_an_item_of_failures_ranks_below_one_of_successes(library, episode):
    """systems.md §1: an item used in 20 failures ranks below an equal item used in 20 successes."""
    good, bad = add(library, "drawer closed one"), add(library, "drawer closed two")
    for _ in range(20):
        library.record(used(episode, [good], True))
        library.record(used(episode, [bad], False))
    assert titles(library)[:1] == ["drawer closed one"]
    assert library.items.get(bad).score < 0.4 < 0.6 < library.items.get(good).score


def test_a_poisoned_item_falls_below_recall_within_ten_uses(library, episode):
    """systems.md §7.8: one false high-score item decays below retrieval after at most 10 uses."""
    for success in (True, True, False):
        library.record(used(episode, [], success))
    poison = add(library, "leave the drawer closed", score=1.0, confidence=1.0)
    assert titles(library) == ["leave the drawer closed"]
    for _ in range(10):
        library.record(used(episode, [poison], False))
    assert titles(library) == []


def test_those_recalled_beside_a_poisoned_item_stay(library, episode):
    """systems.md §7 decision 8: shown and withheld at random, the one that does harm is told from bystanders."""
    poison = add(library, "leave the drawer closed", score=1.0, confidence=1.0)
    innocent = [add(library, f"the drawer holds {thing}") for thing in ("a spoon", "two forks")]
    for _ in range(10):
        library.record(used(episode, [poison, *innocent], False))
        library.record(used(episode, innocent, True, withheld=[poison]))
    assert sorted(titles(library)) == ["the drawer holds a spoon", "the drawer holds two forks"]


def test_an_excluded_episode_moves_no_score(library, episode):
    """And leaves no usage."""
    ref = add(library, "x", score=0.8)
    library.record(used(episode, [ref], None))
    assert (library.items.get(ref).score, library.items.usages(ref)) == (0.8, [])


def test_a_pinned_item_is_scored_and_a_retired_one_is_left_alone(library, episode):
    """A pin keeps an item, not its score."""
    pinned, retired = add(library, "x", score=0.8), add(library, "y", score=0.8)
    library.items.update(pinned, pinned=True)
    library.items.retire(retired, "no")
    for ref in (pinned, retired):
        library.record(used(episode, [ref], False))
    assert library.items.get(pinned).score < 0.8 == library.items.get(retired).score


def test_usages_say_who_was_shown_what(library, episode):
    """Episode, step, mode, arm and outcome; of an item that was blocked on as well."""
    ref = add(library, "x")
    made = episode("a", "b")
    steps = [replace(step, why={"recalled": [ref], "blocked": [ref]}) for step in made.steps]
    run = library.record(replace(made, steps=tuple(steps), arm="retrieved"))
    told = [(usage["trajectory_id"], usage["t"], usage["mode"]) for usage in library.items.usages(ref)]
    assert told == [(run, 0, "recalled"), (run, 0, "blocked"), (run, 1, "recalled"), (run, 1, "blocked")]
    assert {(usage["arm"], usage["outcome"]) for usage in library.items.usages(ref)} == {("retrieved", 1.0)}


GUARDRAIL = Item("guardrail", "no opening", condition={"text": "drawer"}, forbids="open {1}", confidence=0.9)


def overridden(episode, ref, worked):
    made = episode("open drawer")
    step = made.steps[0]
    judged = replace(step.diagnosis, success=worked)
    return replace(made, steps=(replace(step, diagnosis=judged, why={"overrode": [ref]}),))


def test_a_guardrail_that_blocked_what_then_worked_twice_retires(library, episode):
    """systems.md §3: retire when the same (condition, action) succeeds twice after override; the history says so."""
    ref = library.add(GUARDRAIL).item_id
    for _ in range(TUNING.retiring_overrides - 1):
        library.record(overridden(episode, ref, worked=True))
    assert library.items.get(ref).status == "active"
    assert library.items.get(ref).confidence < GUARDRAILS.min_confidence  # from the first on it only advises
    library.record(overridden(episode, ref, worked=True))
    assert library.items.get(ref).status == "retired"
    assert "worked under override in 2 of 2 episodes" in library.items.history(ref)[-1]["detail"]["why"]
    assert library.check(DRAWER, "open drawer").allowed


def test_failures_under_override_keep_a_guardrail(library, episode):
    ref = library.add(GUARDRAIL).item_id
    for _ in range(5):
        library.record(overridden(episode, ref, worked=False))
    assert library.items.get(ref).status == "active"


def test_a_pinned_guardrail_is_not_retired_by_overrides(library, episode):
    """Only a person unpins."""
    ref = library.add(GUARDRAIL).item_id
    library.items.update(ref, pinned=True)
    for _ in range(3):
        library.record(overridden(episode, ref, worked=True))
    assert library.items.get(ref).status == "active"


def test_a_skill_is_as_sure_as_its_own_criteria_were_met(library, episode):
    """systems.md §3: a run that fails verification is a failure of the skill even if the episode succeeded."""
    ref = library.add(Item("skill", "open the drawer", steps=("open drawer",), confidence=0.9)).item_id
    made = episode("open drawer", success=True)
    followed = replace(made, steps=tuple(replace(step, why={"skill": ref}) for step in made.steps))
    library.record(replace(followed, meta={"skills": {ref: False}}))
    assert library.items.get(ref).confidence == pytest.approx(0.45)
    assert [(usage["mode"], usage["outcome"]) for usage in library.items.usages(ref)] == [("followed", 0.0)]


def test_usefulness_needs_both_shown_and_withheld(library, episode):
    """systems.md §7.7: E[R | show] - E[R | hide], never from co-occurrence."""
    ref = add(library, "x")
    library.record(used(episode, [ref], True))
    assert library.items.usefulness(ref)["difference"] is None


def test_usefulness_is_the_difference_with_an_interval(library, episode):
    """Shown 3 of 4, withheld 1 of 4: 0.5, and the interval holds it."""
    ref = add(library, "x")
    for won in (True, True, True, False):
        library.record(used(episode, [ref], won))
        library.record(used(episode, [], not won, withheld=[ref]))
    known = library.items.usefulness(ref)
    assert (known["shown"], known["withheld"], known["difference"]) == (4, 4, 0.5)
    assert -1.0 <= known["low"] < 0.5 < known["high"] <= 1.0


def test_usefulness_compares_episodes_with_the_same_chance_of_withholding(library, path, episode):
    """In use 1 of 2 shown, 0 of 1 withheld; masked 1 of 1 and 2 of 3: gains, where the sums show none."""
    ref = add(library, "x")
    for won in (True, False):
        library.record(used(episode, [ref], won))
    library.record(used(episode, [], False, withheld=[ref]))
    library.record(used(episode, [ref], True, masked=[ref]))
    for won in (True, True, False):
        library.record(used(episode, [], won, withheld=[ref], masked=[ref]))
    known = library.items.usefulness(ref)
    assert (known["shown"], known["withheld"]) == (3, 4)
    # by hand: 1/2 - 0 and 1 - 2/3, weighted by the inverse of the variances of the smoothed rates
    v = 0.25 / 2 + (1 / 3) * (2 / 3), (2 / 3) * (1 / 3) + 0.6 * 0.4 / 3
    assert known["difference"] == pytest.approx((1 / 2 / v[0] + 1 / 3 / v[1]) / (1 / v[0] + 1 / v[1]))
    assert library.admin.query(measure_items)[ref].items() >= known.items()
    modes = Counter(usage["mode"] for usage in library.items.usages(ref))
    assert modes == {"recalled": 3, "withheld": 4, "masked": 4}
    assert count_uses(library, [library.items.get(ref)]) == [3]
    library.admin.export_jsonl(path.with_suffix(".jsonl"))
    with ExperienceLibrary.open(path.with_name("other.db")) as other:
        other.admin.import_jsonl(path.with_suffix(".jsonl"))
        assert other.items.usefulness(ref) == known
        assert other.admin.verify() == []


def test_a_late_grade_reaches_the_usages_of_a_masked_item(library, episode):
    """Its effect compares outcomes by these rows."""
    ref = add(library, "x")
    graded = library.record(used(episode, [], True, withheld=[ref], masked=[ref]))
    library.grade(graded, success=False)
    assert {(usage["mode"], usage["outcome"]) for usage in library.items.usages(ref)} == {
        ("withheld", 0.0),
        ("masked", 0.0),
    }


def test_a_forgotten_episode_that_withheld_a_masked_item_was_no_use_of_it(library, episode):
    """Three uses are left, in the file as in the counts that `verify` makes anew."""
    ref = add(library, "x")
    for _ in range(3):
        library.record(used(episode, [ref], True))
    gone = library.record(used(episode, [], True, withheld=[ref], masked=[ref]))
    (before,) = library._file.store.rows("SELECT uses FROM items WHERE id = ?", (ref,))
    library.admin.forget(episode=gone)
    assert library._file.store.rows("SELECT uses FROM items WHERE id = ?", (ref,)) == [before] == [(3,)]


def test_control_episodes_of_another_namespace_are_no_baseline(library, path, episode):
    """Two customers with the same task and seed: the control arm of one says nothing of the other."""
    ref = add(library, "x")
    with ExperienceLibrary.open(path, namespace="another customer") as other:
        for _ in range(3):
            other.record(replace(episode("open drawer", success=True), arm="control", seed=1))
    library.record(replace(used(episode, [ref], True), seed=1))
    assert library.items.usages(ref)[0]["control_outcome"] is None
    assert library.items.get(ref).score > 0.5


def test_episodes_of_another_namespace_do_not_count_for_the_task(library, path, episode):
    """Where nothing is known of an item, the task's own share of successes is its baseline."""
    ref = add(library, "x")
    with ExperienceLibrary.open(path, namespace="another customer") as other:
        for _ in range(8):
            other.record(used(episode, [], False))
    library.record(used(episode, [ref], True))
    alone = library.items.get(ref).score
    with ExperienceLibrary.open(path, namespace="without the other") as apart:
        same = add(apart, "x")
        apart.record(used(episode, [same], True))
        assert alone == apart.items.get(same).score


def test_the_control_arm_comes_before_other_episodes_without_the_item(library, episode):
    """Control says 1, other episodes without the item say 0: a success is then worth nothing."""
    ref = add(library, "x")
    library.record(replace(episode("open drawer", success=True), arm="control"))
    for _ in range(3):
        library.record(used(episode, [], False))
    library.record(used(episode, [ref], True))
    assert library.items.get(ref).score == 0.5


@pytest.mark.parametrize(("measure", "better", "worse"), [("score", 0.9, 0.1), ("reward", 0.6, 0.2)])
def test_a_graded_outcome_credits_items_where_no_episode_succeeds(library, episode, measure, better, worse):
    """`meta["outcome"]` names the figure: without it, episodes that all fail teach nothing."""

    def graded(refs, value, **changes):
        made = used(episode, refs, False)
        steps = tuple(replace(step, reward=value / len(made.steps)) for step in made.steps)
        meta = {**made.meta, "outcome": measure}
        return replace(made, steps=steps, score=value, meta=meta, **changes)

    good, bad = add(library, "look behind the drawer"), add(library, "shake the cupboard twice")
    for seed in range(6):
        library.record(graded((), (better + worse) / 2, arm="control", seed=seed))
        library.record(graded((good,), better, seed=seed))
        library.record(graded((bad,), worse, seed=seed))
    assert library.items.get(bad).score < 0.5 < library.items.get(good).score


def test_an_outcome_is_bounded_and_success_unless_the_episode_says_otherwise(episode):
    made = replace(episode("open drawer", success=True), score=0.25)
    assert made.outcome == 1.0
    assert replace(made, meta={"outcome": "score"}).outcome == 0.25
    assert replace(made, meta={"outcome": "score"}, score=7.0).outcome == 1.0
    assert replace(made, meta={"outcome": "anything"}, success=False).outcome == 0.0
    assert replace(made, meta={"outcome": "score"}, success=None).outcome is None


def test_the_interval_of_a_difference_in_unequal_arms():
    """Worked example: 3 of 4 with the item, 2 of 10 without; smoothed shares 4/6 and 3/12."""
    known = estimate_difference({("recalled", False): (4, 0.75), ("withheld", False): (10, 0.2)})
    margin = 1.96 * math.sqrt(4 / 6 * 2 / 6 / 4 + 1 / 4 * 3 / 4 / 10)
    assert known["difference"] == pytest.approx(0.55)
    assert known["low"] == pytest.approx(0.55 - margin)
    assert known["high"] == 1.0
    arms = {("recalled", True): (10, 0.2), ("withheld", True): (4, 0.75)}
    assert estimate_difference(arms)["high"] == pytest.approx(margin - 0.55)
