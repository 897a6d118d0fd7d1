"""What is imitated, how it is shown, and that it is learnt."""

import io
import random
import re
from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest
import torch

from hardwon.memory import Diagnosis, Failure, State, Step, Trajectory
from hardwon.memory.errors import CannotLearn
from hardwon.trainers.algorithms import learner, logprobs
from hardwon.trainers.algorithms.imitation import (
    Examples,
    Imitation,
    WarmStart,
    WarmStartProgress,
    build_examples,
    iterate_batches,
    make_updates,
)
from hardwon.trainers.algorithms.samples import Sample
from hardwon.trainers.models.tiny import TinyConfig, build_model

BAD = Diagnosis(False, Failure.NO_EFFECT)
GOOD = Diagnosis(True, Failure.NONE)
MEMORY = 9


def walk(*places, id="a", success=True, failed=()):
    """A trajectory through these places; the action is to go to the next. Steps in `failed` were refused."""
    states = [State(f"place {place}") for place in places]
    steps = tuple(
        Step(pre, f"go {place}", post, BAD if t in failed else GOOD, t=t)
        for t, (pre, post, place) in enumerate(zip(states, states[1:], places[1:], strict=False))
    )
    return Trajectory("walk", steps, success, id=id)


def render(trajectory, memory):
    """A token for each place, then a verb (forced) and the place to go to, which has one alternative."""
    said = (MEMORY,) if memory else ()
    rows = []
    for t, step in enumerate(trajectory.steps):
        prompt = (*said, 10 + int(step.pre.observation[6:]))
        goal = 10 + int(step.action[3:])
        forced, choice = (8,), (goal, 30)
        rows.append(
            Sample(
                prompt, (8, goal), (0.0, 0.0), (False, True), (forced, choice), "policy", 0, "control", "", "", "x", t
            )
        )
        said = (*prompt, 8, goal)
    return rows


def goals(streams):
    return [[token for token, counts in zip(s.tokens, s.mask, strict=True) if counts and token != 8] for s in streams]


def test_only_successes_are_imitated():
    """A failure, and an episode that the environment broke off, are left out."""
    found = build_examples([walk(1, 2), walk(1, 3, success=False), walk(1, 4, success=None)], render)
    assert goals(found) == [[12]]


def test_failures_are_imitated_where_asked_and_excluded_ones_never():
    settings = Examples(failures=True)
    assert len(build_examples([walk(1, 3, success=False), walk(1, 4, success=None)], render, settings)) == 1


def test_refused_steps_are_dropped():
    assert goals(build_examples([walk(1, 1, 2, failed={0})], render)) == [[12]]


def test_circles_are_erased():
    """1 2 3 2 4: what led back to 2 is not imitated."""
    assert goals(build_examples([walk(1, 2, 3, 2, 4)], render)) == [[12, 14]]


def test_long_ones_are_left_out_once_cleaned():
    settings = Examples(max_turns=2)
    assert goals(build_examples([walk(1, 2, 3, 4), walk(1, 2, 3, 2, 4)], render, settings)) == [[12, 14]]


def test_memory_is_shown_in_its_share_of_the_copies():
    """7 of 10, with nothing of it in the others."""
    found = build_examples([walk(1, 2)], render, Examples(copies=10), memory=lambda _: "go 2")
    assert Counter(stream.tokens[0] for stream in found) == {MEMORY: 7, 11: 3}


def test_the_remainder_of_the_share_is_drawn():
    many = [walk(1, 2, id=str(n)) for n in range(400)]
    found = build_examples(many, render, Examples(memory_share=0.3), memory=lambda _: "go 2")
    assert 80 < sum(stream.tokens[0] == MEMORY for stream in found) < 160
    assert found == build_examples(many, render, Examples(memory_share=0.3), memory=lambda _: "go 2")


def test_without_a_memory_every_copy_is_without():
    assert all(stream.tokens[0] == 11 for stream in build_examples([walk(1, 2)], render, Examples(copies=3)))


def test_memory_is_context_and_not_learnt():
    (found,) = build_examples([walk(1, 2)], render, Examples(memory_share=1), memory=lambda _: "go 2")
    assert found.mask == (False, False, True, True)


def test_copies_are_traces_of_their_own():
    found = build_examples([walk(1, 2, 3)], render, Examples(copies=2))
    assert [stream.trace for stream in found] == ["a#0", "a#1"]
    assert [len(stream) for stream in found] == [6, 6]


def test_all_words_of_an_action_are_learnt_among_all():
    (found,) = build_examples([walk(1, 2)], render)
    assert found.mask == (False, True, True)
    assert set(found.allowed) == {None}
    assert found.advantages[1:] == (1.0, 1.0)


def test_batches_are_of_like_length_and_hold_everything_once():
    given = build_examples([walk(*range(n % 9 + 2), id=str(n)) for n in range(64)], render)
    batches = list(islice(iterate_batches(given, 8, random.Random(0)), 8))
    assert Counter(stream.trace for batch in batches for stream in batch) == Counter(stream.trace for stream in given)
    padded = sum(len(batch) * max(map(len, batch)) for batch in batches)
    assert padded < 1.1 * sum(map(len, given))


def model():
    return build_model(40, TinyConfig(hidden=32, layers=1, heads=2, kv_heads=1, intermediate=64))


def learn(made, given, settings, tell=lambda line: None, **options):
    imitation = Imitation(made, given, settings, **options)
    assert make_updates(imitation, tell)
    return imitation.report()


def test_what_is_imitated_is_learnt():
    """The way through the places: its loss falls by far, and progress is told."""
    given = build_examples([walk(1, 2, 3, 4, 5), walk(6, 3, 7, 5)], render)
    told: list[str] = []
    report = learn(model(), given, WarmStart(updates=60, lr=1e-2, batch=2), tell=told.append)
    assert report.last < report.first / 5
    assert len(report.curve) == 60
    assert (report.examples, report.epochs) == (2, 60)
    assert report.tokens == 60 * sum(map(len, given))
    assert len(told) == 10
    assert told[-1].startswith("warm start: update 60 of 60, loss 0.")


def test_progress_is_told_now_and_then_with_the_time_left():
    """Every tenth of the updates, and between them after so many seconds."""
    given = build_examples([walk(1, 2, 3)], render)
    imitation = Imitation(model(), given, WarmStart(updates=40, batch=1))
    often: list[str] = []
    seldom: list[str] = []
    tellers = [WarmStartProgress(imitation, often.append, every_s=0.0), WarmStartProgress(imitation, seldom.append)]
    while not imitation.is_done:
        imitation.update()
        for tell in tellers:
            tell()
    assert (len(often), len(seldom)) == (40, 10)
    assert re.fullmatch(r"warm start: update 39 of 40, loss \d\.\d{3}, 0:00 left", often[-2])


def test_updates_go_on_from_a_saved_state():
    """The same curve as in one go, with the same counts and weights; through a file."""
    given = build_examples([walk(1, 2, 3, id=str(n)) for n in range(5)], render)
    settings = WarmStart(updates=9, batch=2)
    straight, first, second = model(), model(), model()
    expected = learn(straight, given, settings)
    halved = Imitation(first, given, settings)
    for _ in range(4):
        halved.update()
    file = io.BytesIO()
    torch.save(halved.state_dict(), file)
    file.seek(0)
    second.load_state_dict(first.state_dict())
    resumed = Imitation(second, given, settings)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    while not resumed.is_done:
        resumed.update()
    report = resumed.report()
    assert (report.curve, report.tokens, report.epochs) == (expected.curve, expected.tokens, expected.epochs)
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), second.parameters(), strict=True))


def test_the_same_seed_gives_the_same_curve_and_another_one_another():
    given = build_examples([walk(1, 2, 3 + n, id=str(n)) for n in range(5)], render)
    settings = WarmStart(updates=5, batch=2)
    curves = [learn(model(), given, settings, seed=7).curve for _ in range(2)]
    assert curves[0] == curves[1]
    assert learn(model(), given, settings, seed=8).curve != curves[0]


def test_all_weights_fall_by_a_hundredth_of_the_rate():
    """Beside what the same update of a role does; the rate rises over five updates."""
    given, made, role, before = build_examples([walk(1, 2)], render), model(), model(), model()
    learn(made, given, WarmStart(updates=1, lr=0.5))
    settings = learner.LearnerSettings(lr=0.5, warmup=5, decay=1)
    learner.Learner(role, role.parameters(), settings).step(given, learner.LossSettings(kind="imitation"))
    for ours, its, old in zip(made.parameters(), role.parameters(), before.parameters(), strict=True):
        assert torch.allclose(its - ours, 0.1 * 0.01 * old, atol=1e-6)


@pytest.mark.parametrize(("budget", "passes"), [(1, 4), (4096, 1)])
def test_the_budget_is_that_of_a_micro_batch_also_after_a_restart(monkeypatch, budget, passes):
    """One that does not fit a sequence reads one in each pass."""
    read = []

    def note(*given, **how):
        read.append(1)
        return logprobs.forward(*given, **how)

    monkeypatch.setattr(learner, "forward", note)
    examples = build_examples([walk(1, 2, 3, id=str(n)) for n in range(4)], render)
    imitation = Imitation(model(), examples, WarmStart(updates=2, batch=4), budget=budget)
    imitation.update()
    again = Imitation.restore(imitation.write_state(), model(), imitation.settings, budget=budget)
    again.update()
    assert len(read) == 2 * passes


def test_nothing_to_imitate_is_said():
    with pytest.raises(CannotLearn, match="no trajectory passed the filters"):
        Imitation(model(), [])


# -- wrong steps as context -----------------------------------------------------------------------


def learned(walked, **settings):
    """The places gone to that are in the loss, and all places that are read, of the only sequence."""
    (only,) = build_examples([walked], render, Examples(**settings))
    goals = [token for token, counts in zip(only.tokens, only.mask, strict=True) if counts and token >= 10]
    return goals, [token for token in only.tokens if token >= 10]


def test_filtered_steps_are_context_and_out_of_the_loss():
    """Good, bad, good: weights 1, 0, 1, and the prompt of the last step still holds the bad one."""
    goals, read = learned(walk(1, 2, 3, 4, failed=(1,)), wrong="filter")
    assert goals == [12, 14]
    assert read.count(13) == 2
    assert 13 not in learned(walk(1, 2, 3, 4, failed=(1,)))[0]


def test_where_every_step_is_wrong_there_is_no_example():
    assert not build_examples([walk(1, 2, 3, failed=(0, 1))], render, Examples(wrong="filter"))


def test_without_wrong_steps_filtering_and_correcting_are_plain_imitation():
    plain = build_examples([walk(1, 2, 3)], render, Examples())
    for wrong in ("filter", "correct"):
        assert build_examples([walk(1, 2, 3)], render, Examples(wrong=wrong)) == plain


def mistaken(corrected):
    """To place 2, then a wrong step there, and the right one in the same situation if it is corrected."""
    right, after = walk(1, 2, 4).steps
    wrong = replace(walk(2, 3, failed=(0,)).steps[0], post=State("place 2"))
    return Trajectory("walk", (right, wrong, after) if corrected else (right, wrong), True, id="a")


def test_a_corrected_step_is_context_for_its_correction():
    """Right, wrong, corrected: weights 1, 0, 1."""
    goals, read = learned(mistaken(corrected=True), wrong="correct")
    assert goals == [12, 14]
    assert 13 in read


def test_without_a_correction_it_is_cleaning():
    only = build_examples([mistaken(corrected=False)], render, Examples(wrong="correct"))
    assert only == build_examples([mistaken(corrected=False)], render, Examples())
