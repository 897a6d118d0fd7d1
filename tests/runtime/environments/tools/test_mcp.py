"""A real MCP server, in a process of its own, as an environment: its errors are failures, its death a broken world."""

import os
import sys
import textwrap
import time
from types import SimpleNamespace
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import ToolException
from mcp import StdioServerParameters
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from hardwon.memory import Failure
from hardwon.memory.errors import ConfigError, EnvironmentCrashed
from hardwon.runtime import Agent, McpEnvironment, McpTools
from hardwon.runtime.environments.tools.mcp import _describe_server
from hardwon.runtime.interfaces.types import Tooled

SERVER = '''
import os
from mcp.server import MCPServer

server = MCPServer("desk", log_level="ERROR")
booked = []

@server.tool()
def book(table: int, config: str = "") -> str:
    """Book a table."""
    if table in booked:
        raise ValueError("it is taken")
    booked.append(table)
    return f"table {table} is yours"

@server.tool()
def find(city: str) -> list[str]:
    """Find tables."""
    return [f"{city} 4", f"{city} 7"]

@server.tool()
def die() -> str:
    """End the server."""
    os._exit(3)

server.run("stdio")
'''


@pytest.fixture(scope="module")
def parameters(tmp_path_factory):
    """How the server is started."""
    script = tmp_path_factory.mktemp("server") / "desk.py"
    script.write_text(textwrap.dedent(SERVER), encoding="utf-8")
    return StdioServerParameters(command=sys.executable, args=[str(script)])


@pytest.fixture(scope="module")
def connected(parameters):
    """One server for the tests that leave it as it is."""
    environment = McpEnvironment(parameters, lambda task, answer, calls: float(answer == "table 7"))
    yield environment
    environment.close()


@pytest.fixture
def environment(connected):
    """At the beginning of an episode."""
    connected.reset("Book table 7 in Rome.")
    return connected


@pytest.fixture
def here():
    """A server in this process, which starts at once."""
    server, booked = MCPServer("here"), []

    @server.tool()
    def book(table: int) -> str:
        """Book a table."""
        if table in booked:
            raise ToolError("it is taken")
        booked.append(table)
        return f"table {table} is yours in process {os.getpid()}"

    @server.tool()
    def sleep(seconds: float) -> str:
        """Take a while."""
        time.sleep(seconds)
        return "awake"

    return server


def test_the_servers_tools_are_described(environment):
    described = environment.describe().splitlines()
    assert 'book(table: integer, config: string = ""): Book a table.' in described
    assert "find(city: string): Find tables." in described


def test_the_servers_tools_have_their_schemas(environment):
    assert isinstance(environment, Tooled)
    schemas = environment.tool_schemas()
    assert schemas["book"]["required"] == ["table"]
    assert schemas["find"]["properties"]["city"]["type"] == "string"


def test_a_call_shows_what_the_server_answered(environment):
    state, _, done, info = environment.step('find(city="Rome")')
    assert state.feedback == "Rome 4\nRome 7"
    assert (done, info) == (False, {})


def test_what_a_tool_answers_as_an_error_is_the_steps_error(environment):
    """Whatever the words: the server does not tell what its code raised."""
    environment.step("book(table=3)")
    state, _, done, info = environment.step("book(table=3)")
    assert info["error"].startswith("Error executing tool book")
    assert state.feedback == info["error"]
    assert not done


def test_an_error_without_words_names_the_tool(here, monkeypatch):
    """A step whose error were empty would count as a success."""

    async def answer(name, arguments):
        return SimpleNamespace(content=[], is_error=name == "find")

    with McpTools(here) as tools:
        monkeypatch.setattr(tools._client, "call_tool", answer)
        assert tools.call("book", {}) == ""
        with pytest.raises(ToolException, match=r"^find failed$"):
            tools.call("find", {})


def test_wrong_arguments_are_told_by_the_server(environment):
    assert "table" in environment.step('book(table="seven")')[3]["error"]


def test_an_argument_may_have_any_name(environment):
    """LangChain's own names are not in the way."""
    assert environment.step('book(table=8, config="x")')[0].feedback == "table 8 is yours"


def test_an_agent_acts_by_them(library, script, connected):
    policy = script('find(city="Rome")', "book(table=9)", "book(table=9)", 'finish(answer="table 7")', reads="text")
    agent = Agent(policy, library, connected)
    result = agent.run("Book table 7 in Rome.")
    failures = [step.diagnosis.failure for step in result.trajectory.steps]
    assert result.success
    assert failures == [Failure.NONE, Failure.NONE, Failure.TOOL_ERROR, Failure.NONE]


def test_a_call_that_takes_too_long_is_an_error(here):
    environment = McpEnvironment(here, call_timeout_s=0.3)
    environment.reset("Sleep.")
    _, _, _, info = environment.step("sleep(seconds=0.6)")
    assert "gave no answer within 0.3 s" in info["error"]
    environment.close()


def test_a_server_that_is_gone_is_a_broken_environment_and_the_next_episode_has_a_new_one(parameters):
    environment = McpEnvironment(parameters)
    environment.reset("Go.")
    with pytest.raises(EnvironmentCrashed, match=r"the MCP server .* is gone"):
        environment.step("die()")
    environment.reset("Go.")
    assert environment.step('find(city="Rome")')[3] == {}
    environment.close()


def test_a_server_that_does_not_start_is_a_broken_environment():
    environment = McpEnvironment(StdioServerParameters(command=sys.executable, args=["-c", "pass"]))
    with pytest.raises(EnvironmentCrashed, match="does not answer"):
        environment.reset("Go.")
    environment.close()


def test_a_clone_acts_while_the_first_is_closed(here):
    """Every one has a connection of its own."""
    one = McpEnvironment(here)
    other = one.clone()
    one.reset("Book.")
    other.reset("Book.")
    one.close()
    assert other.step("book(table=7)")[0].feedback == f"table 7 is yours in process {os.getpid()}"
    other.close()


def test_closing_ends_the_connection(here):
    with McpTools(here) as server:
        assert {tool.name for tool in server.tools} == {"book", "sleep"}
        assert server.is_alive()
    assert not server.is_alive()
    server.close()


def test_a_connection_that_ended_by_itself_can_be_closed_and_opened_again(here):
    server: Any = McpTools(here)
    server.open()
    server._loop.call_soon_threadsafe(server._task.cancel)
    server._thread.join(10)
    server.close()
    assert [tool.name for tool in server.open()] == ["book", "sleep"]
    server.close()


def test_its_tools_are_those_of_the_server(here):
    """The thread of the connection does not keep the process alive."""
    with McpTools(here) as server:
        assert [tool.description for tool in server.tools] == ["Book a table.", "Take a while."]
        assert server._thread is not None
        assert server._thread.daemon


def test_a_server_is_named_by_its_command_or_its_own_name(parameters, here):
    assert _describe_server(parameters) == f"{parameters.command} {parameters.args[0]}"
    assert _describe_server(here) == "here"


def test_its_tools_serve_any_agent(here):
    """An error is an answer that the model reads; it does not end the agent."""

    class Model(GenericFakeChatModel):
        def bind_tools(self, tools, **settings):
            return self

    def call(ref, **arguments):
        return AIMessage("", tool_calls=[{"name": "book", "args": arguments, "id": ref}])

    with McpTools(here) as server:
        chat: Any = Model(messages=iter([call("1", table=4), call("2", table=4), AIMessage("Done.")]))
        out = create_agent(chat, server.tools).invoke({"messages": [HumanMessage("Book.")]})
    answers = [message for message in out["messages"] if isinstance(message, ToolMessage)]
    assert [answer.status for answer in answers] == ["success", "error"]
    assert answers[1].text == "Error executing tool book: it is taken"


def test_what_is_no_server_is_refused():
    with pytest.raises(ConfigError, match="server is 7"):
        McpEnvironment(7)  # type: ignore[arg-type]
