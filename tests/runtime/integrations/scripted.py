"""A scripted model, its tool calls, and runs of LangChain's agent with them."""

from types import SimpleNamespace
from typing import Any

from langchain import agents
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from hardwon.memory import Item
from hardwon.runtime import ExperienceMiddleware

create_agent: Any = agents.create_agent

GUARD = Item(
    "guardrail",
    "do not book seven",
    "seven is always taken",
    condition={"text": "Request"},
    forbids="book(table=7)",
    confidence=0.9,
)


class Model(GenericFakeChatModel):
    """Reads out a script and keeps what it was shown."""

    def bind_tools(self, tools, **settings):
        return self

    def _generate(self, messages, *args, **settings):
        (self.metadata or {})["seen"].append(list(messages))
        return super()._generate(messages, *args, **settings)


def model(*script):
    return Model(messages=iter(script), metadata={"seen": []})


def call(name, ref="1", **arguments):
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": ref}])


def calls(*messages):
    return AIMessage("", tool_calls=[made for message in messages for made in message.tool_calls])


def ran(library, desk, *script, ask="Book a table.", chat=None, **settings):
    """The messages of one run, and what the model was shown."""
    chat = chat or model(*script)
    agent = create_agent(chat, desk.tools, middleware=[ExperienceMiddleware(library, **settings)])
    out = agent.invoke({"messages": [("user", ask)]})
    return SimpleNamespace(**out, seen=chat.metadata["seen"])


def last(library):
    """The episode recorded last."""
    return library.episodes.get(library.episodes.find(limit=1)[0]["id"])


BOOKS_SEVEN = (call("book", table=7), AIMessage("Done."))
