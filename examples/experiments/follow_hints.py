"""Follow hints without a model: take the first listed action that the hint names, and no other.

    python examples/experiments/follow_hints.py runs/train_smollm2_policy/library.db --fold test

The share of solved tasks is a bound for a policy that only reads: what the library wrote down, recalled and showed. The
rest of the gap to a trained policy is reading.
"""

import argparse
import re
from pathlib import Path
from typing import Literal

from hardwon.memory import ExperienceLibrary
from hardwon.runtime import Agent, open_environment
from hardwon.runtime.interfaces.types import Context, Decision

ONE_THING = "numLocations=1, numItemsToPutAway=1, includeDoors=0, limitInventorySize=0"
_QUOTED = re.compile(r"`([^`]+)`")
_PUNISHED = re.compile(r"`([^`]+)` was punished")


class FollowingPolicy:
    """Takes the first listed action that the hint names and does not warn of; without one, the first it allows."""

    name = "following"
    reads: Literal["values", "text"] = "text"

    def decide(self, context: Context) -> Decision:
        """Return the action."""
        hint = context.guidance or ""
        warned = {*_PUNISHED.findall(hint)}
        allowed = [action for action in context.actions if action not in warned]
        recommended = [action for action in _QUOTED.findall(hint) if action in allowed]
        return Decision((recommended or allowed or [*context.actions])[0])

    async def adecide(self, context: Context) -> Decision:
        """Return the action; nothing is awaited."""
        return self.decide(context)


def main() -> None:
    """Play the tasks and print the share that was solved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path, help="the library of a run, or any other")
    parser.add_argument("--game", default="twc")
    parser.add_argument("--params", default=ONE_THING)
    parser.add_argument("--fold", default="dev")
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--steps", type=int, default=4)
    given = parser.parse_args()
    environment = open_environment("textworld", game=given.game, params=given.params)
    with ExperienceLibrary.open(given.library, read_only=True) as library:
        agent = Agent(FollowingPolicy(), library, environment, learn=False, guardrails=False, max_steps=given.steps)
        solved = sum(bool(agent.run(given.fold, seed).trajectory.success) for seed in range(given.tasks))
        print(f"{solved} of {given.tasks} tasks of {given.fold} solved in {given.steps} steps")


if __name__ == "__main__":
    main()
