"""The answers of a token policy: a listed action, a tool call, or free text, and how each becomes an action.

    form = Answers(prompts).open(context)
    request = Request(prompt, allowed=form.allowed, max_tokens=form.max_tokens, stop=form.stop)
    answer = form.read((await engine.generate(request)).tokens)     # its text and its action, or what is wrong with it

Listed actions are bound by a trie, tool calls by the JSON grammar of the tools' schemas, and free text by nothing.
The answer's text may differ from the action's: a call is sampled as JSON, or in the form of the chat template, and runs
as `search(city="Rome")`, as with `ChatPolicy`.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from hardwon.memory.errors import PolicyFailure
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.interfaces.usage import ModelUsage
from hardwon.runtime.llm import prompts as messages
from hardwon.runtime.llm.tool_messages import format_call
from hardwon.trainers.algorithms.samples import Ids
from hardwon.trainers.config.policy import MAX_TOKENS
from hardwon.trainers.engines.base import Constraint
from hardwon.trainers.engines.grammar import PLAIN, CallForm, ToolCalls
from hardwon.trainers.prompting.base import PromptFormat


class UnusableAnswer(PolicyFailure):
    """The model answered, and its answer is no action."""

    @classmethod
    def of(cls, answer: "Answer", usage: ModelUsage) -> "UnusableAnswer":
        """Return the failure of an answer, with its cost."""
        failure = cls(answer.problem)
        failure.usage = usage  # type: ignore[attr-defined]  # the loop adds it to the episode's cost
        return failure


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the model."""

    text: str
    """The answer as the model wrote it."""
    action: str | None = None
    """The action; None if the answer is none."""
    problem: str = ""
    """The problem with the answer; empty if it is an action."""


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How one answer is sampled and read."""

    allowed: Constraint | None
    """Constraint on the answer; None for free text."""
    max_tokens: int
    """The longest answer, in tokens."""
    read: Callable[[Ids], Answer]
    """Returns the answer that tokens are."""
    stop: Ids = ()
    """Tokens that end the answer, if nothing binds it."""


class Answers:
    """Opens the form of an answer for each decision, with one grammar per set of tools."""

    def __init__(self, prompts: PromptFormat, *, max_tokens: int = MAX_TOKENS) -> None:
        """Create forms in a prompt format."""
        self._prompts, self._max_tokens = prompts, max_tokens
        self._grammars: OrderedDict[str, ToolCalls] = OrderedDict()

    def open(self, context: Context, room: int | None = None, *, calls: CallForm = PLAIN) -> AnswerForm:
        """Return the form of the next answer: listed actions if there are any, else tool calls, else free text."""
        if context.actions:
            trie, actions_by_tokens = self._prompts.actions(messages.choices(context))
            longest = max(map(len, actions_by_tokens))
            return AnswerForm(trie, longest, lambda tokens: self._read_listed(actions_by_tokens, tokens))
        most = self._max_tokens if room is None else min(self._max_tokens, max(room, 1))
        if context.tools:
            grammar = self._get_calls(context.tools, calls).open_grammar(most)
            return AnswerForm(grammar, most, lambda tokens: self._read_call(calls, tokens))
        return AnswerForm(None, most, self._read_free, (self._prompts.end,))

    def _get_calls(self, tools: Mapping[str, Mapping[str, Any]], form: CallForm = PLAIN) -> ToolCalls:
        """Return the grammar of the calls of these tools; grammars are cached."""
        key = json.dumps([tools, astuple(form)], default=str)
        calls = self._grammars.pop(key, None)
        if calls is None:
            calls = ToolCalls(self._prompts.tokenizer, tools, end=self._prompts.end, form=form)
        self._grammars[key] = calls
        while len(self._grammars) > 64:
            self._grammars.popitem(last=False)
        return calls

    def _read_listed(self, actions_by_tokens: Mapping[Ids, str], tokens: Ids) -> Answer:
        action = actions_by_tokens[tokens]
        return Answer(action, action)

    def _read_call(self, form: CallForm, tokens: Ids) -> Answer:
        text = self._prompts.read(tokens)
        call = form.read(text)
        if call is None:
            return Answer(text, None, self._explain(tokens, text, "it is not one tool call"))
        return Answer(text if form == PLAIN else format_call(*call), messages.call_text(*call))

    def _read_free(self, tokens: Ids) -> Answer:
        text = self._prompts.read(tokens)
        # The last line of an answer that the limit cut may lack its end: `send 10` of `send 100`.
        whole = text if self._is_ended(tokens) else text.rpartition("\n")[0]
        action = messages.free_action(whole)
        if action is None:
            return Answer(text, None, self._explain(tokens, text, "it is not one action"))
        return Answer(text, action)

    def _is_ended(self, tokens: Sequence[int]) -> bool:
        return bool(tokens) and tokens[-1] == self._prompts.end

    def _explain(self, tokens: Ids, text: str, problem: str) -> str:
        """Return what is wrong with an answer, with its beginning."""
        if not self._is_ended(tokens):
            problem = f"it was cut off at the limit of {len(tokens)} tokens"
        elif not text.strip():
            problem = "it is empty"
        return f"the answer is no action, because {problem}: {messages.clean(text, 200)!r}."
