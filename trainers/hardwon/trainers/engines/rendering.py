"""Chat messages as token ids. In every version of transformers, no text of a message becomes a control token."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from hardwon.trainers.algorithms.samples import Ids


def render_messages(tokenizer: Any, messages: Sequence[Mapping[str, Any]], **options: Any) -> Ids:
    """Render messages with the chat template of a tokenizer.

    transformers 5.23 reads control tokens in messages as plain text. Older versions ignore that switch, so there every
    name of one gets a space behind its first character, such as `< |im_end|>`.
    """
    if "sanitize_control_tokens" not in inspect.signature(tokenizer.apply_chat_template).parameters:
        # those of the template's own marks, such as `</tool_call>`, need not be special
        template, added = str(tokenizer.chat_template), tokenizer.added_tokens_decoder.values()
        names = [str(token.content) for token in added if token.special or str(token.content) in template]
        messages, options = _break_names(list(messages), names), _break_names(options, names)
    return tuple(
        tokenizer.apply_chat_template(list(messages), return_dict=False, sanitize_control_tokens=True, **options)
    )


def encode_text(tokenizer: Any, text: str) -> Ids:
    """Return the tokens of a plain text, in which control tokens are ordinary characters."""
    ids = tuple(tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids)
    controls = tokenizer.added_tokens_decoder
    if controls.keys().isdisjoint(ids):
        return ids
    # The switch covers special tokens only; any other control token is broken apart behind its first character.
    places = [text.index(name) for name in (str(token.content) for token in controls.values()) if name in text]
    if not places:
        return ids  # a token for unknown words
    cut = 1 + min(places)
    return (*encode_text(tokenizer, text[:cut]), *encode_text(tokenizer, text[cut:]))


def _break_names(value: Any, names: Sequence[str]) -> Any:
    """Return the value with a space in every name of a control token in its texts."""
    if isinstance(value, Mapping):
        return {_break_names(key, names): _break_names(item, names) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_break_names(item, names) for item in value]
    if not isinstance(value, str):
        return value
    for name in names:
        value = value.replace(name, f"{name[0]} {name[1:]}")
    return value
