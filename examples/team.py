"""Let three agents share tool results, so that no agent repeats a lookup of another one.

    python examples/team.py                              offline, with rule-based agents
    HARDWON_MODEL=openai:gpt-5 python examples/team.py     with a real model; needs its API key

The question needs the stock of six shops, and every call takes 0.25 s. Each agent queries the shops in its own order.
Alone, an agent makes all six calls; in a team, it reuses from the bank the results of the others. The tool declares
itself read-only with `readOnlyHint`; without this hint, every call would be made.
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
    """Return the number of lamps in a shop."""
    await asyncio.sleep(0.25)
    return f"{shop} has {STOCK[shop]} lamps"


class ShopClerk:
    """Query every shop in random order and add up the answers."""

    name = "clerk"
    reads: Literal["values", "text"] = "text"

    def __init__(self, seed: int) -> None:
        self._shops = random.Random(seed).sample(sorted(STOCK), len(STOCK))

    async def adecide(self, context: Context) -> Decision:
        """Return a call for the next shop, or the final sum."""
        replies = {step.action: step.post.feedback for step in context.history}
        for shop in self._shops:
            if f'stock(shop="{shop}")' not in replies:
                return Decision(f'stock(shop="{shop}")')
        return Decision(f'finish(answer="{sum(int(text.split()[2]) for text in replies.values())}")')

    def decide(self, context: Context) -> Decision:
        """Run `adecide` synchronously."""
        return asyncio.run(self.adecide(context))


def main() -> None:
    """Run three agents independently, then as a team that shares results."""
    model = os.environ.get("HARDWON_MODEL")
    policies: list[Policy] = [ChatPolicy(model) if model else ShopClerk(n) for n in range(3)]
    # Only calls that are declared read-only may be answered from the bank.
    tools = [StructuredTool.from_function(coroutine=stock, metadata={"readOnlyHint": True})]
    shops = ToolEnvironment(tools, lambda task, answer, calls: float(answer == str(sum(STOCK.values()))))
    with ExperienceLibrary.open(":memory:") as library:
        agents = [Agent(policy, library, shops, learn=False, seed=n) for n, policy in enumerate(policies)]
        for name, team in (("alone", Team(agents)), ("sharing", Team(agents, library.admin.bank, RuleAdmission()))):
            result = team.run(QUESTION)
            print(f"{name:8} {result.answer} after {result.seconds:.1f} s: {result.calls} calls, ", end="")
            print(f"{len(result.pulls)} reused from other agents")
        for agent in agents:
            agent.close()


if __name__ == "__main__":
    main()
