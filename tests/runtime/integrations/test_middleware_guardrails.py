"""Guardrails of the middleware that let go, and that speak before a person is asked."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from tests.runtime.integrations.scripted import BOOKS_SEVEN, GUARD, Model, call, calls, create_agent, last, model, ran

from hardwon.memory import ExperienceLibrary, Failure, Item
from hardwon.memory.errors import ConfigError
from hardwon.memory.guardrails.tuning import TUNING
from hardwon.memory.records import Add
from hardwon.memory.situations.actions import is_of
from hardwon.runtime import ExperienceMiddleware
from hardwon.runtime.integrations.middleware_run import find_calls, find_message, split_message

# ---- guardrails that let go


def chatter(*script):
    """A model that goes on with the last of its script for ever."""

    class Insists(Model):
        def _generate(self, messages, *args, **settings):
            (self.metadata or {})["seen"].append(list(messages))
            at = min(len((self.metadata or {})["seen"]) - 1, len(script) - 1)
            return ChatResult(generations=[ChatGeneration(message=script[at].model_copy(deep=True))])

    return Insists(messages=iter(()), metadata={"seen": []})


class Shop:
    """A tool that fails with these words until it is mended; what it was asked, and how often it answered."""

    def __init__(self, words, raises=None):
        self.words, self.raises, self.up, self.made, self.answered = words, raises, False, 0, 0

    @property
    def tools(self):
        @tool
        def order(what: str) -> str:
            """Order something."""
            self.made += 1
            if not self.up:
                raise (self.raises or ToolException)(self.words)
            self.answered += 1
            return f"{what} is ordered"

        order.handle_tool_error = True
        return [order]


def orders(library, shop, runs, **settings):
    """So many requests that call the tool once each; how many calls were refused."""
    before = shop.made
    for _ in range(runs):
        script = call("order", what="tea"), AIMessage("Done.")
        ran(library, shop, *script, ask="Order tea.", **settings)
    return runs - (shop.made - before)


@pytest.mark.parametrize(("mode", "words"), [("warn", "503 Service Unavailable"), ("block", "Too many requests")])
def test_a_tool_that_recovers_from_an_outage_is_not_refused(library, mode, words):
    """The first scenario: five requests meet an outage, then it is over: 0 of 55 calls are refused, 55 answered."""
    shop = Shop(words)
    assert orders(library, shop, 5, guardrails=mode) == 0
    shop.up = True
    assert orders(library, shop, 55, guardrails=mode) == 0
    assert shop.answered == 55
    assert library.items.find(["guardrail", "warning"]) == []


@pytest.mark.parametrize(("mode", "most"), [("warn", 0), ("block", TUNING.trial_refusals)])
def test_an_outage_that_nobody_can_tell_for_one_costs_a_few_refusals(library, mode, most):
    """The words say nothing: the guardrail is made, tried after 5 refusals, and out of force by the first success."""
    shop = Shop("the clerk shrugs")
    orders(library, shop, 6, guardrails=mode)
    assert library.items.find(["guardrail"])
    shop.up = True
    assert orders(library, shop, 55, guardrails=mode) <= most
    assert shop.answered >= 55 - most
    assert all(item.confidence < 0.6 for item in library.items.find(["guardrail"]))


def test_a_library_that_is_only_read_gives_trials_too(library, path):
    """Deployed frozen, with `block`: a tool that works again is not refused for good."""
    shop = Shop("the clerk shrugs")
    orders(library, shop, 6, guardrails="block")
    shop.up = True
    with ExperienceLibrary.open(path, read_only=True) as reader:
        assert orders(reader, shop, 12, guardrails="block", learn=False) < 12
        assert reader.admin.stats()["episodes"] == 6


@pytest.mark.parametrize("up", [True, False])
def test_a_frozen_deployment_gives_trials_and_writes_nothing(library, up):
    """On a file that may be written, with `learn=False` and `block`: one trial that works ends the refusals."""
    shop = Shop("the clerk shrugs")
    orders(library, shop, 6, guardrails="block")
    (guard, *_) = library.items.find(["guardrail"])
    before = [library.items.standing(guard.id), library.items.get(guard.id), library.admin.stats()["episodes"]]
    answered, shop.up = shop.answered, up
    with library._file.store.snapshot():
        changes = library._file.store.rows("SELECT max(seq) FROM changes")
    refused = orders(library, shop, 40, guardrails="block", learn=False)
    assert library._file.store.rows("SELECT max(seq) FROM changes") == changes
    assert library.items.get(guard.id) == before[1]
    assert library.admin.stats()["episodes"] == before[2]
    if up:
        assert refused <= TUNING.trial_refusals
        assert shop.answered - answered >= 40 - TUNING.trial_refusals
    else:
        assert refused >= 30  # a trial that fails makes the next wait longer


def test_refused_runs_are_no_successes(library):
    """They fail as they would without the guardrail, whose score stays as it was."""
    shop = Shop("not for sale")
    orders(library, shop, 6, guardrails="block")
    (guard, *_) = library.items.find(["guardrail"])
    wins = library.admin.stats()["successes"]
    assert orders(library, shop, 3, guardrails="block") == 3
    assert library.admin.stats()["successes"] == wins
    assert {library.episodes.get(row["id"]).success for row in library.episodes.find(limit=3)} == {False}
    assert library.items.get(guard.id).score == guard.score


@pytest.mark.parametrize("mode", ["warn", "block"])
def test_first_runs_of_test_first_work_are_not_refused(library, mode):
    """The second scenario: run, edit, run again, in ten tasks: 0 of 20 runs are refused."""
    state = {"fixed": False, "runs": 0}

    @tool
    def run_tests() -> str:
        """Run the tests."""
        state["runs"] += 1
        if not state["fixed"]:
            raise ToolException("FAILED test_sum: assert 1 == 2")
        return "2 passed"

    @tool
    def edit(file: str) -> str:
        """Edit a file."""
        state["fixed"] = True
        return f"{file} was changed"

    run_tests.handle_tool_error = True
    for n in range(10):
        state["fixed"] = False
        script = call("run_tests"), call("edit", "2", file="sum.py"), call("run_tests", "3"), AIMessage("Done.")
        ran(library, SimpleNamespace(tools=[run_tests, edit]), *script, ask=f"Mend bug {n}.", guardrails=mode)
    assert state["runs"] == 20
    assert not [item for item in library.items.find(["guardrail"]) if "run_tests" in (item.forbids or "")]


@pytest.mark.parametrize("mode", ["warn", "block"])
def test_a_command_that_fails_forbids_no_other_program(library, mode):
    """The third scenario: `make test` fails in ten tasks without `pip install`: 0 of 10 `npm test` are refused."""
    state: dict[str, Any] = {"ran": []}

    @tool
    def run(command: str) -> str:
        """Run a command."""
        state["ran"].append(command)
        if command == "make test":
            raise ToolException("make: *** [Makefile:4: test] Error 1: No module named 'pytest'")
        return "done"

    run.handle_tool_error = True
    project = SimpleNamespace(tools=[run])
    for n in range(10):
        script = [call("run", ref, command="make test") for ref in "123"]
        ran(library, project, *script, AIMessage("Pity."), ask=f"Check project {n}.", guardrails="warn")
    made = [item.forbids for item in library.items.find(["guardrail"])]
    assert "run(command=make test)" in made
    for n in range(10):
        state["ran"].clear()
        answers = ran(
            library, project, call("run", command="npm test"), AIMessage("Done."), ask=f"Check project {n}.",
            guardrails=mode,
        )  # fmt: skip
        assert state["ran"] == ["npm test"]
        assert answers.messages[2].content == "done"
    assert not any(is_of(pattern or "", "run(command='npm test')") for pattern in made)


def test_a_call_that_is_forbidden_runs_with_a_warning_by_default(library, desk):
    """The warning stands below the answer, and is no part of what is remembered of it."""
    guard = library.add(GUARD).item_id
    told = ran(library, desk, *BOOKS_SEVEN, trust="trusted")
    assert desk.booked == [7]
    assert told.messages[2].text.startswith("table 7 is yours\n\nExperience warns of this call: seven is always taken.")
    (step,) = last(library).steps
    assert step.post.feedback == "table 7 is yours"
    assert step.why.overridden == (guard,)
    assert ("overridden", 1.0) in [(usage["mode"], usage["outcome"]) for usage in library.items.usages(guard)]
    assert library.items.get(guard).confidence < 0.6


def test_in_warn_only_the_repetition_of_what_just_failed_is_refused_and_once(library, desk):
    """It failed, nothing was done since: refused once; insisted on, it runs."""
    library.add(replace(GUARD, forbids="book(table=4)"))
    script = [call("book", str(n), table=4) for n in range(3)]
    told = ran(library, desk, *script, AIMessage("I give up."))
    assert desk.booked == [4, 4]
    assert [m.text.startswith("Not run") for m in told.messages if m.type == "tool"] == [False, True, False]


def test_what_a_run_insists_on_is_let_through(library, desk):
    """A model that never gives in: three refusals, then the call runs; no recursion limit is met."""
    library.add(GUARD)
    script = [call("book", str(n), table=7) for n in range(4)]
    ran(library, desk, *script, AIMessage("At last."), guardrails="block")
    assert desk.booked == [7]
    assert [step.diagnosis.failure.value for step in last(library).steps] == ["blocked"] * 3 + ["none"]


def test_a_run_that_insists_on_what_a_person_forbade_ends_with_the_reason(library, desk):
    library.items.update(library.add(GUARD).item_id, pinned=True)
    told = ran(library, desk, chat=chatter(call("book", table=7)), guardrails="block")
    assert desk.booked == []
    assert told.messages[-1].text.startswith("This run ends here: ")
    assert "seven is always taken" in told.messages[-1].text
    assert last(library).success is False


def test_an_unknown_mode_is_refused(library):
    with pytest.raises(ConfigError, match=r"guardrails is 'sometimes' .*; give True or False or one of warn, block"):
        ExperienceMiddleware(library, guardrails="sometimes")  # type: ignore[arg-type]


# ---- with a person in between


def reviewed(library, desk, *script, decide, **settings):
    """A run in which a person is asked about every booking; what the person was shown, and the messages."""
    experience = ExperienceMiddleware(library, **settings)
    review: Any = {"allowed_decisions": ["approve", "reject"], "description": experience.describe}
    person = HumanInTheLoopMiddleware(interrupt_on={"book": review})
    agent = create_agent(model(*script), desk.tools, middleware=[experience, person], checkpointer=InMemorySaver())
    config, shown = {"configurable": {"thread_id": "1"}}, []
    out = agent.invoke({"messages": [("user", "Book a table.")]}, config)
    while "__interrupt__" in out:
        asked = [one for stop in out["__interrupt__"] for one in stop.value["action_requests"]]
        shown += [one["description"] for one in asked]
        out = agent.invoke(Command(resume={"decisions": [decide for _ in asked]}), config)
    return SimpleNamespace(shown=shown, messages=out["messages"])


APPROVE = {"type": "approve"}
REJECT = {"type": "reject", "message": "table 9 is by the door"}


def test_a_guardrail_speaks_before_a_person_is_asked(library, desk):
    """In block the person is never asked about what is refused."""
    library.add(GUARD)
    script = call("book", table=7), call("book", "2", table=8), AIMessage("Done.")
    told = reviewed(library, desk, *script, decide=APPROVE, guardrails="block")
    assert told.shown == ["book(table=8)"]
    assert desk.booked == [8]


@pytest.mark.parametrize("order", [(7, 8), (8, 7), (6, 7, 8)])
def test_of_calls_made_together_the_person_is_asked_about_those_that_may_run(library, desk, order):
    """Each call has one answer; the refused one is answered with the reason and never shown."""
    library.add(GUARD)
    together = calls(*(call("book", str(table), table=table) for table in order))
    told = reviewed(library, desk, together, AIMessage("Done."), decide=APPROVE, guardrails="block")
    allowed = [table for table in order if table != 7]
    assert told.shown == [f"book(table={table})" for table in allowed]
    assert desk.booked == allowed
    answers = {one.tool_call_id: one.content for one in told.messages if isinstance(one, ToolMessage)}
    assert set(answers) == set(map(str, order))
    assert "seven is always taken" in answers["7"]
    assert answers["8"] == "table 8 is yours"
    assert sorted(step.diagnosis.failure for step in last(library).steps if not step.diagnosis.success) == ["blocked"]
    assert len(last(library).steps) == len(order)


def test_a_providers_own_copies_of_refused_calls_are_parted_too():
    made = calls(call("book", "1", table=7), call("book", "2", table=8))
    made.content = [{"type": "text", "text": "Both."}, *({"type": "tool_use", "id": ref} for ref in "12")]
    made.additional_kwargs["tool_calls"] = [{"id": ref} for ref in "12"]
    first, rest = split_message(made, {"1"})
    assert [one["id"] for one in first.tool_calls] == ["1"]
    assert [one["id"] for one in rest.tool_calls] == ["2"]
    assert rest.content == [{"type": "text", "text": "Both."}, {"type": "tool_use", "id": "2"}]
    assert rest.additional_kwargs["tool_calls"] == [{"id": "2"}]


def test_in_warn_the_person_is_shown_what_experience_warns_of(library, desk):
    library.add(GUARD)
    told = reviewed(library, desk, *BOOKS_SEVEN, decide=APPROVE)
    assert told.shown[0].startswith("book(table=7)\n\nExperience warns of this call: seven is always taken.")
    assert desk.booked == [7]


def test_a_persons_rejection_is_a_failed_step_with_its_reason_and_teaches(library, desk):
    """Rejected in four runs, it is warned of in the fifth."""
    for _ in range(4):
        told = reviewed(library, desk, call("book", table=9), AIMessage("Pity."), decide=REJECT, trust="trusted")
        (step,) = last(library).steps
        assert (step.action, step.diagnosis.failure) == ("book(table=9)", Failure.REJECTED)
        assert "table 9 is by the door" in step.diagnosis.evidence
        assert not last(library).success
    assert desk.booked == []
    told = reviewed(library, desk, call("book", table=9), AIMessage("Pity."), decide=REJECT, trust="trusted")
    assert "Experience warns of this call" in told.shown[0]


def test_an_extractor_reads_what_was_recorded(library, desk):
    class Extracts:
        def extract(self, trajectory, shown):
            evidence = tuple(step.id for step in trajectory.steps)
            return [Add(Item("insight", "table seven is at the window", provenance=evidence, source="model"))]

    ran(library, desk, *BOOKS_SEVEN, extractor=Extracts())
    (item,) = [item for item in library.items.find() if item.title == "table seven is at the window"]
    assert item.provenance == tuple(step.id for step in last(library).steps)
    assert last(library).meta["extraction"] == {"operations": ["add"]}


@pytest.mark.parametrize("awaited", [False, True])
def test_a_refusal_is_shown_with_the_next_request(library, desk, awaited):
    """And to it alone the model answers with another call."""
    library.add(GUARD)
    chat = model(call("book", table=7), call("book", ref="2", table=8), AIMessage("Done."))
    agent = create_agent(chat, desk.tools, middleware=[ExperienceMiddleware(library, guardrails="block")])
    given = {"messages": [("user", "Book a table.")]}
    asyncio.run(agent.ainvoke(given)) if awaited else agent.invoke(given)
    refusals = [[message.text for message in seen if message.type == "tool"] for seen in chat.metadata["seen"][:2]]
    assert refusals[0] == []
    assert "seven is always taken" in refusals[1][0]
    assert desk.booked == [8]


@pytest.mark.parametrize("awaited", [False, True])
def test_a_warning_is_below_the_answer_of_the_call(library, desk, awaited):
    library.add(GUARD)
    agent = create_agent(model(call("book", table=7), AIMessage("Done.")), desk.tools,
                         middleware=[ExperienceMiddleware(library)])  # fmt: skip
    given = {"messages": [("user", "Book a table.")]}
    out = asyncio.run(agent.ainvoke(given)) if awaited else agent.invoke(given)
    (answer,) = (message for message in out["messages"] if message.type == "tool")
    assert answer.text.startswith("table 7 is yours")
    assert "seven is always taken" in answer.text


@pytest.mark.parametrize(
    ("name", "ref", "structured", "is_ruled_on"),
    [("book", "1", None, True), ("fly", "1", None, False), ("book", None, None, False), ("book", "1", {"a": 1}, False)],
)
def test_calls_are_ruled_on_if_all_of_them_can_be(name, ref, structured, is_ruled_on):
    """Unknown tools and calls without an id are reported by the agent itself."""
    message = AIMessage("", tool_calls=[*call("book", "0").tool_calls, {"name": name, "args": {}, "id": ref}])
    response = SimpleNamespace(result=[message], structured_response=structured)
    found = find_calls(response, [SimpleNamespace(name="book")])
    assert found is (message if is_ruled_on else None)


def test_the_answer_to_a_call_is_found_in_a_state_update():
    answers = [ToolMessage(text, tool_call_id=ref) for text, ref in (("no", "1"), ("yes", "2"))]
    said = AIMessage("Done.")
    said.tool_call_id = "2"  # type: ignore[attr-defined]
    assert find_message(Command(update={"messages": [said, *answers]}), "2") is answers[1]
    assert find_message(Command(update={"messages": answers}), "3") is None
    assert find_message(answers[0], "9") is answers[0]
