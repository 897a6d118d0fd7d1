"""Grammars: constraints for answers that are too many to list, such as tool calls.

    calls = ToolCalls(tokenizer, {"move": {"type": "object", "properties": {"to": {"type": "string"}}}})
    completion = await engine.generate(Request(prompt, allowed=calls.open_grammar()))
    calls.read(text)                                       # ("move", {"to": "kitchen"})

A grammar replaces a trie. The engine samples among the tokens that the grammar allows and stores this
set in the sample. The log-probabilities are therefore exact under the mask, and training uses the same
sets. The automaton is llguidance's, over the bytes of the tokenizer's tokens. Sets are cached, so all
samples share one copy of a large set, such as the whole vocabulary inside free text.
"""

import json
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hardwon.memory.errors import ConfigError, MissingExtra
from hardwon.trainers.algorithms.samples import Ids
from hardwon.trainers.config.policy import MAX_TOKENS


class Grammar:
    """The automaton of one answer. Do not share it between answers in progress."""

    def __init__(self, tokenizer: Any, lark: str, *, max_tokens: int = MAX_TOKENS, end: int | None = None) -> None:
        """Compile a grammar."""
        self.lark, self.max_tokens = lark, max_tokens
        self.end = int(tokenizer.eos_token_id) if end is None else end
        self._tokens = _load_tokenizer(tokenizer, self.end)
        self._matcher = _import_llguidance().LLMatcher(self._tokens, lark)
        if error := self._matcher.get_error():
            raise ConfigError(f"the grammar is invalid: {error} Check the JSON schemas of its tools.")
        self._prefix: Ids = ()

    def allowed(self, prefix: Sequence[int]) -> Ids:
        """Return the tokens that may follow `prefix`, in ascending order. Empty if the answer is complete."""
        if self.complete(prefix):
            return ()
        self._advance(prefix)
        return (self.end,) if self._matcher.is_stopped() else _unpack_mask(self._matcher.compute_bitmask())

    def forced(self, prefix: Sequence[int]) -> Ids:
        """Return the tokens that must follow `prefix`, up to the next real choice."""
        path = tuple(prefix)
        while len(following := self.allowed(path)) == 1:
            path = (*path, *following)
        return path[len(prefix) :]

    def complete(self, prefix: Sequence[int]) -> bool:
        """Return whether the answer has ended or reached its maximum length."""
        return len(prefix) >= self.max_tokens or (len(prefix) > 0 and prefix[-1] == self.end)

    def _advance(self, prefix: Sequence[int]) -> None:
        """Move the automaton to the state after `prefix`."""
        prefix = tuple(prefix)
        # reuse the common prefix: the automaton can roll back, and an answer usually only grows
        common = next((n for n, (a, b) in enumerate(zip(self._prefix, prefix, strict=False)) if a != b), None)
        common = min(len(self._prefix), len(prefix)) if common is None else common
        if common < len(self._prefix):
            self._matcher.rollback(len(self._prefix) - common)
        if common < len(prefix) and self._matcher.try_consume_tokens(list(prefix[common:])) < len(prefix) - common:
            # some tokens may have been consumed, so the state is unknown: start over
            self._matcher.reset()
            self._prefix = ()
            raise ValueError(f"token {prefix[-1]} does not follow in the grammar.")
        self._prefix = prefix


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a model writes a call: JSON with two keys, between texts and control tokens."""

    before: tuple[str | int, ...] = ()
    """Texts, and the ids of control tokens, before the JSON."""
    after: tuple[str | int, ...] = ()
    """Those behind it."""
    name: str = "name"
    """The key of the tool's name."""
    arguments: str = "arguments"
    """The key of the arguments."""

    def write(self, name: str, arguments: Mapping[str, Any]) -> tuple[str | int, ...]:
        """Return a call as texts and control tokens."""
        content = json.dumps({self.name: name, self.arguments: arguments}, ensure_ascii=False)
        parts: list[str | int] = []
        for part in (*self.before, content.encode(errors="replace").decode(), *self.after):
            # as one text, which a tokenizer may cut elsewhere than at the ends of the JSON
            if isinstance(part, str) and parts and isinstance(last := parts[-1], str):
                parts[-1] = last + part
            else:
                parts.append(part)
        return tuple(parts)

    def read(self, text: str) -> tuple[str, dict[str, Any]] | None:
        """Parse the name and the arguments of a call, without the control tokens around it."""
        first, last = ("".join(part for part in side if isinstance(part, str)) for side in (self.before, self.after))
        try:
            call = json.loads(text.strip().removeprefix(first.strip()).removesuffix(last.strip()))
            return str(call[self.name]), dict(call[self.arguments])
        except (ValueError, KeyError, TypeError):
            return None


PLAIN = CallForm()
"""JSON alone, as the messages ask for where the model has no form of its own."""


class ToolCalls:
    """One JSON call of one of several tools: `{"name": "move", "arguments": {"to": "kitchen"}}`."""

    def __init__(
        self,
        tokenizer: Any,
        tools: Mapping[str, Mapping[str, Any]],
        *,
        end: int | None = None,
        form: CallForm = PLAIN,
    ) -> None:
        """Build the grammar of the calls.

        Args:
            tokenizer: Fast byte-level tokenizer.
            tools: JSON schema of the arguments, by tool name. Rules that a grammar cannot follow, such as an unknown
                `format`, are left to the tool.
            end: The token that ends a call; default: the tokenizer's own end token.
            form: How the model writes a call.

        Raises:
            ConfigError: There is no tool, or a schema is not supported.
        """
        if not tools:
            raise ConfigError("there is no tool to call. Pass at least one.")
        self._tokenizer, self._end = tokenizer, end
        calls = [_build_call_schema(form, name, f"#/$defs/{n}") for n, name in enumerate(tools)]
        schemas = {str(n): _build_argument_schema(each, f"#/$defs/{n}") for n, each in enumerate(tools.values())}
        # the separators of `json.dumps` and of chat templates, which models have seen most
        layout = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": True}
        schema = {"x-guidance": layout, "$defs": schemas, "anyOf": calls}
        parts = (*map(_quote, form.before), f"%json {json.dumps(schema)}", *map(_quote, form.after))
        self.lark = f"start: {' '.join(parts)}"
        Grammar(tokenizer, self.lark, end=end)  # fail here, not at the first request

    def open_grammar(self, max_tokens: int = MAX_TOKENS) -> Grammar:
        """Return a new grammar for one answer of at most `max_tokens` tokens."""
        return Grammar(self._tokenizer, self.lark, max_tokens=max_tokens, end=self._end)

    @staticmethod
    def read(text: str) -> tuple[str, dict[str, Any]] | None:
        """Parse the name and the arguments of a call. Return None if the text is cut off or not a call."""
        return PLAIN.read(text)


def _quote(part: str | int) -> str:
    """Return a text or the id of a token in llguidance's Lark dialect."""
    return f"<[{part}]>" if isinstance(part, int) else json.dumps(part, ensure_ascii=False)


def _build_argument_schema(arguments: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return the JSON schema of the arguments of one tool, as a part of a larger schema at `place`."""
    # without the type, a model could write any JSON; without the rest, arguments that the tool does not have
    schema = {"type": "object", "additionalProperties": False, "properties": {}, **arguments}
    moved: dict[str, Any] = _move_references(_bound_strings(schema), place)
    return moved


def _move_references(schema: Any, place: str) -> Any:
    """Return a schema whose references to its own parts are valid in a larger schema that has it at `place`."""
    if isinstance(schema, list):
        return [_move_references(part, place) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: f"{place}{part[1:]}"
        if key == "$ref" and isinstance(part, str) and part.startswith("#")
        else part
        if key in ("enum", "const", "default", "examples")
        else _move_references(part, place)
        for key, part in schema.items()
    }


def _build_call_schema(form: CallForm, name: str, arguments: str) -> dict[str, Any]:
    """Return the JSON schema of a call of one tool, whose arguments have the schema at `arguments`."""
    return {
        "type": "object",
        "properties": {form.name: {"const": name}, form.arguments: {"$ref": arguments}},
        "required": [form.name, form.arguments],
        "additionalProperties": False,
    }


def _bound_strings(schema: Any) -> Any:
    """Return a JSON schema in which every free string has a maximum length."""
    if isinstance(schema, list):
        return [_bound_strings(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    bounded = {
        # values of these keys are data, and names of properties may be any words
        key: part if key in ("enum", "const", "default", "examples") else _bound_strings(part)
        for key, part in schema.items()
    }
    is_free = schema.get("type") == "string" and not {"maxLength", "enum", "const", "pattern", "format"} & {*schema}
    # Length limit of strings whose schema has none, in characters: a small model would not find their end.
    return {**bounded, "maxLength": 200} if is_free else bounded


@lru_cache(maxsize=1024)
def _unpack_mask(mask: bytes) -> Ids:
    """Return the token ids of a bit mask. Cached: equal sets share one tuple."""
    import numpy as np

    return tuple(np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")).tolist())


@lru_cache(maxsize=8)
def _load_tokenizer(tokenizer: Any, end: int) -> Any:
    """Convert the tokenizer for llguidance. Cached: it takes about a second for a large vocabulary."""
    llguidance = _import_llguidance()
    try:
        return llguidance.LLTokenizer(_hide_controls(tokenizer), eos_token=end)
    except (AttributeError, ValueError) as error:
        raise ConfigError(
            f"a grammar needs a fast tokenizer whose tokens are bytes: {error}. Use a byte-level BPE, as Qwen's or "
            "Llama's; a tokenizer of whole words has no tokens for JSON."
        ) from error


def _hide_controls(tokenizer: Any) -> str:
    """Return a tokenizer as JSON in which control tokens have names that no text contains.

    llguidance proposes the usual tokens of a text that must follow. A tool's name may contain that of a control token,
    which is then no token of the text.
    """
    backend = copy(tokenizer.backend_tokenizer)
    backend.no_padding()
    backend.no_truncation()
    content = json.loads(backend.to_str())
    vocabulary = content["model"]["vocab"]
    for token in content["added_tokens"]:
        hidden = f"\0{token['id']}"
        if isinstance(vocabulary, dict) and token["content"] in vocabulary:
            vocabulary[hidden] = vocabulary.pop(token["content"])
        token |= {"content": hidden, "special": True}
    return json.dumps(content)


def _import_llguidance() -> Any:
    """Import llguidance."""
    try:
        import llguidance
    except ImportError as missing:
        raise MissingExtra.of("llguidance", "train") from missing
    return llguidance
