"""Add experience to an existing agent with one line in `create_agent`.

    pip install '.[agent]'
    python examples/middleware_agent.py                                offline, with a rule-based model
    HARDWON_MODEL=openai:gpt-5 python examples/middleware_agent.py       with a real model; needs its API key

The travel desk accepts dates in one format only, and mentions it only in the error for a wrong date. The requests of
the first three travelers fail once. Then three requests share the words of the error, and the agent of the fourth one
gets them as a hint before its first call.
"""

import os
import re
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import ToolException, tool

from hardwon.memory import ExperienceLibrary
from hardwon.runtime import ExperienceMiddleware


@tool
def find_trains(city: str, date: str) -> str:
    """List the trains to a city on a day."""
    if len(date) != 10 or date[4] != "-":
        raise ToolException(f"{date!r} is not a valid date; write it as 2027-05-31")
    return f"trains to {city} on {date}: 8:04, 12:04"


find_trains.handle_tool_error = True  # the model gets the error as a tool message


class Rules(BaseChatModel):
    """A rule-based stand-in for a model: it writes dates in words until a message shows the required format."""

    def _generate(self, messages: list[BaseMessage], *args: Any, **settings: Any) -> ChatResult:
        for message in messages:
            if message.type == "tool" and "trains to" in message.text:
                return _build_result(AIMessage(message.text))
        # "#" as well as digits: a hint replaces concrete numbers.
        has_format = any(re.search("write it as [0-9#]{4}-[0-9#]{2}-[0-9#]{2}", message.text) for message in messages)
        request = next(message.text for message in messages if message.text.startswith("Trains to"))
        call = {"city": request.split()[2], "date": "2027-05-31" if has_format else "the 31st of May"}
        return _build_result(
            AIMessage("", tool_calls=[{"name": "find_trains", "args": call, "id": f"call_{len(messages)}"}])
        )

    def bind_tools(self, tools: Any, **settings: Any) -> Any:
        """Return this model unchanged; its answers do not depend on the tools."""
        return self

    @property
    def _llm_type(self) -> str:
        return "rules"


def _build_result(message: AIMessage) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=message)])


def main() -> None:
    """Serve four travelers, one after the other."""
    path = Path("runs/middleware.db")
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    with ExperienceLibrary.open(path) as library:
        agent: Any = create_agent(
            os.environ.get("HARDWON_MODEL") or Rules(),
            [find_trains],
            # The only change to the agent. The tools are its own, so the words of their errors are recorded.
            middleware=[ExperienceMiddleware(library, trust="trusted")],
        )
        for city in ("Oslo", "Bergen", "Paris", "Rome"):
            print(f"\nTrains to {city} on the 31st of May 2027, please.")
            out = agent.invoke({"messages": [("user", f"Trains to {city} on the 31st of May 2027, please.")]})
            for message in out["messages"]:
                for call in getattr(message, "tool_calls", ()):
                    print(f"  {call['name']}({call['args']})")
                if message.type == "tool":
                    print(f"    {message.status}: {message.text}")
        print(f"\nThe library {path} now has {library.admin.stats()['episodes']} episodes.")


if __name__ == "__main__":
    main()
