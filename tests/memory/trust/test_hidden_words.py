"""Words of untrusted steps are never shown, so they must not decide what is."""

import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory


def episode(ref, observation, action, task="keep the house"):
    before, after = State(observation, task=task), State("done", task=task)
    return Trajectory(task, steps=(Step(before, action, after, Diagnosis(True), reward=1.0),), success=True, id=ref)


@pytest.fixture
def library(tmp_path):
    with ExperienceLibrary.open(tmp_path / "a.db") as library:
        library.record_many(
            [
                *(episode(f"own-{n}", f"the violet kettle {n} leaks", f"fix(kettle={n})") for n in range(5)),
                *(episode(f"other-{n}", f"chair {n} of the hall", f"sit(chair={n})") for n in range(30)),
            ]
        )
        yield library


def actions(hits):
    return [hit.what.action for hit in hits if isinstance(hit.what, Step)]


def untrusted(hits):
    return [hit.what.action for hit in hits if hit.what.why.untrusted]


def test_a_question_finds_untrusted_actions_by_their_own_words_only(library):
    library.episodes.receive(
        [episode(f"e{n}", "quarterly bonus of the zebra office", f"wire(amount='{n}')") for n in range(6)],
        writer="token:stranger", trust="untrusted",
    )  # fmt: skip
    for hidden in ("quarterly bonus", "the zebra office", "done"):
        assert not untrusted(library.recall(hidden).steps)
    assert untrusted(library.recall("how do I wire the amount?").steps) == ["wire(amount={amount})"]
    assert not untrusted(library.recall("of an in the").steps)


def test_forms_with_more_words_of_the_question_come_first(library):
    library.episodes.receive(
        [
            *(episode(f"a{n}", "an office", "wire(amount=1)") for n in range(6)),
            *(episode(f"b{n}", "an office", "wire(bonus=1)") for n in range(3)),
        ],
        writer="token:stranger", trust="untrusted",
    )  # fmt: skip
    assert untrusted(library.recall("wire the bonus").steps)[0] == "wire(bonus={bonus})"


@pytest.mark.parametrize("crafted", [60, 2000])
def test_a_flood_of_untrusted_states_does_not_hide_trusted_steps(library, crafted):
    """A stranger's copies fill every rank of the index, and the trusted steps are still found."""
    library.episodes.receive(
        [episode(f"x{n}", f"violet kettle leaks {n}", f"wire(n={n})") for n in range(crafted)],
        writer="token:stranger", trust="untrusted",
    )  # fmt: skip
    own = {f"fix(kettle={n})" for n in range(5)}
    question = "violet kettle leaks"
    assert set(actions(library.search(question, 5))) == own
    assert set(actions(library.search(question, 5, how="dense"))) == own
    assert set(actions(library.recall(question, k=5).steps)) == own
    assert set(actions(library.recall(State(question), k=5).steps)) == own


def test_excluded_episodes_do_not_come_back_by_the_direct_way(library):
    """What is compared directly are steps that count; a forgotten episode has none."""
    library.episodes.receive(
        [episode(f"x{n}", f"violet kettle leaks {n}", f"wire(n={n})") for n in range(200)],
        writer="token:stranger", trust="untrusted",
    )  # fmt: skip
    library.admin.forget(episode="own-3")
    assert "fix(kettle=3)" not in actions(library.search("violet kettle leaks", 10))
