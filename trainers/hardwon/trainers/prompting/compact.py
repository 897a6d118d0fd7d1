"""The word language of the tiny bases: episodes and questions as content words between marks.

    <task> find coin . <memory> kitchen : move east . <see> kitchen . fridge closed . <at> kitchen <act> move east <end>

It is for a base that a run builds from the words of its own environment (`model.base: tiny`), and loses what such a
model could not learn: word order, negation, punctuation. Prompts are append-only: each one starts with the previous
prompt and the sampled completion, so a whole episode is one sequence.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from hardwon.memory import State, Trajectory
from hardwon.memory.situations.keys import content_words
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.llm.conversation import Conversation
from hardwon.trainers.algorithms.samples import Ids, Sample, compute_anchor
from hardwon.trainers.engines.grammar import PLAIN, CallForm
from hardwon.trainers.engines.trie import Trie

from .base import Purpose, Query, Verdicts

_SENTENCE = re.compile(r"[.!?]\s+|\n|[.!?]$")
_WORD = re.compile(r"[a-z0-9][a-z0-9'_-]*")
_MARKS = {
    "task": "<task>",
    "observation": "<see>",
    "outcome": "<see>",
    "location": "<at>",
    "recalled": "<memory>",
    "keys": "<memory>",
}
"""The mark before each section of a query; other sections have none."""
_SHORTENED = {"task", "observation", "keys"}
"""Sections that are reduced to their content words."""


@lru_cache(maxsize=65536)
def compact(text: str) -> str:
    """Return the content words of a text, sentence by sentence: `kitchen . see fridge closed .`."""
    sentences = []
    for sentence in _SENTENCE.split(text.lower()):
        names = content_words(sentence)
        kept = [word for word in _WORD.findall(sentence) if word in names]
        if kept:
            sentences.append(f"{' '.join(kept)} .")
    return " ".join(sentences)


class CompactFormat:
    """Encodes episodes and questions with one word tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        """Create a format for a tokenizer that knows the marks, such as that of `build_tokenizer`."""
        self.tokenizer = tokenizer
        # one cache per instance: a decorated method would keep every instance alive
        self._ids = lru_cache(maxsize=65536)(self._tokenise)
        (self.end,) = self._ids("<end>")
        self.opening: Ids = ()

    def _tokenise(self, text: str) -> Ids:
        """Return the token ids of a text, without special tokens."""
        return tuple(self.tokenizer(text, add_special_tokens=False).input_ids)

    def describe(self) -> str:
        """Return in one line how prompts are made."""
        return "prompts: content words between marks. Only a base that hardwon created can read them."

    # -- episodes -----------------------------------------------------------------------------------

    def open_prompt(self, conversation: Conversation, context: Context) -> Ids:
        """Return the tokens up to the next action of an episode, whose open turn is the last of `conversation`."""
        ids: Ids = ()
        *past, now = conversation.turns
        for t, (turn, step) in enumerate(zip(past, context.history, strict=True)):
            # A turn that this process did not send has no tokens; its hint is recorded with the step.
            ids += turn.ids or self.encode_state(step.pre, step.why.memory, first=t == 0)
            ids += turn.sampled or self.text(step.action)
        if now.ids is None:
            now.ids = self.encode_state(context.state, now.hint, first=not past)
        return ids + now.ids

    def encode_state(self, state: State, memory: str | None, *, first: bool) -> Ids:
        """Return the tokens before an action: the task at the start, new memory, feedback, observation and place."""
        ids: Ids = ()
        if first:
            ids += (*self._ids("<task>"), *self._ids(compact(state.task)))
        if memory:
            ids += (*self._ids("<memory>"), *self._ids(memory))
        feedback = "" if first or state.feedback in state.observation else f"{state.feedback} "
        ids += (*self._ids("<see>"), *self._ids(compact(feedback + state.observation)))
        if state.location:  # last, so that the place is next to the action that depends on it
            ids += (*self._ids("<at>"), *self._ids(state.location.lower()))
        return (*ids, *self._ids("<act>"))

    def actions(self, actions: Sequence[str]) -> tuple[Trie, dict[Ids, str]]:
        """Return the listed actions as a trie, and the action by tokens; the first of two with equal tokens wins."""
        actions_by_tokens: dict[Ids, str] = {}
        for action in actions:
            actions_by_tokens.setdefault(self.text(action), action)
        return Trie(actions_by_tokens), actions_by_tokens

    def answer(self, conversation: Conversation, action: str) -> Ids:
        """Return the tokens of an action as an answer."""
        return self.text(action)

    def call_form(self, conversation: Conversation) -> CallForm:
        """Return the plain form: no tool call has words that such a base knows."""
        return PLAIN

    def hide(self) -> Ids:
        """Return the tokens of a message of the environment that shows nothing, without the place."""
        return (*self._ids("<see>"), *self._ids("<act>"))

    def rows(self, trajectory: Trajectory, memory: str | None = None, *, role: str = "policy") -> list[Sample]:
        """Return the actions of a recorded episode as samples to imitate, with all tokens trained on."""
        rows: list[Sample] = []
        prompt: Ids = ()
        for t, step in enumerate(trajectory.steps):
            prompt += self.encode_state(step.pre, memory if t == 0 else None, first=t == 0)
            completion = self.text(step.action)
            n = len(completion)
            fields = (role, 0, trajectory.arm, "", compute_anchor(step.pre.signature, memory), trajectory.id, t)
            rows.append(Sample(prompt, completion, (0.0,) * n, (True,) * n, (None,) * n, *fields))
            prompt += completion
        return rows

    # -- questions to the roles ---------------------------------------------------------------------

    def query(self, query: Query) -> Ids:
        """Return the tokens of a question to a role, up to its answer.

        `<task> find coin . <see> kitchen . <at> kitchen <memory> kitchen : move east . <item>`
        """
        text = " ".join(part for name, value in query.sections.items() for part in _format_section(name, value))
        return self._ids(f"{text} <item>")

    def verdicts(self, purpose: Purpose) -> Verdicts:
        """Return the two answers to a yes-or-no question: `<keep>` and `<skip>`."""
        # A guide's hint follows its verdict in the same answer.
        end = () if purpose == "guide" else (self.end,)
        yes, no = (*self._ids("<keep>"), *end), (*self._ids("<skip>"), *end)
        return Verdicts(yes, no, Trie([yes, no]))

    def text(self, text: str) -> Ids:
        """Return the tokens of a text as an answer, with the end token."""
        return (*self._ids(text), self.end)

    def read(self, tokens: Sequence[int]) -> str:
        """Return the text of an answer, without the end token."""
        kept = [token for token in tokens if token != self.end]
        return str(self.tokenizer.decode(kept)).strip()


def _format_section(name: str, value: str | Sequence[str]) -> list[str]:
    """Return a section with its mark; each of several recalled texts gets a mark of its own."""
    texts = [value] if isinstance(value, str) else list(value)
    texts = [compact(text) for text in texts] if name in _SHORTENED else texts
    texts = [text.lower() for text in texts] if name == "location" else texts
    texts = [f"{text} ." for text in texts] if name == "outcome" else texts
    mark = _MARKS.get(name, "")
    if name == "recalled":
        return [f"{mark} {text}" for text in texts]
    return [f"{mark} {' '.join(texts)}".strip()]
