"""Episodes as tokens: the one place where text becomes ids, for a policy that reads a transcript.

    <task> find coin . <memory> kitchen : move east . <see> kitchen . fridge closed . <at> kitchen <act> move east <end>

Append-only: every turn's prompt begins with the prompt before it and the completion as it was
sampled, so that a whole episode is one stream and nothing is tokenised twice. Observations are
shortened to the words that say something.
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
_FILLER = frozenset("part room see also".split())  # noqa: SIM905  said of every place


@lru_cache(maxsize=65536)
def compact(text: str) -> str:
    """The words of a text that name things, sentence by sentence: `kitchen . fridge closed .`"""
    sentences = []
    for sentence in _SENTENCE.split(text.lower()):
        names = content_words(sentence)
        kept = [word for word in _WORD.findall(sentence) if word in names and word not in _FILLER]
        if kept:
            sentences.append(f"{' '.join(kept)} .")
    return " ".join(sentences)


class Transcript:
    """Writes turns as ids with one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._ids = lru_cache(maxsize=65536)(self._tokenise)
        (self.end,) = self._ids("<end>")

    def _tokenise(self, text: str) -> Ids:
        return tuple(self.tokenizer(text, add_special_tokens=False).input_ids)

    def shown(self, state: State, memory: str | None, *, first: bool) -> Ids:
        """What is put before one action: the task at the start, memory where it is new, what is seen."""
        ids: Ids = ()
        if first:
            ids += (*self._ids("<task>"), *self._ids(compact(state.task)))
        if memory:
            ids += (*self._ids("<memory>"), *self._ids(memory))
        told = "" if first or state.feedback in state.observation else f"{state.feedback} "
        ids += (*self._ids("<see>"), *self._ids(compact(told + state.observation)))
        if state.location:  # last, so that what is known of the place is looked up from right before the action
            ids += (*self._ids("<at>"), *self._ids(state.location.lower()))
        return (*ids, *self._ids("<act>"))

    def action(self, action: str) -> Ids:
        """An action as it is said, with its end."""
        return (*self._ids(action), self.end)

    def choices(self, actions: Sequence[str]) -> tuple[Trie, dict[Ids, str]]:
        """The admissible actions as a trie, and the way back; of two that read alike, the first."""
        said: dict[Ids, str] = {}
        for action in actions:
            said.setdefault(self.action(action), action)
        return Trie(said), said

    def prompt(self, history: Sequence[Step], state: State, memory: str | None) -> Ids:
        """All of an episode up to the choice of its next action; `memory` is what is newly shown here."""
        ids: Ids = ()
        for t, step in enumerate(history):
            ids += self.shown(step.pre, step.why.get("memory"), first=t == 0)
            ids += tuple(step.why.get("said") or self.action(step.action))
        return (*ids, *self.shown(state, memory, first=not history))

    def rows(self, trajectory: Trajectory, memory: str | None = None, *, role: str = "policy") -> list[Sample]:
        """A recorded episode as rows to imitate: every action a completion, its tokens all trained on."""
        rows: list[Sample] = []
        prompt: Ids = ()
        for t, step in enumerate(trajectory.steps):
            prompt += self.shown(step.pre, memory if t == 0 else None, first=t == 0)
            said = self.action(step.action)
            n = len(said)
            known = (role, 0, trajectory.arm, "", compute_anchor(step.pre.signature, memory), trajectory.id, t)
            rows.append(Sample(prompt, said, (0.0,) * n, (True,) * n, (None,) * n, *known))
            prompt += said
        return rows
