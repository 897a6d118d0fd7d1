"""A team: all at once, the first success ends it, what was shared is logged and gone."""

import asyncio
import multiprocessing
import time
from statistics import median
from typing import Any, Literal

import pytest
from langchain_core.tools import StructuredTool

from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.runtime import AdmitAll, AdmitNone, Agent, LogisticAdmission, RuleAdmission, Team, ToolEnvironment
from hardwon.runtime.agent import Result
from hardwon.runtime.interfaces.types import Decision
from hardwon.runtime.interfaces.usage import ModelUsage
from hardwon.runtime.teams.sharing import TeamEvent, get_value
from hardwon.runtime.teams.sharing_policy import SharingInput
from hardwon.runtime.teams.team import Finish, _Seat, choose_answer

CALL_S = 0.05


class Does:
    """A policy that takes its actions in turn, and answers when there are none left."""

    reads: Literal["values", "text"] = "text"

    def __init__(self, *actions, answer="right"):
        self.name, self.actions, self.answer = "does", actions, answer

    async def adecide(self, context):
        turn = len(context.history)
        return Decision(self.actions[turn] if turn < len(self.actions) else f'finish(answer="{self.answer}")')

    def decide(self, context):
        return asyncio.run(self.adecide(context))


def archive(made=None):
    """An environment with one slow tool that changes nothing."""
    made = [] if made is None else made

    async def read(page: int) -> str:
        """Read a page."""
        made.append(page)
        await asyncio.sleep(CALL_S)
        return f"page {page} says {page * 7}"

    tool = StructuredTool.from_function(coroutine=read, metadata={"readOnlyHint": True})
    return ToolEnvironment([tool], lambda task, answer, calls: float(answer == "right"))


def reads(*pages, answer="right"):
    return Does(*(f"read(page={page})" for page in pages), answer=answer)


@pytest.fixture
def team(library):
    """Makes a team of these policies: `team(reads(1, 2), reads(3))`."""

    def make(*policies, bank=library.admin.bank, admission=None, made=None, learn=False, **options):
        agents = [Agent(policy, library, archive(made), learn=learn, seed=n) for n, policy in enumerate(policies)]
        return Team(agents, bank, admission or AdmitAll(), **options)

    return make


def rows_of(library):
    return library._file.store.rows("SELECT * FROM bank_entries") + library._file.store.rows("SELECT * FROM bank_pulls")


def test_members_work_at_the_same_time(team):
    """While one waits for its tool the others go on."""
    made: list[int] = []
    pages = (range(10 * n, 10 * n + 6) for n in range(3))
    result = team(*(reads(*each) for each in pages), bank=None, made=made, first=False).run("a task")
    members = [page // 10 for page in made]
    assert members != sorted(members, key=members.index), "one after the other"
    assert [finish.team for finish in result.finishes] == ["team 1", "team 2", "team 3"]
    assert result.success
    assert result.shared == result.pulls == ()


def test_the_first_success_ends_the_run(team):
    """systems.md §4: the first correct finisher ends the run; the others are stopped where they are."""
    made: list[int] = []
    result = team(reads(*range(50)), reads(90), reads(*range(60, 99)), made=made).run("a task")
    assert result.first == "team 2"
    assert [finish.result is None for finish in result.finishes] == [True, False, True]
    assert len(made) < 12


def test_a_wrong_answer_ends_nothing(team):
    result = team(reads(1, answer="wrong"), reads(2, 3, 4)).run("a task")
    assert (result.first, result.first_score) == ("team 1", 0.0)
    assert [finish.success for finish in result.finishes] == [False, True]


def test_a_verified_success_is_the_answer_whatever_the_others_say(team):
    wrong = (reads(1, answer="wrong"), reads(2, answer="wrong"))
    assert team(*wrong, reads(3, 4, 5)).run("a task").answer == "right"
    assert team(*wrong, reads(3, 4, 5), first=False).run("a task").answer == "wrong"


def test_who_never_answered_has_no_vote(library):
    agents = [Agent(reads(*range(20)), library, archive(), learn=False, max_steps=3) for _ in range(2)]
    result = Team([*agents, Agent(reads(1, answer="Rome"), library, archive(), learn=False)], first=False).run("a task")
    assert result.answer == "Rome"


def test_what_one_has_read_another_need_not_read(team):
    made: list[int] = []
    result = team(reads(1, 2, 3, 4), reads(4, 3, 2, 1), made=made, first=False).run("a task")
    assert len(made) < 8
    assert result.calls == len(made) + 2  # and the answers
    assert len(result.pulls) == 8 - len(made)


def test_the_log_of_pulls_is_exact(team, library):
    """systems.md §4: scripted pulls equal U; own pulls apart."""
    waits = [f"read(page={page})" for page in range(10, 14)]
    with library.admin.bank("a task") as bank:
        reader = Does(*waits, "pull(entry=1)", "pull(entry=2)", "read(page=20)")
        sent = team(Does("read(page=1)", "read(page=2)", *waits[2:]), reader, bank=bank, first=False)
        result = sent.run("a task")
        assert set(result.pulls) == set(bank.pulls())
        assert result.own_pulls == tuple(bank.pulls(own=True))
    entries = {one.entry: one for one in result.shared if one.entry is not None}
    assert result.used == {entry for entry, _ in result.pulls}
    assert all(entries[entry].team != reader for entry, reader in result.pulls)
    assert all(entries[entry].team == reader for entry, reader in result.own_pulls)


def test_every_step_has_its_decision(team):
    result = team(reads(1, 2), reads(3, 4), admission=AdmitNone(), first=False).run("a task")
    assert len(result.shared) == 6
    assert not result.pulls
    assert result.admitted == 0.0


@pytest.mark.parametrize("fails", [False, True])
def test_the_bank_is_dropped_at_the_end(team, library, fails):
    """systems.md §4: memory dropped at task end (unless promoted)."""
    broken = RuntimeError("no")

    class Fails:
        name = "fails"

        async def decide(self, candidate):
            raise broken

    sent = team(reads(1, 2), reads(3), admission=Fails() if fails else None)
    if fails:
        with pytest.raises(RuntimeError, match="no"):
            sent.run("a task")
    else:
        sent.run("a task")
    assert rows_of(library) == []
    assert library.items.find(limit=None) == []


def test_a_bank_of_the_caller_is_the_caller_s_to_drop(team, library):
    with library.admin.bank("a task") as bank:
        team(reads(1), bank=bank).run("a task")
        assert bank.keys()
    assert rows_of(library) == []


def test_two_runs_of_one_task_do_not_see_each_other(team):
    sent = team(reads(1, 2), reads(1, 2), first=False)

    async def twice():
        return await asyncio.gather(sent.arun("a task"), sent.arun("a task"))

    one, other = asyncio.run(twice())
    mine = {shared.entry for shared in one.shared}
    assert not mine & {shared.entry for shared in other.shared}
    assert one.used <= mine


# -- promotion


def test_what_helped_a_verified_success_is_put_before_the_curator(team, library):
    """systems.md §7.8: promotion task to global only through the curator, with a verified outcome."""
    made: list[int] = []
    result = team(reads(1, 2, 3), reads(3, 2, 1), made=made, learn=True, keep=True).run("a task")
    assert {admission.status for admission in result.promoted} == {"added"}
    (item, *_) = library.items.find(limit=None, status="quarantined")
    assert item.kind == "insight"
    assert item.provenance
    assert rows_of(library) == []


@pytest.mark.parametrize("options", [{"learn": False}, {"learn": True, "wrong": True}])
def test_nothing_is_promoted_without_a_verified_outcome(team, library, options):
    """systems.md §7.8: task bank vs library: no self-promotion without a verified outcome."""
    answer = "wrong" if options.pop("wrong", False) else "right"
    result = team(reads(1, 2, 3, answer=answer), reads(3, 2, 1, answer=answer), keep=True, **options).run("a task")
    assert result.promoted == ()
    assert not [item for item in library.items.find(limit=None) if item.writer == "team"]


# -- answers


def finish(team, answer, score, seconds):
    state = State("x")
    steps = (Step(state, f'finish(answer="{answer}")', state, Diagnosis(True)),)
    return Finish(team, Result(Trajectory("t", steps, score == 1.0, score), ModelUsage(), team), seconds)


ENDED = [finish("a", "Rome", 0.2, 3.0), finish("b", "Oslo", 0.9, 2.0), finish("c", "Rome", 0.1, 1.0)]


@pytest.mark.parametrize(
    ("aggregate", "answer"),
    [
        ("vote", "Rome"),
        ("best", "Oslo"),
        (lambda task, answers: answers.index("Oslo"), "Oslo"),
        (lambda task, answers: None, "Rome"),
    ],
)
def test_answers_are_voted_on_or_the_best_is_taken_or_a_judge_chooses(aggregate, answer):
    assert asyncio.run(choose_answer("t", ENDED, aggregate)) == answer


def test_nobody_answered():
    assert asyncio.run(choose_answer("t", [], "vote")) == ""


def test_of_equal_votes_the_earlier_answer_wins():
    assert asyncio.run(choose_answer("t", [finish("a", "x", 0, 2.0), finish("b", "y", 0, 1.0)], "vote")) == "y"


# -- teams of teams, and processes


def test_the_environments_of_a_run_are_closed_at_its_end(team, monkeypatch):
    closed: list[ToolEnvironment] = []
    monkeypatch.setattr(ToolEnvironment, "close", lambda environment: closed.append(environment))
    members = team(reads(1), reads(2), first=False)
    members.run("a task")
    assert len(closed) == 2


def test_a_member_may_be_a_team(library):
    """K teams: what one agent of a team shares is its team's, and pulled by the other team it counts."""
    made: list[int] = []

    def inner(*policies):
        return Team([Agent(policy, library, archive(made), learn=False) for policy in policies], first=False)

    outer = Team([inner(reads(1, 2), reads(3)), inner(reads(3, 2, 1))], library.admin.bank, AdmitAll(), first=False)
    result = outer.run("a task")
    assert {shared.team for shared in result.shared} == {"team 1", "team 2"}
    assert len(result.shared) == 3 + 2 + 4
    assert len(made) < 6
    assert result.success
    assert rows_of(library) == []


def other_process(path, page):
    """A team of another process on the same task; it shares all that it does."""
    with ExperienceLibrary.open(path) as library:
        agent = Agent(reads(page), library, archive(), learn=False)
        assert Team([agent], library.admin.bank("a task"), AdmitAll()).run("a task").success


def test_teams_of_two_processes_share_one_bank(team, library, path):
    """systems.md §4: across processes on one machine, through the library's SQLite file."""
    with library.admin.bank("a task") as bank:
        process = multiprocessing.get_context("fork").Process(target=other_process, args=(path, 1))
        process.start()
        process.join()
        assert process.exitcode == 0
        made: list[int] = []
        result = team(Does("read(page=2)", "read(page=1)"), bank=bank, made=made).run("a task")
    assert made == [2]
    assert len(result.pulls) == 1
    assert result.own_pulls == ()
    assert rows_of(library) == []


def test_a_team_of_nobody_is_refused():
    with pytest.raises(ConfigError, match="at least one agent"):
        Team([])


@pytest.mark.parametrize("admission", [RuleAdmission(), LogisticAdmission()], ids=lambda one: one.name)
def test_deciding_takes_less_than_a_hundredth_of_a_step(admission):
    """systems.md §4: cost: controller time < 1% of a step's model time: of half a second, beside sixty keys."""
    keys = tuple(f"read(page={n}) -> page {n} says what the other pages say, and {n * 7} more" for n in range(60))
    took = []
    for n in range(100):
        candidate = SharingInput(
            "find what the pages say", keys, f"read(page={n})", f"{keys[n % 60]} or so", "a page" * 50
        )
        began = time.process_time()  # of this process: other work on the machine is no cost
        asyncio.run(admission.decide(candidate))
        took.append(time.process_time() - began)
    assert median(took) < 0.01 * 0.5


def test_time_counts_from_the_beginning_of_the_run(team):
    """Of each member, and of the whole, which takes as long as its slowest member at least."""
    began = time.perf_counter()
    result = team(reads(1, 2), reads(2, 1), first=False).run("a task")
    took = time.perf_counter() - began
    assert all(0 < finish.seconds <= result.seconds <= took for finish in result.finishes)


def test_whoever_watches_hears_what_is_done(team):
    heard: list[TeamEvent] = []
    team(reads(1, 2), reads(2, 1), watch=heard.append, first=False).run("a task")
    assert {event.what for event in heard} >= {"step", "shared", "pulled", "finished"}


def test_a_call_that_hangs_is_left_and_ends_its_episode_alone(library):
    async def hang() -> str:
        """Never answers."""
        await asyncio.sleep(60)
        return ""

    stuck = ToolEnvironment([StructuredTool.from_function(coroutine=hang, name="hang")], call_timeout_s=None)
    hangs = Agent(Does("hang()"), library, stuck, learn=False, step_timeout_s=0.1, retries=0)
    sent = Team([hangs, Agent(reads(1, 2, 3, 4), library, archive(), learn=False)], library.admin.bank, AdmitAll())
    result = sent.run("a task")
    assert result.success
    assert [finish.success for finish in result.finishes] == [False, True]
    assert result.finishes[0].result is not None
    assert result.finishes[0].result.trajectory.ending == "environment_hang"


def test_the_share_of_admitted_steps_is_a_fraction(team):
    assert team(reads(1), reads(2), first=False).run("a task").admitted == 1.0
    assert team(reads(1), reads(2), first=False, admission=AdmitNone()).run("a task").admitted == 0.0


def test_entries_are_promoted_only_if_that_is_asked_for(team):
    assert team(reads(1, 2, 3), reads(3, 2, 1), learn=True).run("a task").promoted == ()


def test_a_value_is_made_by_the_admission_if_it_can():
    class Admission(AdmitAll):
        def value(self, steps):
            return "by the admission"

    agents: list[Any] = [None]
    assert Team(agents, admission=Admission())._value([]) == "by the admission"
    assert Team(agents)._value is get_value


def test_a_seat_of_a_team_closes_those_of_its_members():
    closed = []

    class Seat:
        def __init__(self, name):
            self.name = name

        def close(self):
            closed.append(self.name)

    inner: list[Any] = [Seat("a"), Seat("b")]
    member: Any = object()
    _Seat(member, [], inner).close()
    assert closed == ["a", "b"]


def test_a_stopped_member_says_how_long_it_worked(team):
    result = team(reads(1), reads(2, 3, 4, 5, 6, 7)).run("a task")
    stopped = [finish for finish in result.finishes if finish.result is None]
    assert len(stopped) == 1
    assert result.first_score == 1.0
    assert 0.0 <= stopped[0].seconds < 30.0
