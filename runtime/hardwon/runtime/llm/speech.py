"""Answers of a model that thinks in one line before its action."""

from .prompts import find_call, strip_reasoning


def split_speech(text: str) -> tuple[str, str]:
    """Return the thought and the action of an answer that has both: its last line, or a call in JSON, is the action."""
    text = strip_reasoning(text)
    if (call := find_call(text)) is not None:
        return text.partition("{")[0].strip(), call
    before, _, last = text.rpartition("\n")
    return before.strip(), last.strip()
