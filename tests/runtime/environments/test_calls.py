"""Calls as text: what is read, what is refused, and how a call's form is told."""

import json
from typing import Any, Literal

import pytest
from hypothesis import given, settings, strategies as st
from langchain_core.tools import StructuredTool, tool
from pydantic import BaseModel

from hardwon.runtime.environments.calls import MAX_DEPTH, Call, bind_arguments, format_tool, get_schema, parse_call


class Table(BaseModel):
    number: int
    window: bool = False


@tool(parse_docstring=True)
def book(city: str, seats: int = 2, at: Literal["noon", "eight"] = "eight", table: Table | None = None) -> str:
    """Book a table.

    Args:
        city: Where it is.
    """
    return f"{seats} in {city} at {at} {table}"


REMOTE = StructuredTool(
    name="get-weather",
    description="Weather.",
    args_schema={"type": "object", "properties": {"day": {"type": ["string", "null"]}}, "required": ["day"]},
    func=lambda day: day,
)


@pytest.mark.parametrize(
    ("text", "name", "positional", "named"),
    [
        ('book(city="Rome", seats=3)', "book", [], {"city": "Rome", "seats": 3}),
        (" book ( city='Rome' , seats = 3, ) ", "book", [], {"city": "Rome", "seats": 3}),
        ("book('Rome', 3)", "book", ["Rome", 3], {}),
        ("finish()", "finish", [], {}),
        ("get-weather(day=null)", "get-weather", [], {"day": None}),
        ("f(a=[true, None, {'b': -1.5}])", "f", [], {"a": [True, None, {"b": -1.5}]}),
        ("f('x', a=true, b='true')", "f", ["x"], {"a": True, "b": "true"}),
        (r'f(a="\/ \ud83d\ude00 \n")', "f", [], {"a": "/ 😀 \n"}),
        ('{"name": "book", "args": {"city": "Rome"}}', "book", [], {"city": "Rome"}),
        ('{"name": "book", "arguments": "{\\"city\\": \\"Rome\\"}"}', "book", [], {"city": "Rome"}),
        ('{"name": "book"}', "book", [], {}),
    ],
)
def test_calls_are_read(text, name, positional, named):
    """Python and JSON literals, positional and named, and the object that models like to write."""
    assert parse_call(text) == (name, positional, named)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "book",
        "book city=Rome",
        "book(city=Rome)",
        "book(city=__import__('os').getcwd())",
        "book(**{'city': 'Rome'})",
        "book(*['Rome'])",
        "book(city='Rome') + book(city='Rome')",
        "a.b(c)(d)",
        "book(city='Ro",
        "{'name': 'book'}",
        '{"args": {}}',
        '{"name": "book", "args": [1]}',
        "[1, 2]",
        "book(" + "(" * 5000 + ")" * 5000 + ")",
        "book(a=" + "9" * 200_000 + ")",
        "book(\0)",
    ],
)
def test_anything_else_is_not_a_call(text):
    """Nothing is evaluated, and nothing that cannot be read raises."""
    assert parse_call(text) is None


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(
        st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        ),
        max_size=4,
    )
)
def test_the_text_of_a_call_reads_back_as_the_call(arguments):
    """Whatever the arguments are."""
    assert parse_call(Call("search", arguments, "").text) == ("search", [], arguments)
    assert parse_call(json.dumps({"name": "search", "args": arguments})) == ("search", [], arguments)


@settings(max_examples=50, deadline=None)
@given(st.text())
def test_no_text_makes_reading_raise(text):
    """Actions come from models."""
    parse_call(text)
    parse_call(f"book({text})")


def test_positional_arguments_get_their_names():
    """In the order of the schema."""
    assert bind_arguments(book, ["Rome", 3], {"at": "noon"}) == ({"city": "Rome", "seats": 3, "at": "noon"}, "")


@pytest.mark.parametrize(
    ("positional", "named", "problem"),
    [
        ([], {}, "the argument 'city' is missing"),
        ([], {"city": "Rome", "chairs": 2}, "it has no argument 'chairs'"),
        ([], {"city": "Rome", "seats": "many"}, "argument 'seats' is 'many': Input should be a valid integer"),
        ([], {"city": "Rome", "at": "six"}, "argument 'at' is 'six': Input should be 'noon' or 'eight'"),
        (["Rome"], {"city": "Rome"}, "an argument is given twice"),
        (["Rome", 2, "noon", None, 5], {}, "it takes 4 arguments, not 5"),
    ],
)
def test_what_is_wrong_with_the_arguments_is_said(positional, named, problem):
    """Also an argument that pydantic would silently drop."""
    assert bind_arguments(book, positional, named)[1].startswith(problem)


def test_tools_with_a_bare_json_schema_are_checked_for_names():
    """MCP tools have no model to validate with."""
    assert bind_arguments(REMOTE, [], {"day": None}) == ({"day": None}, "")
    assert bind_arguments(REMOTE, [], {})[1] == "the argument 'day' is missing"


def test_a_form_tells_types_defaults_and_meanings():
    """Objects are spelt out; what the docstring says of an argument follows."""
    assert format_tool(book) == (
        'book(city: string, seats: integer = 2, at: "noon" | "eight" = "eight", '
        "table: {number: integer, window: boolean = false} | null = null): Book a table.\n"
        "    city: Where it is."
    )
    assert format_tool(REMOTE) == "get-weather(day: string | null): Weather."


def test_the_schema_of_a_tool_with_an_older_model_is_read():
    """LangChain still accepts tools whose arguments are models of pydantic 1."""
    from pydantic.v1 import BaseModel as OlderModel

    class Search(OlderModel):
        query: str

    class OlderTool:  # stands for a tool that only has a schema
        tool_call_schema = Search

    older: Any = OlderTool()
    assert get_schema(older)["properties"]["query"]["type"] == "string"

    def find(query: str) -> str:
        """Find something."""
        return query

    assert get_schema(StructuredTool.from_function(find))["properties"]["query"]["type"] == "string"


def test_names_of_json_are_values():
    assert parse_call("f(a=true, b=false, c=null)") == ("f", [], {"a": True, "b": False, "c": None})
    assert parse_call("f(true, false, null, ['x', false])") == ("f", [True, False, None, ["x", False]], {})


def test_the_type_of_a_recursive_object_is_told_to_a_depth():
    """And an object without fields has only its kind."""

    class Node(BaseModel):
        below: "Node | None" = None

    def walk(node: Node, extra: dict[str, int]) -> str:
        """Walk."""
        return ""

    line = format_tool(tool(walk)).splitlines()[0]
    assert line.count("below:") == MAX_DEPTH
    assert "extra: object" in line
