"""The tool form of chat templates: used where it is complete, else tools, calls and results are written as text."""

from typing import Any

import pytest
from tests.trainers.folder_base import CHATML, build_chat_tokenizer

from hardwon.trainers.programs.prompts import ProgramPrompts
from hardwon.trainers.prompting.template import ChatTemplate

LISTS = "{% if tools %}{{ '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>\n' }}{% endif %}" + CHATML
"""A template that shows the tools and drops the calls."""
CALLS = LISTS.replace(
    "message['content'] + '<|im_end|>'",
    "message['content'] }}{% for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}"
    "{{ '<|im_end|>'",
)
"""A template with a complete tool form."""
NEEDS_WORDS = (
    "{% for message in messages %}{% if not message['content'] %}{{ raise_exception('no words') }}{% endif %}"
    "{% endfor %}" + CALLS
)
"""A template that refuses a message without words."""
TOOLS: Any = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]
CHAT: Any = [
    {"role": "user", "text": "find it", "calls": [], "answers": ""},
    {"role": "assistant", "text": "", "calls": [{"id": "1", "name": "find", "arguments": {"at": "x"}}], "answers": ""},
    {"role": "tool", "text": "it is there", "calls": [], "answers": "1"},
]


@pytest.mark.parametrize(
    ("template", "is_complete"),
    [(CHATML, False), (LISTS, False), (NEEDS_WORDS, False), (CALLS, True)],
    ids=["ignores tools", "drops calls", "needs words", "complete"],
)
def test_a_call_and_its_result_are_in_every_prompt(template, is_complete):
    chat = ChatTemplate(build_chat_tokenizer(template))
    text = chat.tokenizer.decode(ProgramPrompts(chat).render(CHAT, TOOLS))
    assert '{"name": "find", "arguments": {"at": "x"}}' in text
    assert "it is there" in text
    assert ("You can call these tools" in text) is not is_complete
    assert ("incomplete or missing" in chat.describe()) is not is_complete
