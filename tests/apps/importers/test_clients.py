"""Exports as their ecosystems write them: LangSmith's runs of a LangChain agent, spans of OpenTelemetry's exporter."""

import json
from io import StringIO
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langchain_core.tracers.base import BaseTracer
from langsmith.schemas import Run
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from hardwon.apps import importers

FIELDS = ("id", "name", "start_time", "end_time", "run_type", "error", "inputs", "outputs", "parent_run_id", "trace_id")


@tool
def refund(order: str) -> str:
    """Refund an order."""
    return f"{order} was refunded"


class Model(GenericFakeChatModel):
    def bind_tools(self, *_, **__):
        return self


class Tracer(BaseTracer):
    def _persist_run(self, run):
        self.root = run


def list_runs(run):
    return [run, *(each for child in run.child_runs for each in list_runs(child))]


@pytest.fixture
def episode(library, tmp_path):
    """Import a text, and return the format and the only episode."""

    def read(text):
        path = tmp_path / "log.jsonl"
        path.write_text(text, encoding="utf-8")
        form, logged = importers.read(path)
        importers.write(library, logged, source=form, trust="trusted")
        (row,) = library.episodes.find()
        return form, library.episodes.get(row["id"])

    return read


@pytest.mark.parametrize("is_query", [False, True])
def test_runs_of_langsmiths_client(episode, is_query):
    call = {"name": "refund", "args": {"order": "A-1"}, "id": "1"}
    model = Model(messages=iter([AIMessage(content="", tool_calls=[call]), AIMessage(content="Done.")]))
    tracer = Tracer()
    asked: Any = {"messages": [("user", "Refund A-1.")]}
    create_agent(model, [refund]).invoke(asked, {"callbacks": [tracer]})
    runs = [Run(**{name: getattr(run, name) for name in FIELDS}) for run in list_runs(tracer.root)]
    runs[0].feedback_stats = {"correctness": {"n": 1, "avg": 0.0}}
    lines = [json.loads(run.model_dump_json()) for run in runs]
    if is_query:  # `Client.runs.query` has other names than `Client.list_runs`
        for line in lines:
            parent = line.pop("parent_run_id")
            line |= {"run_type": line["run_type"].upper(), "parent_run_ids": [parent] if parent else []}
        lines.reverse()
    form, stored = episode("".join(json.dumps(line) + "\n" for line in lines))
    assert (form, stored.task, stored.success) == ("langsmith", "Refund A-1.", False)
    assert [step.action for step in stored.steps] == ['refund(order="A-1")']


def test_spans_of_opentelemetrys_console_exporter(episode):
    """It writes indented objects in a row."""
    out, provider = StringIO(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=out)))
    tracer = provider.get_tracer("agent")
    asked = '[{"role": "user", "parts": [{"type": "text", "content": "Refund A-1."}]}]'
    attributes = {"gen_ai.tool.name": "refund", "gen_ai.tool.call.arguments": '{"order": "A-1"}'}
    with tracer.start_as_current_span(
        "invoke_agent", attributes={"gen_ai.operation.name": "invoke_agent", "gen_ai.input.messages": asked}
    ):
        for answer in ("busy", "refunded"):
            with tracer.start_as_current_span("execute_tool refund", attributes=attributes) as span:
                span.set_attribute("gen_ai.tool.call.result", answer)
    form, stored = episode(out.getvalue())
    assert (form, stored.task) == ("otel", "Refund A-1.")
    assert [step.action for step in stored.steps] == ['refund(order="A-1")'] * 2
