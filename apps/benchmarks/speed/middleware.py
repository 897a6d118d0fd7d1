"""Measure the time that the middleware adds to a model call of a LangChain agent.

Three agents of `create_agent` take turns, one episode each: one without the middleware, one in known situations, and
one in new situations, which need a search. They share a scripted model, a tool, and a library of calls as the
middleware records them. All texts are embedded beforehand.

The measured time runs from the end of one model call to the start of the next. It includes the tool, LangGraph, and
the middleware's recall, guardrails and diagnosis. `added` is that time minus the median of the bare agent, so it
includes noise of the machine. `its own work` is the time inside the middleware, and its CPU time, which others on the
machine change less. Recording and evolution happen once per run, and are a separate row.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

from benchmarks.fixtures import ITEMS, TOGETHER, CachedEmbedder, Rooms
from benchmarks.harness.timing import summarize_ms, take_turns
from hardwon.memory import ExperienceLibrary, Trajectory
from hardwon.memory.retrieval.embedders import open_embedder
from hardwon.runtime.environments.calls import Call
from hardwon.runtime.integrations.middleware import ExperienceMiddleware
from hardwon.runtime.integrations.tool_episode import ToolEpisode

_T = TypeVar("_T")

CALLS = 20
"""Tool calls of a recorded episode, and by default of one that is measured."""
WARM = 3
"""Untimed episodes per agent before the measurement."""
FAILING = 0.2
"""Share of recorded calls that fail."""


class Walker(BaseChatModel):
    """A model that calls `look` on one object after the other, then answers.

    It records when each model call starts and ends.
    """

    things: list[str]
    started: list[float]
    ended: list[float]

    @property
    def _llm_type(self) -> str:
        return "walker"

    def bind_tools(self, tools: Any, **settings: Any) -> Any:
        """Return this model, which already knows its tool."""
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **settings: Any) -> ChatResult:
        self.started.append(time.perf_counter())
        n = sum(message.type == "tool" for message in messages)
        call = [{"name": "look", "args": {"at": self.things[n]}, "id": f"call_{n}"}] if n < len(self.things) else []
        answer = ChatResult(generations=[ChatGeneration(message=AIMessage("" if call else "Done.", tool_calls=call))])
        self.ended.append(time.perf_counter())
        return answer


class TimedMiddleware(ExperienceMiddleware):
    """A middleware that records the start and the duration of its own work."""

    def __init__(self, library: ExperienceLibrary, **settings: Any) -> None:
        super().__init__(library, **settings)
        self.intervals: list[tuple[float, float, float]] = []

    def _run_safely(self, work: Callable[[], _T]) -> _T | None:
        start, cpu = time.perf_counter(), time.thread_time()
        try:
            return super()._run_safely(work)
        finally:
            self.intervals.append((start, time.perf_counter() - start, time.thread_time() - cpu))

    def seconds_between(self, ended: float, started: float, of: int) -> float:
        """Return the seconds (1) or CPU seconds (2) of its own work between the end of a model call and the next."""
        return sum(interval[of] for interval in self.intervals if ended <= interval[0] < started)


def measure(steps: int, episodes: int, calls: int, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure a bare agent's model call, the time that experience adds to it, and the end of a run.

    Args:
        steps: size of the library in steps.
        episodes: number of timed episodes per agent.
        calls: tool calls of each of them.
        tell: function that receives lines of progress.

    Returns:
        One row per figure, with mean, p50 and p99 in milliseconds.
    """
    with TemporaryDirectory(prefix="hardwon-bench-") as folder:
        tell(f"building a library of {steps} steps ...")
        library, rooms = _build_library(Path(folder) / "library.db", steps)
        with library:
            tell(f"running {episodes} episodes of {calls} calls of each agent ...")
            (bare, seen_before, new), own, cpu, ends = _run_agents(library, rooms, episodes, calls)
    baseline = statistics.median(bare)
    rows = {
        "a bare agent's call": bare,
        "added, known situations": [seconds - baseline for seconds in seen_before],
        "its own work, known situations": own[1],
        "its own work, known situations, CPU": cpu[1],
        "added, new situations": [seconds - baseline for seconds in new],
        "its own work, new situations": own[2],
        "its own work, new situations, CPU": cpu[2],
        "the end of a run": ends,
    }
    return [
        {"n": steps, "calls": calls, "what": what, "mean_ms": round(1000 * statistics.fmean(times), 3)}
        | summarize_ms([1000 * seconds for seconds in times])
        for what, times in rows.items()
    ]


Times = tuple[list[float], list[float], list[float]]
"""Seconds of the bare agent, of the one in known situations, and of the one in new situations."""


def _run_agents(
    library: ExperienceLibrary, rooms: Rooms, episodes: int, calls: int
) -> tuple[Times, Times, Times, list[float]]:
    """Run the three agents in turn.

    Returns:
        Seconds between model calls, seconds and CPU seconds of the middleware's own work, and seconds at the end of
        runs that learn.
    """
    observations = {f"thing {n}": rooms.draw_state().observation for n in range(calls)}

    @tool
    def look(at: str) -> str:
        """Look at something."""
        return observations[at]

    # The third agent does not learn, so its situations stay new. Its texts are embedded in its first, untimed episode.
    arms: list[list[TimedMiddleware]] = [[], [TimedMiddleware(library)], [TimedMiddleware(library, learn=False)]]
    models = [Walker(things=list(observations), started=[], ended=[]) for _ in arms]
    agents: list[Any] = [create_agent(model, [look], middleware=arm) for model, arm in zip(models, arms, strict=True)]
    times: Times = ([], [], [])
    own: Times = ([], [], [])
    cpu: Times = ([], [], [])
    ends: list[float] = []

    def run_episode(arm: int) -> float:
        """Run one episode, and return the moment of its end."""
        models[arm].started.clear()
        models[arm].ended.clear()
        for middleware in arms[arm]:
            middleware.intervals.clear()
        request = "Look for the lost umbrella." if arm == 2 else "Look around, and find your way."
        agents[arm].invoke({"messages": [("user", request)]}, {"recursion_limit": 10 * calls})
        return time.perf_counter()

    turns = {arm: partial(run_episode, arm) for arm in range(len(arms))}
    for _, ended in take_turns(turns, episodes, WARM):
        for arm, model in enumerate(models):
            spans = list(zip(model.ended, model.started[1:], strict=False))
            times[arm].extend(started - ended for ended, started in spans)
            for of, seconds in ((1, own), (2, cpu)):
                seconds[arm].extend(middleware.seconds_between(*span, of) for middleware in arms[arm] for span in spans)
        ends.append(ended[1] - models[1].ended[-1])
    return times, own, cpu, ends


def _build_library(path: Path, steps: int) -> tuple[ExperienceLibrary, Rooms]:
    """Build an embedded library with steps of tool calls and with items."""
    rooms = Rooms(0)
    library = ExperienceLibrary.open(path, embedder=CachedEmbedder(open_embedder()))
    episodes = _generate_episodes(library, rooms, steps)
    while group := list(islice(episodes, TOGETHER)):
        library.record_many(group)
    library.items.add_many(rooms.generate_items(ITEMS))
    library.evolve()
    library.admin.index()
    return library, rooms


def _generate_episodes(library: ExperienceLibrary, rooms: Rooms, steps: int) -> Iterator[Trajectory]:
    """Yield episodes of tool calls in the form that the middleware records."""
    chance = random.Random(0)
    for number in range(-(-steps // CALLS)):
        episode, calls = ToolEpisode(library, f"Look around, and find the {rooms.draw_state().task}."), list[Call]()
        for _ in range(CALLS):
            pre = episode.state(calls)
            failed = chance.random() < FAILING
            answer = "nothing of that name is here" if failed else rooms.draw_state().observation
            calls.append(Call("look", {"at": f"thing {chance.randrange(99)}"}, answer, answer if failed else ""))
            episode.add_answer(pre, calls)
        yield episode.trajectory(bool(number % 2), arm="retrieved", seed=number)
