"""A policy on a pretrained base's chat template: one sequence per episode, and only what was sampled is trained."""

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.trainers.folder_base import build_chat_model, build_chat_tokenizer, let_end
from tests.trainers.prompting.record import compare_record, render

from hardwon.memory import Diagnosis, State, Step
from hardwon.runtime import Agent
from hardwon.runtime.interfaces.types import Context, Info
from hardwon.runtime.llm.conversation import ChatTurn, PromptBuilder
from hardwon.trainers.algorithms.samples import pack_samples
from hardwon.trainers.config.policy import PolicySettings
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.engines.rendering import encode_text
from hardwon.trainers.prompting.chat import ChatFormat
from hardwon.trainers.rollouts.rollout import _EPISODE, GivenGuidance, Spec, TokenPolicy, _Episode, collect

TOKENIZER = build_chat_tokenizer()
PROMPTS = ChatFormat(TOKENIZER)
ACTIONS = ("go east", "go west", "take coin")


@pytest.fixture
def policy():
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
    assert PROMPTS.open_prompt(chat, context) == render(PROMPTS, chat)
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


class Chamber:
    """Any text is an action here, and nothing comes of it."""

    name = "chamber"

    def __init__(self):
        self.task, self.turn = "", 0

    def reset(self, task="", seed=0):
        self.task, self.turn = task, 0
        return self.see()

    def step(self, action):
        self.turn += 1
        return self.see(), 0.0, False, Info(success=False)

    def see(self):
        return State(f"It is {self.turn} o'clock.", task=self.task)

    def admissible(self, state):
        return []

    def clone(self):
        return Chamber()

    def close(self):
        pass


def assert_continued(rollouts):
    """Check that each prompt begins with the ids of the one before it and with those that were sampled behind it."""
    assert max(len(rollout.rows) for rollout in rollouts) > 2
    for rollout in rollouts:
        for row, later in pairwise(rollout.rows):
            read = (*row.prompt, *row.completion)
            assert later.prompt[: len(read)] == read


def assert_rendered(policy, prompts):
    """Check that the records of a policy differ from a rendering of their texts in answers only."""
    for chat in policy._log._open.values():
        chat.turns.append(ChatTurn("later", State("later"), seen="later", calls=bool(chat.tools)))
        assert compare_record(prompts, chat) == ()


def test_free_text_at_a_high_temperature_is_continued_as_it_was_sampled(library):
    """Some answers are cut by the limit, and some are not those that their text would be encoded as."""
    engine = LocalEngine(let_end(build_chat_model(TOKENIZER), TOKENIZER), TOKENIZER)
    policy = TokenPolicy(engine, PROMPTS, temperature=1.3, settings=PolicySettings(max_tokens=12))
    agent = Agent(policy, library, Chamber(), learn=False, guidance=GivenGuidance(), max_steps=5, retries=0)
    rollouts = asyncio.run(collect({"control": agent}, engine, [Spec("train", seed) for seed in range(6)]))
    said = [row.completion for rollout in rollouts for row in rollout.rows]
    assert {tokens[-1] == PROMPTS.end for tokens in said} == {True, False}
    texts = [[token for token in tokens if token != PROMPTS.end] for tokens in said]
    assert any(encode_text(TOKENIZER, TOKENIZER.decode(tokens)) != tuple(tokens) for tokens in texts)
    assert_continued(rollouts)
    assert_rendered(policy, PROMPTS)
