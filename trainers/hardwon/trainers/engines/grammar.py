"""Grammars: which token may follow, for answers that are too many to list, such as tool calls.

    calls = ToolCalls(tokenizer, {"move": {"type": "object", "properties": {"to": {"type": "string"}}}})
    completion = await engine.generate(Request(prompt, allowed=calls.asked()))
    calls.read(text)                                       # ("move", {"to": "kitchen"})

A grammar stands where a trie does: the engine asks it what may follow, draws among that, and keeps the
set with the row, so the log-probabilities are exact under the mask and training sees the same sets. The
automaton is llguidance's, over the bytes of the tokenizer's tokens. A set of the whole vocabulary, as
inside of a free text, is kept once and shared by all rows.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from hardwon.memory.errors import ConfigError, MissingExtra
from hardwon.trainers.algorithms.samples import Ids

MAX_TOKENS = 256
"""Of an answer, unless told."""


class Grammar:
    """The automaton of one answer; see the module's docstring. Not for two answers at the same time."""

    def __init__(self, tokenizer: Any, lark: str, *, max_tokens: int = MAX_TOKENS) -> None:
        """lark: the grammar, in llguidance's dialect. Raises ConfigError for one that it does not understand."""
        self.lark, self.max_tokens = lark, max_tokens
        self._tokens = _tokens(tokenizer)
        self.end = int(tokenizer.eos_token_id)
        self._matcher = _guidance().LLMatcher(self._tokens, lark)
        if error := self._matcher.get_error():
            raise ConfigError(f"the grammar is not understood: {error} Look at its JSON schemas.")
        self._said: Ids = ()

    def allowed(self, said: Sequence[int]) -> Ids:
        """The tokens that may follow, in their order; none when the answer is complete."""
        if self.complete(said):
            return ()
        self._follow(said)
        return (self.end,) if self._matcher.is_stopped() else _ids(self._matcher.compute_bitmask())

    def forced(self, said: Sequence[int]) -> Ids:
        """The tokens that must follow, as far as there is only one way to go on."""
        path = tuple(said)
        while len(following := self.allowed(path)) == 1:
            path = (*path, *following)
        return path[len(said) :]

    def complete(self, said: Sequence[int]) -> bool:
        """Whether the answer has ended, or is as long as it may be."""
        return len(said) >= self.max_tokens or (len(said) > 0 and said[-1] == self.end)

    def _follow(self, said: Sequence[int]) -> None:
        """Bring the automaton to where these tokens lead. Raises ValueError for one that was not allowed."""
        said = tuple(said)
        known = next((n for n, (a, b) in enumerate(zip(self._said, said, strict=False)) if a != b), None)
        known = min(len(self._said), len(said)) if known is None else known
        if known < len(self._said):
            self._matcher.rollback(len(self._said) - known)
        if known < len(said) and self._matcher.try_consume_tokens(list(said[known:])) < len(said) - known:
            self._matcher.reset()
            self._said = ()
            raise ValueError(f"token {said[-1]} does not follow by the grammar.")
        self._said = said


class ToolCalls:
    """One call of one of some tools as JSON: `{"name": "move", "arguments": {"to": "kitchen"}}`."""

    def __init__(self, tokenizer: Any, tools: Mapping[str, Mapping[str, Any]]) -> None:
        """tools: by name, the JSON schema of the arguments."""
        if not tools:
            raise ConfigError("there is no tool to call; give one at least.")
        self._tokenizer = tokenizer
        calls = [_call(name, arguments) for name, arguments in tools.items()]
        schema = {"x-guidance": {"whitespace_flexible": False}, "anyOf": calls}
        self.lark = f"start: %json {json.dumps(schema)}"
        Grammar(tokenizer, self.lark)  # said at once, if it is not understood

    def asked(self, max_tokens: int = MAX_TOKENS) -> Grammar:
        """The grammar of one answer."""
        return Grammar(self._tokenizer, self.lark, max_tokens=max_tokens)

    @staticmethod
    def read(text: str) -> tuple[str, dict[str, Any]] | None:
        """Name and arguments of a call; None where the answer was cut off."""
        try:
            said = json.loads(text)
            return str(said["name"]), dict(said["arguments"])
        except (ValueError, KeyError, TypeError):
            return None


def _call(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    given = {"additionalProperties": False, **arguments} if arguments.get("properties") is not None else arguments
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": dict(given)},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


@lru_cache(maxsize=1024)
def _ids(mask: bytes) -> Ids:
    import numpy as np

    return tuple(np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")).tolist())


@lru_cache(maxsize=8)
def _tokens(tokenizer: Any) -> Any:
    """The tokenizer as the automaton reads it: a second for a large vocabulary, so once."""
    _guidance()
    from llguidance.hf import from_tokenizer

    try:
        return from_tokenizer(tokenizer)
    except ValueError as error:
        raise ConfigError(
            f"a grammar needs a fast tokenizer whose tokens are bytes: {error}. Use a byte-level BPE, as Qwen's or "
            "Llama's; a tokenizer of whole words has no tokens for JSON."
        ) from error


def _guidance() -> Any:
    try:
        import llguidance
    except ImportError as missing:
        raise MissingExtra.of("llguidance", "train") from missing
    return llguidance
