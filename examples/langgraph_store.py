"""A LangGraph app whose long-term memory lasts: `HardwonStore`, in the file where the experience is.

    pip install '.[chat]'
    python examples/langgraph_store.py                                 offline: the graph answers by itself
    HARDWON_MODEL=openai:gpt-5 python examples/langgraph_store.py        a model words the answer

Every user has a namespace. What they tell is kept there and found again by its meaning, after the app was
closed and opened again, and never by another user.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime

from hardwon.memory import ExperienceLibrary
from hardwon.runtime import HardwonStore

TALKS = (
    ("ada", "Remember that I drink green tea."),
    ("ada", "Remember that my sister lives in Oslo."),
    ("grace", "Remember that I drink black coffee."),
    ("ada", "What do I drink?"),
    ("grace", "Where does my sister live?"),
)


@dataclass
class User:
    """Who is talking."""

    name: str


def answer(state: MessagesState, runtime: Runtime[User]) -> dict[str, Any]:
    """Keep what is to be remembered; else say what is known that is nearest."""
    assert runtime.store is not None
    said, mine = str(state["messages"][-1].text), ("users", runtime.context.name)
    if said.startswith("Remember that "):
        fact = said.removeprefix("Remember that ")
        runtime.store.put(mine, fact, {"text": fact})
        return {"messages": [("ai", "I will.")]}
    found = [
        str(hit.value["text"]) for hit in runtime.store.search(mine, query=said, limit=2) if (hit.score or 0) > 0.1
    ]
    return {"messages": [("ai", worded(said, found))]}


def worded(question: str, facts: list[str]) -> str:
    """The answer of a model, where there is one; the nearest fact otherwise."""
    if name := os.environ.get("HARDWON_MODEL"):
        from langchain.chat_models import init_chat_model

        return str(init_chat_model(name).invoke(f"{question} You were told: {facts}. Answer in one line.").text)
    return f"You told me: {facts[0]}" if facts else "You never told me."


def talk(path: Path, user: str, said: str) -> str:
    """One visit: the file is opened, and closed again."""
    with ExperienceLibrary.open(path) as library, HardwonStore(library, index={"fields": ["text"]}) as store:
        builder = StateGraph(MessagesState, context_schema=User)
        graph: Any = builder.add_node("answer", answer).add_edge(START, "answer").compile(store=store)
        out = graph.invoke({"messages": [("user", said)]}, context=User(user))
        return str(out["messages"][-1].text)


def main() -> None:
    """Two users, five visits."""
    path = Path("runs/store.db")
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    for user, said in TALKS:
        print(f"{user}: {said}\n    {talk(path, user, said)}")


if __name__ == "__main__":
    main()
