"""Probation: what is forbidden is tried again, and the outcome decides; and what evidence forbids at all."""

from dataclasses import replace
from itertools import pairwise

import pytest

from hardwon.memory import ExperienceLibrary, Failure, Item
from hardwon.memory.guardrails import probation
from hardwon.memory.guardrails.tuning import TUNING as GUARDRAILS
from hardwon.memory.learning.tuning import TUNING
from hardwon.memory.situations.evidence import evidence_of

SHAKE = "shake drawer"
HOUR = 3600.0


@pytest.fixture
def at(monkeypatch):
    """Set the clock, in hours from the beginning of 2100."""
    now = [4102444800.0]
    start = now[0]
    monkeypatch.setattr(probation, "clock", lambda: now[0])

    def turn(hours):
        now[0] = start + hours * HOUR

    return turn


def record(library, episode, *actions, failure=None, why=None, words=""):
    """One episode of these actions."""
    told = episode(*actions, library=library, **({"failure": failure, "success": False} if failure else {}))
    steps = [
        replace(step, why=why or {}, diagnosis=replace(step.diagnosis, evidence=words or step.diagnosis.evidence))
        for step in told.steps
    ]
    return library.record(replace(told, steps=tuple(steps)))


@pytest.fixture
def guarded(library, episode, at):
    """A library that forbids to shake the drawer, since hour 0."""
    for _ in range(6):
        record(library, episode, SHAKE, failure=Failure.TOOL_ERROR, words="permission denied")
    library.evolve()
    at(0)
    refs = [item.id for item in library.items.find(["guardrail"])]
    library._file.store.connection.execute("UPDATE items SET created_at = '2100-01-01T00:00:00+00:00'")
    return library, episode().steps[0].pre, refs


def refused(library, state, times):
    """How many of so many calls were refused."""
    return sum(not library.enforce(state, SHAKE).allowed for _ in range(times))


def outcome(library, episode, verdict, failure=None, words=""):
    """The call that a trial let through was made."""
    why = {"overrode": list(verdict.items), "trial": list(verdict.items)}
    record(library, episode, SHAKE, failure=failure, why=why, words=words)
    library.evolve()


def trial(library, state, most=1000):
    """The next trial, and how many calls were refused before it."""
    for n in range(most):
        verdict = library.enforce(state, SHAKE)
        if verdict.allowed:
            return verdict, n
    raise AssertionError(f"refused {most} times")


# ---- what evidence forbids


NONE, FAILED, DOWN, LOST = "none", "tool_error", "unavailable", "task_lost"


@pytest.mark.parametrize(
    ("steps", "bad"),
    [
        ([("test", FAILED)], [True]),
        ([("test", FAILED), ("edit", NONE), ("test", NONE)], [False, False, False]),
        ([("test", FAILED), ("edit", NONE), ("test", FAILED), ("edit", NONE), ("test", NONE)], [False] * 5),
        ([("test", FAILED), ("test", FAILED), ("edit", NONE), ("test", NONE)], [False, True, False, False]),
        ([("test", FAILED), ("edit", NONE), ("lint", NONE)], [True, False, False]),
        ([("test", NONE), ("test", FAILED)], [False, True]),
        ([("eat", LOST), ("eat", NONE)], [True, False]),
        ([("test", DOWN), ("test", FAILED)], [False, True]),
    ],
)
def test_a_call_that_works_later_in_the_episode_was_worth_making(steps, bad):
    """Its repetition with nothing done in between was not; losing the task is never made good."""
    assert [one.bad for one in evidence_of(steps, 1)] == bad


def test_first_runs_of_test_first_work_are_never_forbidden(library, episode):
    """Four tasks, then forty: run, edit, run again."""
    for tasks in (4, 36):
        for _ in range(tasks):
            made = [
                episode(action, failure=Failure.TOOL_ERROR if failed else Failure.NONE, library=library).steps[0]
                for action, failed in (("run_tests()", True), ("edit(file='a.py')", False), ("run_tests()", False))
            ]
            library.record(replace(episode("run_tests()", library=library), steps=tuple(made)))
        library.evolve()
        assert library.check(episode().steps[0].pre, "run_tests()").allowed
    assert library.items.find(["guardrail", "warning"]) == []


@pytest.mark.parametrize(
    ("episodes", "allowed"), [(TUNING.guardrail_episodes - 1, True), (TUNING.guardrail_episodes, False)]
)
def test_a_guardrail_needs_several_episodes(library, episode, episodes, allowed):
    """However often the call failed in each."""
    for _ in range(episodes):
        record(library, episode, *[SHAKE] * 10, failure=Failure.TOOL_ERROR, words="permission denied")
    library.evolve()
    assert library.check(episode().steps[0].pre, SHAKE).allowed is allowed


def work_elsewhere(library, episode, times):
    """Episodes in which the call works in another situation, each of them twice."""
    elsewhere = replace(episode().steps[0].pre, facts={"light": "on"})
    keys = library.episodes.keys(elsewhere, SHAKE)
    for _ in range(times):
        told = episode(SHAKE, SHAKE)
        library.record(replace(told, steps=tuple(replace(step, pre=elsewhere, keys=keys) for step in told.steps)))


def test_failures_are_weighed_against_successes_of_the_same_call(library, episode):
    """Five failed episodes in one situation do not outweigh 16 in which the call worked in others; six do."""
    work_elsewhere(library, episode, 16)
    for allowed, more in ((True, 5), (False, 1)):
        for _ in range(more):
            record(library, episode, SHAKE, SHAKE, failure=Failure.TOOL_ERROR, words="permission denied")
        library.evolve()
        assert library.check(episode().steps[0].pre, SHAKE).allowed is allowed


def test_calls_that_lost_the_task_need_less_evidence(library, episode):
    """A few lost tasks in one situation outweigh many successes in others; a wait for more would lose more."""
    work_elsewhere(library, episode, 16)
    for allowed, more in ((True, TUNING.losing_episodes - 1), (False, 1)):
        for _ in range(more):
            record(library, episode, SHAKE, failure=Failure.TASK_LOST, words="the vase is broken")
        library.evolve()
        assert library.check(episode().steps[0].pre, SHAKE).allowed is allowed


# ---- trials


def test_after_some_refusals_the_call_is_let_through_once(guarded):
    library, state, refs = guarded
    assert refused(library, state, GUARDRAILS.trial_refusals) == GUARDRAILS.trial_refusals
    verdict = library.enforce(state, SHAKE)
    assert (verdict.allowed, verdict.trial) == (True, True)
    assert set(verdict.items) <= set(refs)
    assert refused(library, state, GUARDRAILS.trial_refusals) == GUARDRAILS.trial_refusals


def test_after_an_hour_the_call_is_let_through_once(guarded, at):
    library, state, _ = guarded
    at(0.9)
    assert refused(library, state, 2) == 2
    at(1.0)
    assert library.enforce(state, SHAKE).trial
    assert refused(library, state, 2) == 2


def test_a_clock_that_was_set_back_puts_no_trial_off(guarded, at):
    library, state, _ = guarded
    at(1000)
    assert library.enforce(state, SHAKE).trial
    at(10)
    assert library.enforce(state, SHAKE).trial
    assert refused(library, state, 2) == 2


def test_a_trial_that_works_takes_the_guardrail_out_of_force(guarded, episode):
    library, state, refs = guarded
    verdict, _ = trial(library, state)
    outcome(library, episode, verdict)
    assert library.check(state, SHAKE).allowed
    assert all(
        library.items.get(ref).confidence < GUARDRAILS.min_confidence
        for ref in refs
        if library.items.get(ref).status == "active"
    )
    assert "weakened" in library.items.history(refs[0])[-1]["op"] or library.items.get(refs[0]).status == "retired"


def test_a_trial_that_fails_renews_it_with_a_longer_wait(guarded, episode):
    """5, 10, 20 ... refusals, at most so many."""
    library, state, _ = guarded
    waits = []
    for _ in range(8):
        verdict, waited = trial(library, state)
        waits.append(waited)
        outcome(library, episode, verdict, Failure.TOOL_ERROR, "permission denied")
    assert waits == [min(GUARDRAILS.trial_refusals * 2**n, GUARDRAILS.max_refusals) for n in range(8)]


def test_an_outage_during_a_trial_decides_nothing(guarded, episode):
    library, state, refs = guarded
    verdict, _ = trial(library, state)
    outcome(library, episode, verdict, Failure.TOOL_ERROR, "HTTP 503")
    assert not library.check(state, SHAKE).allowed
    assert library.items.standing(refs[0]).failed == 0
    assert trial(library, state)[1] == GUARDRAILS.trial_refusals


def test_a_trial_whose_outcome_nobody_recorded_is_given_again(guarded):
    library, state, _ = guarded
    trial(library, state)
    assert trial(library, state)[1] == GUARDRAILS.trial_refusals


def test_what_fails_again_after_it_worked_is_forbidden_again(guarded, episode):
    """It was out of force, not forgotten: as many new failures as a new guardrail needs bring it back."""
    library, state, _ = guarded
    verdict, _ = trial(library, state)
    outcome(library, episode, verdict)
    for _ in range(30):
        record(library, episode, SHAKE, failure=Failure.TOOL_ERROR, words="permission denied")
        library.evolve()
    assert not library.check(state, SHAKE).allowed


@pytest.mark.parametrize("per_hour", [2, 60, 200])
def test_a_tool_that_was_down_for_two_hours_is_used_again_soon(library, episode, at, per_hour):
    """Its error does not say that it is down: few calls are let through then, and an hour's worth refused after."""
    words, up, calls = "the desk clerk shrugged", 2.0, {"failed": 0, "refused_after": 0, "worked": 0}
    state = episode().steps[0].pre
    library.record_many([episode("open drawer", library=library) for _ in range(20)])
    for n in range(5 * per_hour):
        hour = n / per_hour
        at(hour)
        verdict = library.enforce(state, SHAKE)
        if not verdict.allowed:
            calls["refused_after"] += hour >= up
            continue
        works = hour >= up
        if verdict.trial:
            outcome(library, episode, verdict, None if works else Failure.TOOL_ERROR, words)
        else:
            record(library, episode, SHAKE, **({} if works else {"failure": Failure.TOOL_ERROR, "words": words}))
            library.evolve()
        library._file.store.connection.execute("UPDATE items SET created_at = '2100-01-01T00:00:00+00:00'")
        calls["worked" if works else "failed"] += 1
    assert calls["failed"] <= 16
    assert calls["refused_after"] <= per_hour * 1.1 + 1
    assert calls["worked"] >= 1.9 * per_hour - 2


def test_a_long_failure_is_tried_at_least_once_a_day(library, episode, at):
    """For two weeks: a score of tries."""
    at(0)
    library.add(Item("guardrail", "no", "it bites", condition={"text": "drawer"}, forbids=SHAKE, confidence=0.9))
    library._file.store.connection.execute("UPDATE items SET created_at = '2100-01-01T00:00:00+00:00'")
    state = episode().steps[0].pre
    hour, tries = 0.0, []
    while hour < 24 * 14:
        hour += 0.5
        at(hour)
        verdict = library.enforce(state, SHAKE)
        if verdict.allowed:
            tries.append(hour)
            library.record(
                replace(
                    episode(SHAKE, failure=Failure.TOOL_ERROR, success=False),
                    steps=tuple(
                        replace(step, why={"overrode": list(verdict.items), "trial": list(verdict.items)})
                        for step in episode(SHAKE, failure=Failure.TOOL_ERROR, success=False).steps
                    ),
                )
            )
    gaps = [b - a for a, b in pairwise(tries)]
    assert max(gaps) <= GUARDRAILS.max_hours + 0.5
    assert len(tries) < 40


def test_a_pinned_guardrail_is_a_persons_and_never_tried(guarded, at):
    library, state, refs = guarded
    for ref in refs:
        library.items.update(ref, pinned=True)
    at(1000)
    assert refused(library, state, 2 * GUARDRAILS.max_refusals) == 2 * GUARDRAILS.max_refusals


def test_the_counts_are_shared_by_processes_and_last(guarded, path):
    """Another connection goes on where this one was."""
    library, state, refs = guarded
    assert refused(library, state, 3) == 3
    with ExperienceLibrary.open(path) as other:
        assert other.items.standing(refs[0]).refusals == 3
        assert refused(other, state, GUARDRAILS.trial_refusals - 3) == GUARDRAILS.trial_refusals - 3
        assert other.enforce(state, SHAKE).trial
    assert not library.enforce(state, SHAKE).allowed


def test_a_library_that_may_not_be_written_counts_in_the_process(guarded, path):
    """Nothing is written; the trial comes all the same."""
    _, state, refs = guarded
    with ExperienceLibrary.open(path, read_only=True) as reader:
        assert trial(reader, state)[1] == GUARDRAILS.trial_refusals
        assert reader.items.standing(refs[0]).trials == 1
    with ExperienceLibrary.open(path) as other:
        assert other.items.standing(refs[0]).trials == 0


def test_looking_is_no_refusal(guarded):
    library, state, refs = guarded
    for _ in range(100):
        library.check(state, SHAKE)
    assert library.items.standing(refs[0]).refusals == 0


def test_a_guardrail_gains_nothing_by_runs_that_it_refused(library, episode):
    """Recalled and refusing in a run that is called a success: its score stays."""
    ref = library.add(Item("guardrail", "no", "it bites", condition={"text": "drawer"}, forbids=SHAKE)).item_id
    told = episode("open drawer", success=True)
    why = {"recalled": [ref], "blocked": [ref]}
    for _ in range(20):
        library.record(replace(told, steps=tuple(replace(step, why=why) for step in told.steps)))
    assert library.items.get(ref).score == 0.5


def test_a_refusal_in_a_run_of_unknown_end_is_booked_without_an_outcome(library, episode):
    ref = library.add(Item("guardrail", "no", "it bites", condition={"text": "drawer"}, forbids=SHAKE)).item_id
    told = replace(episode("open drawer"), success=None)
    library.record(replace(told, steps=tuple(replace(step, why={"blocked": [ref]}) for step in told.steps)))
    assert [(usage["mode"], usage["outcome"]) for usage in library.items.usages(ref)] == [("blocked", None)]


# ---- repetitions


def in_vain(library, episode, thing, *after, tool="open"):
    """One episode in which a call fails twice in a row, and these actions work afterwards."""
    again = [f"{tool}(what='{thing}')"] * 2
    told = episode(*again, *after, library=library)
    steps = [
        replace(step, diagnosis=replace(step.diagnosis, success=False, failure=Failure.TOOL_ERROR)) if n < 2 else step
        for n, step in enumerate(told.steps)
    ]
    library.record(replace(told, steps=tuple(steps)))
    library.evolve()


def repeats(library):
    """The guardrails in force that speak of repetitions."""
    found = [item for item in library.items.find(["guardrail"]) if item.condition == {"again": "failed"}]
    return [item for item in found if item.confidence >= GUARDRAILS.min_confidence]


@pytest.mark.parametrize(
    ("steps", "again"),
    [
        ("a- a-", [None, True]),
        ("a- a+", [None, False]),
        ("a- b- a-", [None, None, True]),
        ("a- b+ a-", [None, None, None]),
        ("a- a- b+ a+", [None, True, None, None]),
        ("a- a- a- a+", [None, False, False, False]),  # to wait was enough
        ("a~ a- a-", [None, None, True]),  # an outage may be tried again
        ("a! a-", [None, None]),  # it never ran
    ],
)
def test_a_repetition_is_in_vain_unless_waiting_was_enough(steps, again):
    """`-` failed, `+` worked, `~` met an outage, `!` was refused."""
    failures = {"-": Failure.TOOL_ERROR, "+": Failure.NONE, "~": Failure.UNAVAILABLE, "!": Failure.BLOCKED}
    told = [(step[0], failures[step[1]].value) for step in steps.split()]
    assert [one.again for one in evidence_of(told, 1)] == again


def test_a_tool_whose_repetitions_are_in_vain_is_not_called_again_for_things_never_seen(library, episode):
    """Twelve episodes of vain repetitions with different things forbid the thirteenth; the first call is free."""
    for n in range(12):
        in_vain(library, episode, f"thing{'abcdefghijkl'[n]}", "push box", f"open(what='thing{'abcdefghijkl'[n]}')")
    assert [item.forbids for item in repeats(library)] == ["open(what={1})"]
    state, other = episode().steps[0].pre, "open(what='gate')"
    assert library.check(state, other).allowed
    verdict = library.check(state, other, again=True)
    assert not verdict.allowed
    assert verdict.cause == "Failed in 8 of 8 episodes when it had just failed and nothing was done in between"
    assert not library.check(state, "open(what='lid')", again=True).allowed


def test_one_things_repetitions_say_nothing_of_others(library, episode):
    for _ in range(20):
        in_vain(library, episode, "vault", "push box")
    assert repeats(library) == []


@pytest.mark.parametrize(("others", "forbidden"), [(20, ["open(what={1})"]), (19, [])])
def test_where_repetitions_are_in_vain_in_general_a_tool_needs_few_of_its_own(library, episode, others, forbidden):
    """Four of 24 are of the tool, with one thing; the others are of another one, with one thing as well."""
    for n in range(others + 4):
        in_vain(library, episode, "vault", "push box", tool="shut" if n < others else "open")
    assert [item.forbids for item in repeats(library) if "open" in item.forbids] == forbidden


def test_a_tool_that_answers_after_some_waiting_may_be_repeated(library, episode):
    for n in range(20):
        in_vain(library, episode, f"thing{'abcdefghijklmnopqrst'[n]}", f"open(what='thing{'abcdefghijklmnopqrst'[n]}')")
    assert repeats(library) == []


def test_a_repetition_that_works_takes_its_guardrail_out_of_force(library, episode):
    for n in range(12):
        in_vain(library, episode, f"thing{'abcdefghijkl'[n]}", "push box")
    assert repeats(library)
    told = episode("open(what='gate')", "open(what='gate')", library=library)
    first = replace(
        told.steps[0], diagnosis=replace(told.steps[0].diagnosis, success=False, failure=Failure.TOOL_ERROR)
    )
    library.record(replace(told, steps=(first, *told.steps[1:])))
    library.evolve()
    assert repeats(library) == []


def test_trials_of_one_episode_are_one_piece_of_evidence(guarded, episode):
    """Three failed trials in a run lengthen the wait once; three successes under override count as one episode."""
    library, _, refs = guarded
    why = {"overrode": refs, "trial": refs}
    record(library, episode, SHAKE, SHAKE, SHAKE, failure=Failure.TOOL_ERROR, why=why)
    assert library._file.probation.standing(refs[0]).failed == 1
    record(library, episode, SHAKE, SHAKE, SHAKE, why=why)
    assert library.items.get(refs[0]).status == "active"
    record(library, episode, SHAKE, why=why)
    assert library.items.get(refs[0]).status == "retired"
