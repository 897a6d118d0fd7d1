"""Tools as an environment: calls, errors, time limits, grading and resuming without calling again."""

import asyncio
import threading
import time
from typing import Any

import pytest
from langchain_core.tools import ToolException, tool

from hardwon.memory import Diagnosis, Failure, Step
from hardwon.memory.errors import ConfigError
from hardwon.runtime.environments.tools.environment import AnyTool, ToolEnvironment, _extract_text
from hardwon.runtime.interfaces.types import Tooled


class BankClient:
    """Tools with a memory of what was done."""

    def __init__(self) -> None:
        self.booked: list[int] = []

    def tools(self) -> list[AnyTool]:
        def search(city: str) -> str:
            """Find tables."""
            return f"Tables in {city}: 4, 7."

        def book(table: int) -> str:
            """Book a table."""
            if table in self.booked:
                raise ToolException("it is taken")
            self.booked.append(table)
            return "done"

        return [search, book]


@pytest.fixture
def desk():
    """What the tools act on."""
    return BankClient()


@pytest.fixture
def environment(desk):
    """Graded by what was booked."""
    environment = ToolEnvironment(desk.tools(), lambda task, answer, calls: float(desk.booked == [7]))
    environment.reset("Book table 7 in Rome.")
    yield environment
    environment.close()


def taken(environment: ToolEnvironment, *actions: str) -> tuple[Step, ...]:
    """The steps that these actions make, judged as simply as can be."""
    state, steps = environment.reset("Book table 7 in Rome."), []
    for t, action in enumerate(actions):
        post, reward, _, info = environment.step(action)
        failure = Failure.TOOL_ERROR if "error" in info else Failure.NONE
        judged = Diagnosis(failure is Failure.NONE, failure, evidence=info.get("error", ""))
        steps.append(Step(state, action, post, judged, reward, t))
        state = post
    return tuple(steps)


def test_the_schemas_of_the_tools_are_those_of_their_arguments(environment):
    """The tool that ends the episode has one too."""
    assert isinstance(environment, Tooled)
    schemas = environment.tool_schemas()
    assert list(schemas) == ["book", "search", "finish"]
    assert schemas["book"]["properties"]["table"]["type"] == "integer"
    assert schemas["search"]["required"] == ["city"]
    assert "answer" in schemas["finish"]["properties"]


def test_tools_made_per_episode_have_the_schemas_of_the_episode():
    """A function makes the tools from task and seed."""

    def look(at: str) -> str:
        """Look."""
        return at

    def knock(times: int) -> str:
        """Knock."""
        return str(times)

    def make(task: str, seed: int) -> list[Any]:
        return [knock] if seed else [look]

    environment = ToolEnvironment(make)
    environment.reset("x", 0)
    assert list(environment.tool_schemas()) == ["look", "finish"]
    environment.reset("x", 1)
    assert list(environment.tool_schemas()) == ["knock", "finish"]
    environment.close()


def test_the_request_is_shown_and_is_the_task(environment):
    """Before any call there is nothing else to see."""
    state = environment.reset("Book table 7 in Rome.")
    assert (state.observation, state.task) == ("Request: Book table 7 in Rome.", "Book table 7 in Rome.")
    assert environment.admissible(state) == []


def test_a_call_shows_what_it_returned(environment):
    """In the observation with the call, in the feedback alone."""
    state, reward, done, info = environment.step('search(city="Rome")')
    assert state.observation == 'Request: Book table 7 in Rome.\n\n> search(city="Rome")\nTables in Rome: 4, 7.'
    assert (state.feedback, reward, done, info) == ("Tables in Rome: 4, 7.", 0.0, False, {})


def test_a_call_repeated_at_once_with_the_same_result_shows_nothing_new(environment):
    """So that it can be told from progress."""
    first, *_ = environment.step('search(city="Rome")')
    assert environment.step("search('Rome')")[0] == first


def test_what_a_tool_raises_is_the_error(environment):
    """With its type; the episode goes on."""
    environment.step("book(table=4)")
    state, _, done, info = environment.step("book(table=4)")
    assert info == {"error": "ToolException: it is taken"}
    assert state.feedback == "error: ToolException: it is taken"
    assert not done


def test_a_tool_that_handles_its_errors_still_had_one():
    """LangChain marks the message of such a tool."""

    def fail() -> str:
        """Fail."""
        raise ToolException("no luck")

    made = tool(fail)
    made.handle_tool_error = True
    environment = ToolEnvironment([made])
    environment.reset("x")
    assert environment.step("fail()")[3] == {"error": "no luck"}
    environment.close()


def test_an_unknown_tool_is_invalid_and_names_the_nearest(environment):
    """With its form, so that the next try can be right."""
    _, _, _, info = environment.step('serch(city="Rome")')
    assert info["invalid"] == "There is no tool 'serch'. Did you mean search(city: string): Find tables."


def test_wrong_arguments_are_invalid_and_call_nothing(environment, desk):
    """The words say what is wrong and how it is called."""
    _, _, _, info = environment.step('book(table="seven")')
    assert info["invalid"].startswith(
        "book cannot be called like this: argument 'table' is 'seven': Input should be a valid"
    )
    assert info["invalid"].endswith("Its form is book(table: integer): Book a table.")
    assert desk.booked == []


def test_text_that_is_no_call_is_invalid_and_lists_the_tools(environment):
    """A model that answers in prose is told what is wanted."""
    state, _, _, info = environment.step("I will search for tables.")
    assert info["invalid"].endswith("the name one of: book, search, finish.")
    assert state.feedback == info["invalid"]


def test_finishing_well_is_a_success(environment):
    """The grader's score is the reward."""
    environment.step("book(table=7)")
    _, reward, done, info = environment.step('finish(answer="Table 7.")')
    assert (reward, done) == (1.0, True)
    assert info == {"success": True, "lost": False, "score": 1.0}


def test_finishing_badly_is_lost(environment):
    """There is no way back from an answer."""
    _, reward, done, info = environment.step("finish('I give up')")
    assert (reward, done) == (0.0, True)
    assert info == {"success": False, "lost": True, "score": 0.0}
    with pytest.raises(ConfigError, match="call reset first"):
        environment.step("finish()")


def test_the_grader_sees_task_answer_and_calls(desk):
    """All that there is to judge by; failed calls too."""
    seen = []

    def grade(*given: Any) -> float:
        seen.append(given)
        return 0.5

    environment = ToolEnvironment(desk.tools(), grade)
    environment.reset("Book.")
    environment.step("book(table=7)")
    environment.step("book(table=7)")
    _, reward, _, info = environment.step('{"name": "finish", "args": {"answer": "Booked."}}')
    (task, answer, calls), *_ = seen
    assert (task, answer, reward, info["success"]) == ("Book.", "Booked.", 0.5, False)
    assert [(call.text, call.error) for call in calls] == [
        ("book(table=7)", ""),
        ("book(table=7)", "ToolException: it is taken"),
    ]
    environment.close()


def test_nobody_claims_success_without_a_grader(desk):
    """The episode ends; whether it was good is not known."""
    environment = ToolEnvironment(desk.tools())
    environment.reset("Book.")
    _, reward, done, info = environment.step("finish(answer='done')")
    assert (reward, done, info) == (0.0, True, {})


def test_asynchronous_tools_run_in_one_loop(environment):
    """Clients they hold are bound to the loop in which they began; the caller's own loop is left alone."""

    async def loop() -> str:
        """Which loop."""
        await asyncio.sleep(0)
        return str(id(asyncio.get_running_loop()))

    async def drive() -> tuple[list[str], str]:
        environment = ToolEnvironment([loop])
        environment.reset("x")
        told = [environment.step("loop()")[0].feedback for _ in range(2)]
        environment.close()
        return told, str(id(asyncio.get_running_loop()))

    told, own = asyncio.run(drive())
    assert told[0] == told[1] != own


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_tool_that_takes_too_long_is_an_error_and_the_next_call_works(asynchronous):
    """The message does not pretend that nothing happened."""
    released = threading.Event()

    def stuck() -> str:
        """Hang."""
        released.wait()
        return ""

    async def asleep() -> str:
        """Hang politely."""
        await asyncio.sleep(60)
        return ""

    def quick() -> str:
        """Answer."""
        return "here"

    environment = ToolEnvironment([stuck, asleep, quick], call_timeout_s=0.05)
    environment.reset("x")
    begun = time.monotonic()
    _, _, done, info = environment.step("asleep()" if asynchronous else "stuck()")
    assert info["error"].endswith("gave no answer within 0.05 s; it may still have taken effect.")
    assert info["unavailable"]  # an outage, which is no fault of the call
    assert not done
    assert time.monotonic() - begun < 30
    environment._timeout_s = 5.0
    assert environment.step("quick()")[0].feedback == "here"
    released.set()
    environment.close()


def test_a_timeout_of_the_tools_own_keeps_its_words():
    """It is not our time limit that was reached."""

    async def fetch() -> str:
        """Fetch."""
        raise TimeoutError("the server is slow")

    environment = ToolEnvironment([fetch])
    environment.reset("x")
    assert environment.step("fetch()")[3] == {"error": "TimeoutError: the server is slow", "unavailable": True}
    environment.close()


def test_long_results_are_clipped_and_only_the_last_are_shown():
    """An observation has to fit into a prompt."""

    def page(n: int) -> str:
        """A page."""
        return f"{n}" * 50

    environment = ToolEnvironment([page], shown_calls=2, shown_chars=10)
    environment.reset("x")
    for n in range(1, 4):
        state, *_ = environment.step(f"page({n})")
    assert state.observation == (
        "Request: x\n\n> page(n=2)\n2222222222 ... (40 more characters)"
        "\n\n> page(n=3)\n3333333333 ... (40 more characters)"
    )
    environment.close()


def test_restoring_calls_nothing_and_comes_back_to_the_same_state(environment, desk):
    """What was booked stays booked once; errors and nonsense on the way are kept as they were."""
    steps = taken(environment, "search('Rome')", "book(table=7)", "gibberish", "book(table=7)")
    fresh = environment.clone()
    assert fresh.restore("Book table 7 in Rome.", 0, steps) == steps[-1].post
    assert desk.booked == [7]
    assert fresh._calls == environment._calls
    assert fresh.step("finish()")[1] == 1.0
    fresh.close()


def test_restoring_without_steps_is_a_reset(environment):
    """An episode may be interrupted before its first step."""
    assert environment.restore("Buy.", 0, ()) == environment.clone().reset("Buy.")


def test_tools_may_be_made_for_each_episode():
    """So that clones and episodes do not share what the tools act on."""
    made = []

    def tools(task, seed):
        made.append((task, seed))
        return BankClient().tools()

    environment = ToolEnvironment(tools)
    for seed in (1, 2):
        environment.reset("Book.", seed)
        assert environment.step("book(table=7)")[3] == {}
    assert made == [("Book.", 1), ("Book.", 2)]
    environment.close()


def test_the_tools_are_described_with_finish_last(environment):
    """For a prompt."""
    assert environment.describe().splitlines() == [
        "book(table: integer): Book a table.",
        "search(city: string): Find tables.",
        "finish(answer: string): End the episode; the answer is what the request asked for.",
    ]


def test_two_tools_of_one_name_are_refused(desk):
    """One of them could never be called."""
    with pytest.raises(ConfigError, match="two tools are named 'search'"):
        ToolEnvironment([desk.tools()[0], desk.tools()[0]])


def test_stepping_before_a_reset_is_an_error_of_the_caller(desk):
    """There is no request yet."""
    with pytest.raises(ConfigError, match="call reset first"):
        ToolEnvironment(desk.tools()).step("search('Rome')")


@pytest.mark.parametrize(("calls", "told"), [(("book(table=7)",), "accepted"), ((), "graded 0 of 1")])
def test_the_answer_is_told_what_the_grader_made_of_it(environment, calls, told):
    for call in calls:
        environment.step(call)
    assert environment.step('finish(answer="Table 7.")')[0].feedback == f"The answer was {told}."


def test_words_that_are_no_call_do_not_end_the_episode():
    def look(at: str) -> str:
        """Look."""
        return at

    environment = ToolEnvironment([look])
    environment.reset("Look around.")
    _, reward, done, info = environment.step("hello there")
    assert (reward, done, bool(info["invalid"])) == (0.0, False, True)
    assert not environment.step('look(at="it")')[2]
    environment.close()


def test_the_blocks_of_a_result_are_lines():
    assert _extract_text(["a", {"type": "text", "text": "b"}, 3]) == "a\nb\n3"


@pytest.mark.parametrize("what", ["tool_schemas", "describe"])
def test_tools_of_an_episode_are_not_there_before_it(what):
    """An environment without tools would look the same."""

    def search(city: str) -> str:
        """Find a table."""
        return city

    environment = ToolEnvironment(lambda task, seed: [search])
    with pytest.raises(ConfigError, match="call reset first"):
        getattr(environment, what)()
    environment.reset("x")
    assert "search" in getattr(environment, what)()
