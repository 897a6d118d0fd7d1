"""A comparison of what an episode's record holds with what its template renders from the text.

Both may differ in how the model's own answers are cut into tokens, and in nothing else: a different control token, or
another text around the answers, means that the model reads in training what it would not read in production.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hardwon.runtime.llm.conversation import Conversation
from hardwon.runtime.llm.tool_messages import build_messages, list_tools
from hardwon.trainers.prompting.chat import ChatFormat


@dataclass(slots=True)
class _Segment:
    """A control token and the tokens up to the next one."""

    control: int | None
    text: list[int] = field(default_factory=list)
    """Tokens of the prompt, before any token of an answer."""
    has_answer: bool = False


def compare_record(prompts: ChatFormat, conversation: Conversation) -> tuple[str, ...]:
    """Return the differences between the tokens of a conversation and those of its rendered messages."""
    parts = ((tokens, n % 2 == 1) for n, tokens in enumerate(prompts.parts(conversation)))
    recorded = _cut(parts, prompts.template.controls)
    rendered = _cut([(render(prompts, conversation), False)], prompts.template.controls)
    name = prompts.tokenizer.convert_ids_to_tokens
    differences: list[str] = []
    for n, (first, other) in enumerate(zip(recorded, rendered, strict=False)):
        if first.control != other.control:
            # Everything behind a missing token is shifted, so further lines would say nothing new.
            return (*differences, f"control token {n}: recorded {name(first.control)}, rendered {name(other.control)}")
        before, after = (str(prompts.tokenizer.decode(segment.text)) for segment in (first, other))
        if not (after.startswith(before) if first.has_answer else after == before):
            differences.append(f"text {n}: recorded {before!r}, rendered {after!r}")
    if len(recorded) != len(rendered):
        differences.append(f"recorded {len(recorded)} control tokens, rendered {len(rendered)}")
    return tuple(differences)


def render(prompts: ChatFormat, conversation: Conversation) -> tuple[int, ...]:
    """Return the tokens of the messages of a conversation, as a server without a record would send them."""
    tools = list_tools(conversation) if conversation.tools and prompts.template.tools else ()
    plain = [{"role": role, "content": text} for role, text in conversation.messages()]
    system, first, *rest = build_messages(conversation) if tools else plain
    messages = [*prompts.template.begin(system["content"], first["content"]), *rest]
    return prompts.template.render_chat(messages, tools=tools)


def _cut(parts: Iterable[tuple[Sequence[int], bool]], controls: frozenset[int]) -> list[_Segment]:
    """Return the tokens of the parts as segments; each part comes with whether it is an answer."""
    segments = [_Segment(None)]
    for tokens, is_answer in parts:
        for token in tokens:
            if token in controls:
                segments.append(_Segment(token))
            elif is_answer:
                segments[-1].has_answer = True
            else:
                segments[-1].text.append(token)
    return segments
