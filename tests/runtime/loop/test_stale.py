"""A task that changes: what was learnt of it does harm for a while, and then is no longer shown."""

from typing import Literal

from hardwon.memory import Item, State
from hardwon.memory.retrieval.recall import RECALL_FLOOR
from hardwon.runtime import Agent
from hardwon.runtime.interfaces.types import Decision, Info

BEFORE, N = 10, 25
"""Pairs of episodes before the task changes, and after which the harm is over."""


class Doors:
    """One step: behind one of two doors is the prize."""

    name = "doors"

    def __init__(self, right="left"):
        self.right = right

    def reset(self, task="", seed=0):
        return State("You see two doors.", task="open the right door")

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        won = action == f"open {self.right}"
        return self.reset(), float(won), True, Info(success=won, score=float(won))

    def admissible(self, state):
        return ["open left", "open right"]

    def clone(self):
        return Doors(self.right)

    def close(self):
        pass


class Obeys:
    """Does what an item tells it to; else it looks, and knows. What earlier steps led to it does not read."""

    name = "obeys"
    reads: Literal["values", "text"] = "text"

    def __init__(self, knows):
        self.knows = knows

    def decide(self, context):
        lines = [line for line in (context.guidance or "").splitlines() if "similar situation" not in line]
        told = [action for line in lines for action in context.actions if action in line]
        return Decision(told[0] if told else f"open {self.knows}")

    async def adecide(self, context):
        return self.decide(context)


def harm(library, right, seeds):
    """Of each pair of episodes of a seed, whether the control succeeded and the one with memory failed."""
    policy, kinds = Obeys(right), {"control": 0, "retrieved": 5}
    agents = {arm: Agent(policy, library, Doors(right), arm=arm, recall_k=k) for arm, k in kinds.items()}
    ended = [{name: agent.run(seed=seed).success for name, agent in agents.items()} for seed in seeds]
    for agent in agents.values():
        agent.close()
    return [pair["control"] and not pair["retrieved"] for pair in ended]


def test_after_the_task_changed_the_harm_is_over_within_some_episodes(library):
    """systems.md §7.8: stale item: after a task change, harm rate returns to baseline within N episodes."""
    state = Doors().reset()
    advice = Item("insight", "open left", signatures=(state.signature,), score=0.9, confidence=0.9)
    ref = str(library.add(advice).item_id)
    assert not any(harm(library, "left", range(BEFORE)))
    changed = harm(library, "right", range(BEFORE, BEFORE + N + 10))
    assert all(changed[:5])
    assert not any(changed[N:])
    assert library.items.get(ref).score < RECALL_FLOOR
