"""However a run ends, it is an episode: its steps are kept, and only a clean end is a success."""

import asyncio
import gc
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import pytest
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware, ToolRetryMiddleware
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.errors import GraphRecursionError, NodeCancelledError
from langgraph.types import Command
from tests import warm
from tests.runtime.integrations.scripted import call, create_agent, last, model

from hardwon.memory import ExperienceLibrary, Failure, Reasons
from hardwon.runtime import ExperienceMiddleware, FunctionEpisode, remember
from hardwon.runtime.environments.calls import Call
from hardwon.runtime.integrations.middleware_run import GRAPHS
from hardwon.runtime.integrations.recording import begin_run, record_run

REQUEST = {"messages": [("user", "Book a table.")]}


class Looping(GenericFakeChatModel):
    """Calls the tool again and again, and raises at the given call."""

    raises_at: int = 10**6
    error: Any = None
    made: int = 0

    def bind_tools(self, tools, **settings):
        return self

    def _generate(self, messages, *args, **settings):
        self.made += 1
        if self.made >= self.raises_at:
            raise self.error
        message = call("book", f"call-{self.made}", table=self.made + 10)
        return ChatResult(generations=[ChatGeneration(message=message)])


def looping(library, desk, *others, **fields):
    chat = Looping(messages=iter(()), **fields)
    return create_agent(chat, desk.tools, middleware=[ExperienceMiddleware(library), *others])


class Broken(AgentMiddleware):
    def before_model(self, state, runtime):
        if len(state["messages"]) > 3:
            raise ValueError("another middleware is broken")


def stop_at_the_limit(library, desk):
    with pytest.raises(GraphRecursionError):
        looping(library, desk).invoke(REQUEST, {"recursion_limit": 8})


def stop_at_the_limit_in_a_loop(library, desk):
    async def run():
        with pytest.raises(GraphRecursionError):
            await looping(library, desk).ainvoke(REQUEST, {"recursion_limit": 8})

    asyncio.run(run())


def fail_in_the_model(library, desk):
    with pytest.raises(RuntimeError, match="the prompt is too long"):
        looping(library, desk, raises_at=3, error=RuntimeError("the prompt is too long")).invoke(REQUEST)


def lose_the_model(library, desk):
    with pytest.raises(ConnectionError):
        looping(library, desk, raises_at=3, error=ConnectionError("connection refused")).invoke(REQUEST)


def interrupt_from_the_keyboard(library, desk):
    with pytest.raises(KeyboardInterrupt):
        looping(library, desk, raises_at=3, error=KeyboardInterrupt()).invoke(REQUEST)


def fail_in_another_middleware(library, desk):
    with pytest.raises(ValueError, match="broken"):
        looping(library, desk, Broken()).invoke(REQUEST)


def leave_a_stream(library, desk):
    for update in looping(library, desk).stream(REQUEST, stream_mode="updates"):
        if "tools" in update:
            break
    gc.collect()


def leave_an_async_stream(library, desk):
    async def run():
        stream = looping(library, desk).astream(REQUEST, stream_mode="updates")
        async for update in stream:
            if "tools" in update:
                break

    asyncio.run(run())


def cancel_a_task(library, desk, *, wait_s=None):
    async def run():
        called = asyncio.Event()

        @tool
        async def book(table: int) -> str:
            """Book a table."""
            if called.is_set():
                await asyncio.sleep(100)
            called.set()
            return "booked"

        chat = Looping(messages=iter(()))
        agent = create_agent(chat, [book], middleware=[ExperienceMiddleware(library)])
        if wait_s:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(agent.ainvoke(REQUEST), wait_s)
            return
        task = asyncio.create_task(agent.ainvoke(REQUEST))
        await called.wait()
        while chat.made < 2:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


def wait_for_a_task(library, desk):
    cancel_a_task(library, desk, wait_s=0.5)


def exceed_a_time_limit(library, desk):
    proceed = threading.Event()

    @tool
    def book(table: int) -> str:
        """Book a table."""
        if table > 11:
            proceed.wait(30)
        return "booked"

    agent = create_agent(Looping(messages=iter(())), [book], middleware=[ExperienceMiddleware(library)])
    agent.step_timeout = 0.5
    threading.Timer(0.6, proceed.set).start()
    with pytest.raises(TimeoutError):
        agent.invoke(REQUEST)
    proceed.set()


ENDS = {
    stop_at_the_limit: (False, "step_limit"),
    stop_at_the_limit_in_a_loop: (False, "step_limit"),
    fail_in_the_model: (False, "RuntimeError"),
    lose_the_model: (None, "ConnectionError"),
    interrupt_from_the_keyboard: (None, "KeyboardInterrupt"),
    fail_in_another_middleware: (False, "ValueError"),
    leave_a_stream: (None, "GeneratorExit"),
    leave_an_async_stream: (None, "GeneratorExit"),
    cancel_a_task: (None, "CancelledError"),
    wait_for_a_task: (None, "CancelledError"),
    exceed_a_time_limit: (None, "TimeoutError"),
}


@pytest.mark.parametrize(("end", "outcome"), ENDS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_run_that_does_not_end_by_itself_is_an_episode_and_no_success(library, desk, end, outcome):
    end(library, desk)
    assert library.admin.stats()["episodes"] == 1
    episode = last(library)
    assert (episode.success, episode.ending) == outcome
    assert episode.task == "Book a table."
    assert episode.steps
    assert {step.diagnosis.failure for step in episode.steps} <= {Failure.NONE, Failure.UNAVAILABLE}


def test_of_twenty_runs_of_which_ten_loop_all_are_recorded_and_ten_as_successes(library, desk):
    for n in range(20):
        script = [call("book", str(n), table=n + 10), AIMessage("Done.")]
        agent = create_agent(model(*script), desk.tools, middleware=[ExperienceMiddleware(library)])
        if n % 2:
            agent = looping(library, desk)
        with suppress(GraphRecursionError):
            agent.invoke(REQUEST, {"recursion_limit": 8})
    outcomes = [bool(row["success"]) for row in library.episodes.find(limit=50)]
    assert sorted(outcomes) == [False] * 10 + [True] * 10


def test_an_agent_within_a_tool_of_another_agent_is_recorded_where_it_ends(library, desk):
    inner = looping(library, desk)

    @tool
    def delegate(task: str) -> str:
        """Let another agent do it."""
        try:
            inner.invoke({"messages": [("user", task)]}, {"recursion_limit": 8})
        except GraphRecursionError:
            return "error: it came to no end"
        return "done"

    script = [call("delegate", task="Book a table."), AIMessage("Done.")]
    create_agent(model(*script), [delegate]).invoke({"messages": [("user", "Feed the guests.")]})
    assert [(row["task"], row["ending"]) for row in library.episodes.find()] == [("Book a table.", "step_limit")]


def test_an_error_that_an_outer_layer_handles_does_not_end_the_run(library, desk):
    """The tool raises once and is called again."""
    tries: list[int] = []

    @tool
    def book(table: int) -> str:
        """Book a table."""
        tries.append(table)
        if len(tries) == 1:
            raise RuntimeError("the desk is on fire")
        return "booked"

    retry = ToolRetryMiddleware(max_retries=1, initial_delay=0, backoff_factor=0)
    script = [call("book", table=7), AIMessage("Done.")]
    agent = create_agent(model(*script), [book], middleware=[retry, ExperienceMiddleware(library)])
    agent.invoke(REQUEST)
    episode = last(library)
    assert [step.diagnosis.success for step in episode.steps] == [False, True]
    assert episode.success is True


# ---- runs that go on


def pausing(library, desk, saver, *script):
    ask = HumanInTheLoopMiddleware(interrupt_on={"book": True})
    middleware = [ExperienceMiddleware(library), ask]
    return create_agent(model(*script), desk.tools, middleware=middleware, checkpointer=saver)


def test_a_run_that_waits_for_a_person_is_no_episode_until_it_goes_on_or_is_left(library, desk):
    config = {"configurable": {"thread_id": "1"}}
    agent = pausing(library, desk, InMemorySaver(), call("book", table=7), AIMessage("Done."))
    agent.invoke(REQUEST, config)
    assert library.admin.stats()["episodes"] == 0
    agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), config)
    assert (last(library).success, len(last(library).steps)) == (True, 1)


def test_a_thread_that_goes_on_with_another_request_leaves_the_run_that_waited(library, desk):
    config = {"configurable": {"thread_id": "1"}}
    script = call("book", "1", table=7), call("book", "2", table=8), AIMessage("Never mind.")
    agent = pausing(library, desk, InMemorySaver(), *script)
    agent.invoke(REQUEST, config)
    agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), config)
    agent.invoke({"messages": [("user", "Stop.")]}, config)
    assert [(row["task"], row["success"], row["ending"]) for row in library.episodes.find()] == [
        ("Book a table.", None, "abandoned")
    ]


def test_a_run_that_failed_and_is_resumed_stays_one_episode(tmp_path, desk):
    """Its beginning was recorded at the error; the whole run takes its place, in this process or in another one."""
    config = {"configurable": {"thread_id": "1"}}
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
        for script in ([call("book", "1", table=7)], [call("book", "2", table=8), AIMessage("Done.")]):
            with ExperienceLibrary.open(tmp_path / "work.db") as library:
                middleware = [ExperienceMiddleware(library)]
                agent = create_agent(model(*script), desk.tools, middleware=middleware, checkpointer=saver)
                if script[-1].tool_calls:
                    with pytest.raises(RuntimeError):  # the script is at its end
                        agent.invoke(REQUEST, config)
                    assert [bool(row["success"]) for row in library.episodes.find()] == [False]
                else:
                    agent.invoke(None, config)
                    assert [bool(row["success"]) for row in library.episodes.find()] == [True]
                    assert [step.action for step in last(library).steps] == ["book(table=7)", "book(table=8)"]


# ---- processes that are killed

MIDDLEWARE = """
import sys, time
sys.path.insert(0, {root!r})
from langchain_core.tools import tool
from tests.runtime.integrations.test_ends import Looping, create_agent
from hardwon.memory import ExperienceLibrary
from hardwon.runtime import ExperienceMiddleware

@tool
def book(table: int) -> str:
    "Book a table."
    if table == 13:
        print("ready", flush=True)
        time.sleep(100)
    return "booked"

library = ExperienceLibrary.open({path!r})
agent = create_agent(Looping(messages=iter(())), [book], middleware=[ExperienceMiddleware(library)])
agent.invoke({{"messages": [("user", "Book a table.")]}})
"""
FUNCTIONS = """
import time
from hardwon.memory import ExperienceLibrary
from hardwon.runtime import FunctionEpisode, remember

@remember
def book(table):
    return "booked"

with FunctionEpisode(ExperienceLibrary.open({path!r}), "Book a table."):
    book(11)
    book(12)
    print("ready", flush=True)
    time.sleep(100)
"""


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(("program", "environment"), [(MIDDLEWARE, "langchain"), (FUNCTIONS, "functions")])
def test_a_killed_process_leaves_its_steps_to_the_next_that_opens_the_library(
    tmp_path, program, environment, read_only
):
    path = tmp_path / "work.db"
    code = program.format(path=str(path), root=str(warm.ROOT))
    with warm.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with ExperienceLibrary.open(path) as library:
            assert library.admin.stats()["episodes"] == 0, "the run is not over"
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    for _ in range(2):
        with ExperienceLibrary.open(path, read_only=read_only) as library:
            (row,) = library.episodes.find()
            episode = library.episodes.get(row["id"])
    assert (episode.success, episode.ending, episode.task) == (None, "abandoned", "Book a table.")
    assert [step.action for step in episode.steps] == ["book(table=11)", "book(table=12)"]
    assert [step.t for step in episode.steps] == [0, 1]
    assert episode.meta["environment"] == environment
    assert not (tmp_path / "work.db.runs").exists() or not list((tmp_path / "work.db.runs").glob("*.jsonl"))


# ---- functions


@remember
def reserve(table: int) -> str:
    return "booked"


def test_an_episode_of_functions_that_is_never_left_is_recorded_when_the_library_is_closed(tmp_path):
    with ExperienceLibrary.open(tmp_path / "work.db") as library:
        FunctionEpisode(library, "Book a table.").__enter__()
        reserve(7)
    with ExperienceLibrary.open(tmp_path / "work.db") as library:
        assert (last(library).success, len(last(library).steps)) == (None, 1)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_an_episode_of_functions_that_is_cut_off_tells_no_outcome(library, error):
    def book():
        with FunctionEpisode(library, "Book a table."):
            reserve(7)
            raise error

    with pytest.raises(error):
        book()
    assert (last(library).success, last(library).ending) == (None, error.__name__)


def cut_in_a_tool(library, error):
    @tool
    def book(table: int) -> str:
        """Book a table."""
        raise error

    create_agent(Looping(messages=iter(())), [book], middleware=[ExperienceMiddleware(library)]).invoke(REQUEST)


def cut_in_an_awaited_tool(library, error):
    @tool
    async def book(table: int) -> str:
        """Book a table."""
        raise error

    agent = create_agent(Looping(messages=iter(())), [book], middleware=[ExperienceMiddleware(library)])
    asyncio.run(agent.ainvoke(REQUEST))


def cut_in_a_function(library, error):
    @remember
    def book(table: int) -> str:
        raise error

    with FunctionEpisode(library, "Book a table."):
        book(7)


def cut_in_an_awaited_function(library, error):
    @remember
    async def book(table: int) -> str:
        raise error

    async def run():
        async with FunctionEpisode(library, "Book a table."):
            await book(7)

    asyncio.run(run())


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("run", [cut_in_a_tool, cut_in_an_awaited_tool, cut_in_a_function, cut_in_an_awaited_function])
def test_a_first_call_that_is_cut_off_is_a_step_that_shows_nothing(library, run, error):
    with pytest.raises((error, NodeCancelledError)):
        run(library, error)
    episode = last(library)
    assert episode.success is None
    assert [step.diagnosis.failure for step in episode.steps] == [Failure.UNAVAILABLE]


def test_chains_of_a_process_without_a_middleware_are_not_followed(library, monkeypatch):
    """Those of other tests may still wait for the collector of garbage."""
    seen: list[int] = []

    def look(value: int, config: RunnableConfig) -> int:
        handlers: Any = config["callbacks"]
        seen.append(sum(handler is GRAPHS for handler in handlers.handlers))
        return value

    chain = RunnableLambda(look)
    monkeypatch.setattr("hardwon.runtime.integrations.middleware_run._FOLLOWING.needed_by", WeakSet())
    chain.invoke(1)
    middleware = ExperienceMiddleware(library)
    chain.invoke(1)
    del middleware
    gc.collect()
    chain.invoke(1)
    assert seen == [0, 1, 0]


def test_a_run_that_takes_the_place_of_its_beginning_keeps_the_grades(library):
    def record(*tables: int, **outcome: Any) -> None:
        run = begin_run(library, "Book a table.")
        for table in tables:
            run.add_answer(Call("book", {"table": table}, "booked"), str(table))
            run.calls = (*run.calls, Call("book", {"table": table}, "booked"))
        record_run(run, environment="proxy", episode="e-1", writer="proxy", **outcome)

    record(7, success=None, ending="abandoned")
    library.grade("e-1", success=True, why="the guests came")
    record(7, 8, success=False, is_continued=True)
    assert len(library.episodes.grades("e-1")) == 1
    episode = library.episodes.get("e-1")
    assert (episode.success, episode.writer, len(episode.steps)) == (True, "proxy", 2)


def test_a_continued_run_of_somebody_else_says_nothing_of_items(library):
    """Reasons name items and would move their scores; the intake drops them, as it does from a whole run."""

    def record(count: int, *, is_continued: bool) -> None:
        run = begin_run(library, "Book a table.")
        run.why = Reasons(recalled=("in-0123456789ab",))
        for table in range(count):
            run.add_answer(Call("book", {"table": table}, "booked"), str(table))
            run.calls = (*run.calls, Call("book", {"table": table}, "booked"))
        options: Any = {"writer": "token:guest", "trust": "untrusted", "is_continued": is_continued}
        record_run(run, success=True, environment="proxy", episode="e-1", **options)

    record(1, is_continued=False)
    record(2, is_continued=True)
    episode = library.episodes.get("e-1")
    assert (episode.trust, len(episode.steps)) == ("untrusted", 2)
    assert all(step.why.recalled is None for step in episode.steps)
