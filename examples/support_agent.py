"""Stop a customer-support agent from repeating a mistake, with a guardrail that the library learns by itself.

    pip install '.[chat]'
    python examples/support_agent.py                                   offline, with a stubborn model
    HARDWON_MODEL=openai:gpt-5 python examples/support_agent.py          with a real model; needs its API key

The model tries to refund every customer in cash, which this shop does not do, and then offers a voucher. It ignores
hints, so only a guardrail can stop it. After the fourth failure, rules create one without a model. From then on the
call is not made, and the model gets the reason as the answer. The same agent without a library repeats the mistake.
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


def build_tools(failures: list[str]) -> list[BaseTool]:
    """Return the shop's tools; failed calls are appended to `failures`."""

    @tool
    def find_order(customer: str) -> str:
        """Return the number of a customer's last order."""
        return CUSTOMERS.get(customer, "unknown customer")

    @tool
    def choose_method(method: str) -> str:
        """Choose how to pay the money back: cash, card or voucher."""
        if method == "cash":
            failures.append(method)
            raise ToolException("this shop does not refund that way")
        return f"{method} it is"

    @tool
    def refund(order: str) -> str:
        """Refund an order by the chosen method."""
        return f"{order} was refunded"

    choose_method.handle_tool_error = True  # the model gets the error as a tool message
    return [find_order, choose_method, refund]


class Stubborn(BaseChatModel):
    """A rule-based stand-in for a model: it reads only tool results, tries cash first and then a voucher."""

    def _generate(self, messages: list[BaseMessage], *args: Any, **settings: Any) -> ChatResult:
        customer = next(name for name in CUSTOMERS if name in messages[0].text)
        answers = [message.text for message in messages if message.type == "tool"]
        if not answers:
            return _call_tool("find_order", customer=customer)
        if len(answers) == 1:
            return _call_tool("choose_method", method="cash")
        if "voucher it is" not in answers:
            return _call_tool("choose_method", method="voucher")
        if "was refunded" not in answers[-1]:
            return _call_tool("refund", order=answers[0])
        return ChatResult(generations=[ChatGeneration(message=AIMessage(answers[-1]))])

    def bind_tools(self, tools: Any, **settings: Any) -> Any:
        """Return this model unchanged; its answers do not depend on the tools."""
        return self

    @property
    def _llm_type(self) -> str:
        return "stubborn"


def _call_tool(name: str, **arguments: str) -> ChatResult:
    call = {"name": name, "args": arguments, "id": f"{name} {arguments.get('method', '')}"}
    return ChatResult(generations=[ChatGeneration(message=AIMessage("", tool_calls=[call]))])


def count_failures(middleware: list[ExperienceMiddleware]) -> list[int | str]:
    """Return the number of failed calls for each customer, or a dash if there was no refund."""
    counts: list[int | str] = []
    for customer in CUSTOMERS:
        failures: list[str] = []
        model = os.environ.get("HARDWON_MODEL") or Stubborn()
        agent: Any = create_agent(model, build_tools(failures), middleware=middleware)
        out = agent.invoke({"messages": [("user", f"{customer} wants the money for the last order back.")]})
        is_refunded = any("was refunded" in message.text for message in out["messages"])
        counts.append(len(failures) if is_refunded else "-")
    return counts


def main() -> None:
    """Serve eight customers without a library and with one."""
    path = Path("runs/support.db")
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    with ExperienceLibrary.open(path) as library:
        print("failed calls for each customer")
        print("  without a library:", *count_failures([]))
        print("  with one:         ", *count_failures([ExperienceMiddleware(library, guardrails="block")]))
        for item in library.items(["guardrail"]):
            print(f"\nguardrail: {item.title}; {item.body}")
        print(f"For the steps behind it: hardwon memory guardrails {path}")


if __name__ == "__main__":
    main()
