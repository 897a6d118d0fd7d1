"""What the middleware adds to a model call of a LangChain agent: beside the bare agent, in one run.

Agents of `create_agent`, the same scripted model and the same tool, by turns, an episode each; the library
holds so many steps in the form in which the middleware records them. Counted is the time from one model call to
the next, which is the tool, LangGraph and the middleware: recall, guard, diagnosis; in situations that were met
before, and in such as have to be searched for. Texts are embedded beforehand. `added` is that time less the bare
agent's median, so that all that happens on the machine is in it, as it is in the bare agent's; `its own work` is
what the middleware itself took of it. What comes once a run, recording and evolution, is a row of its own.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

from benchmarks.fixtures import ITEMS, TOGETHER, CachedEmbedder, Rooms
from hardwon.memory import ExperienceLibrary, Trajectory
from hardwon.memory.retrieval.embedders import open_embedder
from hardwon.runtime.environments.calls import Call
from hardwon.runtime.integrations.middleware import ExperienceMiddleware
from hardwon.runtime.integrations.tool_episode import ToolEpisode

_T = TypeVar("_T")

CALLS = 20
"""Tool calls of an episode."""
WARM = 3
"""Episodes of each agent before the clock starts."""
FAILING = 0.2
"""Share of the recorded calls that failed."""


class Walker(BaseChatModel):
    """Calls `look` at one thing after the other, then answers; keeps when it was asked."""

    things: list[str]
    asked: list[float]
    ended: list[float]

    @property
    def _llm_type(self) -> str:
        return "walker"

    def bind_tools(self, tools: Any, **settings: Any) -> Any:
        """It knows its tool."""
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **settings: Any) -> ChatResult:
        self.asked.append(time.perf_counter())
        n = sum(message.type == "tool" for message in messages)
        call = [{"name": "look", "args": {"at": self.things[n]}, "id": f"call_{n}"}] if n < CALLS else []
        answer = ChatResult(generations=[ChatGeneration(message=AIMessage("" if call else "Done.", tool_calls=call))])
        self.ended.append(time.perf_counter())
        return answer


class Clocked(ExperienceMiddleware):
    """Keeps when its own work began, and how long it took."""

    def __init__(self, library: ExperienceLibrary, **settings: Any) -> None:
        super().__init__(library, **settings)
        self.worked: list[tuple[float, float]] = []

    def _run_safely(self, work: Callable[[], _T]) -> _T | None:
        began = time.perf_counter()
        try:
            return super()._run_safely(work)
        finally:
            self.worked.append((began, time.perf_counter() - began))

    def between(self, ended: float, asked: float) -> float:
        """Seconds of its own work from the end of a model call to the next one."""
        return sum(took for began, took in self.worked if ended <= began < asked)


def measure(steps: int, episodes: int, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """Mean, p50 and p99 of a bare agent's model call, of what experience adds to it, and of the end of a run."""
    with TemporaryDirectory(prefix="hardwon-bench-") as folder:
        tell(f"building a library of {steps} steps ...")
        library, rooms = _build(Path(folder) / "library.db", steps)
        with library:
            tell(f"running {episodes} episodes of each agent ...")
            (bare, known, new), (_, known_own, new_own), ends = _run(library, rooms, episodes)
    usual = statistics.median(bare)
    rows = {
        "a bare agent's call": bare,
        "added, known situations": [one - usual for one in known],
        "its own work, known situations": known_own,
        "added, new situations": [one - usual for one in new],
        "its own work, new situations": new_own,
        "the end of a run": ends,
    }
    return [
        {"n": steps, "what": what, "mean_ms": _rounded(statistics.fmean(times)), **_percentiles(times)}
        for what, times in rows.items()
    ]


Times = tuple[list[float], list[float], list[float]]
"""Bare, with what is known, with what is new."""


def _run(library: ExperienceLibrary, rooms: Rooms, episodes: int) -> tuple[Times, Times, list[float]]:
    """Seconds between model calls, those of the middleware's own work, and of the end of runs that learn."""
    seen = {f"thing {n}": rooms.state().observation for n in range(CALLS)}

    @tool
    def look(at: str) -> str:
        """Look at something."""
        return seen[at]

    # what the third sees it does not learn, so that it stays new; it is embedded when it runs for the first time
    arms: list[list[Clocked]] = [[], [Clocked(library)], [Clocked(library, learn=False)]]
    models = [Walker(things=list(seen), asked=[], ended=[]) for _ in arms]
    agents: list[Any] = [create_agent(model, [look], middleware=arm) for model, arm in zip(models, arms, strict=True)]
    times: Times = ([], [], [])
    own: Times = ([], [], [])
    ends: list[float] = []
    for episode in range(WARM + episodes):
        for arm, (agent, model) in enumerate(zip(agents, models, strict=True)):
            model.asked.clear()
            model.ended.clear()
            for middleware in arms[arm]:
                middleware.worked.clear()
            request = "Look for the lost umbrella." if arm == 2 else "Look around, and find your way."
            agent.invoke({"messages": [("user", request)]}, {"recursion_limit": 10 * CALLS})
            over = time.perf_counter()
            if episode >= WARM:
                spans = list(zip(model.ended, model.asked[1:], strict=False))
                times[arm].extend(asked - ended for ended, asked in spans)
                own[arm].extend(middleware.between(*span) for middleware in arms[arm] for span in spans)
                if arm == 1:
                    ends.append(over - model.ended[-1])
    return times, own, ends


def _build(path: Path, steps: int) -> tuple[ExperienceLibrary, Rooms]:
    """A library of so many steps of calls and their answers, embedded, and items."""
    rooms = Rooms(0)
    library = ExperienceLibrary.open(path, embedder=CachedEmbedder(open_embedder()))
    for group in _groups(_episodes(library, rooms, steps)):
        library.record_many(group)
    library.add_many(rooms.items(ITEMS))
    library.evolve()
    library.index()
    return library, rooms


def _episodes(library: ExperienceLibrary, rooms: Rooms, steps: int) -> Iterator[Trajectory]:
    chance = random.Random(0)
    for number in range(-(-steps // CALLS)):
        episode, calls = ToolEpisode(library, f"Look around, and find the {rooms.state().task}."), list[Call]()
        for _ in range(CALLS):
            pre = episode.state(calls)
            failed = chance.random() < FAILING
            answer = "nothing of that name is here" if failed else rooms.state().observation
            calls.append(Call("look", {"at": f"thing {chance.randrange(99)}"}, answer, answer if failed else ""))
            episode.add_answer(pre, calls, why={})
        yield episode.trajectory(bool(number % 2), arm="retrieved", seed=number)


def _groups(episodes: Iterator[Trajectory]) -> Iterator[list[Trajectory]]:
    group: list[Trajectory] = []
    for episode in episodes:
        group.append(episode)
        if len(group) == TOGETHER:
            yield group
            group = []
    if group:
        yield group


def _percentiles(times: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return {f"p{percent}_ms": _rounded(cuts[percent - 1]) for percent in (50, 99)}


def _rounded(seconds: float) -> float:
    return round(1000 * seconds, 3)
