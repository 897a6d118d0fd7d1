"""Run a chat model in the agent loop, with hints from earlier episodes at every step.

    pip install '.[agent]'
    python examples/chat_scripted.py                                   offline, with scripted answers
    HARDWON_MODEL=openai:gpt-5 python examples/chat_scripted.py          with a real model; needs its API key

Two customers ask for a refund. A refund needs an order number, which the request does not contain. In the first
episode the agent learns this from an error. In the second, the library warns it before it acts. The scripted model
ignores the hints, so this example shows only what a model receives.
"""

import os
from pathlib import Path

from langchain_core.language_models import FakeListChatModel

from hardwon.memory import ExperienceLibrary
from hardwon.runtime import Agent, ChatPolicy, ToolEnvironment

ORDERS = {"Ada": "A-1042", "Grace": "A-2077"}
SCRIPT = [
    'refund(order="the last one of Ada")',  # the first episode
    'find_order(customer="Ada")',
    'refund(order="A-1042")',
    'finish(answer="Refunded A-1042.")',
    'find_order(customer="Grace")',  # the second episode
    'refund(order="A-2077")',
    'finish(answer="Refunded A-2077.")',
]


def find_order(customer: str) -> str:
    """Return the number of a customer's last order."""
    return ORDERS[customer]


def refund(order: str) -> str:
    """Refund an order."""
    if order not in ORDERS.values():
        raise ValueError(
            f"there is no order {order!r}; an order number looks like A-1000. Call find_order to look it up"
        )
    return f"{order} was refunded"


def is_refunded(task: str, answer: str, calls: tuple[object, ...]) -> bool:
    """Return whether the customer's own order was refunded."""
    customer = next(name for name in ORDERS if name in task)
    return any(f"{ORDERS[customer]} was refunded" in str(call) for call in calls)


def main() -> None:
    """Run two episodes with one library; the second uses the experience of the first."""
    policy = ChatPolicy(os.environ.get("HARDWON_MODEL") or FakeListChatModel(responses=SCRIPT))
    path = Path("runs/chat.db")
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)  # start without experience, so that every run prints the same
    with ExperienceLibrary.open(path) as library:
        agent = Agent(policy, library, ToolEnvironment([find_order, refund], is_refunded), max_steps=8)
        for customer in ORDERS:
            print(f"\n{customer} wants the money for the last order back.")
            printed: set[str] = set()  # the same hint can come at several steps; print each line once
            for event in agent.stream(f"{customer} wants the money for the last order back."):
                if event.stage == "guide" and event.update["hint"]:
                    lines = dict.fromkeys(event.update["hint"].text.splitlines())
                    for line in [line for line in lines if line not in printed]:
                        print(f"    experience: {line}")
                    printed |= lines.keys()
                if event.stage == "diagnose":
                    step = event.update["steps"][-1]
                    print(f"  {step.action}\n    -> {step.post.feedback}")
        agent.close()
        print(f"\nThe library {path} now has {library.admin.stats()['episodes']} episodes.")


if __name__ == "__main__":
    main()
