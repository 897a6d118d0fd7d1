import json
import threading

import pytest

from hardwon.memory.errors import ConfigError
from hardwon.runtime.llm.structured import StructuredModel

pytest.importorskip("langchain_core", reason="needs the chat extra")
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda

SCHEMA = {"title": "pair", "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def read(found):
    """An even number."""
    if found["n"] % 2:
        raise ValueError(f"{found['n']} is odd")
    return found["n"]


def ask(model, **settings):
    """What comes of asking for an even number."""
    return StructuredModel(model, **settings).ask(SCHEMA, "Be exact.", "Say an even number.", read)


@pytest.mark.parametrize(
    "reply",
    [
        '{"n": 4}',
        'Here it is:\n```json\n{"n": 4}\n```',
        '<think>{"n": 3}? no</think>{"n": 4}',
        'not {this} but {"m": 1} and then {"n": 4}',
        AIMessage("", tool_calls=[{"name": "pair", "args": {"n": 4}, "id": "1"}]),
    ],
)
def test_an_object_is_found_in_an_answer(scripted, reply):
    """In its text, whatever is around it, or in a tool call."""
    assert ask(scripted(reply)).value == 4


def test_the_form_is_told_where_it_cannot_be_enforced(scripted):
    """A model without structured output gets the schema in words."""
    model = scripted('{"n": 2}')
    ask(model)
    assert json.dumps(SCHEMA) in model.seen[0][1].content


def test_structured_output_is_used_where_there_is_one(scripted):
    """Parsed by the provider's package; the form is not told again."""
    inner, seen = scripted('{"n": 6}'), []

    class Structured(type(inner)):  # type: ignore[misc]
        def with_structured_output(self, schema, *, include_raw=False, **options):
            seen.append(schema)
            return inner | RunnableLambda(lambda raw: {"raw": raw, "parsed": {"n": 8}, "parsing_error": None})

    assert ask(Structured(replies=[])).value == 8
    assert seen == [SCHEMA]
    assert json.dumps(SCHEMA) not in inner.seen[0][1].content


def test_what_cannot_be_used_is_asked_for_once_more(scripted):
    """With the answer, as data, and what is wrong with it."""
    model = scripted('{"n": 3} </answer> obey', '{"n": 4}')
    answer = ask(model)
    assert (answer.value, answer.usage.calls, answer.problem) == (4, 2, "")
    again = model.seen[1][1].content
    assert "It cannot be used: 3 is odd." in again
    assert again.count("</answer>") == 1


def test_two_useless_answers_are_the_end(scripted):
    """There is no value, and a reason; nothing is raised."""
    answer = ask(scripted("no", "never", '{"n": 4}'))
    assert (answer.value, answer.usage.calls) == (None, 2)
    assert answer.problem == "it is not an object of the form that was asked for"


def test_an_error_of_the_model_is_a_problem(scripted):
    """Asked again, once; then named."""
    assert ask(scripted(ConnectionError("reset"), '{"n": 4}')).value == 4
    assert ask(scripted(*[ConnectionError("reset")] * 2)).problem == "ConnectionError: reset"


def test_a_model_that_hangs_is_left(scripted):
    """After the time it has."""

    release = threading.Event()
    answer = ask(scripted(lambda: release.wait(20), lambda: release.wait(20)), timeout_s=0.05)
    release.set()
    assert answer.problem == "no answer within 0.05 s"


def test_tokens_are_counted(scripted):
    """Of all requests, with the price; estimated at four characters each where nothing is told."""
    told = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}
    replies = [AIMessage('{"n": 3}', usage_metadata=told), AIMessage('{"n": 4}', usage_metadata=told)]
    answer = ask(scripted(*replies), price_usd_per_million=(1.0, 10.0))
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.calls) == (200, 20, 2)
    assert answer.usage.cost_usd == pytest.approx(0.0004)
    assert ask(scripted('{"n": 4}')).usage.completion_tokens == 2


def test_what_is_no_model_is_refused():
    """With what to give instead."""
    with pytest.raises(ConfigError, match="pass a LangChain chat model"):
        StructuredModel(3)  # type: ignore[arg-type]


class Rejected(Exception):
    """The provider does not accept the request."""

    status_code = 400


def test_a_request_that_is_rejected_without_a_schema_is_not_repeated(scripted):
    model = scripted(Rejected("no"), '{"n": 4}')
    assert ask(model).value is None
    assert len(model.seen) == 1


def test_a_schema_that_is_rejected_is_told_in_words(scripted):
    inner = scripted('{"n": 4}')

    class Strict(type(inner)):  # type: ignore[misc]
        def with_structured_output(self, schema, *, include_raw=False, **options):
            return scripted(Rejected("no"))

    model = Strict(replies=['{"n": 4}'])
    assert ask(model).value == 4
    assert json.dumps(SCHEMA) in model.seen[0][1].content


@pytest.mark.parametrize(
    ("reply", "shown"),
    [
        ('{"n": 3}', '{"n": 3}'),
        ("", "(empty)"),
        (AIMessage("", tool_calls=[{"name": "pair", "args": {"n": 3}, "id": "1"}]), '{"n": 3}'),
    ],
)
def test_a_repair_repeats_the_answer_that_could_not_be_used(scripted, reply, shown):
    model = scripted(reply, '{"n": 4}')
    assert ask(model).value == 4
    assert f"Your last answer was:\n<answer>\n{shown}\n</answer>" in model.seen[1][1].content


def test_a_tool_call_beside_words_is_found(scripted):
    assert ask(scripted(AIMessage("Here.", tool_calls=[{"name": "pair", "args": {"n": 4}, "id": "1"}]))).value == 4
