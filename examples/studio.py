"""Define the graph that `langgraph.json` names, for LangGraph Studio: an agent with tools that learns from its actions.

    pip install '.[agent]' 'langgraph-cli[inmem]'
    langgraph dev                                    offline, with scripted answers
    HARDWON_MODEL=openai:gpt-5 langgraph dev           with a real model; needs its API key

The library is `runs/studio.db`, or the path in HARDWON_LIBRARY. It stays open as long as the server runs.
"""

import os
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import ToolException, tool

from hardwon.memory import ExperienceLibrary
from hardwon.runtime import ExperienceMiddleware

ORDERS = {"Ada": "A-1042", "Grace": "A-2077"}


@tool
def find_order(customer: str) -> str:
    """Return the number of a customer's last order."""
    return ORDERS.get(customer, "there is no such customer")


@tool
def refund(order: str) -> str:
    """Refund an order."""
    if order not in ORDERS.values():
        raise ToolException(f"there is no order {order!r}; call find_order to look it up")
    return f"{order} was refunded"


refund.handle_tool_error = True  # the model gets the error as a tool message


class Scripted(BaseChatModel):
    """A scripted stand-in for a model: it guesses an order, looks it up, and refunds it."""

    def _generate(self, messages: list[BaseMessage], *args: Any, **settings: Any) -> ChatResult:
        request = max(n for n, message in enumerate(messages) if message.type == "human")
        answers = [message.text for message in messages[request:] if message.type == "tool"]
        customer = next((name for name in ORDERS if name in messages[request].text), "Ada")
        calls = (("refund", {"order": "the last one"}), ("find_order", {"customer": customer}))
        if len(answers) < 2:
            name, arguments = calls[len(answers)]
        elif len(answers) == 2:
            name, arguments = "refund", {"order": answers[1]}
        else:
            return ChatResult(generations=[ChatGeneration(message=AIMessage(answers[-1]))])
        call = {"name": name, "args": arguments, "id": f"call_{len(messages)}"}
        return ChatResult(generations=[ChatGeneration(message=AIMessage("", tool_calls=[call]))])

    def bind_tools(self, tools: Any, **settings: Any) -> Any:
        """Return this model unchanged; its answers do not depend on the tools."""
        return self

    @property
    def _llm_type(self) -> str:
        return "scripted"


def make_graph() -> Any:
    """Build the agent's graph and open its library."""
    path = Path(os.environ.get("HARDWON_LIBRARY") or "runs/studio.db")
    path.parent.mkdir(parents=True, exist_ok=True)
    model = os.environ.get("HARDWON_MODEL") or Scripted()
    return create_agent(model, [find_order, refund], middleware=[ExperienceMiddleware(ExperienceLibrary.open(path))])


graph = make_graph()  # langgraph.json names this variable, so it is built at import

if __name__ == "__main__":
    for message in graph.invoke({"messages": [("user", "Ada wants her money back.")]})["messages"]:
        message.pretty_print()
