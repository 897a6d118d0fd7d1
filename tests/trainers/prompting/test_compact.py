"""The word language of tiny bases: the same tokens for every use as before it was a format."""

from typing import Any

from hardwon.memory import Diagnosis, Reasons, State, Step, Trajectory
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.llm.conversation import Conversations
from hardwon.trainers.models.tiny import build_tokenizer
from hardwon.trainers.prompting.base import Query
from hardwon.trainers.prompting.compact import CompactFormat

TEXTS = ["go east go west wait . : red blue green room find prize east is best success failure what"]
PROMPTS = CompactFormat(build_tokenizer(TEXTS))


def words(ids):
    return " ".join(PROMPTS.tokenizer.convert_ids_to_tokens(list(ids)))


def make_episode(turns=3, **why):
    names = ["red", "blue", "green", "red"]
    states = [State(f"You find {name}.", task="find the prize", location=name) for name in names]
    steps = tuple(
        Step(states[n], "go east", states[n + 1], Diagnosis(True), t=n, why=Reasons.of(why)) for n in range(turns)
    )
    return Trajectory("find the prize", steps, True, id="e")


def test_the_conversation_s_prompt_is_that_of_the_rows():
    rows, steps, log = PROMPTS.rows(make_episode()), make_episode().steps, Conversations()
    for n, step in enumerate(steps):
        context = Context(step.pre, history=steps[:n], thread="e")
        chat = log.advance(context)
        assert PROMPTS.open_prompt(chat, context) == rows[n].prompt
        Conversations.answer(chat, step.action, PROMPTS.text(step.action))


def test_an_episode_that_began_elsewhere_is_read_from_its_steps():
    """With the hint that each step records, and none at the open one."""
    steps = make_episode(memory="east is best").steps
    context = Context(steps[2].pre, history=steps[:2])
    said = words(PROMPTS.open_prompt(Conversations().advance(context), context))
    turns = [f"<memory> east is best <see> find {name} . <at> {name} <act> go east <end>" for name in ("red", "blue")]
    assert said == f"<task> find prize . {' '.join(turns)} <see> find green . <at> green <act>"


def test_a_hint_is_shown_again_in_a_second_attempt_at_the_same_step():
    """The refused attempt is superseded, and its message with it."""
    log, state = Conversations(), make_episode().steps[0].pre
    context = Context(state, guidance="east is best", thread="e")
    first = PROMPTS.open_prompt(log.advance(context), context)
    assert PROMPTS.open_prompt(log.advance(context), context) == first
    assert "<memory> east is best" in words(first)


def test_questions_of_the_roles():
    asked: dict[Any, Any] = {
        "guide": {"task": "find the prize", "observation": "You find red.", "location": "Red", "recalled": ["a", "b"]},
        "write": {"task": "find prize", "steps": ["red : east"], "outcome": "success", "observation": ""},
        "share": {"task": "find prize", "keys": ["red", "blue"], "observation": ["green", "east"]},
    }
    said = {purpose: words(PROMPTS.query(Query(purpose, sections))) for purpose, sections in asked.items()}
    assert said == {
        "guide": "<task> find prize . <see> find red . <at> red <memory> <unk> <memory> <unk> <item>",
        "write": "<task> find prize . red : east <see> success . <see> <item>",
        "share": "<task> find prize . <memory> red . blue . <see> green . east . <item>",
    }


def test_a_guide_goes_on_after_its_verdict():
    assert words(PROMPTS.verdicts("guide").yes) == "<keep>"
    assert words(PROMPTS.verdicts("share").yes) == "<keep> <end>"
    assert words(PROMPTS.verdicts("share").no) == "<skip> <end>"


def test_marks_of_an_answer_are_read():
    assert PROMPTS.read(PROMPTS.text("<item> go east")) == "<item> go east"
