"""Three agents on one question: what one has looked up, the others need not look up again.

    python examples/team.py                              offline: agents that follow a rule
    HARDWON_MODEL=openai:gpt-5 python examples/team.py     a model, with its key in the environment

The question needs the stock of six shops, and every call takes a quarter of a second. Each agent asks
the shops in an order of its own. Alone, it asks all six; in a team, what another one was told comes from
the bank. A tool that only reads says so: without `readOnlyHint` every call would be made.
"""

import asyncio
import os
import random
from typing import Literal

from langchain_core.tools import StructuredTool

from hardwon.memory import ExperienceLibrary
from hardwon.runtime import Agent, ChatPolicy, Policy, RuleAdmission, Team, ToolEnvironment
from hardwon.runtime.interfaces.types import Context, Decision

STOCK = {"Arden": 12, "Brink": 7, "Calder": 30, "Dunmore": 4, "Elswick": 19, "Farrow": 8}
QUESTION = f"How many lamps do the shops have together? The shops: {', '.join(STOCK)}."


async def stock(shop: str) -> str:
    """How many lamps a shop has."""
    await asyncio.sleep(0.25)
    return f"{shop} has {STOCK[shop]} lamps"


class Clerk:
    """Asks every shop, in an order of its own, and adds up."""

    name = "clerk"
    reads: Literal["values", "text"] = "text"

    def __init__(self, seed: int) -> None:
        self._shops = random.Random(seed).sample(sorted(STOCK), len(STOCK))

    async def adecide(self, context: Context) -> Decision:
        """The next shop, or the sum."""
        told = {step.action: step.post.feedback for step in context.history}
        for shop in self._shops:
            if f'stock(shop="{shop}")' not in told:
                return Decision(f'stock(shop="{shop}")')
        return Decision(f'finish(answer="{sum(int(text.split()[2]) for text in told.values())}")')

    def decide(self, context: Context) -> Decision:
        """The same."""
        return asyncio.run(self.adecide(context))


def main() -> None:
    """The same three agents, first each for itself, then as a team that shares."""
    model = os.environ.get("HARDWON_MODEL")
    policies: list[Policy] = [ChatPolicy(model) if model else Clerk(n) for n in range(3)]
    tools = [StructuredTool.from_function(coroutine=stock, metadata={"readOnlyHint": True})]
    shops = ToolEnvironment(tools, lambda task, answer, calls: float(answer == str(sum(STOCK.values()))))
    with ExperienceLibrary.open(":memory:") as library:
        agents = [Agent(policy, library, shops, learn=False, seed=n) for n, policy in enumerate(policies)]
        for name, team in (("alone", Team(agents)), ("sharing", Team(agents, library.bank, RuleAdmission()))):
            result = team.run(QUESTION)
            print(f"{name:8} {result.answer} after {result.seconds:.1f} s: {result.calls} calls made, ", end="")
            print(f"{len(result.pulls)} answered by what another agent was told")
        for agent in agents:
            agent.close()


if __name__ == "__main__":
    main()
