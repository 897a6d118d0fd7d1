"""Each estimator: the closed form by hand, invariances, and what it does with nothing to compare."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st
from tests.trainers.methods.traces import batches, close, few, strip

from hardwon.trainers.algorithms.advantages import Trace, Turn, compute_spread, group_siblings
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.signals import UnfedSignal, count_missing
from hardwon.trainers.methods.gigpo import gigpo
from hardwon.trainers.methods.grpo import grpo
from hardwon.trainers.methods.hgpo import hgpo
from hardwon.trainers.methods.salt import salt

GAMMA = 0.95


def trace(name, outcome, *anchors, rewards=None, **fields):
    """A trace through these anchors; its last turn is rewarded with the outcome unless told otherwise."""
    paid = rewards or [0.0] * (len(anchors) - 1) + [outcome]
    turns = tuple(Turn(reward, anchor, f"act {anchor}") for reward, anchor in zip(paid, anchors, strict=True))
    return Trace(name, fields.pop("group", "g"), turns, outcome, **fields)


every = pytest.mark.parametrize("name", sorted(PARTS.list_cards("estimator")))


@every
@few
@given(batch=batches, chance=st.randoms(use_true_random=False))
def test_the_order_of_traces_does_not_matter(name, batch, chance):
    close(PARTS.get("estimator", name)(batch), PARTS.get("estimator", name)(chance.sample(batch, len(batch))))


@every
@few
@given(batch=batches)
def test_a_trace_listed_twice_counts_once(name, batch):
    """Copies made to fill a batch must not move a baseline."""
    close(PARTS.get("estimator", name)(batch), PARTS.get("estimator", name)([*batch, *batch[:2]]))


@every
@few
@given(batch=batches)
def test_a_lone_trace_gets_nothing(name, batch):
    """Nothing to compare with: 0. EMPG and SPAE pay turns for what they are; ExpRL and ArCHer compare none."""
    lone = batch[0]
    if name in ("exprl", "archer"):
        return
    if name in ("empg", "spae", "hgpo", "gigpo", "slea"):
        # a trace may come to one anchor twice
        signals = {key: values[:1] for key, values in lone.signals.items()}
        lone = replace(lone, turns=lone.turns[:1], signals=signals, tags=lone.tags[:1])
    assert PARTS.get("estimator", name)([lone]) == {lone.id: pytest.approx([0.0] * len(lone.turns))}


fed = pytest.mark.parametrize(
    "name", sorted(name for name in PARTS.list_cards("estimator") if PARTS.find("estimator", name).needs)
)


@fed
@few
@given(batch=batches)
def test_a_signal_that_no_source_gives_is_refused(name, batch):
    if PARTS.find("estimator", name).needs == ("tags",):
        return  # tags are optional for every turn; the settings refuse a run without a source of them
    for missing in PARTS.find("estimator", name).needs:
        unfed = [replace(one, signals={k: v for k, v in one.signals.items() if k != missing}) for one in batch]
        with pytest.raises(UnfedSignal, match=f"no signal '{missing}'.*roles.policy.sources"):
            PARTS.get("estimator", name)(unfed)


@fed
@few
@given(batch=batches)
def test_turns_about_which_nothing_is_known_change_nobody_else(name, batch):
    """None leaves every mean: a trace with nothing known moves only the comparison of outcomes."""
    if name in ("empg", "rlvmr", "decs", "checklist", "spae", "igpo", "preference", "hae"):
        return  # EMPG and SPAE take a last mean over all turns, preferences one over pairs; others have no None
    silent = replace(strip(batch[0], *PARTS.find("estimator", name).needs), id="silent")
    other = replace(silent, turns=silent.turns[:1], signals={k: v[:1] for k, v in silent.signals.items()})
    one, two = PARTS.get("estimator", name)([*batch, silent]), PARTS.get("estimator", name)([*batch, other])
    close(
        {key: value for key, value in one.items() if key != "silent"}, {k: v for k, v in two.items() if k != "silent"}
    )


@every
@few
@given(batch=batches, by=st.sampled_from([("arm", "retrieved"), ("role", "extractor"), ("group", "h")]))
def test_other_arms_roles_and_groups_change_nothing(name, batch, by):
    """systems.md §5: advantages of one kind are unchanged when the other kind's rewards shift by 10."""
    field, value = by
    own = [one for one in batch if getattr(one, field) != value]
    shifted = [replace(one, outcome=one.outcome + 10) if getattr(one, field) == value else one for one in batch]
    if name in (
        "empg",
        "lite",
        "spae",
    ):  # its scale is of the batch: rewards of others move none of it but the last mean
        return
    before, after = PARTS.get("estimator", name)(batch), PARTS.get("estimator", name)(shifted)
    close({one.id: before[one.id] for one in own}, {one.id: after[one.id] for one in own})


@every
@few
@given(batch=batches)
def test_there_is_one_finite_number_a_turn(name, batch):
    found = PARTS.get("estimator", name)(batch)
    assert {one.id: len(one.turns) for one in batch} == {key: len(values) for key, values in found.items()}
    assert all(math.isfinite(value) for values in found.values() for value in values)


def test_grpo_by_hand():
    """Outcomes 1, 0, 0, 1: mean 1/2, unbiased std sqrt(1/3)."""
    found = grpo([trace(f"{n}", r, "x") for n, r in enumerate([1.0, 0.0, 0.0, 1.0])])
    assert [found[str(n)][0] for n in range(4)] == pytest.approx(
        [x / math.sqrt(1 / 3) for x in (0.5, -0.5, -0.5, 0.5)], rel=1e-5
    )


def test_equal_outcomes_teach_nothing():
    assert set(map(tuple, grpo([trace("a", 1.0, "x"), trace("b", 1.0, "y")]).values())) == {(0.0,)}


def test_length_does_not_weigh():
    """4 wins of 10 turns and 4 losses of 50: +0.5 and -0.5, not +0.83 and -0.17."""
    batch = [trace(f"w{n}", 1.0, *"x" * 10) for n in range(4)] + [trace(f"l{n}", 0.0, *"x" * 50) for n in range(4)]
    found = PARTS.get("estimator", "dr-grpo")(batch)
    assert (found["w0"][0], found["l0"][0]) == (0.5, -0.5)


def test_rloo_by_hand():
    """R minus the mean of the others: 1 - 1/3, 0 - 2/3."""
    found = PARTS.get("estimator", "rloo")([trace(f"{n}", r, "x") for n, r in enumerate([1.0, 0.0, 0.0, 1.0])])
    assert [found[str(n)][0] for n in range(4)] == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])


def test_loop_by_hand():
    """LOOP: 1, 0, 0, 0 gives 1 and three times -1/3; a constant added to all changes nothing."""
    rloo = PARTS.get("estimator", "rloo")
    for constant in (0.0, 7.0):
        found = rloo([trace(f"{n}", r + constant, "x") for n, r in enumerate([1.0, 0.0, 0.0, 0.0])])
        assert [found[str(n)][0] for n in range(4)] == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])
    assert rloo([trace("a", 1.0, "x")]) == {"a": [0.0]}


def test_one_success_among_four_by_hand():
    """GHPO at its last level, and a stored success in a failed group: 1.5 and three times -.5."""
    found = grpo([trace(f"{n}", r, "x") for n, r in enumerate([1.0, 0.0, 0.0, 0.0])])
    assert [found[str(n)][0] for n in range(4)] == pytest.approx([1.5, -0.5, -0.5, -0.5], rel=1e-5)


@pytest.mark.parametrize("constant", [0.0, 3.0])
def test_slate_by_hand(constant):
    """Candidates of one step with the judgments -1, 0, 1: -1, 0, 1 in sd units; equal judgments: 0."""
    batch = [trace(f"{n}", r + constant, "x", root="r") for n, r in enumerate([-1.0, 0.0, 1.0])]
    assert [own[0] for own in grpo(batch).values()] == pytest.approx([-1, 0, 1], abs=1e-5)
    equal = [replace(one, outcome=1.0) for one in batch]
    assert {value for own in grpo(equal).values() for value in own} == {0.0}


def test_episodes_that_began_in_another_way_are_no_siblings():
    """A trace that began after a prefix is no baseline of a whole one."""
    plain = [trace("a", 1.0, "x"), trace("b", 0.0, "x")]
    late = [trace("c", 1.0, "x", root="r"), trace("d", 1.0, "x", root="r")]
    for name in ("grpo", "hdpo", "gigpo", "salt", "rloo"):
        together = PARTS.get("estimator", name)([*plain, *late])
        close({key: together[key] for key in "ab"}, PARTS.get("estimator", name)(plain))


def test_reinforce_by_hand():
    """Returns to go against the group's mean return (2 + 1) / 2."""
    found = PARTS.get("estimator", "reinforce")(
        [trace("a", 1.0, "x", "y", rewards=[1, 1]), trace("b", 1.0, "x", "y", rewards=[0, 1])]
    )
    assert found == {"a": [0.5, -0.5], "b": [-0.5, -0.5]}


FOUR = [
    trace("a", 1.0, "s", "u"),
    trace("b", 1.0, "s", "v"),
    trace("c", 0.0, "s", "w"),
    trace("d", 0.0, "s", "z"),
]


def test_step_credit_equals_the_closed_form():
    """systems.md §1: a hand-made 4-trajectory group with one shared state; a singleton state gets A_S = 0."""
    found = gigpo(FOUR)
    shared = [GAMMA, GAMMA, 0.0, 0.0]
    for one, value in zip(FOUR, shared, strict=True):
        a_e, a_s = one.outcome - 0.5, value - GAMMA / 2
        assert found[one.id] == pytest.approx([a_e + a_s, a_e], abs=1e-6)


def test_omega_weighs_step_credit():
    assert gigpo(FOUR, omega=0.0) == PARTS.get("estimator", "dr-grpo")(FOUR)


def test_slea_is_the_episode_and_step_advantage_of_means():
    """systems.md §1 step 7."""
    assert PARTS.get("estimator", "slea")(FOUR) == gigpo(FOUR)


def test_memory_shown_is_part_of_the_anchor():
    """The same situation with other memory is another anchor: nothing is compared."""
    one, other = trace("a", 1.0, "s|m1"), trace("b", 0.0, "s|m2")
    assert gigpo([one, other]) == PARTS.get("estimator", "dr-grpo")([one, other])


def test_hgpo_by_hand():
    """Two traces share s, then differ: level 0 at s alone; weights 1:2:3 over all levels."""
    one, other = trace("a", 1.0, "s", "u"), trace("b", 0.0, "s", "v")
    first = GAMMA / 2 / math.sqrt(GAMMA**2 / 2)
    found = hgpo([one, other], history=2)
    assert found["a"] == pytest.approx([first / 6, 0.0], rel=1e-5)


def test_hgpo_compares_more_where_more_history_is_shared():
    one, other = trace("a", 1.0, "r", "s"), trace("b", 0.0, "r", "s")
    level = 0.5 / math.sqrt(0.5)
    assert hgpo([one, other], history=1)["a"][1] == pytest.approx(level, rel=1e-5)


def test_salt_makes_shared_edges_neutral():
    """The first step is shared by win and loss: 0; the second is their own."""
    one, other = trace("a", 1.0, "s", "t", "u"), trace("b", 0.0, "s", "t", "v")
    found, own = salt([one, other]), grpo([one, other])
    assert found["a"] == pytest.approx([0.0, own["a"][1], own["a"][2]])


def test_hgpo_without_history_is_the_step_part_of_gigpo():
    """gigpo(std) - hgpo(history=0) = grpo."""
    whole, step, episode = gigpo(FOUR, std=True), hgpo(FOUR, history=0), grpo(FOUR)
    for one in FOUR:
        differences = [a - b for a, b in zip(whole[one.id], step[one.id], strict=True)]
        assert differences == pytest.approx(episode[one.id], abs=1e-6)


def test_hgpo_needs_the_episode_term_where_no_state_is_shared():
    apart = [trace("a", 1.0, "r"), trace("b", 0.0, "s")]
    assert hgpo(apart) == {"a": [0.0], "b": [0.0]}
    close(hgpo(apart, episode=1.0), grpo(apart))


def test_hgpo_does_not_change_with_the_names_of_anchors():
    renamed = [replace(one, turns=tuple(replace(t, anchor=f"<{t.anchor}>") for t in one.turns)) for one in FOUR]
    close(hgpo(FOUR), hgpo(renamed))


def test_salt_of_equal_traces_with_equal_outcomes_is_zero():
    batch = [trace(name, 1.0, "s", "t") for name in "abc"]
    assert set(map(tuple, salt(batch).values())) == {(0.0, 0.0)}


def test_siblings_are_of_one_group_role_and_arm():
    batch = [
        trace("a", 1, "x"),
        trace("b", 1, "x", arm="retrieved"),
        trace("c", 1, "x", role="guide"),
        trace("d", 1, "x"),
    ]
    assert [[one.id for one in group] for group in group_siblings(batch)] == [["a", "d"], ["b"], ["c"]]


def test_the_spread_is_over_all_turns_of_a_batch():
    assert compute_spread({"a": [1.0, -1.0], "b": [], "c": [1.0, -1.0]}) == 1.0
    assert compute_spread({}) == 0.0


def test_a_turn_of_which_nothing_is_known_is_missing():
    assert [count_missing(values) for values in ((None, 0.0, None), (0.5,), ())] == [2, 0, 0]
