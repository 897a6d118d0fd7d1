"""Each estimator: the closed form by hand, invariances, and what it does with nothing to compare."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from hardwon.trainers.algorithms.advantages import (
    ESTIMATORS,
    Trace,
    Turn,
    gigpo,
    group_siblings,
    grpo,
    hgpo,
    rlvmr,
    salt,
)

GAMMA = 0.95


def trace(name, outcome, *anchors, rewards=None, **fields):
    """A trace through these anchors; its last turn is rewarded with the outcome unless told otherwise."""
    paid = rewards or [0.0] * (len(anchors) - 1) + [outcome]
    turns = tuple(Turn(reward, anchor, f"act {anchor}") for reward, anchor in zip(paid, anchors, strict=True))
    return Trace(name, fields.pop("group", "g"), turns, outcome, **fields)


turns = st.builds(
    Turn,
    reward=st.floats(-1, 1).map(lambda x: round(x, 3)),
    anchor=st.sampled_from("xyz"),
    action=st.sampled_from("abc"),
    entropy=st.floats(0, 2).map(lambda x: round(x, 3)),
    valid=st.booleans(),
    novel=st.booleans(),
    answer_probability=st.floats(0, 1).map(lambda x: round(x, 3)),
    contribution=st.floats(-1, 1).map(lambda x: round(x, 3)),
    tag=st.sampled_from(["", "planning", "explore", "reflection"]),
)
batches = st.lists(
    st.tuples(
        st.sampled_from(["g", "h"]),
        st.lists(turns, min_size=1, max_size=4),
        st.sampled_from([0.0, 0.5, 1.0]),
        st.sampled_from(["policy", "extractor"]),
        st.sampled_from(["control", "retrieved"]),
    ),
    min_size=1,
    max_size=7,
).map(lambda rows: [Trace(f"t{n}", g, tuple(ts), r, role, arm) for n, (g, ts, r, role, arm) in enumerate(rows)])
every = pytest.mark.parametrize("name", sorted(ESTIMATORS))


def close(a, b):
    assert a.keys() == b.keys()
    for key in a:
        assert a[key] == pytest.approx(b[key], abs=1e-9)


@every
@given(batch=batches, chance=st.randoms(use_true_random=False))
def test_the_order_of_traces_does_not_matter(name, batch, chance):
    close(ESTIMATORS[name](batch), ESTIMATORS[name](chance.sample(batch, len(batch))))


@every
@given(batch=batches)
def test_a_trace_listed_twice_counts_once(name, batch):
    """Copies made to fill a batch must not move a baseline."""
    close(ESTIMATORS[name](batch), ESTIMATORS[name]([*batch, *batch[:2]]))


@every
@given(batch=batches)
def test_a_lone_trace_gets_nothing(name, batch):
    """Nothing to compare with: 0. EMPG and RLVMR pay turns by what they are as well."""
    lone = batch[0]
    if name in ("empg", "rlvmr"):
        lone = replace(lone, turns=tuple(replace(turn, entropy=0.0, tag="") for turn in lone.turns[:1]))
    if name in ("hgpo", "gigpo", "slea"):
        lone = replace(lone, turns=lone.turns[:1])  # a trace may come to one anchor twice
    assert ESTIMATORS[name]([lone]) == {lone.id: pytest.approx([0.0] * len(lone.turns))}


@every
@given(batch=batches, by=st.sampled_from([("arm", "retrieved"), ("role", "extractor"), ("group", "h")]))
def test_other_arms_roles_and_groups_change_nothing(name, batch, by):
    """systems.md §5: advantages of one kind are unchanged when the other kind's rewards shift by 10."""
    field, value = by
    own = [one for one in batch if getattr(one, field) != value]
    shifted = [replace(one, outcome=one.outcome + 10) if getattr(one, field) == value else one for one in batch]
    if name == "empg":  # its scale is of the batch: rewards of others move none of it but the last mean
        return
    before, after = ESTIMATORS[name](batch), ESTIMATORS[name](shifted)
    close({one.id: before[one.id] for one in own}, {one.id: after[one.id] for one in own})


@every
@given(batch=batches)
def test_there_is_one_finite_number_a_turn(name, batch):
    found = ESTIMATORS[name](batch)
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
    found = ESTIMATORS["dr-grpo"](batch)
    assert (found["w0"][0], found["l0"][0]) == (0.5, -0.5)


def test_rloo_by_hand():
    """R minus the mean of the others: 1 - 1/3, 0 - 2/3."""
    found = ESTIMATORS["rloo"]([trace(f"{n}", r, "x") for n, r in enumerate([1.0, 0.0, 0.0, 1.0])])
    assert [found[str(n)][0] for n in range(4)] == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])


def test_reinforce_by_hand():
    """Returns to go against the group's mean return (2 + 1) / 2."""
    found = ESTIMATORS["reinforce"](
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
    assert gigpo(FOUR, omega=0.0) == ESTIMATORS["dr-grpo"](FOUR)


def test_slea_is_the_episode_and_step_advantage_of_means():
    """systems.md §1 step 7."""
    assert ESTIMATORS["slea"](FOUR) == gigpo(FOUR)


def test_memory_shown_is_part_of_the_anchor():
    """The same situation with other memory is another anchor: nothing is compared."""
    one, other = trace("a", 1.0, "s|m1"), trace("b", 0.0, "s|m2")
    assert gigpo([one, other]) == ESTIMATORS["dr-grpo"]([one, other])


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


def test_empg_by_hand():
    """One turn each; entropies 0 and 1: g = exp(-h) / mean; then centred."""
    a = Trace("a", "g", (Turn(entropy=0.0),), 1.0)
    b = Trace("b", "g", (Turn(entropy=1.0),), 0.0)
    mean = (1 + math.exp(-1)) / 2
    base = 0.5 / math.sqrt(0.5)
    raw = [base / mean, -base * math.exp(-1) / mean]
    found = ESTIMATORS["empg"]([a, b])
    assert [found["a"][0], found["b"][0]] == pytest.approx([x - sum(raw) / 2 for x in raw], rel=1e-5)


@pytest.mark.parametrize(
    ("tag", "good", "bad"),
    [("planning", {}, {}), ("explore", {"novel": True}, {"novel": False})],
)
def test_rlvmr_pays_tags_by_rule(tag, good, bad):
    one, other = Trace("a", "g", (Turn(tag=tag, **good),), 1.0), Trace("b", "g", (Turn(tag=tag, **bad),), 0.0)
    found = rlvmr([one, other], share=1.0)
    assert found["a"][0] == pytest.approx(0.5 / math.sqrt(0.5), rel=1e-5)
    assert found["b"][0] == pytest.approx(-found["a"][0])


def test_rlvmr_pays_reflection_after_an_invalid_action():
    def two(name, second):
        return Trace(name, "g", (Turn(action="x", valid=False), Turn(action=second, tag="reflection")), 0.0)

    found = rlvmr([two("a", "y"), two("b", "x")], share=1.0)
    assert found["a"][1] > 0 > found["b"][1]


def test_spa_redistributes_the_outcome():
    """c = (.5, 0), R = 1: the rest .5 is spread evenly, r = (.75, .25); against a sibling of zeros."""
    one = Trace("a", "g", (Turn(contribution=0.5), Turn()), 1.0)
    other = Trace("b", "g", (Turn(), Turn()), 0.0)
    found = ESTIMATORS["spa"]([one, other], grounding=0.0)
    assert found == {"a": [0.5, 0.125], "b": [-0.5, -0.125]}


def test_igpo_by_hand():
    """Gains .2 - 0 and then the outcome; all four rewards standardised together before discounting."""
    one = Trace("a", "g", (Turn(answer_probability=0.2), Turn(answer_probability=0.9)), 1.0)
    other = Trace("b", "g", (Turn(answer_probability=0.0), Turn(answer_probability=0.1)), 0.0)
    rewards = [0.2, 1.0, 0.0, 0.0]
    mean = sum(rewards) / 4
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / 3)
    z = [(r - mean) / std for r in rewards]
    assert ESTIMATORS["igpo"]([one, other])["a"] == pytest.approx([z[0] + z[1], z[1]], rel=1e-4)


def test_siblings_are_of_one_group_role_and_arm():
    batch = [
        trace("a", 1, "x"),
        trace("b", 1, "x", arm="retrieved"),
        trace("c", 1, "x", role="guide"),
        trace("d", 1, "x"),
    ]
    assert [[one.id for one in group] for group in group_siblings(batch)] == [["a", "d"], ["b"], ["c"]]
