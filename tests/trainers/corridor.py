"""A corridor of five rooms with the prize at one end: the smallest world that memory helps in."""

from hardwon.memory import State
from hardwon.runtime.interfaces.types import Decision, Info

COLOURS = ("red", "blue", "green", "white", "golden")


class Corridor:
    """The seed says where one begins and at which end the prize is; at the other end it is lost."""

    name = "corridor"

    def __init__(self) -> None:
        self.at = self.goal = 0

    def reset(self, task: str = "", seed: int = 0) -> State:
        self.at, self.goal = 1 + seed % 3, (0, 4)[seed // 3 % 2]
        return self.state()

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        self.at += {"go east": 1, "go west": -1}.get(action, 0)
        over, won = self.at in (0, 4), self.at == self.goal
        return self.state(), float(won), over, Info(success=won, lost=over and not won, score=float(won))

    def admissible(self, state: State) -> list[str]:
        return ["go east", "go west", "wait"]

    def clone(self) -> "Corridor":
        return Corridor()

    def close(self) -> None:
        pass

    def state(self) -> State:
        colour = COLOURS[self.at]
        return State(f"You are in the {colour} room.", location=f"{colour} room", task="find the prize")


class Walks:
    """A policy that walks in one direction."""

    name, reads = "walks", "text"

    def __init__(self, go="go east"):
        self.go = go

    def decide(self, context):
        return Decision(self.go)

    async def adecide(self, context):
        return self.decide(context)
