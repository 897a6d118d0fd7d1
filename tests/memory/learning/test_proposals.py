"""Proposals of the rules are kept in the library, so that a new process costs what a running one does."""

from dataclasses import replace

import pytest

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, State, Step, Trajectory
from hardwon.memory.errors import LibraryError
from hardwon.memory.guardrails.tuning import TUNING as GUARDRAILS
from hardwon.memory.learning import consolidation, proposals
from hardwon.memory.learning.rule_mining import RATE_LIMITS
from hardwon.memory.learning.tuning import TUNING

HERE = State("You see a wooden drawer. It is closed.", task="find the spoon")


def play(library, action, times=1, *, failed=True):
    """Record so many episodes of one step."""
    diagnosis = Diagnosis(not failed, Failure.PRECONDITION if failed else Failure.NONE)
    step = Step(HERE, action, HERE, diagnosis, keys=library.episodes.keys(HERE, action))
    library.record_many(Trajectory(HERE.task, (step,), not failed) for _ in range(times))


@pytest.fixture
def reopen(path, library):
    """Return a function that closes the library and opens it as another process would."""
    opened = [library]

    def again():
        opened[-1].close()
        opened.append(ExperienceLibrary.open(path))
        return opened[-1]

    yield again
    opened[-1].close()


@pytest.fixture
def forbidding(library):
    """A library with guardrails, made by rules from failures of several actions."""
    for number in range(5):
        play(library, f"shake{number} drawer", times=TUNING.guardrail_episodes)
    library.evolve()
    assert len(library.items.find(["guardrail"])) == 5
    return library


def test_a_new_process_proposes_nothing_again(forbidding, reopen):
    """Neither at once nor after an episode about something else."""
    before = forbidding.items.find()
    library = reopen()
    assert library.evolve().candidates == 0
    play(library, "open drawer", failed=False)
    assert library.evolve().candidates == 0
    assert library.items.find() == before


def test_a_new_process_looks_at_new_steps_only(forbidding, reopen):
    """Not at every key of the library: with thousands of episodes, that takes seconds."""
    library = reopen()
    play(library, "open drawer", failed=False)
    values = library._file.caught_up().statistics.values
    library._file.distiller.read(library.episodes.get)
    library._file.distiller.resume(library._file.derived)
    assert values.touched
    assert not any("shake" in key for key in values.touched)


def test_a_new_process_goes_on_where_the_evidence_doubles(forbidding, reopen):
    """Failures before and after the reopening count together."""
    play(forbidding, "shake0 drawer", times=TUNING.guardrail_episodes - 1)
    forbidding.evolve()
    library = reopen()
    assert library.evolve().candidates == 0
    play(library, "shake0 drawer")
    assert "merged" in {admission.status for admission in library.evolve().admissions}


def test_steps_that_nobody_has_looked_at_are_read_by_the_next_process(forbidding, reopen):
    """Also if the first process closed the library without another call of `evolve`."""
    play(forbidding, "rattle drawer", times=TUNING.guardrail_episodes)
    library = reopen()
    library.evolve()
    assert not library.check(HERE, "rattle drawer").allowed


def test_what_the_rate_limit_left_out_is_proposed_by_the_next_process(library, reopen):
    """A burst of findings is spread over several processes, not lost."""
    most = RATE_LIMITS["guardrail"]
    for number in range(most + 3):
        play(library, f"shake{number} drawer", times=TUNING.guardrail_episodes)
    library.evolve()
    assert len(library.items.find(["guardrail"])) == most
    library = reopen()
    library.evolve()
    assert len(library.items.find(["guardrail"])) == most + 3
    assert library.evolve().candidates == 0


@pytest.mark.parametrize("remembers", [True, False])
def test_an_idle_guardrail_comes_back_at_its_next_failure_only(library, reopen, remembers):
    """In a new process, too, and in one that has no proposals of earlier ones, such as after an import."""
    play(library, "shake spoon", times=TUNING.guardrail_episodes)
    library.evolve()
    (ref,) = (item.id for item in library.items.find(["guardrail"]))
    play(library, "shake spoon", times=TUNING.guardrail_episodes - 1)  # after its proposal and before its retirement
    play(library, "shake drawer", times=GUARDRAILS.idle_after + GUARDRAILS.search_every, failed=False)
    assert ref in library.evolve().retired
    library = reopen()
    if not remembers:
        library._file.store.connection.execute("DELETE FROM proposals")
    for _ in range(2):
        library.evolve()
        assert library.items.get(ref).status == "retired"
        library = reopen()
    play(library, "shake spoon")
    library.evolve()
    assert library.items.get(ref).status == "active"


def test_proposals_of_other_rules_are_made_again(forbidding, reopen, monkeypatch):
    """After a change of the rules, everything is looked at once more, and then no more."""
    library = reopen()
    monkeypatch.setattr(proposals, "RULES_VERSION", proposals.RULES_VERSION + 1)
    assert library.evolve().candidates == 5
    assert reopen().evolve().candidates == 0


def test_proposals_that_were_rolled_back_are_made_again(library, reopen, monkeypatch):
    """By this process and by the next one."""
    play(library, "shake drawer", times=TUNING.guardrail_episodes)

    def fail(*_):
        raise LibraryError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(consolidation, "save_proposals", fail)
        with pytest.raises(LibraryError):
            library.evolve()
    assert library.items.find() == []
    library = reopen()
    library.evolve()
    assert not library.check(HERE, "shake drawer").allowed


def test_forgetting_deletes_the_proposals(forbidding, reopen):
    """Their counts include forgotten steps, and their keys quote them."""
    forbidding.admin.forget(text="shake0 drawer")
    assert forbidding._file.store.rows("SELECT * FROM proposals") == []
    play(forbidding, "shake0 drawer", times=TUNING.guardrail_episodes)
    forbidding.evolve()
    assert not forbidding.check(HERE, "shake0 drawer").allowed


def test_items_of_people_do_not_depend_on_proposals(forbidding, reopen):
    """A guardrail that a person retired is not proposed by every new process."""
    (first, *_) = forbidding.items.find(["guardrail"])
    forbidding.items.retire(first.id, "I know better")
    library = reopen()
    play(library, first.forbids, times=2)
    library.evolve()
    assert library.items.get(first.id) == replace(first, status="retired", version=first.version + 1)
