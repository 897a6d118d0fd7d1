"""A team: several agents that work on one task concurrently and share findings through a bank.

    team = Team([Agent(policy, library, environment, seed=n) for n in range(3)], library.admin.bank, RuleAdmission())
    result = team.run("Which of our suppliers are in Oslo?")
    result.answer, result.success, result.pulls

The team is a LangGraph graph with one node per member, all of which run concurrently, and a final node that
aggregates the answers. A member is an agent, or a team that acts as one reader and writer of the bank. The
first verified success ends the run for all members. `sharing` implements how members share, and an
`SharingPolicy` decides what they share. The bank is dropped at the end unless the caller opened it.
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
from hardwon.memory.errors import ConfigError, require_extra
from hardwon.runtime.agent import Agent, Result

from .reading import ReadingPolicy
from .sharing import (
    BankClient,
    OnTeamEvent,
    Shared,
    SharedEnvironment,
    SharedPolicy,
    TeamEvent,
    get_value,
)
from .sharing_policy import RuleAdmission, SharingPolicy

TeamJudge = Callable[[str, Sequence[str]], int | Awaitable[int | None] | None]
"""Maps the task and the answers, in order of the members, to the index of the best answer, or None."""
Aggregate = Literal["vote", "best"] | TeamJudge
Access = Literal["pull", "show"]


@dataclass(frozen=True, slots=True)
class Finish:
    """The outcome of one member. `result` is None if the member was stopped."""

    team: str
    result: Result | None
    seconds: float
    """Seconds from the start of the run to the end of the member."""

    @property
    def answer(self) -> str:
        """Return the member's answer; "" if it has none."""
        return "" if self.result is None else extract_answer(self.result.trajectory)

    @property
    def counts(self) -> bool:
        """Return whether the member finished by itself: it was not stopped, and its environment did not fail."""
        return self.result is not None and self.result.success is not None

    @property
    def success(self) -> bool:
        """Return whether the environment reported a success."""
        return self.result is not None and bool(self.result.success)

    @property
    def score(self) -> float:
        """Return the environment's score in [0, 1]; 0 if the member was stopped."""
        return 0.0 if self.result is None else self.result.score


@dataclass(frozen=True, slots=True)
class TeamResult:
    """The outcome of a team's run: the team's answer, and a complete log of shared and pulled entries."""

    answer: str
    success: bool
    score: float
    """Score of the answer, in [0, 1]."""
    first: str | None
    """The member that finished first; None if none did."""
    first_score: float
    """Score of the member that finished first."""
    finishes: tuple[Finish, ...]
    """The outcomes, in order of the members."""
    shared: tuple[Shared, ...]
    """Every step with the decision about it, member by member."""
    pulls: tuple[tuple[int, str], ...]
    """(entry, reader) of every pull of another team's entry, in order."""
    own_pulls: tuple[tuple[int, str], ...]
    """(entry, reader) of every pull of a team's own entry, in order."""
    seconds: float
    key_tokens: int
    """Tokens of the keys in prompts, over all decisions."""
    value_tokens: int
    """Tokens of the pulled values."""
    admission_s: float
    """Seconds spent on sharing decisions, summed over members."""
    calls: int
    """Steps that ran in an environment instead of being answered from the bank."""
    promoted: tuple[Admitted, ...] = ()
    """The curator's decisions on entries offered to the library."""

    @property
    def used(self) -> frozenset[int]:
        """Return the ids of the entries that other teams pulled."""
        return frozenset(entry for entry, _ in self.pulls)

    @property
    def admitted(self) -> float:
        """Return the fraction of steps that were shared."""
        return sum(entry.choice.admit for entry in self.shared) / max(1, len(self.shared))


class _State(TypedDict, total=False):
    run: str
    finishes: Annotated[list[Finish], operator.add]
    answer: str


@dataclass(frozen=True, slots=True)
class _Seat:
    """A member of a run and its clients: one for an agent, several for a team."""

    member: "Agent | Team"
    clients: list[BankClient]
    inner: "list[_Seat]" = field(default_factory=list)

    def close(self) -> None:
        """Close the environments that were created for the run."""
        if isinstance(self.member, Agent):
            self.member.close()
        for seat in self.inner:
            seat.close()


@dataclass(slots=True)
class _Run:
    """The state of one run that is not part of any checkpoint."""

    task: str
    seed: int
    seats: "list[_Seat]"
    began: float
    """Start time, on the event loop's clock."""
    tasks: "dict[int, asyncio.Task[Result | TeamResult]]" = field(default_factory=dict)
    over: bool = False


class Team:
    """Several agents, or teams, that work on one task concurrently.

    Each member shares its steps through a bank, and the members' answers are aggregated to one answer.
    """

    def __init__(
        self,
        agents: "Sequence[Agent | Team]",
        bank: Bank | Callable[[str], Bank] | None = None,
        admission: SharingPolicy | None = None,
        *,
        aggregate: Aggregate = "vote",
        first: bool = True,
        keep: bool = False,
        name: str | None = None,
        access: Access = "pull",
        watch: OnTeamEvent = lambda event: None,
    ) -> None:
        """Create a team.

        Args:
            agents: The members. A team within a team shares through the bank of the outer one, by its rules.
            bank: An open bank, which stays open, or a function that creates one for every run, such as
                `library.admin.bank`; it is dropped after the run. None shares nothing.
            admission: Decides which steps are shared. None uses `RuleAdmission`.
            aggregate: "vote" takes the most frequent answer, "best" the one with the best score. A function chooses
                an answer from the task and the list of answers.
            first: Whether the first verified success ends the run.
            keep: Whether to offer the entries that helped the first success to the library's curator.
            name: Prefix of the member names, followed by a number. The name identifies a team in the bank, so by
                default it is unique if other processes may use the same bank.
            access: "pull" shows a policy the keys of other teams and lets it pull values by an action. "show" pulls
                what fits the task and shows it as guidance, for a policy that was trained alone.
            watch: Called with every event.

        Raises:
            ConfigError: `agents` is empty, or `access` is not one of the two.
        """
        if not agents:
            raise ConfigError("a team needs at least one agent.")
        if access not in ("pull", "show"):
            raise ConfigError(f"access is {access!r}; use 'pull' or 'show'.")
        self._agents, self._bank = list(agents), bank
        self._admission: SharingPolicy = admission or RuleAdmission()
        self._aggregate: Aggregate = aggregate
        self._first, self._keep = first, keep
        self._watch = watch
        # what readers get for a step: a trained admission has words of its own for it
        self._value = getattr(self._admission, "value", None) or get_value
        self._reading: type[SharedPolicy] = SharedPolicy if access == "pull" else ReadingPolicy
        self._runs: dict[str, _Run] = {}
        self._graph: Any = None
        self._is_inner = False
        prefix = name or ("team" if bank is None or callable(bank) else f"team {uuid.uuid4().hex[:6]}")
        self.names = [f"{prefix} {n}" for n in range(1, len(agents) + 1)]

    def run(self, task: str = "", seed: int = 0) -> TeamResult:
        """Run all members on a task concurrently.

        Args:
            task: The task, passed to the environments.
            seed: The seed, passed to the environments.

        Returns:
            The answer, its score, and the log of the run.
        """
        return asyncio.run(self.arun(task, seed))

    async def arun(self, task: str = "", seed: int = 0) -> TeamResult:
        """Run all members on a task; the asynchronous version of `run`."""
        if callable(self._bank):  # a unique name, so that leftovers of a killed run are never read
            with self._bank(f"{task}#{seed} {uuid.uuid4().hex}") as bank:
                return await self._run_members(task, seed, bank)
        return await self._run_members(task, seed, self._bank)

    async def _run_members(self, task: str, seed: int, bank: Bank | None) -> TeamResult:
        name, graph, seats = uuid.uuid4().hex, self._compile_graph(), self._assign_seats(bank)
        run = self._runs[name] = _Run(task, seed, seats, _get_time())
        try:
            final = await graph.ainvoke({"run": name, "finishes": []})
            return self._build_result(run, final["finishes"], final["answer"], bank)
        finally:
            del self._runs[name]
            # The environments of an inner team belong to the outer one, which closes them.
            for seat in run.seats if not self._is_inner else ():
                seat.close()

    def _assign_seats(self, bank: Bank | None) -> "list[_Seat]":
        """Return the members with their clients; an inner team uses the clients of the outer one."""
        if self._is_inner:
            return [_Seat(agent, []) for agent in self._agents]
        return [self._build_seat(agent, bank, name) for name, agent in zip(self.names, self._agents, strict=True)]

    def _build_seat(self, agent: "Agent | Team", bank: Bank | None, name: str) -> "_Seat":
        if isinstance(agent, Team):
            seats = [self._build_seat(inner, bank, name) for inner in agent._agents]
            # A copy, because the same Team object may take part in several runs at once.
            team = copy.copy(agent)
            team._agents, team._is_inner, team._runs, team._graph = [seat.member for seat in seats], True, {}, None
            return _Seat(team, [client for seat in seats for client in seat.clients], seats)
        client = BankClient(bank, name, self._admission, value=self._value, watch=self._watch)
        return _Seat(
            agent.joined(self._reading(agent.policy, client), lambda inner: SharedEnvironment(inner, client)), [client]
        )

    # -- the graph ------------------------------------------------------------------------------------

    def _compile_graph(self) -> Any:
        if self._graph is None:
            with require_extra("agent"):
                from langgraph.graph import END, START, StateGraph

            graph = cast(Any, StateGraph(_State))
            graph.add_node("aggregate", self._aggregate_answers)
            for number, name in enumerate(self.names):
                graph.add_node(name, self._build_node(number))
                graph.add_edge(START, name)
                graph.add_edge(name, "aggregate")
            graph.add_edge("aggregate", END)
            self._graph = graph.compile(name="team")
        return self._graph

    def _build_node(self, number: int) -> Callable[[_State], Awaitable[dict[str, Any]]]:
        async def member(state: _State) -> dict[str, Any]:
            """Run a member's episode, which is cancelled when another member succeeds."""
            run, name = self._runs[state["run"]], self.names[number]
            # Another member may have succeeded before this node began.
            if run.over:
                return {"finishes": [self._stop_member(name, run)]}
            working = run.tasks[number] = asyncio.ensure_future(run.seats[number].member.arun(run.task, run.seed))
            try:
                ended = await working
            except asyncio.CancelledError:
                # Only a cancellation by `_finish_member` is an outcome; any other must stop the whole run.
                if not (run.over and working.cancelled()):
                    working.cancel()
                    raise
                return {"finishes": [self._stop_member(name, run)]}
            return {"finishes": [await self._finish_member(number, ended, run)]}

        return member

    def _stop_member(self, name: str, run: _Run) -> Finish:
        self._watch(TeamEvent(name, "stopped", "another team was first"))
        return Finish(name, None, _get_time() - run.began)

    async def _finish_member(self, number: int, ended: "Result | TeamResult", run: _Run) -> Finish:
        name, result = self.names[number], ended if isinstance(ended, Result) else get_best_result(ended)
        finish = Finish(name, result, _get_time() - run.began)
        if self._first and finish.success and not run.over:
            # Set before cancelling: `member` takes a cancellation for an outcome only if the run is over.
            run.over = True
            for index, task in run.tasks.items():
                if index != number:
                    task.cancel()
        self._watch(TeamEvent(name, "finished", finish.answer))
        policy = getattr(run.seats[number].member, "policy", None)
        if isinstance(policy, SharedPolicy) and result is not None and not run.over:
            await policy.tell(result.trajectory.steps)  # the last step may still help members that are running
        return finish

    async def _aggregate_answers(self, state: _State) -> dict[str, Any]:
        """Return the team's answer: that of the first success, else one from all members that finished."""
        run = self._runs[state["run"]]
        ended = [finish for finish in self._sort_finishes(state["finishes"]) if finish.counts]
        # If the first success ended the run, its answer is verified, and a vote could only lose it.
        winners = [finish for finish in ended if finish.success] if self._first else []
        if winners:
            return {"answer": min(winners, key=lambda finish: finish.seconds).answer}
        return {"answer": await choose_answer(run.task, ended, self._aggregate)}

    def _sort_finishes(self, finishes: Sequence[Finish]) -> list[Finish]:
        return sorted(finishes, key=lambda finish: self.names.index(finish.team))

    # -- the result -----------------------------------------------------------------------------------

    def _build_result(self, run: _Run, finishes: Sequence[Finish], answer: str, bank: Bank | None) -> TeamResult:
        ordered = self._sort_finishes(finishes)
        ended = sorted((finish for finish in ordered if finish.counts), key=lambda finish: finish.seconds)
        matching = [finish for finish in ended if finish.answer == answer]
        clients = [client for seat in run.seats for client in seat.clients]
        shared = tuple(entry for client in clients for entry in client.shared)
        pulls = tuple(bank.pulls()) if bank else ()
        return TeamResult(
            answer,
            any(finish.success for finish in matching),
            max((finish.score for finish in matching), default=0.0),
            ended[0].team if ended else None,
            ended[0].score if ended else 0.0,
            tuple(ordered),
            shared,
            pulls,
            tuple(bank.pulls(own=True)) if bank else (),
            _get_time() - run.began,
            sum(client.key_tokens for client in clients),
            sum(client.value_tokens for client in clients),
            sum(client.admission_s for client in clients),
            sum(client.calls for client in clients),
            self._promote_entries(ended, shared, pulls, bank) if self._keep and bank else (),
        )

    def _promote_entries(
        self, ended: Sequence[Finish], shared: Sequence[Shared], pulls: Sequence[tuple[int, str]], bank: Bank
    ) -> tuple[Admitted, ...]:
        """Offer the entries that the first success pulled to the curator, with that success as evidence."""
        winner = next((finish for finish in ended if finish.success), None)
        if winner is None or winner.result is None or not winner.result.trajectory.id:
            return ()
        pulled = {entry for entry, reader in pulls if reader == winner.team}
        useful = [step for step in shared if step.entry in pulled]
        return tuple(bank.promote(build_item(step), winner.result.trajectory.id) for step in useful)


def _get_time() -> float:
    return asyncio.get_running_loop().time()


def extract_answer(trajectory: Trajectory) -> str:
    """Return the answer of an episode.

    It is the argument of `finish`. If actions are not calls, it is the last action.
    """
    from hardwon.runtime.environments.calls import parse_call

    last = trajectory.steps[-1].action if trajectory.steps else ""
    call = parse_call(last)
    if call is None:
        return last
    if call[0] != "finish":
        return ""
    return str(next(iter([*call[1], *call[2].values()]), ""))


async def choose_answer(task: str, ended: Sequence[Finish], aggregate: Aggregate) -> str:
    """Return the team's answer; "" if no member finished. Without a choice of the judge, the vote decides."""
    if not ended:
        return ""
    if aggregate == "best":
        return max(ended, key=lambda finish: (finish.score, -finish.seconds)).answer
    if not isinstance(aggregate, str):
        choice = aggregate(task, [finish.answer for finish in ended])
        number = await choice if inspect.isawaitable(choice) else choice
        if number is not None:
            return ended[number].answer
    # Ties go to the earliest answer.
    votes = Counter(finish.answer for finish in ended if finish.answer)
    return max(ended, key=lambda finish: (votes[finish.answer], -finish.seconds)).answer


def get_best_result(ended: TeamResult) -> Result | None:
    """Return the result behind the answer of an inner team."""
    results = [finish.result for finish in ended.finishes if finish.result is not None]
    matching = [result for result in results if extract_answer(result.trajectory) == ended.answer]
    return max(matching, key=lambda result: result.score, default=None)


def build_item(shared: Shared) -> Item:
    """Return a shared step as an item.

    Its text comes from the environment, so the item stays in quarantine until a person approves it.
    """
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
