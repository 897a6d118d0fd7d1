"""A customer-support agent with tools stops repeating a mistake; the same one without a library does not.

    pip install '.[chat]'
    python examples/support_agent.py                                   offline: a stubborn model
    HARDWON_MODEL=openai:gpt-5 python examples/support_agent.py          a real one, with its key in the environment

The model pays everybody back in cash, which this shop does not do; then it thinks of a voucher. It reads no
hint, so nothing but a guardrail can stop it: after the fourth failure the library has one, by rules alone,
and from then on the call is answered with the reason and never made.
"""

import os
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, ToolException, tool

from hardwon.memory import ExperienceLibrary
from hardwon.runtime import ExperienceMiddleware

CUSTOMERS = {"Ada": "A-1042", "Grace": "A-2077", "Joan": "A-3101", "Edith": "A-4455",
             "Mary": "A-5120", "Rosa": "A-6001", "Emmy": "A-7313", "Lise": "A-8086"}  # fmt: skip


def desk(failed: list[str]) -> list[BaseTool]:
    """The shop's tools; what fails in them is kept."""

    @tool
    def find_order(customer: str) -> str:
        """The number of a customer's last order."""
        return CUSTOMERS.get(customer, "unknown customer")

    @tool
    def choose_method(method: str) -> str:
        """How the money is to be paid back: cash, card or voucher."""
        if method == "cash":
            failed.append(method)
            raise ToolException("this shop pays nothing back like that")
        return f"{method} it is"

    @tool
    def refund(order: str) -> str:
        """Pay an order back, by the method that was chosen."""
        return f"{order} was refunded"

    choose_method.handle_tool_error = True
    return [find_order, choose_method, refund]


class Stubborn(BaseChatModel):
    """Stands for a model: looks the order up, chooses cash, then a voucher. It reads answers of tools alone."""

    def _generate(self, messages: list[BaseMessage], *args: Any, **settings: Any) -> ChatResult:
        customer = next(name for name in CUSTOMERS if name in messages[0].text)
        answers = [message.text for message in messages if message.type == "tool"]
        if not answers:
            return _call("find_order", customer=customer)
        if len(answers) == 1:
            return _call("choose_method", method="cash")
        if "voucher it is" not in answers:
            return _call("choose_method", method="voucher")
        if "was refunded" not in answers[-1]:
            return _call("refund", order=answers[0])
        return ChatResult(generations=[ChatGeneration(message=AIMessage(answers[-1]))])

    def bind_tools(self, tools: Any, **settings: Any) -> Any:
        return self

    @property
    def _llm_type(self) -> str:
        return "stubborn"


def _call(name: str, **arguments: str) -> ChatResult:
    call = {"name": name, "args": arguments, "id": f"{name} {arguments.get('method', '')}"}
    return ChatResult(generations=[ChatGeneration(message=AIMessage("", tool_calls=[call]))])


def served(middleware: list[ExperienceMiddleware]) -> list[int | str]:
    """How many calls failed for each customer; a dash for one who left without a refund."""
    counts: list[int | str] = []
    for customer in CUSTOMERS:
        failed: list[str] = []
        model = os.environ.get("HARDWON_MODEL") or Stubborn()
        agent: Any = create_agent(model, desk(failed), middleware=middleware)
        out = agent.invoke({"messages": [("user", f"{customer} wants the money for the last order back.")]})
        refunded = any("was refunded" in message.text for message in out["messages"])
        counts.append(len(failed) if refunded else "-")
    return counts


def main() -> None:
    """Eight customers, without a library and with one."""
    path = Path("runs/support.db")
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    with ExperienceLibrary.open(path) as library:
        print("failed calls for each customer")
        print("  without a library:", *served([]))
        print("  with one:         ", *served([ExperienceMiddleware(library, guardrails="block")]))
        for item in library.items(["guardrail"]):
            print(f"\nguardrail: {item.title}; {item.body}")
        print(f"Why, step by step: hardwon memory guardrails {path}")


if __name__ == "__main__":
    main()
