"""Exploration by curiosity: the action that was taken least often in the state is next (EchoTrail, see `recipes`)."""

from collections import Counter
from typing import Literal

from hardwon.memory.errors import PolicyFailure
from hardwon.runtime.interfaces.types import Context, Decision
from hardwon.runtime.policies.episodic import list_allowed


class CuriousPolicy:
    """Chooses the listed action that was taken least often in this state; several equally rare ones at random.

    The counts go on from one episode to the next, so that later tries of a task instance go where earlier ones did not.
    Call `forget` before the next task instance.
    """

    name = "curious"
    reads: Literal["values", "text"] = "values"

    def __init__(self) -> None:
        self._counts = Counter[tuple[str, str]]()

    def forget(self) -> None:
        """Forget all counts."""
        self._counts.clear()

    def decide(self, context: Context) -> Decision:
        """Return an action that is not forbidden, and count it."""
        if not context.actions:
            raise PolicyFailure("CuriousPolicy needs an environment that lists admissible actions.")
        state, actions = context.state.signature, list_allowed(context)
        least = min(self._counts[state, action] for action in actions)
        action = context.rng.choice([action for action in actions if self._counts[state, action] == least])
        self._counts[state, action] += 1
        return Decision(action)

    async def adecide(self, context: Context) -> Decision:
        """Return an action as `decide` does; nothing is awaited."""
        return self.decide(context)
