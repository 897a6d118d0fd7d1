"""Does a frozen language model use the lessons of a library? A shop whose tools have rules that no error names.

    python -m examples.experiments.shop runs/shop --base-url http://127.0.0.1:8099/v1
    python -m examples.experiments.shop runs/shop --base-url URL --desks path labels --errors returned --orders 1

`shop.toml` has the rules: a refund after a check of the order, to a channel that depends on a word of the request or on
what the order begins with, the folder of a path, a label that every list needs, the id of a person, the
code of a country, and an approval above an amount. A scripted assistant answers ten requests with the same detours
through the middleware, and then the model answers others, with the library, without memory (`none`), or with a lesson
that was written by hand before the request. Each arm of each order of the requests has a file; repeat the command to go
on after a stop.
"""

import argparse
import json
import random
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from langchain_openai import ChatOpenAI
from pydantic import create_model

from hardwon.memory import ExperienceLibrary
from hardwon.runtime import ExperienceMiddleware

CUSTOMERS = """
    Anna Boris Carla Deniz Emil Farah Gita Hugo Ines Jonas Karim Lena Mara Nils Olga Pavel Quinn Rosa Samir Tess Uma
    Viktor Wanda Xenia Yusuf Zoe Abel Bea Cyril Dora
"""
PAID = {"a gift card": "voucher", "a credit card": "card_reversal", "an invoice": "bank_transfer"}
LETTERS = {"A": "original", "B": "wallet", "C": "cheque"}
COUNTRIES = {"Germany": "DE", "France": "FR", "Spain": "ES", "Italy": "IT", "Japan": "JP", "Sweden": "SE"}
PROMPT = "You are the assistant of a shop. Use the tools to do what is asked, then answer in one sentence."
LEARNED, MOST_STEPS = 10, 24
Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Desk:
    """A tool with a rule; see `shop.toml`."""

    request: str
    tool: str
    about: str
    lesson: str
    naive: Arguments
    """The arguments of somebody who does not know the rule."""
    right: Arguments
    refusal: str
    first: str = ""
    """The tool that comes before."""
    first_arguments: Arguments = field(default_factory=dict)
    first_answer: str = ""
    too_early: str = ""
    free_up_to: int = 0
    """The largest amount that does not need it."""


DESKS = {
    name: Desk(**fields) for name, fields in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items()
}


@dataclass(slots=True)
class Request:
    """A customer's request, and what was done about it."""

    desk: Desk
    fields: Mapping[str, Any]
    is_ready: bool = False
    is_solved: bool = False
    calls: int = 0
    failing: int = 0

    def fill(self, value: Any) -> Any:
        """Return a text, a list or arguments with the fields of this request."""
        if isinstance(value, Mapping):
            return {name: self.fill(part) for name, part in value.items()}
        return [self.fill(part) for part in value] if isinstance(value, list) else value.format_map(self.fields)

    def call(self, name: str, arguments: Arguments) -> str:
        """Return the answer of a tool, or raise its error."""
        self.calls += 1
        desk = self.desk
        if name != desk.tool:
            self.is_ready |= dict(arguments) == self.fill(desk.first_arguments)
            return self.fill(desk.first_answer) if self.is_ready else self.fail("There is nothing like that.")
        if not self.is_ready:
            return self.fail(self.fill(desk.too_early))
        for key, right in self.fill(desk.right).items():
            given = arguments[key]
            if not ({*right} <= {*given} if isinstance(right, list) else str(given) == right):
                return self.fail(self.fill(desk.refusal))
        self.is_solved = True
        return "Done."

    def fail(self, text: str) -> str:
        """Count an error, and raise it."""
        self.failing += 1
        raise ToolException(text)


def list_requests(desk: Desk, order: int) -> list[Request]:
    """Return thirty requests, shuffled by the number of the order."""
    requests = []
    for n, name in enumerate(CUSTOMERS.split()):
        fields: dict[str, Any] = {"name": name, "order": 3100 + 37 * n, "kilos": n % 9 + 1, "amount": 11 + 97 * n % 200}
        for key, value, kinds in (
            ("paid", "channel", PAID),
            ("letter", "way", LETTERS),
            ("country", "code", COUNTRIES),
        ):
            fields[key], fields[value] = [*kinds.items()][n % len(kinds)]
            fields[f"other_{value}"] = next(each for each in kinds.values() if each != fields[value])
        fields["label"] = ("bug", "ui", "db")[n % 3]
        is_ready = not desk.first or fields["amount"] <= desk.free_up_to
        requests.append(Request(desk, fields, is_ready))
    random.Random(order).shuffle(requests)
    return requests


def build_tools(request: Request, *, raises: bool) -> list[BaseTool]:
    """Return the tools of one request; errors are raised, or returned as text."""
    desk = request.desk
    tools = [(desk.tool, desk.about, desk.right)]
    if desk.first:
        tools.append((desk.first, f"{desk.first.replace('_', ' ').capitalize()}.", desk.first_arguments))

    def build(name: str, about: str, arguments: Arguments) -> BaseTool:
        def run(**given: Any) -> str:
            try:
                return request.call(name, given)
            except ToolException as error:
                if raises:
                    raise
                return f"Error: {error}"

        types: dict[str, Any] = {key: (list[str] if isinstance(v, list) else str, ...) for key, v in arguments.items()}
        schema = create_model(name, **types)
        return StructuredTool.from_function(
            run, name=name, description=about, args_schema=schema, handle_tool_error=True
        )

    return [build(*each) for each in tools]


class Script(BaseChatModel):
    """Makes the calls of a plan, one after the other."""

    plan: list[tuple[str, dict[str, Any]]]

    def _generate(self, messages: list[BaseMessage], *args: Any, **settings: Any) -> ChatResult:
        done = sum(message.type == "tool" for message in messages)
        answer = AIMessage("It is done.")
        if done < len(self.plan):
            name, arguments = self.plan[done]
            answer = AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"call_{done}"}])
        return ChatResult(generations=[ChatGeneration(message=answer)])

    def bind_tools(self, tools: Any, **settings: Any) -> Any:
        """Return this model; its answers do not depend on the tools."""
        return self

    @property
    def _llm_type(self) -> str:
        return "script"


def plan_detours(request: Request) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls of an assistant that comes too early, and then tries what does not work."""
    desk = request.desk
    naive, right = ((desk.tool, request.fill(arguments)) for arguments in (desk.naive, desk.right))
    early = [] if request.is_ready else [naive, (desk.first, request.fill(desk.first_arguments))]
    # who reads the same error as before looks for something else
    is_tried = naive != right and desk.refusal != desk.too_early
    return [*early, *([naive] if is_tried else []), right]


def answer_requests(
    arm: str, name: str, order: int, model: BaseChatModel, path: Path, asked: int, *, raises: bool
) -> None:
    """Answer the requests of one arm, and write them to a file when all are answered."""
    desk = DESKS[name]
    requests = list_requests(desk, order)[: LEARNED + asked]
    path.with_suffix(".db").unlink(missing_ok=True)  # of a run that was stopped
    library = ExperienceLibrary.open(path.with_suffix(".db")) if arm == "library" else None
    middleware: list[Any] = [ExperienceMiddleware(library)] if library else []
    for at, request in enumerate(requests if library else requests[LEARNED:]):
        is_learned = library is not None and at < LEARNED
        llm = Script(plan=plan_detours(request)) if is_learned else model
        agent: Any = create_agent(llm, build_tools(request, raises=raises), system_prompt=PROMPT, middleware=middleware)
        messages = [("user", f"Notes from earlier requests: {desk.lesson}")] if arm == "hand" else []
        text = request.fill(desk.request)
        with suppress(RecursionError):  # also the limit of steps
            agent.invoke({"messages": [*messages, ("user", text)]}, {"recursion_limit": MOST_STEPS})
        if not is_learned:
            print(f"  {'solved' if request.is_solved else 'not solved'}, {request.failing} failing: {text}", flush=True)
    if library:
        library.close()
    path.write_text(json.dumps([[each.is_solved, each.failing, each.calls] for each in requests[LEARNED:]]))


def main() -> None:
    """Answer what is missing, and print a row for each arm over all orders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--model", default="local")
    parser.add_argument("--desks", nargs="+", choices=list(DESKS), default=list(DESKS))
    parser.add_argument("--errors", nargs="+", choices=["raised", "returned"], default=["raised", "returned"])
    parser.add_argument("--arms", nargs="+", choices=["none", "library", "hand"], default=["none", "library", "hand"])
    parser.add_argument("--orders", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--asked", type=int, default=20, help="requests that the model answers in each order")
    given = parser.parse_args()
    model = ChatOpenAI(
        model=given.model, base_url=given.base_url, api_key=lambda: "local", temperature=0, max_completion_tokens=200
    )
    given.folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[list[int]]] = {}
    for order, desk, errors, arm in product(given.orders, given.desks, given.errors, given.arms):
        path = given.folder / f"{desk}-{errors}-{arm}-{order}-{given.asked}.json"
        if not path.exists():
            print(f"{path.stem} ...", flush=True)
            answer_requests(arm, desk, order, model, path, given.asked, raises=errors == "raised")
        rows.setdefault(f"{desk}, errors {errors}, {arm}", []).extend(json.loads(path.read_text()))
    for name, answers in rows.items():
        solved, failing, calls = (sum(each) for each in zip(*answers, strict=True))
        idle = sum(not count for *_, count in answers)
        print(f"{name}: {solved} of {len(answers)} solved, {failing} failing calls of {calls}, {idle} without a call")


if __name__ == "__main__":
    main()
