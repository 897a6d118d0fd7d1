"""Lessons by a chat model from the command line, against a scripted server of the OpenAI API."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from hardwon.memory import ExperienceLibrary

LESSON = {
    "op": "add", "kind": "remedy", "if": "A refund of the last order fails", "then": "Look up the number of the order",
    "reason": "The tool knows no order of that name", "when_to_use": "When a refund reports no such order",
    "when_not_to_use": "When the number is given", "generality": 4, "evidence": [0, 1], "steps": ["refund(order={1})"],
    "repairs": "tool_error",
}  # fmt: skip


class ModelServer(ThreadingHTTPServer):
    """Answers each request with one lesson, or with `status` if that is an error."""

    daemon_threads = True
    status, requests = 200, 0

    class RequestHandlerClass(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            server: Any = self.server
            server.requests += 1
            message = {"role": "assistant", "content": json.dumps({"operations": [LESSON]})}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "tiny", "choices": [choice]}
            error = {"error": {"message": "The model `tiny` does not exist."}}
            body = json.dumps(answer if server.status == 200 else error).encode()
            self.send_response(server.status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass


@pytest.fixture
def server(monkeypatch):
    pytest.importorskip("langchain_openai")
    server = ModelServer(("127.0.0.1", 0), ModelServer.RequestHandlerClass)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def log(tmp_path):
    """Two graded conversations."""

    def call(number, order, result):
        function = {"name": "refund", "arguments": json.dumps({"order": order})}
        asked = {"role": "assistant", "tool_calls": [{"id": number, "type": "function", "function": function}]}
        return [asked, {"role": "tool", "tool_call_id": number, "content": result}]

    lines = []
    for name in ("Ada", "Bob"):
        request = {"role": "user", "content": f"Refund the order of {name}."}
        calls = [*call("1", "last", "error: no such order"), *call("2", "A-1", "refunded")]
        lines.append(json.dumps({"messages": [request, *calls], "reward": 1.0}))
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def import_log(run, library, log, **options):
    return run("memory", "import", library, log, "--trust", "trusted", "--extractor", "openai:tiny", **options)


def test_import_lets_the_model_read_each_episode_once(server, hardwon, hardwon_json, log, tmp_path):
    library = tmp_path / "work.db"
    counted = import_log(hardwon_json, library, log)
    assert (counted["new"], counted["lessons"], server.requests) == (2, 2, 2)
    with ExperienceLibrary.open(library) as opened:
        (item,) = opened.items.find(status="quarantined")
    assert (item.kind, item.source, item.writer) == ("remedy", "model", "chat:openai:tiny/1")
    hardwon("memory", "evolve", library, "--extractor", "openai:tiny")
    assert server.requests == 2, "an episode that was read is not paid for again"


def test_episodes_that_the_model_could_not_read_are_read_later(server, hardwon, hardwon_json, log, tmp_path):
    library = tmp_path / "work.db"
    server.status = 404
    result = import_log(hardwon, library, log)
    assert "2 new episodes of 2" in result.stdout
    assert "0 lessons" in result.stdout
    assert "The model `tiny` does not exist. Check the model, its address and its API key." in result.stderr
    assert f"hardwon memory evolve {library} --extractor MODEL" in result.stderr
    server.status, server.requests = 200, 0
    admissions = hardwon_json("memory", "evolve", library, "--extractor", "openai:tiny")["admissions"]
    assert [admission["status"] for admission in admissions] == ["added", "merged"]
    assert server.requests == 2


def test_an_empty_name_and_an_export_are_refused(hardwon, own, log, tmp_path, monkeypatch):
    wrong = hardwon("memory", "import", tmp_path / "work.db", log, "--extractor", "", expect=2)
    assert "the name of the model is empty" in wrong.stderr
    hardwon("memory", "export", own, tmp_path / "all.jsonl")
    command = ("memory", "import", tmp_path / "copy.db", tmp_path / "all.jsonl", "--extractor", "openai:tiny")
    pytest.importorskip("langchain_openai")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    wrong = hardwon(*command, expect=2)
    assert "is an export of hardwon" in wrong.stderr
    assert not (tmp_path / "copy.db").exists()
