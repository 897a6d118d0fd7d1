"""What the tests of the runtime share: a workshop with a tree of techniques, and a chat model with a script."""

from typing import Any

import pytest

from hardwon.memory import State

TREE: dict[str, tuple[str, tuple[str, ...]]] = {
    "gather wood": ("wood", ()),
    "craft table": ("table", ("wood",)),
    "craft pickaxe": ("pickaxe", ("table",)),
    "mine stone": ("stone", ("pickaxe",)),
    "build furnace": ("furnace", ("stone",)),
    "mine ore": ("ore", ("pickaxe",)),
    "smelt iron": ("iron", ("furnace", "ore")),
}
"""What each action makes, and of what."""
IDLE = ("dig sand", "pick flower", "rest")


class Workshop:
    """A tree of techniques: the action that makes a thing works once there is what it needs. Iron is the goal.

    `ran` is every action that reached it or a clone of it.
    """

    name = "workshop"

    def __init__(self, ran=None, goal="iron"):
        self.ran = [] if ran is None else ran
        self.goal, self.has = goal, []

    def reset(self, task="", seed=0):
        self.has = []
        return self.state("")

    def step(self, action):
        self.ran.append(action)
        makes, needs = TREE.get(action, ("", ()))
        missing = [thing for thing in needs if thing not in self.has]
        if missing:
            return self.state(f"You need {missing[0]} first."), 0.0, False, {}
        if not makes or makes in self.has:
            return self.state("Nothing comes of it."), 0.0, False, {}
        self.has.append(makes)
        won = makes == self.goal
        return self.state(f"Now you have {makes}."), float(won), won, {"success": won}

    def admissible(self, state):
        return sorted([*TREE, *IDLE])

    def clone(self):
        return Workshop(self.ran, self.goal)

    def close(self):
        pass

    def state(self, told):
        facts: dict[str, Any] = {thing: thing in self.has for thing, _ in TREE.values()}
        return State("You are in a workshop.", facts, task=f"make {self.goal}", feedback=told)


@pytest.fixture(scope="session")
def workshop() -> type[Workshop]:
    """The class of a world in which things are made of other things."""
    return Workshop


@pytest.fixture
def scripted() -> Any:
    """Makes a chat model that answers with these replies in turn: texts, messages, exceptions, or functions."""
    pytest.importorskip("langchain_core", reason="needs the chat extra")
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.outputs import ChatGeneration, ChatResult
    from pydantic import Field

    class Scripted(BaseChatModel):
        replies: list[Any]
        seen: list[Any] = Field(default_factory=list)

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> ChatResult:
            self.seen.append(messages)
            reply = self.replies.pop(0)
            reply = reply() if callable(reply) else reply
            if isinstance(reply, BaseException):
                raise reply
            message = reply if isinstance(reply, AIMessage) else AIMessage(reply)
            return ChatResult(generations=[ChatGeneration(message=message)])

        _llm_type = "scripted"

    return lambda *replies: Scripted(replies=list(replies))
