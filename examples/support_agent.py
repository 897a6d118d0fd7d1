"""Stop a customer-support agent from repeating a mistake, with a rule that the library learns by itself.

    pip install '.[agent]'
    python examples/support_agent.py                                   offline, with a stubborn model
    HARDWON_MODEL=openai:gpt-5 python examples/support_agent.py          with a real model; needs its API key

The model tries to refund every customer in cash, which this shop does not do, and then offers a voucher. It reads no
advice, so only a guardrail can stop it. After the fourth failure, rules create one without a model. From then on the
call is not made, and the model gets the reason as the answer. The same agent without a library repeats the mistake.
"""

import os
from pathlib import Path
from textwrap import fill
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
INTRODUCTION = """\
Eight customers want their money back. This shop never pays cash, and the agent always tries cash first.
"""
ADVICE = """\
A model that reads needs no rule. This is what it would have been told from {customer}'s request on:
{text}
"""
RULE = """\
After four failures the library has a rule, and the call is not made any more:
  {rule.title}: {rule.body}
"""


def build_tools(calls: list[str]) -> list[BaseTool]:
    """Return the shop's tools; `calls` collects what came of each method of payment."""

    @tool
    def find_order(customer: str) -> str:
        """Return the number of a customer's last order."""
        return CUSTOMERS.get(customer, "unknown customer")

    @tool
    def choose_method(method: str) -> str:
        """Choose how to pay the money back: cash, card or voucher."""
        calls.append(f"{method} failed" if method == "cash" else f"{method} worked")
        if method == "cash":
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

    advice: str = ""
    """What the library advised, and this model did not read."""

    def _generate(self, messages: list[BaseMessage], *args: Any, **settings: Any) -> ChatResult:
        text = "\n".join(message.text for message in messages)
        hints = [message.text.rpartition("\n\n")[2] for message in messages if "(Learned from" in message.text]
        self.advice = next((hint for hint in hints if "voucher" in hint), self.advice)
        customer = next(name for name in CUSTOMERS if name in text)
        answers = [message.text for message in messages if message.type == "tool"]
        if not answers:
            return _call_tool("find_order", customer=customer)
        if len(answers) == 1:
            return _call_tool("choose_method", method="cash")
        if not any("voucher it is" in answer for answer in answers):
            return _call_tool("choose_method", method="voucher")
        if "was refunded" not in answers[-1]:
            return _call_tool("refund", order=CUSTOMERS[customer])
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


def serve(customer: str, middleware: list[ExperienceMiddleware]) -> tuple[list[str], str]:
    """Refund one customer. Return what came of each method of payment, and the advice that was not read."""
    calls: list[str] = []
    model: Any = os.environ.get("HARDWON_MODEL") or Stubborn()
    agent: Any = create_agent(model, build_tools(calls), middleware=middleware)
    out = agent.invoke({"messages": [("user", f"{customer} wants the money for the last order back.")]})
    refused = [message for message in out["messages"] if message.type == "tool" and "Not run" in message.text]
    return ["cash not tried" for _ in refused] + calls, getattr(model, "advice", "")


def compare(path: Path) -> tuple[list[int], list[int]]:
    """Serve the customers without a library and with one, print both, and return the failed calls of each request."""
    failed: tuple[list[int], list[int]] = ([], [])
    first: tuple[str, str] | None = None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    print(INTRODUCTION)
    print(f"{'':8}{'without hardwon':32}with hardwon")
    with ExperienceLibrary.open(path) as library:
        for customer in CUSTOMERS:
            before, _ = serve(customer, [])
            after, advice = serve(customer, [ExperienceMiddleware(library, guardrails="block", seed=0)])
            first = first or ((customer, advice) if advice else None)
            print(f"{customer:8}{', '.join(before):32}{', '.join(after)}")
            for counts, calls in zip(failed, (before, after), strict=True):
                counts.append(sum("failed" in call for call in calls))
        print(f"{'failed':8}{sum(failed[0]):<32}{sum(failed[1])}\n")
        for rule in library.items.find(["guardrail"]):
            print(RULE.format(rule=rule))
    if first:
        lines = [
            fill(line, 110, initial_indent="  ", subsequent_indent="    ")
            for line in first[1].splitlines()
            if "voucher" in line
        ]
        print(ADVICE.format(customer=first[0], text="\n".join(lines)))
    return failed


def main() -> None:
    """Compare the agent without a library and with one."""
    path = Path("runs/support.db")
    compare(path)
    print(f"Look inside, in a browser: hardwon serve {path}")


if __name__ == "__main__":
    main()
