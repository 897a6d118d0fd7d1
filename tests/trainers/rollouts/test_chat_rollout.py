"""A policy on a pretrained base's chat template: one sequence per episode, and only what was sampled is trained."""

import asyncio
from dataclasses import replace

import pytest
import torch
from tests.trainers.folder_base import build_chat_model, build_chat_tokenizer

from hardwon.memory import Diagnosis, State, Step
from hardwon.runtime import Agent
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.llm.conversation import PromptBuilder
from hardwon.trainers.algorithms.samples import pack_samples
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.prompting.chat import ChatFormat
from hardwon.trainers.rollouts.rollout import _EPISODE, GivenGuidance, Spec, TokenPolicy, _Episode, collect

TOKENIZER = build_chat_tokenizer()
PROMPTS = ChatFormat(TOKENIZER)
ACTIONS = ("go east", "go west", "take coin")


@pytest.fixture
def policy():
    torch.set_num_threads(1)
    return TokenPolicy(LocalEngine(build_chat_model(TOKENIZER), TOKENIZER), PROMPTS)


def play(policy, turns):
    """Run decisions by hand. A turn is a dict: `hint`, `refused` (the first choice), `ran` (what ran instead)."""
    episode = _Episode(Spec("train", 0))
    _EPISODE.set(episode)
    history: list[Step] = []
    for n, turn in enumerate(turns):
        state = State(f"You are in room {n}.", task="Find the coin.")
        context = Context(state, ACTIONS, guidance=turn.get("hint"), history=tuple(history), thread="e")
        action = policy.decide(context).action
        if turn.get("refused"):
            context = replace(context, forbidden={action: "it failed here before"})
            action = policy.decide(context).action
        ran = next(one for one in ACTIONS if one != action) if turn.get("replaced") else action
        history.append(Step(state, ran, state, Diagnosis(True), t=n, admissible=ACTIONS))
    return episode.collect(history), history


def test_an_episode_is_one_sequence_with_retries_hints_and_substitutes(policy):
    """Reading a token twice costs twice; what was superseded or not sampled is never trained."""
    turns = [{"hint": "east is best"}, {"refused": True}, {"hint": "east is best"}, {"replaced": True}, {"hint": "no"}]
    rows, history = play(policy, turns)
    assert [row.turn for row in rows] == [0, 1, 2, 4]
    (sequence,) = pack_samples(rows, {"train#0": [1.0] * 4, rows[0].trace: [1.0] * 4})
    trained = [token for token, counts in zip(sequence.tokens, sequence.mask, strict=True) if counts]
    sampled = [t for row in rows for t, counts in zip(row.completion, row.mask, strict=True) if counts]
    assert trained == sampled
    assert history[3].action in PROMPTS.tokenizer.decode(sequence.tokens)


def test_an_attempt_at_an_earlier_step_supersedes_what_came_after_it(policy):
    rows, history = play(policy, [{}, {}])
    episode = _Episode(Spec("train", 0))
    for row in (*rows, rows[0]):
        episode.keep(row.turn, history[row.turn].action, row)
    assert episode.collect(history) == (rows[0],)


def test_a_context_gives_the_messages_of_production(policy):
    """The trained policy reads what `ChatPolicy` sends."""
    context = Context(State("You are in a room.", task="Find the coin."), ACTIONS, guidance="east is best")
    chat = PromptBuilder().advance(None, context)
    assert PROMPTS.open_prompt(chat, context) == PROMPTS.template.render(chat.messages())
    assert "east is best" in chat.messages()[-1][1]


def test_rollouts_in_the_runtime(policy, library, rooms):
    """By `collect`, in the loop of production."""
    agent = Agent(policy, library, rooms(), arm="given", learn=False, guidance=GivenGuidance(), max_steps=5, retries=0)
    specs = [Spec("train", seed, "given", memory="east is best") for seed in (1, 2)]
    rollouts = asyncio.run(collect({"given": agent}, policy._engine, specs))
    rows = [row for rollout in rollouts for row in rollout.rows]
    advantages = {rollout.trajectory.id: [1.0] * len(rollout.rows) for rollout in rollouts}
    assert len(pack_samples(rows, advantages)) == len([rollout for rollout in rollouts if rollout.rows]) == 2


def test_the_recorded_probability_is_that_of_a_cold_engine(policy):
    """Rows say what the model would say to the same tokens."""
    rows, _ = play(policy, [{}, {"refused": True}, {}])
    streams = pack_samples(rows, {rows[0].trace: [1.0] * 3})
    cold = LocalEngine(build_chat_model(TOKENIZER), TOKENIZER)
    (again,) = asyncio.run(cold.logprobs(streams, "policy"))
    assert again == pytest.approx(list(streams[0].logprobs), abs=1e-4)
