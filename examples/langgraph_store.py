"""Give a LangGraph app durable long-term memory: `HardwonStore`, in the same file as the experience library.

    pip install '.[agent]'
    python examples/langgraph_store.py                                 offline; the graph builds the answer
    HARDWON_MODEL=openai:gpt-5 python examples/langgraph_store.py        a model phrases the answer

Each user has a namespace. The app stores facts there and retrieves them by meaning, also after a restart. No user can
read the facts of another user.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime

from hardwon.memory import ExperienceLibrary
from hardwon.runtime import HardwonStore

MESSAGES = (
    ("ada", "Remember that I drink green tea."),
    ("ada", "Remember that my sister lives in Oslo."),
    ("grace", "Remember that I drink black coffee."),
    ("ada", "What do I drink?"),
    ("grace", "Where does my sister live?"),
)


@dataclass
class User:
    """The user of a conversation."""

    name: str


def answer(state: MessagesState, runtime: Runtime[User]) -> dict[str, Any]:
    """Store a fact that the user wants remembered, or answer from the most similar stored facts."""
    assert runtime.store is not None
    text, namespace = str(state["messages"][-1].text), ("users", runtime.context.name)
    if text.startswith("Remember that "):
        fact = text.removeprefix("Remember that ")
        runtime.store.put(namespace, fact, {"text": fact})
        return {"messages": [("ai", "I will.")]}
    facts = [  # a low score means an unrelated memory
        str(hit.value["text"]) for hit in runtime.store.search(namespace, query=text, limit=2) if (hit.score or 0) > 0.1
    ]
    return {"messages": [("ai", phrase_answer(text, facts))]}


def phrase_answer(question: str, facts: list[str]) -> str:
    """Return the answer of a model if HARDWON_MODEL is set, else the most similar fact."""
    if name := os.environ.get("HARDWON_MODEL"):
        from langchain.chat_models import init_chat_model

        return str(
            init_chat_model(name).invoke(f"{question} The user told you earlier: {facts}. Answer in one line.").text
        )
    return f"You told me: {facts[0]}" if facts else "You never told me."


def visit(path: Path, user: str, text: str) -> str:
    """Handle one message; the library is opened and closed each time."""
    with ExperienceLibrary.open(path) as library, HardwonStore(library, index={"fields": ["text"]}) as store:
        builder = StateGraph(MessagesState, context_schema=User)
        graph: Any = builder.add_node("answer", answer).add_edge(START, "answer").compile(store=store)
        out = graph.invoke({"messages": [("user", text)]}, context=User(user))
        return str(out["messages"][-1].text)


def main() -> None:
    """Run five visits by two users."""
    path = Path("runs/store.db")
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    for user, text in MESSAGES:
        print(f"{user}: {text}\n    {visit(path, user, text)}")


if __name__ == "__main__":
    main()
