"""Thinking before acting: a line of free text before each action, sampled and trained with it."""

import asyncio
import json
from dataclasses import replace
from typing import Any, cast

import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from tests.trainers.corridor import Corridor
from tests.trainers.folder_base import build_chat_model, build_chat_tokenizer, save_base
from tests.trainers.prompting.record import compare_record

from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step
from hardwon.memory.errors import ConfigError, PolicyFailure
from hardwon.runtime import Agent
from hardwon.runtime.interfaces.arms import Arm
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.policies.chat import ChatPolicy
from hardwon.trainers.algorithms.samples import pack_samples
from hardwon.trainers.config.loading import of
from hardwon.trainers.config.policy import PolicySettings
from hardwon.trainers.engines.base import Completion
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.player import Player
from hardwon.trainers.prompting.chat import ChatFormat
from hardwon.trainers.rollouts.demonstration import DemonstrationPolicy
from hardwon.trainers.rollouts.rollout import Spec, TokenPolicy, current_episode, enter_episode
from hardwon.trainers.rollouts.speech import find_line_ends
from hardwon.trainers.serving import load_roles
from hardwon.trainers.session import Session
from hardwon.trainers.trainer import train

TOKENIZER = build_chat_tokenizer()
FREE = PolicySettings(speech="free", speech_tokens=6)
PROMPTS = ChatFormat(TOKENIZER, builder=FREE.build_prompts())
END_OF_LINE = PROMPTS.template.encode("\n")
ACTIONS = ("go east", "go west", "take coin")
CALLS = {"book": {"type": "object", "properties": {"table": {"type": "integer"}}, "required": ["table"]}}


class Scripted:
    """An engine that thinks given tokens, and then goes east."""

    def __init__(self, *thoughts):
        self.thoughts, self.requests = list(thoughts), []

    async def generate(self, request):
        self.requests.append(request)
        free = request.allowed is None
        tokens = self.thoughts.pop(0) if free else PROMPTS.text("go east")
        n = len(tokens)
        allowed = (None,) * n if free else tuple((token,) for token in tokens)
        return Completion(tuple(tokens), (-0.5,) * n, (True,) * n, allowed, 0)

    def versions(self):
        return {"policy": 0}


def think(text):
    return PROMPTS.template.encode(text)


def ask(step=0, history=(), actions=ACTIONS, **fields):
    return Context(State(f"You are in room {step}.", task="Find the coin."), actions, history=tuple(history), **fields)


def decide(engine, seen, **options):
    """Return the decision and its sample."""
    enter_episode(Spec("train", 0))
    decision = TokenPolicy(cast(Any, engine), PROMPTS, settings=FREE, **options).decide(seen)
    ((_, row),) = current_episode().rows.values()
    return decision, row


# -- the row


def test_a_thought_and_its_action_are_one_row_of_which_all_that_was_sampled_is_trained():
    thought = (*think("the coin is"), *END_OF_LINE)
    decision, row = decide(Scripted(thought), ask())
    action = PROMPTS.text(decision.action)
    assert row.completion == (*thought, *action)
    assert row.mask == (True,) * len(row.completion)
    assert row.allowed[: len(thought)] == (None,) * len(thought)
    (sequence,) = pack_samples([row], {row.trace: [2.0]})
    paid = [value for value, counts in zip(sequence.advantages, sequence.mask, strict=True) if counts]
    assert paid == [2.0] * len(row.completion)
    assert decision.why.tokens == row.completion
    assert decision.why.extra["thought"] == "the coin is"
    assert decision.usage.calls == 2


def test_a_thought_that_the_limit_cut_is_ended_by_tokens_that_are_not_trained():
    thought = think("the coin is in a room")[:6]
    _, row = decide(engine := Scripted(thought), ask())
    n = len(thought)
    assert engine.requests[0].max_tokens == 6
    assert row.completion[: n + 1] == (*thought, *END_OF_LINE)
    assert row.mask[: n + 1] == (*(True,) * n, False)
    assert row.logprobs[n] == 0.0
    assert row.allowed[n] == END_OF_LINE


@pytest.mark.parametrize("control", ["<|im_end|>", "<|im_start|>"])
def test_a_control_token_ends_a_thought_and_is_dropped(control):
    number = TOKENIZER.convert_tokens_to_ids(control)
    thought = think("so")
    _, row = decide(engine := Scripted((*thought, number)), ask())
    assert number in engine.requests[0].stop
    assert set(END_OF_LINE) <= set(engine.requests[0].stop)
    assert row.completion[: len(thought) + 1] == (*thought, *END_OF_LINE)
    assert row.mask[: len(thought) + 1] == (*(True,) * len(thought), False)


def test_a_thought_takes_only_the_room_that_its_action_leaves():
    context = ask()
    prompt = PROMPTS.open_prompt(FREE.build_prompts().advance(None, context), context)
    longest = max(len(PROMPTS.text(action)) for action in ACTIONS)
    _, row = decide(engine := Scripted(think("a")), context, context=len(prompt) + longest + 3)
    assert engine.requests[0].max_tokens == 2
    _, row = decide(engine := Scripted(), context, context=len(prompt) + longest + 1)
    assert len(engine.requests) == 1
    assert row.mask[0] is False
    with pytest.raises(PolicyFailure, match="the model reads"):
        decide(Scripted(), context, context=len(prompt) + longest)


def test_where_the_context_ends_an_answer_needs_no_thought():
    """Free words take what is left behind the end of an empty thought."""
    context = ask(actions=())
    prompt = PROMPTS.open_prompt(FREE.build_prompts().advance(None, context), context)
    engine = Scripted(PROMPTS.text("sing"))
    decision, row = decide(engine, context, context=len(prompt) + 20)
    assert [one.max_tokens for one in engine.requests] == [20 - len(END_OF_LINE)]
    assert decision.action == "sing"
    assert row.completion == (*END_OF_LINE, *PROMPTS.text("sing"))


def test_every_token_with_the_end_of_a_line_ends_a_thought():
    ends = find_line_ends(TOKENIZER)
    for number in range(len(TOKENIZER)):
        assert (number in ends) == ("\n" in TOKENIZER.decode([number]))


def test_without_the_setting_nothing_is_sampled_before_an_action():
    enter_episode(Spec("train", 0))
    engine = Scripted()
    TokenPolicy(cast(Any, engine), ChatFormat(TOKENIZER)).decide(ask())
    assert len(engine.requests) == 1


# -- episodes


def test_an_episode_with_thoughts_is_one_sequence_with_the_probabilities_of_a_cold_engine():
    policy = TokenPolicy(LocalEngine(build_chat_model(TOKENIZER), TOKENIZER), PROMPTS, settings=FREE)
    enter_episode(Spec("train", 0, salt="s"))
    history = list[Step]()
    for n in range(4):
        context = ask(n, history, thread="e")
        action = policy.decide(context).action
        history.append(Step(context.state, action, context.state, Diagnosis(True), t=n, admissible=ACTIONS))
    rows = current_episode().collect(history)
    assert len(rows) == 4
    streams = pack_samples(rows, {rows[0].trace: [1.0] * 4})
    assert len(streams) == 1
    (again,) = asyncio.run(LocalEngine(build_chat_model(TOKENIZER), TOKENIZER).logprobs(streams, "policy"))
    assert again == pytest.approx(list(streams[0].logprobs), abs=1e-4)
    assert sum(streams[0].mask) > 4 * 3


def test_an_example_to_imitate_has_an_empty_thought_that_is_not_trained():
    enter_episode(Spec("train", 0))
    policy = DemonstrationPolicy(PROMPTS, {("train", 0): ("go east",)}, builder=FREE.build_prompts())
    context = ask()
    policy.decide(context)
    ((_, row),) = current_episode().rows.values()
    prompt = PROMPTS.open_prompt(FREE.build_prompts().advance(None, context), context)
    assert row.prompt == prompt
    assert row.completion == (*END_OF_LINE, *PROMPTS.text("go east"))
    assert row.mask == (False, *(True,) * len(PROMPTS.text("go east")))


# -- production


def chat_and_trained(answer, thought, context, first):
    """The messages of `ChatPolicy` and of the trained policy after one turn with the same answer."""
    model = FakeListChatModel(responses=[answer])
    chat = ChatPolicy(model, speech="free", speech_tokens=6)
    trained = TokenPolicy(cast(Any, Scripted((*think(thought), *END_OF_LINE))), PROMPTS, settings=FREE)
    actions = [policy.decide(context).action for policy in (chat, trained)]
    assert actions == [first, first]
    step = Step(context.state, first, context.state, Diagnosis(True), admissible=context.actions)
    following = replace(context, history=(step,))
    logs = (chat._conversations, trained._log)
    return [log.advance(following).messages() for log in logs]


@pytest.mark.parametrize(
    "answer", ["I leave the coin.\ngo east", "I leave the coin.\n1", "I leave the coin.\n\nAction: go east\n"]
)
def test_the_messages_are_those_of_a_chat_policy(answer):
    one, other = chat_and_trained(answer, "I leave the coin.", ask(thread="e"), "go east")
    assert one == other
    assert ("assistant", "I leave the coin.\ngo east") in one
    assert "First think in one line of at most 4 words." in one[0][1]
    assert one[1][1].endswith("Think in one line. Then answer with one action, on the next line.")


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        ("I will not go west.\ngo east", "go east"),
        ("go west", "go west"),
        ("go west is wrong\n2", "go west"),
        ("Let me see.\ntake coin\nThat is it.", "take coin"),
    ],
)
def test_the_action_of_a_chat_policy_is_the_line_after_its_thought(answer, action):
    policy = ChatPolicy(FakeListChatModel(responses=[answer]), speech="free", max_retries=0)
    assert policy.decide(ask()).action == action


def test_calls_and_free_words_follow_a_thought():
    free = ChatPolicy(FakeListChatModel(responses=["Perhaps by singing.\nsing"]), speech="free", max_retries=0)
    assert free.decide(ask(actions=())).action == "sing"
    call = json.dumps({"name": "book", "arguments": {"table": 7}})
    policy = ChatPolicy(FakeListChatModel(responses=[f"Seven is free.\n{call}"]), speech="free", max_retries=0)
    context = ask(actions=(), tools=CALLS, thread="e")
    assert policy.decide(context).action == "book(table=7)"
    (chat,) = policy._conversations._open.values()
    assert chat.turns[-1].text == f"Seven is free.\n{call}"


POLICY = {"speech": "free", "speech_tokens": 5, "history": 2, "max_tokens": 9, "actions": "changes"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of an export and the session of its run, whose policy thinks and forgets."""
    folder = tmp_path_factory.mktemp("speech")
    settings = {
        "environment": {"name": "tests.trainers.corridor:Corridor", "max_steps": 6},
        "explore": {"worlds": {"seeds": "0-2"}, "steps": 5, "tries": 1},
        "model": {"base": str(save_base(folder / "base")), "adapter": 2},
        "arms": {"control": 2},
        "roles": {"policy": {"settings": POLICY}},
        "eval": {"every": 0, "temperature": 0},
        "run": {"iterations": 1, "groups": 1, "out": str(folder / "run")},
    }
    train(settings, export=folder / "export")
    train_again = of({**settings, "run": {"iterations": 0, "out": str(folder / "run")}})
    session = Session.open(train_again, folder / "again")
    yield folder / "export", session
    session.close()


def test_an_export_thinks_and_forgets_as_in_training(trained, monkeypatch):
    """Every token that is read in production was read in training."""
    folder, session = trained
    asked: list[Any] = []
    original = LocalEngine.generate

    async def generate(self, request):
        asked.append(request)
        return await original(self, request)

    monkeypatch.setattr(LocalEngine, "generate", generate)
    session.engine.load_adapter("policy", 1, folder / "policy")
    player = Player(session)
    (rollout,) = asyncio.run(player.play([("", 7)], {Arm("control"): 1}, salt="x", temperature=0.0))
    player.close()
    training, steps = [(one.prompt, one.stop, one.max_tokens) for one in asked], rollout.trajectory.steps
    asked.clear()
    policy: Any = load_roles(folder).policy
    with ExperienceLibrary.open(":memory:") as library:
        agent = Agent(policy, library, Corridor(), arm=Arm("control"), learn=False, max_steps=6, retries=0)
        result = agent.run("", 7)
        agent.close()
    assert [step.action for step in result.trajectory.steps] == [step.action for step in steps]
    assert [(one.prompt, one.stop, one.max_tokens) for one in asked] == training
    assert any(one.allowed is None and one.max_tokens == 5 for one in asked)
    assert policy._inner._answers._max_tokens == 9
    assert policy._inner._log.builder.lists_changes


def test_prompts_of_content_words_have_no_thoughts_and_leave_nothing_out():
    for settings in ({"speech": "free"}, {"history": 3}, {"actions": "changes"}):
        (name,) = settings
        with pytest.raises(ConfigError, match=f"roles.policy.settings.{name} is set"):
            of({"environment": {"name": "x"}, "roles": {"policy": {"settings": settings}}})
    with pytest.raises(ConfigError, match="speech_tokens is 0"):
        of({"environment": {"name": "x"}, "roles": {"policy": {"settings": {"speech_tokens": 0}}}})
    with pytest.raises(ConfigError, match="did you mean speech"):
        of({"environment": {"name": "x"}, "roles": {"policy": {"settings": {"speach": "free"}}}})


# -- what is left out


def test_turns_that_are_left_out_are_not_in_the_prompt():
    """The prompt then begins anew with the system message, as `ChatPolicy` sends it."""
    builder = PolicySettings(history=3).build_prompts()
    prompts = ChatFormat(TOKENIZER, builder=builder)
    conversation, history, texts, lengths = None, list[Step](), list[str](), list[int]()
    for n in range(7):
        context = ask(n, history)
        conversation = builder.advance(conversation, context)
        ids = prompts.open_prompt(conversation, context)
        assert compare_record(prompts, conversation) == ()
        texts.append(str(TOKENIZER.decode(ids)))
        lengths.append(len(ids))
        conversation.turns[-1].answer, conversation.turns[-1].sampled = "go east", prompts.text("go east")
        history.append(Step(context.state, "go east", context.state, Diagnosis(True), t=n, admissible=ACTIONS))
    assert conversation is not None
    assert conversation.omitted > 0
    assert "room 0." in texts[3]
    assert "room 0." not in texts[-1]
    assert "You are an agent that acts" in texts[-1]
    assert "room 6." in texts[-1]
    assert max(lengths[4:]) < lengths[3] + 100
