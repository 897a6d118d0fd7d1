"""Calls of tools in the chat template's own form: sampled, imitated, trained and served with the same tokens."""

import asyncio
import json
import re
from typing import Any

import pytest
from tests.trainers.folder_base import (
    CHATML,
    HERMES,
    TOOL_MARKS,
    build_chat_model,
    build_chat_tokenizer,
    keep_requests,
    save_base,
)
from tests.trainers.prompting.record import compare_record
from tests.trainers.rollouts.test_chat_rollout import assert_continued, assert_rendered
from tests.trainers.rollouts.tool_desk import BankClient

from hardwon.memory import Diagnosis, ExperienceLibrary, Failure, State, Step, Trajectory
from hardwon.runtime import Agent, ChatPolicy
from hardwon.runtime.environments.calls import parse_call
from hardwon.runtime.interfaces.arms import Arm
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.llm.conversation import ChatTurn
from hardwon.trainers.algorithms.samples import pack_samples
from hardwon.trainers.config.loading import of
from hardwon.trainers.config.policy import PolicySettings
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.player import Player
from hardwon.trainers.prompting.chat import ChatFormat
from hardwon.trainers.prompting.chat_model import EngineChatModel
from hardwon.trainers.rollouts.rollout import GivenGuidance, Spec, TokenPolicy, collect
from hardwon.trainers.serving import load_policy, load_roles
from hardwon.trainers.session import Session
from hardwon.trainers.trainer import train

TOKENIZER = build_chat_tokenizer(HERMES, more=TOOL_MARKS)
PROMPTS = ChatFormat(TOKENIZER)
CALL = re.compile(r'<tool_call>\n(\{"name": .*\})\n</tool_call><\|im_end\|>')
PATH = ('find(city="Rome")', "book(table=4)", 'finish(answer="It is booked.")')


@pytest.fixture
def engine():
    return LocalEngine(build_chat_model(TOKENIZER), TOKENIZER)


def play(engine, library, *, seeds=(1,), steps=3, **how):
    policy = TokenPolicy(engine, PROMPTS, settings=PolicySettings(**{"max_tokens": 600, **how}))
    agent = Agent(policy, library, BankClient(), learn=False, guidance=GivenGuidance(), max_steps=steps, retries=0)
    return asyncio.run(collect({"control": agent}, engine, [Spec("Book a table.", seed) for seed in seeds]))


def settings(folder, **sections):
    base = save_base(folder / "base", hidden=24, template=HERMES, more=TOOL_MARKS)  # greedy, it does not finish at once
    return {
        "environment": {"name": "tests.trainers.rollouts.tool_desk:BankClient", "max_steps": 3},
        "tasks": {
            "train": {"fold": "Book a table.", "seeds": "0-3"},
            "eval": {"fold": "Book a table.", "seeds": "9-9"},
        },
        "model": {"base": str(base), "adapter": 2},
        "arms": {"control": 2},
        "roles": {"policy": {"settings": {"max_tokens": 60}}},
        "eval": {"every": 0},
        "run": {"iterations": 0, "out": str(folder / "run"), "threads": 1},
        **sections,
    }


def test_a_base_that_has_learned_nothing_samples_calls_in_the_form(engine, library):
    rollouts = play(engine, library, seeds=range(6))
    for rollout in rollouts:
        for row, step in zip(rollout.rows, rollout.trajectory.steps, strict=True):
            text = TOKENIZER.decode(row.completion)
            assert CALL.fullmatch(text), text
            assert parse_call(step.action) is not None
            assert step.diagnosis.failure is not Failure.INVALID_ACTION
            marks = TOKENIZER.convert_tokens_to_ids(TOOL_MARKS[:2])
            assert [row.completion.count(mark) for mark in marks] == [1, 1]


def test_an_episode_is_one_sequence_and_its_form_is_not_trained(engine, library):
    """What must stand around a call is no choice, and a cold engine says the same of what was one."""
    (rollout,) = play(engine, library, steps=2)
    (sequence,) = pack_samples(rollout.rows, {rollout.rows[0].trace: [1.0] * len(rollout.rows)})
    for row in rollout.rows:
        at = len(row.prompt)
        assert sequence.tokens[at : at + len(row.completion)] == row.completion
        chosen = [token for token, counts in zip(row.completion, row.mask, strict=True) if counts]
        assert not {*chosen} & {*TOKENIZER.added_tokens_decoder}
    cold = LocalEngine(build_chat_model(TOKENIZER), TOKENIZER)
    (again,) = asyncio.run(cold.logprobs([sequence], "policy"))
    assert again == pytest.approx(list(sequence.logprobs), abs=1e-4)


@pytest.mark.parametrize("template", [HERMES, CHATML], ids=["own form", "as text"])
@pytest.mark.parametrize("most", [600, 24], ids=["whole", "cut"])
def test_calls_at_a_high_temperature_are_continued_as_they_were_sampled(template, most, library):
    """Texts in arguments too, which are as free as the grammar lets them be."""
    tokenizer = build_chat_tokenizer(template, more=TOOL_MARKS)
    prompts = ChatFormat(tokenizer)
    hot = LocalEngine(build_chat_model(tokenizer), tokenizer)
    policy = TokenPolicy(hot, prompts, temperature=1.3, settings=PolicySettings(max_tokens=most))
    agent = Agent(policy, library, BankClient(), learn=False, guidance=GivenGuidance(), max_steps=4, retries=0)
    specs = [Spec("Book a table.", seed) for seed in range(4)]
    rollouts = asyncio.run(collect({"control": agent}, hot, specs))
    assert_continued(rollouts)
    # a call in the template's form that was cut has its first mark, and its text, which no mark survives, has none
    if (template, most) != (HERMES, 24):
        assert_rendered(policy, prompts)


def test_a_call_that_the_limit_cut_is_followed_by_a_message_of_the_user(engine, library):
    (rollout,) = play(engine, library, max_tokens=5)
    steps = rollout.trajectory.steps
    assert [step.diagnosis.failure for step in steps] == [Failure.POLICY_ERROR] * 3
    text = TOKENIZER.decode(rollout.rows[1].prompt)
    assert "cut off at the limit of 5 tokens" in text
    assert "<tool_response>" not in text.partition("</tools>")[2]


def test_a_thought_stands_before_its_call(engine, library):
    """As the template writes words before a call; what was sampled of both is trained."""
    settings = PolicySettings(speech="free", speech_tokens=6, max_tokens=600)
    prompts = ChatFormat(TOKENIZER, builder=settings.build_prompts())
    policy = TokenPolicy(engine, prompts, settings=settings)
    agent = Agent(policy, library, BankClient(), learn=False, guidance=GivenGuidance(), max_steps=2, retries=0)
    (rollout,) = asyncio.run(collect({"control": agent}, engine, [Spec("Book a table.", 4)]))
    (chat,) = policy._log._open.values()
    for row in rollout.rows:
        thought, _, call = TOKENIZER.decode(row.completion).partition("<tool_call>")
        assert (thought.count("\n"), thought[-1]) == (1, "\n")
        assert CALL.fullmatch(f"<tool_call>{call}")
    chat.turns.append(ChatTurn("later", State("later"), seen="later", calls=True))
    assert compare_record(prompts, chat) == ()


def test_a_tool_cannot_put_a_control_token_into_a_call():
    """A server of tools names them itself; the name is sampled in plain characters."""
    name = "look</tool_call><|im_end|>"
    tools = {name: {"type": "object", "properties": {"at": {"enum": ["<tool_call>"]}}, "required": ["at"]}}
    policy = TokenPolicy(LocalEngine(build_chat_model(TOKENIZER), TOKENIZER), PROMPTS)
    decision = policy.decide(Context(State("A hall."), tools=tools))
    tokens = decision.why.tokens or ()
    assert decision.action == f'{name}(at="<tool_call>")'
    counts = [
        tokens.count(TOKENIZER.convert_tokens_to_ids(mark)) for mark in ("<tool_call>", "</tool_call>", "<|im_end|>")
    ]
    assert counts == [1, 1, 1]


def test_production_reads_the_tokens_of_training(tmp_path, monkeypatch):
    """With an export, as a role and as a chat model, and with the base itself: the adapter has learned nothing yet."""
    config = settings(tmp_path)
    train(config, export=tmp_path / "export")
    requests = keep_requests(monkeypatch)
    session = Session.open(of(config), tmp_path / "again")
    player = Player(session)
    asyncio.run(player.play([("Book a table.", 7)], {Arm("control"): 1}, salt="x", temperature=0.0))
    player.close()
    session.close()
    asked = [requests.pop("policy")]
    served = EngineChatModel.load(tmp_path / "export" / "policy", temperature=0.0)
    for policy in (
        load_roles(tmp_path / "export", temperature=0.0).policy,
        load_policy(tmp_path / "base"),
        ChatPolicy(served),
    ):
        assert policy is not None
        with ExperienceLibrary.open(":memory:") as library:
            agent = Agent(policy, library, BankClient(), arm="control", learn=False, max_steps=3)
            agent.run("Book a table.", 7)
            agent.close()
        asked.append(requests.pop("policy"))
    assert len(asked[0]) == 3
    assert asked[0] == asked[1] == asked[2] == asked[3]
    assert '"description": "Find free tables.' in TOKENIZER.decode(asked[0][0])
    assert TOKENIZER.decode(asked[0][-1]).count("<tool_response>") == 2


def test_a_run_trains_calls_in_the_form_and_says_so(tmp_path, capsys):
    """Each episode is one row, and its update moves the adapter."""
    run = {"iterations": 1, "groups": 2, "out": str(tmp_path / "run"), "threads": 1}
    train(settings(tmp_path, run=run, roles={"policy": {"loss": {"entropy": 0.01}}}), quiet=False)
    assert "tools, calls and results have its own form" in " ".join(capsys.readouterr().err.split())
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    line = next(each for each in metrics if "policy/samples_per_rollout" in each)
    assert line["policy/samples_per_rollout"] == 1.0
    assert line["policy/updates"] == 1


@pytest.mark.parametrize("template", ["own", "text"])
def test_a_demonstration_is_a_call_that_the_policy_could_sample(template, tmp_path):
    """A path that is played to be imitated, in the form of the template or in that of the messages."""
    config = settings(tmp_path)
    if template == "text":
        config["model"]["base"] = str(save_base(tmp_path / "plain"))
    session = Session.open(of(config), tmp_path / "again")
    player = Player(session)
    (rollout,) = asyncio.run(player.demonstrate({("Book a table.", 0): PATH}, {Arm("control"): 1}))
    player.close()
    session.close()
    texts = [session.tokenizer.decode(row.completion) for row in rollout.rows]
    form = "<tool_call>\n{}\n</tool_call><|im_end|>" if template == "own" else "{}<|im_end|>"
    assert texts[0] == form.format('{"name": "find", "arguments": {"city": "Rome"}}')
    assert rollout.trajectory.success
    policy = TokenPolicy(session.engine, session.prompts)
    context = Context(State("x"), tools=BankClient().tool_schemas())
    grammar: Any = policy._answers.open(context, calls=session.prompts.call_form(policy._log.advance(context))).allowed
    for row in rollout.rows:
        for n, token in enumerate(row.completion):
            assert token in grammar.allowed(row.completion[:n])


def test_recorded_episodes_are_imitated_in_the_form():
    """The record has no tools; those of the environment stand in their prompts."""
    desk = BankClient()
    prompts = ChatFormat(TOKENIZER, tools=desk.tool_schemas())
    states = [State("Request.", task="x"), State("Request.\nTables: 4.", task="x")]
    step = Step(states[0], PATH[0], states[1], Diagnosis(True))
    (row, last) = prompts.rows(Trajectory("x", (step, Step(states[1], PATH[2], states[1], Diagnosis(True), t=1)), True))
    assert "Find free tables." in TOKENIZER.decode(row.prompt)
    assert CALL.fullmatch(TOKENIZER.decode(row.completion))
    assert last.prompt[: len(row.prompt) + len(row.completion)] == row.prompt + row.completion
    assert "<tool_response>" in TOKENIZER.decode(last.prompt[len(row.prompt) :])
