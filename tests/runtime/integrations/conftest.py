"""What the tests of the middleware share."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from langchain_core.tools import ToolException, tool

from hardwon.runtime.loop import holdout
from hardwon.runtime.loop.tuning import TUNING


@pytest.fixture
def desk():
    """Tools, and what they were asked to do."""
    booked = []

    @tool
    def book(table: int) -> str:
        """Book a table."""
        booked.append(table)
        if table == 4:
            raise ToolException("table 4 is taken")
        if table == 5:
            raise RuntimeError("the desk is on fire")
        return f"table {table} is yours"

    book.handle_tool_error = True
    return SimpleNamespace(tools=[book], booked=booked)


@pytest.fixture(autouse=True)
def nothing_held_back(monkeypatch):
    """Chance is tested by itself."""
    monkeypatch.setattr(holdout, "TUNING", replace(TUNING, withhold=0.0))
