"""Answers without a list: tool calls bound by their schemas, and free text; what is no action is a failed step."""

import asyncio
from typing import Annotated, Any, Literal, cast

import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from pydantic import BaseModel, Field
from tests.trainers.folder_base import build_chat_model, build_chat_tokenizer
from tests.trainers.scripted_engine import Scripted

from hardwon.memory import Failure, State
from hardwon.runtime import Agent, ToolEnvironment
from hardwon.runtime.environments.calls import parse_call
from hardwon.runtime.interfaces.types import Context, Info
from hardwon.runtime.policies.chat import ChatPolicy
from hardwon.trainers.algorithms.samples import pack_samples
from hardwon.trainers.config.policy import PolicySettings
from hardwon.trainers.engines.grammar import CallForm
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.prompting.chat import ChatFormat
from hardwon.trainers.rollouts.answers import Answers, UnusableAnswer
from hardwon.trainers.rollouts.rollout import GivenGuidance, Spec, TokenPolicy, collect, enter_episode

TOKENIZER = build_chat_tokenizer()
PROMPTS = ChatFormat(TOKENIZER)
jsonschema: Any = pytest.importorskip("jsonschema")
FORM = '{"name": "TOOL", "arguments": {"ARGUMENT": "VALUE"}}'


class Place(BaseModel):
    """Where a table stands: pydantic describes it beside the arguments, and refers to it."""

    city: Literal["Rome", "Oslo"]
    inside: bool


def find(place: Place) -> str:
    """Find tables."""
    return f"Tables in {place.city}: 4, 7."


def note(words: Annotated[str, Field(max_length=12)], urgent: bool = False) -> str:
    """Write a note."""
    return "written"


def open_tools() -> ToolEnvironment:
    return ToolEnvironment([find, note], lambda task, answer, calls: 0.0)


@pytest.fixture
def engine():
    return LocalEngine(build_chat_model(TOKENIZER), TOKENIZER)


class Parser:
    """A world of free words, in which `sing` succeeds."""

    name = "parser"

    def reset(self, task: str = "", seed: int = 0) -> State:
        return State("A stage.", task="Do something.")

    def step(self, action: str) -> tuple[State, float, bool, Info]:
        over = action == "sing"
        return State(f"You try to {action}.", task="Do something."), 0.0, over, Info(success=over)

    def admissible(self, state: State) -> list[str]:
        return []

    def clone(self) -> "Parser":
        return Parser()

    def close(self) -> None:
        """Do nothing."""


def limit(tokens):
    return PolicySettings(max_tokens=tokens)


def play(policy, engine, library, environment, *, seeds=(1,), steps=4):
    guidance = GivenGuidance()
    agent = Agent(policy, library, environment, learn=False, guidance=guidance, max_steps=steps, retries=0)
    return asyncio.run(collect({"control": agent}, engine, [Spec("Book a table.", seed) for seed in seeds]))


def decide(engine, context, **how):
    return TokenPolicy(engine, PROMPTS, **how).decide(context)


# -- tool calls


def test_sampled_calls_parse_and_follow_their_schemas(engine):
    """A base that has learned nothing writes only calls that the tools understand."""
    environment = open_tools()
    environment.reset("x")
    schemas = environment.tool_schemas()
    policy = TokenPolicy(engine, PROMPTS, settings=limit(600))
    calls = []
    for seed in range(20):
        enter_episode(Spec("", seed))  # draws its own random numbers
        context = Context(State(f"Request number {seed}.", task="Book."), tools=schemas, thread=str(seed))
        calls.append(policy.decide(context).action)
    assert len({*calls}) > 5
    for action in calls:
        parsed = parse_call(action)
        assert parsed is not None
        name, positional, arguments = parsed
        assert positional == []
        jsonschema.validate(arguments, dict(schemas[name]))
    environment.close()


def test_an_episode_of_calls_is_one_sequence_of_what_was_sampled(engine, library):
    """The text of an answer is JSON, and the action is not; the ids stay as they were sampled."""
    rollouts = play(TokenPolicy(engine, PROMPTS, settings=limit(600)), engine, library, open_tools(), seeds=(1, 2))
    for rollout in rollouts:
        rows, steps = rollout.rows, rollout.trajectory.steps
        assert [row.turn for row in rows] == [step.t for step in steps]
        assert all(step.why.tokens == row.completion for step, row in zip(steps, rows, strict=True))
        assert all(step.diagnosis.failure is not Failure.INVALID_ACTION for step in steps)
        (sequence,) = pack_samples(rows, {rows[0].trace: [1.0] * len(rows)})
        for row in rows:
            at = len(row.prompt)
            assert sequence.tokens[at : at + len(row.completion)] == row.completion
            assert row.completion != PROMPTS.text(steps[row.turn].action)


def test_the_recorded_probability_of_calls_is_that_of_a_cold_engine(engine, library):
    """Training computes it again from the row alone."""
    (rollout,) = play(TokenPolicy(engine, PROMPTS, settings=limit(600)), engine, library, open_tools(), steps=2)
    streams = pack_samples(rollout.rows, {rollout.rows[0].trace: [1.0] * len(rollout.rows)})
    cold = LocalEngine(build_chat_model(TOKENIZER), TOKENIZER)
    (again,) = asyncio.run(cold.logprobs(streams, "policy"))
    assert again == pytest.approx(list(streams[0].logprobs), abs=1e-4)


def test_a_call_that_the_limit_cut_is_a_failed_step_with_the_reason(engine, library):
    """It is no crash; the next prompt shows the reason, and what was sampled is trained on."""
    (rollout,) = play(TokenPolicy(engine, PROMPTS, settings=limit(5)), engine, library, open_tools())
    steps = rollout.trajectory.steps
    assert [step.diagnosis.failure for step in steps] == [Failure.POLICY_ERROR] * 3
    assert "cut off at the limit of 5 tokens" in steps[0].diagnosis.evidence
    assert (rollout.failed, rollout.trajectory.success) == ("", False)
    assert [len(row.completion) for row in rollout.rows] == [5, 5, 5]
    (sequence,) = pack_samples(rollout.rows, {rollout.rows[0].trace: [1.0] * 3})
    after = len(rollout.rows[0].prompt) + 5
    assert (sequence.tokens[after], sequence.mask[after]) == (PROMPTS.end, False)
    assert "cut off at the limit of 5 tokens" in TOKENIZER.decode(sequence.tokens)


def test_a_cut_by_the_end_of_the_context_is_not_the_policys_failure(engine, library):
    """Such an episode is excluded, as one whose prompt is too long."""
    (rollout,) = play(TokenPolicy(engine, PROMPTS, settings=limit(5)), engine, library, open_tools())
    policy = TokenPolicy(engine, PROMPTS, context=len(rollout.rows[0].prompt) + 5)
    (rollout,) = play(policy, engine, library, open_tools())
    assert rollout.failed == "context_exceeded"


def test_a_last_answer_that_the_end_of_the_context_cut_is_excluded_too(library):
    """Without the end of the context, three answers that are no actions are the policy's own failure."""
    texts = ("", "", "send 10...")
    whole: Any = Scripted(TOKENIZER, *texts)
    (rollout,) = play(TokenPolicy(whole, PROMPTS), whole, library, Parser())
    assert (rollout.trajectory.ending, rollout.failed) == ("policy_error", "")
    context = len(whole.requests[2].prompt) + len(PROMPTS.text("send 10")) - 1
    cut: Any = Scripted(TOKENIZER, *texts)
    (rollout,) = play(TokenPolicy(cut, PROMPTS, context=context), cut, library, Parser())
    assert (len(cut.requests), rollout.failed) == (3, "context_exceeded")


def test_one_grammar_serves_a_set_of_tools():
    """Compiling one for each decision would cost more than sampling."""
    answers = Answers(PROMPTS)
    first, other = {"look": {"type": "object"}}, {"wait": {"type": "object"}}
    grammars = [answers._get_calls(tools) for tools in (first, dict(first), other)]
    assert grammars[0] is grammars[1]
    assert grammars[0] is not grammars[2]
    assert grammars[0] is not answers._get_calls(first, CallForm(("CALL",)))


def test_production_reads_the_same_messages_as_training():
    """The prompts name the form, and the answer stays in it, for `ChatPolicy` and for the trained policy."""
    call = '{"name": "find", "arguments": {"place": {"city": "Rome", "inside": true}}}'
    environment = open_tools()
    context = Context(environment.reset("Book."), tools=environment.tool_schemas(), thread="t")
    served: Any = ChatPolicy(FakeListChatModel(responses=[call]))
    trained: Any = TokenPolicy(cast(Any, Scripted(TOKENIZER, call)), PROMPTS)
    actions = [policy.decide(context).action for policy in (served, trained)]
    assert actions == ['find(place={"city": "Rome", "inside": true})'] * 2
    messages = trained._log._open["t"].messages()
    assert messages == served._conversations._open["t"].messages()
    assert messages[-1] == ("assistant", call)
    assert all(FORM in text for _, text in messages[:2])
    environment.close()


def test_half_a_character_does_not_reach_the_record():
    """JSON can spell it, and no library can store it."""
    tools = {"say": {"type": "object", "properties": {"words": {"type": "string"}}}}
    answer = '{"name": "say", "arguments": {"words": "a\\ud800b"}}'
    action = decide(Scripted(TOKENIZER, answer), Context(State("x"), tools=tools)).action
    assert action.encode() == b'say(words="a?b")'


# -- free text


def test_free_text_is_sampled_with_nothing_to_bind_it(library):
    """The first line, the words after `Action:` or a call in JSON are the action, as in production."""
    engine: Any = Scripted(TOKENIZER, "I think.\nAction: dance", "sing")
    (rollout,) = play(TokenPolicy(engine, PROMPTS, settings=limit(40)), engine, library, Parser())
    assert [step.action for step in rollout.trajectory.steps] == ["dance", "sing"]
    assert rollout.trajectory.success
    request = engine.requests[0]
    assert (request.allowed, request.max_tokens, request.stop) == (None, 40, (PROMPTS.end,))
    assert [PROMPTS.read(row.completion) for row in rollout.rows] == ["I think.\nAction: dance", "sing"]
    assert len(pack_samples(rollout.rows, {rollout.rows[0].trace: [1.0] * 2})) == 1


def test_free_text_of_the_engine_is_recorded(engine, library):
    """An untrained base rarely ends its answer."""
    (rollout,) = play(TokenPolicy(engine, PROMPTS, settings=limit(30)), engine, library, Parser(), steps=3)
    assert len(rollout.rows) == len(rollout.trajectory.steps)
    assert all(0 < len(row.completion) <= 30 for row in rollout.rows)
    assert len(pack_samples(rollout.rows, {rollout.rows[0].trace: [1.0] * len(rollout.rows)})) == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"name": "go', "it is not one action"),
        ("", "it is empty"),
        ("send 10...", "it was cut off at the limit of"),
    ],
)
def test_what_cannot_be_parsed_is_a_failed_step_with_the_words_of_the_parser(library, text, problem):
    """The model sees them, and its answer stays in the record."""
    with pytest.raises(UnusableAnswer, match=problem):
        decide(Scripted(TOKENIZER, text), Context(State("x")))
    engine: Any = Scripted(TOKENIZER, text, "sing")
    (rollout,) = play(TokenPolicy(engine, PROMPTS), engine, library, Parser())
    failed, sung = rollout.trajectory.steps
    assert (failed.diagnosis.failure, sung.action) == (Failure.POLICY_ERROR, "sing")
    assert problem in failed.diagnosis.evidence
    assert problem in TOKENIZER.decode(engine.requests[1].prompt)
    assert len(rollout.rows) == 2


def test_whole_lines_of_a_cut_answer_count():
    """Only the last line may lack its end."""
    assert decide(Scripted(TOKENIZER, "dance\nbecause it is..."), Context(State("x"))).action == "dance"
