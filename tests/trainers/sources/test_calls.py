"""Graduated validity of tool calls (PROVE): every rung over BFCL's services, over tools, and over an MCP server."""

from dataclasses import replace
from itertools import pairwise

import pytest
from mcp.server import MCPServer
from tests.trainers.corridor import Corridor
from tests.trainers.sources.test_sources import parts_of, read, rollout

from hardwon.memory import Step
from hardwon.memory.errors import ConfigError
from hardwon.runtime import McpEnvironment, ToolEnvironment
from hardwon.runtime.interfaces.diagnosis import diagnose
from hardwon.runtime.interfaces.working_memory import WorkingMemory
from hardwon.trainers.algorithms.samples import to_trace
from hardwon.trainers.methods.rungs import rungs
from hardwon.trainers.sources.calls import CallsSource, fits


def book(table: int) -> str:
    """Book a table."""
    if table > 9:
        raise ValueError("there is no such table")
    return f"table {table} is yours"


def open_bfcl():
    pytest.importorskip("bfcl_eval")
    from hardwon.runtime.environments.bfcl import Bfcl

    return Bfcl("base")


def open_server():
    server = MCPServer("desk", log_level="ERROR")
    server.tool()(book)
    return McpEnvironment(server)


OWN = ("book table 4", "fly(table=4)", 'book(table="four")', "book(table=40)", "book(table=4)")
LADDERS = {
    "bfcl": (open_bfcl, ("list the files", "fly(a=1)", "cd(directory='x')", "cd(folder='nowhere')", "ls()")),
    "tools": (lambda: ToolEnvironment([book]), OWN),
    "mcp": (open_server, OWN),
}


def play(environment, actions):
    """The steps of some actions, as an agent records them."""
    state, working = environment.reset("train", 0), WorkingMemory()
    steps: list[Step] = []
    for t, action in enumerate(actions):
        post, reward, _, info = environment.step(action)
        diagnosis = diagnose(state, action, post, reward, info, steps, working)
        steps.append(Step(state, action, post, diagnosis, reward, t))
        state = post
    return steps


@pytest.mark.parametrize("ladder", LADDERS)
def test_every_rung_pays_strictly_more(ladder):
    """Worked example: text, an unknown tool, wrong arguments, a call that fails, and one that runs."""
    opener, actions = LADDERS[ladder]
    environment = opener()
    played = replace(rollout("a", play(environment, actions)), group="train#0")
    (found,), _ = read("calls", {}, played, environment=environment)
    environment.close()
    trace = replace(to_trace(found), outcome=0.0)
    assert trace.signals["calls"] == (0.0, 1.0, 2.0, 3.0, 4.0)
    paid = [turn.reward for turn in rungs([trace], weight=0.2)[0].turns]
    assert paid == pytest.approx([-0.2, -0.15, -0.1, -0.05, 0.0])
    assert all(a < b for a, b in pairwise(paid))


def test_an_environment_without_tools_is_refused():
    with pytest.raises(ConfigError, match="corridor has no tools"):
        CallsSource(parts_of(environment=Corridor()))


@pytest.mark.parametrize(
    ("positional", "named", "expected"),
    [
        ([], {"n": 1}, True),
        ([1], {}, True),
        ([1, "x"], {}, True),
        ([], {}, False),
        ([], {"n": "1"}, False),
        ([], {"n": True}, False),
        ([], {"n": 1, "other": 2}, False),
        ([1, "x", 3], {}, False),
    ],
)
def test_arguments_fit_by_name_and_type(positional, named, expected):
    schema = {"properties": {"n": {"type": "integer"}, "word": {"type": "string"}}, "required": ["n"]}
    assert fits(schema, positional, named) is expected
