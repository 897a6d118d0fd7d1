"""A chat model in the loop: it calls tools, and sees at every step what earlier episodes suggest.

    pip install '.[chat]'
    python examples/chat_scripted.py                                   offline: a model that reads out a script
    HARDWON_MODEL=openai:gpt-5 python examples/chat_scripted.py          a real one, with its key in the environment

Two customers want their money back. A refund needs an order number that nobody tells the agent; in
the first episode it finds out the hard way, and in the second the library says so before it acts.
The scripted model would do the same without reading: the example shows what a model is shown.
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
    'find_order(customer="Grace")',  # the second
    'refund(order="A-2077")',
    'finish(answer="Refunded A-2077.")',
]


def find_order(customer: str) -> str:
    """The number of a customer's last order."""
    return ORDERS[customer]


def refund(order: str) -> str:
    """Pay an order back."""
    if order not in ORDERS.values():
        raise ValueError(f"there is no order {order!r}; an order number looks like A-1000. find_order knows them")
    return f"{order} was refunded"


def paid_back(task: str, answer: str, calls: tuple[object, ...]) -> bool:
    """Whether the right order was refunded."""
    customer = next(name for name in ORDERS if name in task)
    return any(f"{ORDERS[customer]} was refunded" in str(call) for call in calls)


def main() -> None:
    """Two episodes; the second one has the first one's experience."""
    policy = ChatPolicy(os.environ.get("HARDWON_MODEL") or FakeListChatModel(responses=SCRIPT))
    path = Path("runs/chat.db")
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    with ExperienceLibrary.open(path) as library:
        agent = Agent(policy, library, ToolEnvironment([find_order, refund], paid_back), max_steps=8)
        for customer in ORDERS:
            print(f"\n{customer} wants the money for the last order back.")
            shown: set[str] = set()
            for event in agent.stream(f"{customer} wants the money for the last order back."):
                if event.stage == "guide" and event.update["hint"]:
                    lines = dict.fromkeys(event.update["hint"].text.splitlines())
                    for line in [line for line in lines if line not in shown]:
                        print(f"    experience: {line}")
                    shown |= lines.keys()
                if event.stage == "diagnose":
                    step = event.update["steps"][-1]
                    print(f"  {step.action}\n    -> {step.post.feedback}")
        agent.close()
        print(f"\nWhat is known now: {library.stats()['episodes']} episodes, in {path}")


if __name__ == "__main__":
    main()
