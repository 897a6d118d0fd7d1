"""A team: several agents on one task at the same time, sharing what they find through a bank.

    team = Team([Agent(policy, library, environment, seed=n) for n in range(3)], library.bank, RuleAdmission())
    result = team.run("Which of our suppliers are in Oslo?")
    result.answer, result.success, result.pulls

A LangGraph graph: a node for each member, all at once, then one that aggregates. A member is an agent
or a team, which is then one reader and writer of the bank. The first one whose outcome the environment
calls a success ends the run for all. How a member shares is in `sharing`; what is shared is decided by
an `Admission`. The bank is dropped at the end, unless the caller opened it.
"""

import asyncio
import copy
import inspect
import operator
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict, cast

from hardwon.memory import Admission as Admitted, Item, Step, Trajectory
from hardwon.memory.bank import Bank
from hardwon.memory.errors import ConfigError
from hardwon.runtime.agent import Agent, Result

from .sharing import Desk, Event, Shared, SharedEnvironment, SharedPolicy, Summarise, Watch, build_key
from .sharing_policy import Admission, RuleAdmission

Judge = Callable[[str, Sequence[str]], int | Awaitable[int | None] | None]
"""Given the task and the answers, in the order of their teams: the number of the best one, or None."""
Aggregate = Literal["vote", "best"] | Judge


@dataclass(frozen=True, slots=True)
class Finish:
    """How one member ended. `result` is None for one that was stopped."""

    team: str
    result: Result | None
    seconds: float
    """Since the run began."""

    @property
    def answer(self) -> str:
        """What it answered; "" when it did not come to that."""
        return "" if self.result is None else extract_answer(self.result.trajectory)

    @property
    def counts(self) -> bool:
        """Whether it came to an end of its own: it was not stopped, and its environment did not fail."""
        return self.result is not None and self.result.success is not None

    @property
    def success(self) -> bool:
        """Whether the environment called it a success."""
        return self.result is not None and bool(self.result.success)

    @property
    def score(self) -> float:
        """The environment's score; 0 for one that was stopped."""
        return 0.0 if self.result is None else self.result.score


@dataclass(frozen=True, slots=True)
class TeamResult:
    """How a run of a team went: the answer of the whole, and a complete log of what was shared and pulled."""

    answer: str
    success: bool
    score: float
    """Of the answer that was chosen."""
    first: str | None
    """The team that finished first; None where nobody did."""
    first_score: float
    """What its answer was worth."""
    finishes: tuple[Finish, ...]
    """By team, in the order of the members."""
    shared: tuple[Shared, ...]
    """Every step with what was decided about it, team by team."""
    pulls: tuple[tuple[int, str], ...]
    """(entry, reader) of every pull by another team, in order."""
    own_pulls: tuple[tuple[int, str], ...]
    """The same of a team's own entries."""
    seconds: float
    key_tokens: int
    """Tokens of keys put before policies, over all decisions."""
    value_tokens: int
    """Tokens of values that were pulled."""
    admission_s: float
    """Seconds that decisions about sharing took, all teams together."""
    calls: int
    """Steps that environments took: those that were not answered from the bank."""
    promoted: tuple[Admitted, ...] = ()
    """What the library's curator said of what was kept."""

    @property
    def used(self) -> frozenset[int]:
        """The entries that some other team pulled: U."""
        return frozenset(entry for entry, _ in self.pulls)

    @property
    def admitted(self) -> float:
        """Share of the steps that were shared."""
        return sum(one.choice.admit for one in self.shared) / max(1, len(self.shared))


class _State(TypedDict, total=False):
    run: str
    finishes: Annotated[list[Finish], operator.add]
    answer: str


@dataclass(frozen=True, slots=True)
class _Seat:
    """A member of a run, and the desks at which it sits: one for an agent, more for a team."""

    member: "Agent | Team"
    desks: list[Desk]
    inner: "list[_Seat]" = field(default_factory=list)

    def close(self) -> None:
        """Close the environments that were made for the run."""
        if isinstance(self.member, Agent):
            self.member.close()
        for seat in self.inner:
            seat.close()


@dataclass(slots=True)
class _Run:
    """What belongs to one run and is in no checkpoint."""

    task: str
    seed: int
    seats: "list[_Seat]"
    began: float
    """By the loop's clock."""
    tasks: "dict[int, asyncio.Task[Result | TeamResult]]" = field(default_factory=dict)
    over: bool = False


class Team:
    """See the module's docstring."""

    def __init__(
        self,
        agents: "Sequence[Agent | Team]",
        bank: Bank | Callable[[str], Bank] | None = None,
        admission: Admission | None = None,
        *,
        aggregate: Aggregate = "vote",
        first: bool = True,
        keep: bool = False,
        name: str | None = None,
        summarise: Summarise = build_key,
        watch: Watch = lambda event: None,
    ) -> None:
        """bank: one that the caller opened for the task and will drop, or what makes one (`library.bank`), dropped
        after every run; None shares nothing. A team within a team shares through the outer one's, and as it says.

        admission: what decides about every step, rules if not given.
        aggregate: the most frequent answer, the one of the best score, or a judge's choice.
        first: the first verified success ends the run. keep: what helped it is put before the library's curator.
        name: what the members are called, with a number. Where other processes may sit at the same bank, one that
        nobody else has is made up: who has the same name is the same team.
        Raises ConfigError for a team of nobody.
        """
        if not agents:
            raise ConfigError("a team of 0 agents does nothing; give it at least one.")
        self._agents, self._bank = list(agents), bank
        self._admission: Admission = admission or RuleAdmission()
        self._aggregate: Aggregate = aggregate
        self._first, self._keep = first, keep
        self._summarise, self._watch = summarise, watch
        self._runs: dict[str, _Run] = {}
        self._graph: Any = None
        self._is_inner = False
        called = name or ("team" if bank is None or callable(bank) else f"team {uuid.uuid4().hex[:6]}")
        self.names = [f"{called} {n}" for n in range(1, len(agents) + 1)]

    def run(self, task: str = "", seed: int = 0) -> TeamResult:
        """Run every member on the task, all at the same time."""
        return asyncio.run(self.arun(task, seed))

    async def arun(self, task: str = "", seed: int = 0) -> TeamResult:
        """The same, awaited."""
        if callable(self._bank):  # a name of its own: what a run that was killed left behind is not seen
            with self._bank(f"{task}#{seed} {uuid.uuid4().hex}") as bank:
                return await self._shared_run(task, seed, bank)
        return await self._shared_run(task, seed, self._bank)

    async def _shared_run(self, task: str, seed: int, bank: Bank | None) -> TeamResult:
        name, graph, seats = uuid.uuid4().hex, self._compiled(), self._seated(bank)
        run = self._runs[name] = _Run(task, seed, seats, _now())
        try:
            final = await graph.ainvoke({"run": name, "finishes": []})
            return self._result(run, final["finishes"], final["answer"], bank)
        finally:
            del self._runs[name]
            for seat in run.seats if not self._is_inner else ():
                seat.close()

    def _seated(self, bank: Bank | None) -> "list[_Seat]":
        """The members, each at a desk of the bank; those of a team within a team sit at the outer one's."""
        if self._is_inner:
            return [_Seat(agent, []) for agent in self._agents]
        return [self._seat(agent, bank, name) for name, agent in zip(self.names, self._agents, strict=True)]

    def _seat(self, agent: "Agent | Team", bank: Bank | None, name: str) -> "_Seat":
        if isinstance(agent, Team):
            seats = [self._seat(inner, bank, name) for inner in agent._agents]
            team = copy.copy(agent)
            team._agents, team._is_inner, team._runs, team._graph = [seat.member for seat in seats], True, {}, None
            return _Seat(team, [desk for seat in seats for desk in seat.desks], seats)
        desk = Desk(bank, name, self._admission, summarise=self._summarise, watch=self._watch)
        return _Seat(
            agent.joined(SharedPolicy(agent.policy, desk), lambda inner: SharedEnvironment(inner, desk)), [desk]
        )

    # -- the graph ------------------------------------------------------------------------------------

    def _compiled(self) -> Any:
        if self._graph is None:
            from langgraph.graph import END, START, StateGraph

            graph = cast(Any, StateGraph(_State))
            graph.add_node("aggregate", self._aggregated)
            for number, name in enumerate(self.names):
                graph.add_node(name, self._member(number))
                graph.add_edge(START, name)
                graph.add_edge(name, "aggregate")
            graph.add_edge("aggregate", END)
            self._graph = graph.compile(name="team")
        return self._graph

    def _member(self, number: int) -> Callable[[_State], Awaitable[dict[str, Any]]]:
        async def member(state: _State) -> dict[str, Any]:
            """One member's episode, which ends early when another one has succeeded."""
            run, name = self._runs[state["run"]], self.names[number]
            if run.over:
                return {"finishes": [self._stopped(name, run)]}
            working = run.tasks[number] = asyncio.ensure_future(run.seats[number].member.arun(run.task, run.seed))
            try:
                ended = await working
            except asyncio.CancelledError:
                if not (run.over and working.cancelled()):
                    working.cancel()
                    raise
                return {"finishes": [self._stopped(name, run)]}
            return {"finishes": [await self._finished(number, ended, run)]}

        return member

    def _stopped(self, name: str, run: _Run) -> Finish:
        self._watch(Event(name, "stopped", "another team was first"))
        return Finish(name, None, _now() - run.began)

    async def _finished(self, number: int, ended: "Result | TeamResult", run: _Run) -> Finish:
        name, result = self.names[number], ended if isinstance(ended, Result) else get_best_result(ended)
        finish = Finish(name, result, _now() - run.began)
        if self._first and finish.success and not run.over:
            run.over = True
            for other, task in run.tasks.items():
                if other != number:
                    task.cancel()
        self._watch(Event(name, "finished", finish.answer))
        policy = getattr(run.seats[number].member, "policy", None)
        if isinstance(policy, SharedPolicy) and result is not None and not run.over:
            await policy.tell(result.trajectory.steps)  # what it did last, for those who still work
        return finish

    async def _aggregated(self, state: _State) -> dict[str, Any]:
        """The answer of the whole: of the success that ended the run, else of all who came to an end."""
        run = self._runs[state["run"]]
        ended = [finish for finish in self._in_order(state["finishes"]) if finish.counts]
        won = [finish for finish in ended if finish.success] if self._first else []
        if won:
            return {"answer": min(won, key=lambda finish: finish.seconds).answer}
        return {"answer": await choose_answer(run.task, ended, self._aggregate)}

    def _in_order(self, finishes: Sequence[Finish]) -> list[Finish]:
        return sorted(finishes, key=lambda finish: self.names.index(finish.team))

    # -- what came of it ------------------------------------------------------------------------------

    def _result(self, run: _Run, finishes: Sequence[Finish], answer: str, bank: Bank | None) -> TeamResult:
        ordered = self._in_order(finishes)
        ended = sorted((finish for finish in ordered if finish.counts), key=lambda one: one.seconds)
        said = [finish for finish in ended if finish.answer == answer]
        desks = [desk for seat in run.seats for desk in seat.desks]
        shared = tuple(one for desk in desks for one in desk.shared)
        pulls = tuple(bank.pulls()) if bank else ()
        return TeamResult(
            answer,
            any(finish.success for finish in said),
            max((finish.score for finish in said), default=0.0),
            ended[0].team if ended else None,
            ended[0].score if ended else 0.0,
            tuple(ordered),
            shared,
            pulls,
            tuple(bank.pulls(own=True)) if bank else (),
            _now() - run.began,
            sum(desk.key_tokens for desk in desks),
            sum(desk.value_tokens for desk in desks),
            sum(desk.admission_s for desk in desks),
            sum(desk.calls for desk in desks),
            self._kept(ended, shared, pulls, bank) if self._keep and bank else (),
        )

    def _kept(
        self, ended: Sequence[Finish], shared: Sequence[Shared], pulls: Sequence[tuple[int, str]], bank: Bank
    ) -> tuple[Admitted, ...]:
        """What the first success pulled from others, put before the curator on the word of that success."""
        winner = next((finish for finish in ended if finish.success), None)
        if winner is None or winner.result is None or not winner.result.trajectory.id:
            return ()
        pulled = {entry for entry, reader in pulls if reader == winner.team}
        found = [one for one in shared if one.entry in pulled]
        return tuple(bank.promote(build_item(one), winner.result.trajectory.id) for one in found)


def _now() -> float:
    return asyncio.get_running_loop().time()


def extract_answer(trajectory: Trajectory) -> str:
    """What an episode answered: the argument of `finish`; where actions are no calls, the last one."""
    from hardwon.runtime.environments.calls import parse_call

    last = trajectory.steps[-1].action if trajectory.steps else ""
    call = parse_call(last)
    if call is None:
        return last
    if call[0] != "finish":
        return ""
    return str(next(iter([*call[1], *call[2].values()]), ""))


async def choose_answer(task: str, ended: Sequence[Finish], aggregate: Aggregate) -> str:
    """The answer of all together; "" where nobody answered. A judge that does not choose leaves it to the vote."""
    if not ended:
        return ""
    if aggregate == "best":
        return max(ended, key=lambda finish: (finish.score, -finish.seconds)).answer
    if not isinstance(aggregate, str):
        said = aggregate(task, [finish.answer for finish in ended])
        number = await said if inspect.isawaitable(said) else said
        if number is not None:
            return ended[number].answer
    votes = Counter(finish.answer for finish in ended if finish.answer)
    return max(ended, key=lambda finish: (votes[finish.answer], -finish.seconds)).answer


def get_best_result(ended: TeamResult) -> Result | None:
    """The result behind the answer of a team within a team."""
    results = [finish.result for finish in ended.finishes if finish.result is not None]
    mine = [result for result in results if extract_answer(result.trajectory) == ended.answer]
    return max(mine, key=lambda result: result.score, default=None)


def build_item(shared: Shared) -> Item:
    """What was shared, as an item: the words are the environment's, so it waits in quarantine for a person's word."""
    step: Step = shared.step
    return Item(
        "insight",
        shared.candidate.key,
        shared.candidate.value,
        when_to_use=step.pre.task,
        signatures=(step.pre.signature,),
        source="environment",
        trust="untrusted",
        writer="team",
    )
