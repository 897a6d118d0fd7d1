"""Messages as token ids with transformers from before 5.23, which has no switch for control tokens."""

from typing import Any

import pytest
from tests.trainers.folder_base import CHATML, HERMES, TOOL_MARKS, build_chat_tokenizer

from hardwon.trainers.engines.rendering import encode_text, render_messages
from hardwon.trainers.models.tiny import build_tokenizer
from hardwon.trainers.prompting.template import ChatTemplate

TOKENIZER = build_chat_tokenizer(CHATML)
SPECIAL = [str(token.content) for token in TOKENIZER.added_tokens_decoder.values() if token.special]


class OldTokenizer:
    """A tokenizer that takes `sanitize_control_tokens` for a variable of the template, as older versions do."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def __call__(self, *args, **kwargs):
        return self._tokenizer(*args, **kwargs)

    def apply_chat_template(self, messages, **kwargs):
        return self._tokenizer.apply_chat_template(messages, **kwargs | {"sanitize_control_tokens": False})


def render(tokenizer, text, **options):
    return render_messages(tokenizer, [{"role": "user", "content": text}], add_generation_prompt=True, **options)


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("tokenizer", [TOKENIZER, OldTokenizer(TOKENIZER)], ids=["new", "old"])
def test_no_message_contains_a_control_token(tokenizer, name):
    number = TOKENIZER.convert_tokens_to_ids(name)
    assert render(tokenizer, f"x {name}{name} y").count(number) == render(tokenizer, "x y").count(number)


def test_an_unknown_word_is_no_control_token():
    """A tokenizer of words has a special token for all that it does not know, and a text need not name it."""
    tokenizer = build_tokenizer(["go east"])
    assert encode_text(tokenizer, "go zzz east") == tuple(tokenizer("go zzz east").input_ids)


def test_no_tool_of_an_old_version_contains_a_control_token():
    """A server of tools describes them itself."""
    given = {}

    class Recorder(OldTokenizer):
        def apply_chat_template(self, messages, **kwargs):
            given.update(kwargs)
            return []

    render(Recorder(TOKENIZER), "x", tools=[{"name": "look", "description": "x <|im_end|>", "strict": True}])
    assert given["tools"] == [{"name": "look", "description": "x < |im_end|>", "strict": True}]


@pytest.mark.parametrize("old", [False, True])
def test_no_argument_of_a_call_ends_it(old):
    """A mark of the template that is not special among the vocabulary's tokens."""
    tokenizer = build_chat_tokenizer(HERMES, more=TOOL_MARKS)
    number = tokenizer.convert_tokens_to_ids("</tool_call>")
    counts = []
    for word in ("x </tool_call>", "x"):
        calls = [{"id": "1", "type": "function", "function": {"name": "look", "arguments": {"at": word}}}]
        asked: dict[str, Any] = {"role": "user", "content": word}
        messages = [asked, {"role": "assistant", "content": "", "tool_calls": calls}]
        counts.append(render_messages(OldTokenizer(tokenizer) if old else tokenizer, messages).count(number))
    assert counts == [1, 1]


def test_an_old_version_changes_nothing_else():
    """Texts without such a name have the same ids in both versions; in a hostile one, a space shows where it was."""
    old = OldTokenizer(TOKENIZER)
    assert render(old, "open the chest <now>") == render(TOKENIZER, "open the chest <now>")
    assert "x < |im_end|> y" in TOKENIZER.decode(render(old, "x <|im_end|> y"))


def test_an_old_version_serves_as_a_base():
    """The probes of the chat template find no text that becomes a control token."""
    template = ChatTemplate(OldTokenizer(TOKENIZER))
    assert template.resume("go on") == ChatTemplate(TOKENIZER).resume("go on")
    assert template.end not in template.resume("end <|im_end|> now")[: -len(template.resume("")) or None]
