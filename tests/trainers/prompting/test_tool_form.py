"""The tool form of a chat template in the conversations of an environment with tools."""

from itertools import pairwise
from typing import Any

import pytest
from tests.trainers.folder_base import CHATML, HERMES, TOOL_MARKS, build_chat_tokenizer
from tests.trainers.prompting.record import compare_record, render

from hardwon.memory import Diagnosis, State, Step
from hardwon.runtime.interfaces.types import Context
from hardwon.runtime.llm.conversation import Conversations, PromptBuilder
from hardwon.trainers.engines.grammar import PLAIN
from hardwon.trainers.prompting.chat import ChatFormat
from hardwon.trainers.prompting.template import ChatTemplate

TOKENIZER = build_chat_tokenizer(HERMES, more=TOOL_MARKS)
PROMPTS = ChatFormat(TOKENIZER)
TOOLS: dict[str, dict[str, Any]] = {
    "find": {
        "type": "object",
        "description": "Find tables.",
        "properties": {"city": {"type": "string"}, "seats": {"type": "integer"}},
        "required": ["city"],
    },
    "wait": {"type": "object", "properties": {}},
}
FUNCTION = """{{ '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}' }}"""


def write(calls: str, *, result: str = "{{ message['content'] }}", before: str = "") -> str:
    """Return a template that lists the tools, with other forms of a call and of a result."""
    return (
        "{% if tools %}{{ '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>\n' }}{% endif %}"
        f"{{% for message in messages %}}{before}{{{{ '<|im_start|>' + message['role'] + '\n' }}}}"
        f"{{% if message['role'] == 'tool' %}}{result}{{% else %}}{{{{ message['content'] }}}}{{% endif %}}"
        f"{{% for call in message['tool_calls'] or [] %}}{calls}{{% endfor %}}{{{{ '<|im_end|>\n' }}}}{{% endfor %}}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )


NO_ADVICE = (
    "{% if message['role'] == 'user' and loop.index0 > 0 and messages[loop.index0 - 1]['role'] == 'tool' %}"
    "{{ raise_exception('after a result comes an answer') }}{% endif %}"
)
UNLISTED = write(FUNCTION).partition("{% endif %}")[2]
LATE = "{{ '' if loop.last else message['content'] }}"
NO_ADVICE_SHOWN = write(FUNCTION).replace(
    "{% else %}{{ message['content'] }}", "{% else %}{{ message['content'] if loop.index0 < 4 }}"
)
REWRITES = "{% set mark = '!' if messages | length - loop.index0 > 2 else '' %}"
OWN_ROLE = write(FUNCTION).replace(
    "message['role'] + '\n'", "('caller' if message['tool_calls'] else message['role']) + '\n'"
)
TEXT_ARGUMENTS = "{{ {'name': call.function.name, 'arguments': call.function.arguments | tojson} | tojson }}"
CHECKS_IDS = (
    "{% if message['role'] == 'tool' and message['tool_call_id'] != messages[loop.index0 - 1]['tool_calls'][0]['id'] %}"
    "{{ raise_exception('another id') }}{% endif %}"
)
MOVES = "{% if tools and loop.last %}{{ tools | tojson }}{% endif %}"


def find_form(template):
    return ChatTemplate(build_chat_tokenizer(template, more=TOOL_MARKS)).tools


def step(context, action, text="Tables: 4, 7.", **fields):
    post = State(f"Request.\n{text}", task="Book a table.", feedback=text)
    return Step(context.state, action, post, Diagnosis(True), t=len(context.history), **fields)


def play(*answers, prompts=PROMPTS, tools=TOOLS, text="Tables: 4, 7.", hints=()):
    """Play answers, each an action and the tokens sampled for it, or None; return the conversation and the prompts."""
    log, history, sent, state = Conversations(), list[Step](), [], State("Request.", task="Book a table.")
    for n in range(len(answers) + 1):
        hint = hints[n] if n < len(hints) else None
        context = Context(state, tools=tools, history=tuple(history), thread="e", guidance=hint)
        chat = log.advance(context)
        sent.append(prompts.open_prompt(chat, context))
        if n < len(answers):
            action, sampled = answers[n]
            Conversations.answer(chat, action, sampled)
            history.append(step(context, action, text))
            state = history[-1].post
    return chat, sent


# -- finding the form


@pytest.mark.parametrize(
    ("template", "texts", "key"),
    [
        (HERMES, ("\n", "\n"), "arguments"),
        (write("{{ call.function | tojson }}"), ("", ""), "arguments"),
        (write(FUNCTION.replace("arguments", "parameters", 1)), ("", ""), "parameters"),
        (write("{{ 'CALL [' }}" + FUNCTION + "{{ ']' }}"), ("CALL [", "]"), "arguments"),
    ],
    ids=["control tokens", "bare", "other key", "text"],
)
def test_a_form_that_is_json_is_found(template, texts, key):
    form = find_form(template)
    assert form is not None
    sides = [[part for part in side if isinstance(part, str)] for side in (form.call.before, form.call.after)]
    assert ["".join(side) for side in sides] == [*texts]
    assert form.call.arguments == key
    written = form.call.write("find", {"city": "Rome"})
    assert form.call.read("".join(part for part in written if isinstance(part, str))) == ("find", {"city": "Rome"})


@pytest.mark.parametrize(
    "template",
    [
        CHATML,
        "{% if tools %}{{ raise_exception('no tools') }}{% endif %}" + CHATML,
        write(""),
        write("{{ '<f=' + call.function.name + '>' + call.function.arguments['at'] }}"),
        write(FUNCTION + "{{ call.id }}"),
        write("{{ {'id': '1', 'name': call.function.name, 'arguments': call.function.arguments} | tojson }}"),
        write(FUNCTION, result=""),
        write(FUNCTION, result="{{ message['tool_call_id'] + message['content'] }}"),
        write(FUNCTION, before=NO_ADVICE),
        write(FUNCTION, before=MOVES),
        UNLISTED,
        write(FUNCTION, result=LATE),
        NO_ADVICE_SHOWN,
        write("{{ mark }}" + FUNCTION, before=REWRITES),
        OWN_ROLE,
        write("{{ call.function | tojson(separators=(',', ':')) }}"),
        write(TEXT_ARGUMENTS),
    ],
    ids=[
        "ignores", "raises", "drops calls", "xml", "id", "three keys", "no result", "id of it", "refuses advice",
        "moves", "no list", "late result", "no advice", "rewrites", "own role", "compact", "arguments as text",
    ],
)  # fmt: skip
def test_any_other_template_has_tools_as_text(template):
    """Tools, calls and results stay as `ChatPolicy` sends them to any model."""
    assert find_form(template) is None
    prompts = ChatFormat(build_chat_tokenizer(template, more=TOOL_MARKS))
    call = ('find(city="Rome")', None)
    chat, sent = play(call, prompts=prompts)
    assert sent[-1] == render(prompts, chat)
    assert "one tool call as JSON" in prompts.tokenizer.decode(sent[0])
    assert prompts.call_form(chat) == PLAIN
    assert "written as text" in prompts.describe()


def test_a_run_says_that_the_form_is_used():
    assert "tools, calls and results have its own form" in PROMPTS.describe()


# -- prompts in the form


def test_a_prompt_lists_the_tools_and_asks_for_no_json():
    chat, (prompt,) = play()
    text = TOKENIZER.decode(prompt)
    tool = '{"type": "function", "function": {"name": "find", "description": "Find tables.", "parameters": {"type":'
    assert tool in text
    assert text.count("Find tables.") == 1
    assert "JSON" not in text
    assert "answer with one tool call" in text
    assert "JSON" in chat.system


def test_calls_and_results_have_the_form_and_the_ids_only_grow():
    """Whether the model sampled a call, a guardrail replaced it, or the answer was none."""
    form = PROMPTS.template.tools
    assert form is not None
    sampled = (*form.encode("find", {"city": "Rome"}), PROMPTS.end)
    chat, sent = play(
        ('find(city="Rome")', sampled), ("find('Oslo', 2)", None), ("", PROMPTS.text("hm")), ("wait()", None)
    )
    for before, after in pairwise(sent):
        assert after[: len(before)] == before
    text = TOKENIZER.decode(sent[-1])
    assert (
        '<|im_start|>assistant\n<tool_call>\n{"name": "find", "arguments": {"city": "Rome"}}\n</tool_call><|im_end|>'
        in text
    )
    assert '{"name": "find", "arguments": {"city": "Oslo", "seats": 2}}\n</tool_call>' in text
    assert text.count("<|im_start|>user\n<tool_response>\n") == 3
    assert "<|im_start|>assistant\nhm<|im_end|>\n<|im_start|>user\nResult" in text
    assert compare_record(PROMPTS, chat) == ()


def test_the_record_equals_a_rendering_of_the_whole_conversation():
    chat, sent = play(('find(city="Rome")', None), ("wait()", None), hints=("east is best", None, "take table 4"))
    assert sent[-1] == render(PROMPTS, chat)
    chat.turns[1].ids = PROMPTS.template.resume("another text")
    assert "another text" in compare_record(PROMPTS, chat)[0]


def test_advice_follows_a_result_as_a_message_of_the_user():
    """A result is what the tool said; what experience adds did not come from it."""
    _, sent = play(('find(city="Rome")', None), hints=(None, "take table 4"))
    text = TOKENIZER.decode(sent[-1])
    result, _, advice = text.partition("</tool_response>")
    assert "take table 4" not in result
    assert "<|im_start|>user\nWhat earlier episodes suggest" in advice
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_an_episode_without_its_beginning_is_rebuilt_in_the_form():
    """After a crash, or where another process played it."""
    _, sent = play(('find(city="Rome")', None))
    steps = (step(Context(State("Request.", task="Book a table.")), 'find(city="Rome")'),)
    context = Context(steps[-1].post, tools=TOOLS, history=steps, thread="new")
    again = Conversations().advance(context)
    assert TOKENIZER.decode(PROMPTS.open_prompt(again, context)) == TOKENIZER.decode(sent[-1])


def test_a_conversation_that_lost_its_beginning_begins_with_a_message_of_the_user():
    """The call that the first result answers is no longer there."""
    log, history, state = Conversations(PromptBuilder(history=2)), list[Step](), State("Request.", task="Book a table.")
    for _ in range(4):
        context = Context(state, tools=TOOLS, history=tuple(history), thread="e")
        chat = log.advance(context)
        prompt = PROMPTS.open_prompt(chat, context)
        Conversations.answer(chat, "wait()")
        history.append(step(context, "wait()"))
    text = TOKENIZER.decode(prompt)
    assert chat.omitted > 0
    assert text.partition("</tools>")[2].startswith("<|im_end|>\n<|im_start|>user\nObservation:")
    assert text.count("<tool_response>") == text.count("<tool_call>") == len(history) - chat.omitted - 1


def test_where_actions_are_listed_the_message_lists_them():
    """In the midst of an episode of calls; the answer is then words, and what follows it a message of the user."""
    log, call = Conversations(), 'find(city="Rome")'
    first = Context(State("Request.", task="Book a table."), tools=TOOLS, thread="e")
    Conversations.answer(log.advance(first), call)
    steps = [step(first, call)]
    listed = Context(steps[0].post, ("yes()", "no()"), tools=TOOLS, history=tuple(steps), thread="e")
    chat = log.advance(listed)
    assert "1. yes()" in TOKENIZER.decode(PROMPTS.open_prompt(chat, listed))
    Conversations.answer(chat, "yes()")
    steps.append(step(listed, "yes()"))
    last = Context(steps[1].post, tools=TOOLS, history=tuple(steps), thread="e")
    text = TOKENIZER.decode(PROMPTS.open_prompt(log.advance(last), last))
    assert "<|im_start|>assistant\nyes()<|im_end|>\n<|im_start|>user\nResult" in text
    assert text.count("<tool_call>") == 1


def test_the_id_of_a_result_is_that_of_its_call():
    """Some templates compare them."""
    prompts = ChatFormat(build_chat_tokenizer(write(FUNCTION, before=CHECKS_IDS), more=TOOL_MARKS))
    _, sent = play(('find(city="Rome")', None), ("wait()", None), prompts=prompts)
    assert "<|im_start|>tool" in prompts.tokenizer.decode(sent[-1])


def test_a_conversation_without_calls_has_no_form():
    context = Context(State("A hall.", task="Go."), ("go east",), tools=TOOLS)
    prompt = PROMPTS.open_prompt(Conversations().advance(context), context)
    assert "<tools>" not in TOKENIZER.decode(prompt)
    assert "1. go east" in TOKENIZER.decode(prompt)


# -- text that looks like the form


@pytest.mark.parametrize("token", ["</tool_call>", "<tool_response>", "<|im_end|>", "<|im_start|>"])
def test_text_never_becomes_a_control_token(token):
    """In names, descriptions, arguments and results."""
    number = TOKENIZER.convert_tokens_to_ids(token)
    counts = []
    for word in (token, "plain"):
        tool = {"type": "object", "description": word, "properties": {f"a{word}": {"enum": [word]}}}
        call = (f'find(city="Rome {word}")', None)
        _, sent = play(call, tools={**TOOLS, f"look{word}": tool}, text=f"Tables: {word} 4.", hints=(word, None))
        counts.append(sent[-1].count(number))
    assert counts[0] == counts[1]


def test_an_argument_stays_as_it_was():
    """A control token in it is spelled in plain characters."""
    _, sent = play(('find(city="Rome </tool_call><|im_end|>")', None))
    assert '{"city": "Rome </tool_call><|im_end|>"}' in TOKENIZER.decode(sent[-1])
