"""A tokenizer's chat template, reduced to what an append-only prompt needs.

    template = ChatTemplate(tokenizer)       # probes the template, or raises ConfigError with what it cannot do
    first = template.open(system, user)      # the tokens up to the first answer
    more = template.resume(user)             # the tokens between the end of an answer and the next answer

Token ids are the record and text is only a view of it: what a model sampled is never decoded and encoded again. Only
the next message is rendered, after a placeholder for the conversation so far, and cut off behind the placeholder's end
token. Text from outside never becomes a control token.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.samples import Ids
from hardwon.trainers.engines.rendering import encode_text, render_messages
from hardwon.trainers.engines.tool_form import ANSWERED, ARGUMENT_WORD, CALL, RESULT, TOOL, ToolForm

_SYSTEM, _USER, _NEXT = "Kestrel", "Lantern", "Marigold"
"""Messages of the probes: words that no template contains."""
_ANSWERS = ("x", "y")
"""Two placeholders for an answer, without a token in common."""


class ChatTemplate:
    """Renders messages with the chat template of a tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        """Probe the template of a tokenizer."""
        self.tokenizer = tokenizer
        self._name = str(getattr(tokenizer, "name_or_path", "") or "the tokenizer")
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                f"{self._name} has no chat template; use an instruction-tuned base, or set model.prompt=compact."
            )
        self.has_system = self._keeps_system()
        """Whether it takes a system message and keeps it at the start; if not, the first user message has its text."""
        self._before, self.end = self._find_end()
        self._check_control_tokens()

    # -- rendering ----------------------------------------------------------------------------------

    def open(self, system: str, user: str, tools: Sequence[Mapping[str, Any]] = ()) -> Ids:
        """Return the tokens of a conversation's first messages, up to the first answer."""
        options: dict[str, Any] = {"tools": list(tools)} if tools else {}
        return self._render(self.begin(system, user), **options)

    def resume(self, user: str) -> Ids:
        """Return the tokens of the next message, from behind the end token of the last answer to the next answer."""
        messages = [*self.begin(_SYSTEM, _USER), _message("assistant", _ANSWERS[0]), _message("user", user)]
        ids, cut = self._render(messages), len(self._before)
        if ids[:cut] != self._before or ids[cut] != self.end:
            raise ConfigError(f"the chat template of {self._name} rewrites earlier messages; use another base.")
        return ids[cut + 1 :]

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = (), answer: bool = True
    ) -> Ids:
        """Return the tokens of the messages of a program, in the form of transformers."""
        try:
            return self._render(messages, answer=answer, **({"tools": list(tools)} if tools else {}))
        except Exception as error:  # a template is a program: it may raise anything for messages that it does not take
            raise ConfigError(f"the chat template of {self._name} refuses the messages: {error}") from error

    def encode(self, text: str) -> Ids:
        """Return the tokens of a plain text, in which control tokens are ordinary characters."""
        return encode_text(self.tokenizer, text)

    @cached_property
    def controls(self) -> frozenset[int]:
        """The ids of all control tokens: everything that was added to the vocabulary of plain text."""
        return frozenset(self.tokenizer.added_tokens_decoder)

    @cached_property
    def tools(self) -> ToolForm | None:
        """The form in which it writes tools, calls and results; None if it has none that a grammar can bind."""
        return ToolForm.find(self._render, self.tokenizer, self.begin(_SYSTEM, _USER), self.end)

    def begin(self, system: str, user: str) -> list[dict[str, str]]:
        """Return the first messages; without a system message, that of the user has its text."""
        if self.has_system:
            return [_message("system", system), _message("user", user)]
        return [_message("user", f"{system}\n\n{user}")]

    def _render(self, messages: Sequence[Mapping[str, Any]], *, answer: bool = True, **extra: Any) -> Ids:
        # Thoughts in a template's own form are closed: `roles.policy.settings.speech` asks for them as a line, in the
        # same form for every base.
        options = {"enable_thinking": False, **extra}
        return render_messages(self.tokenizer, messages, add_generation_prompt=answer, **options)

    # -- probes -------------------------------------------------------------------------------------

    def describe(self) -> str:
        """Return what the probes found, in one line."""
        end, plain = self.tokenizer.convert_ids_to_tokens(self.end), self.begin(_SYSTEM, _USER)
        system = "a system message" if self.has_system else "no system message, so the first user message has its text"
        tools = "its tool form is incomplete or missing, and the tools of an environment are written as text"
        if self.tools is not None:
            tools = "tools, calls and results have its own form"
        elif self.shows_tools:
            tools = "its tool form is left to programs, and the tools of an environment are written as text"
        thinks = self._render(plain, enable_thinking=True) != self._render(plain, enable_thinking=False)
        thoughts = "; its own thinking is closed" if thinks else ""
        return f"chat template: {system}; answers end with {end}{thoughts}; {tools}."

    @cached_property
    def shows_tools(self) -> bool:
        """Whether it renders tool schemas, a call without words, and the result. If not, programs have them as text.

        Some templates list the tools and drop the calls, or refuse a message without words or the role of results.
        """
        plain = self.begin(_SYSTEM, _USER)
        try:
            is_listed = self._render(plain, tools=[TOOL]) != self._render(plain)
            text = str(self.tokenizer.decode(self._render([*plain, CALL, ANSWERED], tools=[TOOL])))
        except Exception:  # a template is a program: it may raise anything for what it does not expect
            return False
        return is_listed and ARGUMENT_WORD in text and RESULT in text

    def _keeps_system(self) -> bool:
        """Return whether a system message is taken and stays at the start of a growing conversation."""
        opened = [_message("system", _SYSTEM), _message("user", _USER)]
        grown = [*opened, _message("assistant", _ANSWERS[0]), _message("user", _NEXT)]
        try:
            texts = [str(self.tokenizer.decode(self._render(messages))) for messages in (opened, grown)]
        except Exception:  # templates without a system role raise errors of their own
            return False
        return all(text.count(_SYSTEM) == 1 and text.index(_SYSTEM) < text.index(_USER) for text in texts)

    def _find_end(self) -> tuple[Ids, int]:
        """Return the tokens up to a placeholder's end, and the end token that follows it."""
        pair = [
            self._render([*self.begin(_SYSTEM, _USER), _message("assistant", answer), _message("user", _NEXT)])
            for answer in _ANSWERS
        ]
        if pair[0] == pair[1]:
            raise ConfigError(f"{self._name} reads {' and '.join(_ANSWERS)} as the same tokens; use another base.")
        same = 0
        while pair[0][-same - 1] == pair[1][-same - 1]:
            same += 1
        end = pair[0][len(pair[0]) - same] if same else -1
        if end not in self.tokenizer.added_tokens_decoder:
            raise ConfigError(
                f"the chat template of {self._name} ends an answer without a control token, so answers cannot be told "
                "from the text after them; use another base."
            )
        return pair[0][: len(pair[0]) - same], end

    def _check_control_tokens(self) -> None:
        """Check that no text can become a control token."""
        added = self.tokenizer.added_tokens_decoder
        harmful = [str(token.content) for token in added.values() if token.special]
        plain, marked = self.resume(_NEXT), self.resume(_NEXT + " ".join(harmful))
        for number in added:
            if plain.count(number) != marked.count(number) and added[number].special:
                raise ConfigError(
                    f"text that contains {added[number].content!r} becomes a control token of {self._name}; "
                    "use another base."
                )


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
