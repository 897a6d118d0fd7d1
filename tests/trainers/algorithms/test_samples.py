from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from hardwon.memory import Diagnosis, State, Step, Trajectory
from hardwon.trainers.algorithms.samples import Rollout, Sample, compute_anchor, micro_batches, pack_samples, to_trace
from hardwon.trainers.methods.gigpo import gigpo


def row(prompt, completion, **fields):
    n = len(completion)
    known = {"role": "policy", "version": 1, "arm": "control", "snapshot": "s", "anchor": "a", "trace": "t", "turn": 0}
    return Sample(tuple(prompt), tuple(completion), (-1.0,) * n, (True,) * n, (None,) * n, **{**known, **fields})


def test_rows_that_extend_each_other_are_read_once():
    """Prompt 1 2, answer 3; then 4 was shown and 5 answered: five tokens, two of them trained on."""
    (one,) = pack_samples([row([1, 2], [3]), row([1, 2, 3, 4], [5], turn=1)], {"t": [0.5, -0.5]})
    assert one.tokens == (1, 2, 3, 4, 5)
    assert one.mask == (False, False, True, False, True)
    assert one.advantages == (0.0, 0.0, 0.5, 0.0, -0.5)


@pytest.mark.parametrize(
    "other",
    [
        row([1, 9, 3], [5], turn=1),
        row([1, 2], [5], turn=1),
        row([1, 2, 3, 4], [5], turn=1, version=2),
        row([1, 2, 3, 4], [5], turn=0, role="extractor"),
    ],
)
def test_other_rows_stay_apart(other):
    """A rewritten prompt, another version or another role is another stream."""
    assert len(pack_samples([row([1, 2], [3]), other], {"t": [0.5, -0.5]})) == 2


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 9), max_size=3), st.lists(st.integers(0, 9), min_size=1, max_size=3)),
        min_size=1,
    )
)
def test_no_sampled_token_is_lost_or_doubled(turns):
    """Whatever was shown between, each completion token is trained on exactly once, under its own advantage."""
    rows, seen = [], []
    for number, (shown, said) in enumerate(turns):
        seen += shown
        rows.append(row(seen, said, turn=number))
        seen = seen + said
    (one,) = pack_samples(rows, {"t": [float(n) for n in range(len(rows))]})
    trained = [(token, a) for token, m, a in zip(one.tokens, one.mask, one.advantages, strict=True) if m]
    assert trained == [(token, float(n)) for n, (_, said) in enumerate(turns) for token in said]


def test_a_row_whose_parts_differ_in_length_is_refused():
    with pytest.raises(ValueError, match="differ in length"):
        replace(row([1], [2]), logprobs=())


def test_the_anchor_holds_the_memory_shown():
    assert compute_anchor("s", None) == compute_anchor("s", "") == "s"
    assert len({compute_anchor("s", "a"), compute_anchor("s", "b"), compute_anchor("s", None)}) == 3


def test_a_rollout_becomes_a_trace():
    """Rewards, anchors and what was taken before, turn by turn."""
    fine = Diagnosis(True)
    steps = tuple(
        Step(State(f"{t}"), a, State(f"{t + 1}"), fine, r, t) for t, (a, r) in enumerate([("x", 0.0), ("x", 1.0)])
    )
    trajectory = Trajectory("task", steps, True, arm="retrieved", id="t")
    rows = (row([1], [2], arm="retrieved", anchor="p"), row([1, 2], [3], arm="retrieved", anchor="q", turn=1))
    trace = to_trace(Rollout(trajectory, rows, "g"))
    assert [(turn.reward, turn.anchor, turn.novel) for turn in trace.turns] == [(0.0, "p", True), (1.0, "q", False)]
    assert (trace.id, trace.group, trace.arm, trace.outcome) == ("t", "g", "retrieved", 1.0)
    assert gigpo([trace]) == {"t": [0.0, 0.0]}


def test_speech_and_the_action_after_it_are_one_turn():
    """Two samples of one step share an advantage, and what follows keeps its own."""
    rows = [row([1], [2]), row([1, 2], [3]), row([1, 2, 3], [4], turn=1)]
    (one,) = pack_samples(rows, {"t": [0.5, -0.5]})
    assert one.advantages == (0.0, 0.5, 0.5, -0.5)
    assert one.turns == (0, 0, 0, 1)
    steps = tuple(Step(State(f"{t}"), a, State(f"{t + 1}"), Diagnosis(True), 0.0, t) for t, a in enumerate("xy"))
    trace = to_trace(Rollout(Trajectory("task", steps, True, id="t"), tuple(rows), "g"))
    assert [(turn.action, turn.tokens) for turn in trace.turns] == [("x", 2), ("y", 1)]


def part(n):
    (made,) = pack_samples([row([0] * (n - 1), [1])], {"t": [1.0]})
    return made


@given(st.lists(st.integers(1, 30), min_size=1), st.integers(1, 60))
def test_micro_batches_keep_the_budget_and_lose_nothing(lengths, budget):
    batches = micro_batches([part(n) for n in lengths], budget)
    assert sorted(len(one) for batch in batches for one in batch) == sorted(lengths)
    assert all(len(batch) == 1 or len(batch) * max(map(len, batch)) <= budget for batch in batches)
