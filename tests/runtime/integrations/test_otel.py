"""Spans of recall, refusals, records and episodes, with OpenTelemetry's own in-memory exporter."""

import subprocess
import sys

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from hardwon.memory import Diagnosis, ExperienceLibrary, Item, State, Step, Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.runtime import Agent, EpisodicPolicy, HardwonInstrumentor
from hardwon.runtime.integrations import otel
from hardwon.runtime.integrations.otel import CAPTURE

YARD = State("A yard with a secret door.", task="get out")
EPISODE = Trajectory("get out", (Step(YARD, "open door", YARD, Diagnosis(True), reward=1.0),), success=True, id="first")
FORBID = Item("guardrail", "do not `jump`", condition={"text": "yard"}, forbids="jump", confidence=0.9)


@pytest.fixture
def traced(monkeypatch):
    """Starts tracing: `traced(every_check=True)` is the function that returns the finished spans."""
    monkeypatch.delenv(CAPTURE, raising=False)
    instrumentor = HardwonInstrumentor()

    def start(**options):
        exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        instrumentor.instrument(tracer_provider=provider, **options)
        return exporter.get_finished_spans

    yield start
    if instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()


def use(library):
    """Ask, be refused, and record."""
    library.record(EPISODE)
    library.add(FORBID)
    library.recall(YARD)
    assert library.check(YARD, "open door").allowed
    assert not library.check(YARD, "jump").allowed
    library.record_many([])
    library.evolve()


def test_recall_refusals_and_records_have_spans_of_the_conventions(library, traced):
    spans = traced()
    use(library)
    names = [span.name.split()[0] for span in spans()]
    assert names == ["create_memory", "search_memory", "check_guardrail", "create_memory", "update_memory"]
    record, recall, check = spans()[:3]
    assert {span.attributes["gen_ai.operation.name"] for span in spans()} == set(names)
    assert {span.attributes["gen_ai.provider.name"] for span in spans()} == {"hardwon"}
    assert {span.attributes.get("hardwon.namespace") for span in spans()} == {library.namespace}
    assert record.attributes["hardwon.episode.ids"] == ("first",)
    assert recall.attributes["hardwon.recall.path"] in ("cluster", "hybrid")
    assert check.attributes["hardwon.guardrail.allowed"] is False
    assert len(check.attributes["hardwon.item.ids"]) == 1


@pytest.mark.parametrize("captures", [True, False])
def test_texts_are_in_spans_only_if_the_variable_of_the_conventions_allows_it(library, traced, monkeypatch, captures):
    spans = traced()
    if captures:
        monkeypatch.setenv(CAPTURE, "true")
    use(library)
    content = " ".join(str(dict(span.attributes)) + span.name for span in spans())
    assert ("secret door" in content, "jump" in content) == (captures, captures)
    asked = [span.name.split()[0] for span in spans() if "gen_ai.retrieval.query.text" in span.attributes]
    assert asked == (["search_memory"] if captures else [])


def test_checks_that_allow_an_action_have_spans_only_on_request(library, traced):
    spans = traced(every_check=True)
    library.check(YARD, "open door")
    (check,) = spans()
    assert check.attributes["hardwon.guardrail.allowed"] is True


def test_an_error_is_in_its_span_and_reaches_the_caller(library, traced):
    spans = traced()
    with pytest.raises(ConfigError):
        library.recall(YARD, k=-1)
    (recall,) = spans()
    assert recall.status.status_code is StatusCode.ERROR
    assert recall.attributes["error.type"] == "ConfigError"


class Door:
    """An environment of one action."""

    name = "door"

    def reset(self, task="", seed=0):
        return YARD

    def step(self, action):
        return YARD, 1.0, True, {"success": True, "score": 1.0}

    def admissible(self, state):
        return ["open door"]

    def clone(self):
        return Door()

    def close(self):
        pass


def test_an_episode_is_the_parent_of_what_its_agent_asks(library, traced):
    spans = traced()
    agent = Agent(EpisodicPolicy(), library, Door())
    agent.run()
    *inner, episode = spans()
    assert episode.name == "invoke_agent episodic"
    assert episode.attributes["gen_ai.agent.name"] == "episodic"
    assert episode.attributes["hardwon.episode.success"] is True
    assert "gen_ai.usage.input_tokens" in episode.attributes
    assert {"search_memory", "create_memory"} <= {span.name.split()[0] for span in inner}
    assert {span.parent.span_id for span in inner} == {episode.context.span_id}


def test_after_uninstrument_the_methods_are_the_own_ones(library, traced):
    before = {name: vars(ExperienceLibrary)[name] for name in ("record", "evolve")}
    spans = traced()
    assert vars(ExperienceLibrary)["record"] is not before["record"]
    HardwonInstrumentor().uninstrument()
    use(library)
    assert spans() == ()
    assert {name: vars(ExperienceLibrary)[name] for name in before} == before


def test_a_class_of_an_extra_that_is_missing_is_passed_over(monkeypatch):
    monkeypatch.setattr(otel, "_PLACES", ("no_such_module:Agent", "hardwon.memory:State"))
    assert list(otel._find_classes()) == [State]


def test_without_the_extra_the_error_names_it():
    code = "import sys; sys.modules['opentelemetry'] = None\nfrom hardwon.runtime import HardwonInstrumentor"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingExtra" in done.stderr
    assert "pip install '.[otel]'" in done.stderr
