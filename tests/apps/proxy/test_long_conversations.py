"""A request repeats its whole conversation, and only what is new in it costs work."""

import json
from functools import partial
from typing import Any

import pytest

from hardwon.apps.proxy import chat, conversations, responses
from hardwon.apps.proxy.conversations import ConversationLog, ProxySettings
from hardwon.apps.proxy.library_access import LibraryAccess
from hardwon.memory import ExperienceLibrary
from hardwon.memory.open_runs.lines import read_steps
from hardwon.runtime.environments import calls
from hardwon.runtime.environments.calls import Call, build_state
from hardwon.runtime.integrations import tool_run
from hardwon.runtime.integrations.tool_episode import ToolEpisode


@pytest.fixture
def log(tmp_path):
    access = LibraryAccess(lambda: ExperienceLibrary.open(tmp_path / "work.db"))
    opened = ConversationLog(access, ProxySettings(trust="trusted"))
    yield opened
    opened.close()
    access.close()


def chat_pair(n):
    function = {"name": "write", "arguments": json.dumps({"file": f"{n}.txt"})}
    call = {"id": f"c{n}", "type": "function", "function": function}
    yield {"role": "assistant", "content": None, "tool_calls": [call]}
    yield {"role": "tool", "tool_call_id": f"c{n}", "content": f"error: no {n}" if n % 3 else "written"}


def response_pair(n):
    arguments = json.dumps({"file": f"{n}.txt"})
    yield {"type": "function_call", "call_id": f"c{n}", "name": "write", "arguments": arguments}
    yield {"type": "function_call_output", "call_id": f"c{n}", "output": f"error: no {n}" if n % 3 else "written"}


DIALECTS: dict[str, Any] = {
    "chat": (chat, lambda: chat.ChatCompletions(), "messages", chat_pair),
    "responses": (responses, responses.Responses, "input", response_pair),
}


class Talk:
    """Sends requests with a number of calls before them, and counts the messages read and the steps added."""

    def __init__(self, log, dialect, name, pair):
        self.log, self.dialect, self.name, self.pair = log, dialect, name, pair
        self.read: list[Any] = []
        self.added: list[Any] = []

    def __call__(self, count, *others):
        numbers = (*range(count), *others)
        items = [{"role": "user", "content": "Write."}, *(item for n in numbers for item in self.pair(n))]
        return self.log.begin_turn(self.dialect.read_request(json.loads(json.dumps({"model": "m", self.name: items}))))

    def answer(self, turn, count):
        call = json.loads(json.dumps(next(self.pair(count))))
        self.log.note_response(turn, self.dialect.read_request({self.name: [call]}).messages, False, ())

    def finish(self, turn):
        response = self.dialect.read_request({self.name: [{"role": "assistant", "content": "Done."}]}).messages
        self.log.note_response(turn, response, True, ())
        self.log.end_run(turn, response, "stop")
        return turn.conversation.episode

    def clear(self):
        self.read.clear()
        self.added.clear()


@pytest.fixture(params=DIALECTS)
def talk(request, log, monkeypatch):
    module, make, name, pair = DIALECTS[request.param]
    plain, add_answer = module.plain_messages, ToolEpisode.add_answer
    sent = Talk(log, None, name, pair)

    def read(message):
        sent.read.append(message)
        return plain(message)

    def add(episode, *args, **options):
        sent.added.append(episode)
        return add_answer(episode, *args, **options)

    monkeypatch.setattr(module, "plain_messages", read)
    monkeypatch.setattr(ToolEpisode, "add_answer", add)
    sent.dialect = make()
    return sent


def test_the_next_request_costs_what_is_new_in_it(talk):
    turn = talk(20)
    talk.answer(turn, 20)
    talk.clear()
    follows = talk(21)
    assert follows.conversation is turn.conversation
    assert (len(talk.read), len(talk.added)) == (2, 1)
    assert len(follows.conversation.run.episode.steps) == 21


def test_the_next_request_is_digested_and_paired_from_where_the_last_one_ended(talk, monkeypatch):
    work: list[Any] = []

    def count(value, function):
        work.append(value)
        return function(value)

    for module, name in ((conversations, "refer_to_call"), (tool_run, "iter_answers")):
        monkeypatch.setattr(module, name, partial(count, function=getattr(module, name)))
    talk.answer(talk(20), 20)
    work.clear()
    talk(21)
    messages = [value for value in work if isinstance(value, list)]
    assert (max(map(len, messages)), len(work) - len(messages)) == (2, 3)


def test_a_second_branch_is_not_computed_again(talk):
    """Such as another sample of the same conversation, which is a run of its own as soon as it has calls of its own."""
    turn = talk(20)
    talk.answer(turn, 20)
    talk.clear()
    again = talk(20)
    assert (talk.read, talk.added) == ([], [])
    talk.answer(again, 30)
    first, second = talk(21), talk(20, 30)
    assert first.conversation is not second.conversation
    assert len(talk.added) == 2
    runs = [which.conversation.run for which in (first, second)]
    assert runs[0].episode.steps[:20] == runs[1].episode.steps[:20]
    assert [run.episode.steps[20].action for run in runs] == ['write(file="20.txt")', 'write(file="30.txt")']


def list_steps(log):
    """Return the number of steps of each episode, when all that is open is recorded."""
    log.close()
    library = log._access.get()
    return sorted(len(library.episodes.get(row["id"]).steps) for row in library.episodes.find())


def test_a_request_that_comes_again_after_its_final_answer_is_the_same_run(talk, log):
    """The answer was lost on its way, and the client sends the request again."""
    episodes = [talk.finish(talk(3)) for _ in range(3)]
    assert len(set(episodes)) == 1
    assert list_steps(log) == [3]


def test_the_answer_to_a_repeated_request_may_go_on(talk, log):
    talk.finish(talk(3))
    talk.answer(talk(3), 3)
    talk.finish(talk(4))
    assert list_steps(log) == [4]


@pytest.mark.parametrize("is_over", [True, False])
def test_a_request_that_comes_again_after_a_lost_call_is_the_same_run(talk, log, is_over):
    talk.answer(talk(2), 2)
    talk.answer(talk(2), 7)
    turn = talk(2, 7)
    if is_over:
        talk.finish(turn)
    else:
        log.cancel_turn(turn)
    assert list_steps(log) == [3]


def test_the_same_conversation_from_its_beginning_is_another_run(talk, log):
    """Also of a server that numbers the calls of each conversation from 0."""
    for _ in range(2):
        talk.answer(talk(0), 0)
        talk.answer(talk(1), 1)
        talk.finish(talk(2))
    assert list_steps(log) == [2, 2]


def test_the_steps_of_a_repeated_request_are_on_the_disk_with_the_first_new_one(talk, tmp_path):
    talk.answer(talk(3), 3)
    again = talk(3)
    talk.answer(again, 3)
    assert talk(4).conversation is again.conversation
    files = (tmp_path / "work.db.runs").glob("*.jsonl")
    (file,) = [path for path in files if again.conversation.episode in path.read_text()]
    written = list(read_steps(file.read_text().splitlines()[1:]))
    assert [step.action for step in written] == [step.action for step in again.conversation.run.episode.steps]
    assert len(written) == 4


def test_a_first_request_that_got_no_answer_is_the_same_run_when_it_comes_again(talk, log):
    """Its answers are recorded already, and recalling for it took too long."""
    turn = talk(20)
    log.cancel_turn(turn)
    assert talk(20).conversation is turn.conversation
    log.cancel_turn(turn)
    assert talk(21).conversation is turn.conversation
    assert len(talk.added) == 21


@pytest.mark.parametrize("different", [True, False])
def test_a_state_formats_the_calls_on_display_alone(monkeypatch, different):
    formatted = []

    def format_call(name, arguments):
        formatted.append(name)
        return f"{name}({arguments})"

    monkeypatch.setattr(calls, "call_text", format_call)
    build_state("Write.", [Call("write", {"file": n if different else 0}, "ok") for n in range(200)], "ok")
    assert len(formatted) <= 9


CHANGES: dict[str, Any] = {
    "the time in the system": lambda n, messages: [{"role": "system", "content": f"It is 10:0{n}."}, *messages],
    "a developer's reminder": lambda n, messages: [
        *messages[:-1],
        {"role": "developer", "content": f"{n}"},
        messages[-1],
    ],
    "results that were cleared": lambda n, messages: [
        {**message, "content": "[cleared]"} if message["role"] == "tool" and message is not messages[-1] else message
        for message in messages
    ],
    "words that were cut": lambda n, messages: [{**m, "content": f"{n}"} if "tool_calls" in m else m for m in messages],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_conversation_whose_beginning_a_client_changes_is_one_run(log, change):
    def chat_of(count):
        messages: list[Any] = [{"role": "user", "content": "Write."}]
        for n in range(count):
            call, answer = chat_pair(n)
            ref = f"call_Ab3kQ9z81LmPx7Y{n}"
            messages += [
                {**call, "tool_calls": [{**call["tool_calls"][0], "id": ref}]},
                {**answer, "tool_call_id": ref},
            ]
        return messages

    def read(messages):
        return chat.ChatCompletions().read_request({"model": "m", "messages": json.loads(json.dumps(messages))})

    for count in range(4):
        turn = log.begin_turn(read(change(count, chat_of(count))))
        is_last = count == 3
        response = read([{"role": "assistant", "content": "Done."}] if is_last else chat_of(count + 1)[-2:-1]).messages
        log.note_response(turn, response, is_last, ())
    log.end_run(turn, response, "stop")
    assert list_steps(log) == [3]


def test_two_agents_that_ask_in_the_words_of_the_system_alone_have_two_runs(log):
    def begin(words):
        return log.begin_turn(chat.ChatCompletions().read_request({"messages": [{"role": "system", "content": words}]}))

    turn = begin("Write a file.")
    log.cancel_turn(turn)
    assert begin("Read a file.").conversation is not turn.conversation
    assert begin("Write a file.").conversation is turn.conversation
