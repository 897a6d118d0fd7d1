"""Thinking before acting: one line of free text that the policy samples before its action.

    speech = Speech(prompts, 48)
    request = speech.ask(request, 48)                        # free text up to the end of the line
    thought = speech.end(await engine.generate(request))     # the tokens that stand before the action

What is sampled is trained with the action's advantage. A thought that the limit cut, or that a control token ended,
gets the end of its line appended, which is not trained. A control token never stands within an answer: it is dropped.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.samples import Ids
from hardwon.trainers.engines.base import Completion, Request
from hardwon.trainers.prompting.base import PromptFormat
from hardwon.trainers.prompting.chat import ChatFormat

_LINE_ENDS = ("\n", "Ċ", "<0x0A>")
"""How vocabularies write the end of a line: as it is, as the character of a byte, or as the byte's number."""


class Speech:
    """The form of thoughts with one tokenizer."""

    def __init__(self, prompts: PromptFormat, max_tokens: int) -> None:
        """Create the form of thoughts."""
        if not isinstance(prompts, ChatFormat):
            raise ConfigError("a policy can think only with a chat template; set model.prompt=chat, or speech=none.")
        self.max_tokens = max_tokens
        self.line_end = prompts.template.encode("\n")
        self._breaks = find_line_ends(prompts.tokenizer)
        self._controls = prompts.template.controls

    def ask(self, request: Request, room: int) -> Request:
        """Return the request for a thought of at most `room` tokens before the answer to a request."""
        stop = (*sorted(self._breaks), *sorted(self._controls))
        return replace(request, allowed=None, max_tokens=min(self.max_tokens, room), stop=stop)

    def end(self, sampled: Completion) -> Completion:
        """Return a thought with the end of its line, which is appended if the model did not sample it."""
        last = sampled.tokens[-1] if sampled.tokens else None
        if last in self._breaks:
            return sampled
        kept = len(sampled.tokens) - (last in self._controls)
        forced: tuple[Ids, ...] = tuple((token,) for token in self.line_end)
        return Completion(
            (*sampled.tokens[:kept], *self.line_end),
            (*sampled.logprobs[:kept], *(0.0 for _ in forced)),
            (*sampled.mask[:kept], *(False for _ in forced)),
            (*sampled.allowed[:kept], *forced),
            sampled.version,
        )

    def skip(self, version: int) -> Completion:
        """Return an empty thought."""
        return self.end(Completion((), (), (), (), version))


def join(parts: Sequence[Completion]) -> Completion:
    """Return completions that follow each other as one, with the version of the last."""
    return Completion(
        tuple(token for part in parts for token in part.tokens),
        tuple(value for part in parts for value in part.logprobs),
        tuple(value for part in parts for value in part.mask),
        tuple(value for part in parts for value in part.allowed),
        parts[-1].version,
    )


@lru_cache(maxsize=8)
def find_line_ends(tokenizer: Any) -> frozenset[int]:
    """Return the tokens that contain the end of a line."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    return frozenset(number for text, number in vocabulary.items() if any(end in text for end in _LINE_ENDS))
