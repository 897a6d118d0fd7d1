"""An agent that exists already becomes experienced: one line in `create_agent`.

    pip install '.[chat]'
    python examples/middleware_agent.py                                offline: a model that acts by a few rules
    HARDWON_MODEL=openai:gpt-5 python examples/middleware_agent.py       a real one, with its key in the environment

The travel desk wants dates written in its own way and says so only when they are not. The first traveller's
request fails once; at the second one's the agent is told what happened, before it calls anything.
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
    """Trains to a city on a day."""
    if len(date) != 10 or date[4] != "-":
        raise ToolException(f"{date!r} is no date here; write it as 2027-05-31")
    return f"trains to {city} on {date}: 8:04, 12:04"


find_trains.handle_tool_error = True


class Rules(BaseChatModel):
    """Stands for a model: writes dates as people do, until anything that it reads shows it how they are wanted."""

    def _generate(self, messages: list[BaseMessage], *args: Any, **settings: Any) -> ChatResult:
        for message in messages:
            if message.type == "tool" and "trains to" in message.text:
                return _said(AIMessage(message.text))
        shown = any(re.search("write it as [0-9#]{4}-[0-9#]{2}-[0-9#]{2}", message.text) for message in messages)
        city = "Rome" if "Rome" in "".join(message.text for message in messages) else "Oslo"
        call = {"city": city, "date": "2027-05-31" if shown else "the 31st of May"}
        return _said(AIMessage("", tool_calls=[{"name": "find_trains", "args": call, "id": f"call_{len(messages)}"}]))

    def bind_tools(self, tools: Any, **settings: Any) -> Any:
        return self

    @property
    def _llm_type(self) -> str:
        return "rules"


def _said(message: AIMessage) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=message)])


def main() -> None:
    """Two travellers, one after the other."""
    path = Path("runs/middleware.db")
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    with ExperienceLibrary.open(path) as library:
        agent: Any = create_agent(
            os.environ.get("HARDWON_MODEL") or Rules(),
            [find_trains],
            middleware=[ExperienceMiddleware(library)],  # the added line
        )
        for city in ("Oslo", "Rome"):
            print(f"\nTrains to {city} on the 31st of May 2027, please.")
            out = agent.invoke({"messages": [("user", f"Trains to {city} on the 31st of May 2027, please.")]})
            for message in out["messages"]:
                for call in getattr(message, "tool_calls", ()):
                    print(f"  {call['name']}({call['args']})")
                if message.type == "tool":
                    print(f"    {message.status}: {message.text}")
        print(f"\nWhat is known now: {library.stats()['episodes']} episodes, in {path}")


if __name__ == "__main__":
    main()
