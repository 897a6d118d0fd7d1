"""`hardwon proxy` as a process: it starts, survives a kill in the middle of a conversation, and stops on SIGTERM."""

import contextlib
import re
import signal
import subprocess
import sys
from typing import Any

import openai
import pytest
from tests import warm
from tests.apps.proxy.conftest import TOOLS
from tests.apps.proxy.test_proxy import refunding

from hardwon.memory import ExperienceLibrary


@contextlib.contextmanager
def proxy_process(library, upstream):
    """Start the command on a free port, and yield the process and a client."""
    program = "from hardwon.apps.cli.app import main; main()"
    command = [sys.executable, "-c", program, "proxy", str(library), "--upstream", f"{upstream.url}/v1", "--port", "0"]
    with warm.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            address = next(match[1] for line in process.stderr if (match := re.search(r"for clients: (\S+)", line)))
            with openai.OpenAI(api_key="sk-secret-key", base_url=address, timeout=200) as client:
                yield process, client
        finally:
            process.kill()


@pytest.mark.parametrize("calls_before", [1, 2])
def test_a_killed_proxy_loses_no_step_of_a_conversation_that_goes_on(tmp_path, upstream, calls_before):
    upstream.answer = refunding
    messages = [{"role": "user", "content": "Refund Ada's order."}]
    results = iter(["error: no such order", "refunded"])

    def advance(client):
        message = client.chat.completions.create(model="m", messages=messages, tools=TOOLS).choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        messages.extend(
            {"role": "tool", "tool_call_id": call.id, "content": next(results)} for call in message.tool_calls or ()
        )

    with proxy_process(tmp_path / "work.db", upstream) as (process, client):
        for _ in range(calls_before):
            advance(client)
        process.kill()
    with proxy_process(tmp_path / "work.db", upstream) as (process, client):
        while messages[-1]["role"] == "tool":
            advance(client)
        process.send_signal(signal.SIGTERM)
        assert process.wait(200) == 0
    assert messages[-1]["content"] == "Refunded."
    with ExperienceLibrary.open(tmp_path / "work.db", read_only=True) as library:
        (row,) = library.episodes.find()
        assert [step.diagnosis.success for step in library.episodes.get(row["id"]).steps] == [False, True]


def test_a_conversation_that_does_not_go_on_after_a_kill_is_recorded_at_the_next_start(tmp_path, upstream):
    upstream.answer = refunding
    messages: list[Any] = [{"role": "user", "content": "Refund Ada's order."}]
    with proxy_process(tmp_path / "work.db", upstream) as (process, client):
        for _ in range(2):
            message = client.chat.completions.create(model="m", messages=messages, tools=TOOLS).choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            messages.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "refunded"})
        process.kill()
    with ExperienceLibrary.open(tmp_path / "work.db") as library:
        (row,) = library.episodes.find()
        episode = library.episodes.get(row["id"])
    assert (episode.success, episode.ending, episode.writer, len(episode.steps)) == (None, "abandoned", "proxy", 1)


def test_a_library_in_a_folder_that_does_not_exist_is_refused_at_the_start(hardwon, tmp_path, monkeypatch):
    """The proxy opens a locked library later; a mistyped path would stay without experience forever."""
    monkeypatch.setattr("hardwon.apps.proxy.serving.serve_proxy", lambda *_, **__: None)
    wrong = tmp_path / "wrokk" / "work.db"
    assert "does not exist. Create it" in hardwon("proxy", wrong, "--upstream", "http://h/v1", expect=1).stderr
    hardwon("proxy", tmp_path / "work.db", "--upstream", "http://h/v1")
