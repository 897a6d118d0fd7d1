"""Episodes as tokens: the only place where text becomes token ids for a transcript policy.

    <task> find coin . <memory> kitchen : move east . <see> kitchen . fridge closed . <at> kitchen <act> move east <end>

Transcripts are append-only: each prompt starts with the previous prompt and the sampled completion. A whole
episode is one sequence, and nothing is tokenized twice. Observations are reduced to their content words.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from hardwon.memory import State, Step, Trajectory
from hardwon.memory.situations.keys import content_words
from hardwon.trainers.algorithms.samples import Ids, Sample, compute_anchor
from hardwon.trainers.engines.trie import Trie

_SENTENCE = re.compile(r"[.!?]\s+|\n|[.!?]$")
_WORD = re.compile(r"[a-z0-9][a-z0-9'_-]*")
_FILLER = frozenset("part room see also".split())  # noqa: SIM905  words of almost every observation


@lru_cache(maxsize=65536)
def compact(text: str) -> str:
    """Return the content words of a text, sentence by sentence: `kitchen . fridge closed .`."""
    sentences = []
    for sentence in _SENTENCE.split(text.lower()):
        names = content_words(sentence)
        kept = [word for word in _WORD.findall(sentence) if word in names and word not in _FILLER]
        if kept:
            sentences.append(f"{' '.join(kept)} .")
    return " ".join(sentences)


class Transcript:
    """Encodes turns as token ids with one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        # one cache per instance: a decorated method would keep every instance alive
        self._ids = lru_cache(maxsize=65536)(self._tokenise)
        (self.end,) = self._ids("<end>")

    def _tokenise(self, text: str) -> Ids:
        """Return the token ids of a text, without special tokens."""
        return tuple(self.tokenizer(text, add_special_tokens=False).input_ids)

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

    def action(self, action: str) -> Ids:
        """Return the tokens of an action with the end token."""
        return (*self._ids(action), self.end)

    def choices(self, actions: Sequence[str]) -> tuple[Trie, dict[Ids, str]]:
        """Return the actions as a trie, and the action by tokens; the first of two with equal tokens wins."""
        actions_by_tokens: dict[Ids, str] = {}
        for action in actions:
            actions_by_tokens.setdefault(self.action(action), action)
        return Trie(actions_by_tokens), actions_by_tokens

    def prompt(self, history: Sequence[Step], state: State, memory: str | None) -> Ids:
        """Return the tokens of an episode up to its next action; `memory` is the text shown at this step."""
        ids: Ids = ()
        for t, step in enumerate(history):
            ids += self.encode_state(step.pre, step.why.get("memory"), first=t == 0)
            # the tokens as sampled: tokenizing the action's text again could give others
            ids += tuple(step.why.get("said") or self.action(step.action))
        return (*ids, *self.encode_state(state, memory, first=not history))

    def rows(self, trajectory: Trajectory, memory: str | None = None, *, role: str = "policy") -> list[Sample]:
        """Return the actions of a recorded episode as samples to imitate, with all tokens trained on."""
        rows: list[Sample] = []
        prompt: Ids = ()
        for t, step in enumerate(trajectory.steps):
            prompt += self.encode_state(step.pre, memory if t == 0 else None, first=t == 0)
            completion = self.action(step.action)
            n = len(completion)
            fields = (role, 0, trajectory.arm, "", compute_anchor(step.pre.signature, memory), trajectory.id, t)
            rows.append(Sample(prompt, completion, (0.0,) * n, (True,) * n, (None,) * n, *fields))
            prompt += completion
        return rows
