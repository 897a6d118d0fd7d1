"""The protocol of a prompt format: how episodes and questions to the roles become token ids.

Two formats implement it. `compact.CompactFormat` is the word language of the tiny bases that a run builds itself.
`chat.ChatFormat` uses the chat template of a pretrained model, with the messages that `ChatPolicy` sends in
production. Roles and policies know only this protocol.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from hardwon.memory import Trajectory
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.llm.conversation import Conversation
from hardwon.trainers.algorithms.samples import Ids, Sample
from hardwon.trainers.engines.grammar import CallForm
from hardwon.trainers.engines.trie import Trie

Purpose = Literal["guide", "write", "share"]
"""The question to a role: whether to give a hint, what to write as a lesson, or whether to share a step."""


@dataclass(frozen=True, slots=True)
class Query:
    """A question to a role, as named sections of text. The format decides on layout, tags and instruction."""

    purpose: Purpose
    sections: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    """Text by name, in order of reading: task, observation, location, steps, recalled, outcome, keys.

    A name that is absent, or whose list is empty, has nothing to show.
    """


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The two answers to a yes-or-no question, as token ids.

    The probability of an answer is the product of the probabilities of its tokens, among those that the trie allows.
    For the purpose `guide`, the hint follows `yes` in the same answer; all other answers end with the end token.
    """

    yes: Ids
    no: Ids
    trie: Trie
    """Allows exactly the two answers."""


class PromptFormat(Protocol):
    """Turns texts into token ids with one tokenizer."""

    tokenizer: Any
    end: int
    """The token that ends an answer."""
    opening: Ids
    """The tokens before an action without a thought, where actions have thoughts; they are not trained."""

    def describe(self) -> str:
        """Return in one line how prompts are made, to be shown when a run begins."""
        ...

    def open_prompt(self, conversation: Conversation, context: Context) -> Ids:
        """Return the tokens up to the next action of an episode, whose open turn is the last of `conversation`.

        Append-only: they begin with the previous prompt and the tokens that were sampled after it.
        """
        ...

    def actions(self, actions: Sequence[str]) -> tuple[Trie, dict[Ids, str]]:
        """Return the listed actions as a trie, and the action by tokens; the first of two with equal tokens wins."""
        ...

    def answer(self, conversation: Conversation, action: str) -> Ids:
        """Return the tokens of an action as an answer to the open turn: its text, or a call as it is sampled."""
        ...

    def call_form(self, conversation: Conversation) -> CallForm:
        """Return the form of the tool calls in a conversation."""
        ...

    def hide(self) -> Ids:
        """Return the tokens of a message of the environment that shows nothing, up to the next action."""
        ...

    def rows(self, trajectory: Trajectory, memory: str | None = None, *, role: str = "policy") -> list[Sample]:
        """Return the actions of a recorded episode as samples to imitate, exactly as the policy would see them."""
        ...

    def query(self, query: Query) -> Ids:
        """Return the tokens of a question to a role, up to its answer."""
        ...

    def verdicts(self, purpose: Purpose) -> Verdicts:
        """Return the two answers to a yes-or-no question."""
        ...

    def text(self, text: str) -> Ids:
        """Return the tokens of a text as an answer, with the end token. Control tokens in it are plain text."""
        ...

    def read(self, tokens: Sequence[int]) -> str:
        """Return the text of an answer, without the end token and without control tokens."""
        ...
