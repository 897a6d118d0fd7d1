"""Every example runs, offline and in seconds, and says what it promises to say."""

import json
import re
import runpy
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from hardwon.apps.cli.app import app

EXAMPLES = Path(__file__).parents[1] / "examples"
TESTED = {
    "quickstart.py",
    "inspect_library.py",
    "chat_scripted.py",
    "middleware_agent.py",
    "support_agent.py",
    "demo.py",
    "langgraph_store.py",
    "coding_agent_mcp.py",
    "studio.py",
    "team.py",
}


WITHOUT_A_CHAT_MODEL = {"quickstart.py", "inspect_library.py", "demo.py"}


def run_script(name: str, folder: Path, *arguments: str) -> str:
    """What an example prints, run as a script in an empty folder."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[[str], str]:
    """Runs an example in this process, which has imported LangChain already; returns what it prints."""

    def run_here(name: str) -> str:
        monkeypatch.delenv("HARDWON_MODEL", raising=False)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [str(EXAMPLES / name)])
        monkeypatch.syspath_prepend(str(EXAMPLES))
        capsys.readouterr()
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run_here


def test_every_example_is_tested():
    """An example that nobody runs is soon one that does not run."""
    assert {path.name for path in EXAMPLES.glob("*.py")} == TESTED


class Provider(ThreadingHTTPServer):
    """An OpenAI-compatible server that has one answer; `asked` are the models that were asked for."""

    asked: list[str]

    class RequestHandlerClass(BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self.server.asked.append(asked["model"])  # type: ignore[attr-defined]
            message = {"role": "assistant", "content": 'finish(answer="80")'}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            told = {"id": "1", "object": "chat.completion", "created": 1, "model": "tiny", "choices": [choice]}
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(told).encode())

        def log_message(self, *told: object) -> None:
            pass


@pytest.fixture
def provider() -> Iterator[Provider]:
    server = Provider(("127.0.0.1", 0), Provider.RequestHandlerClass)
    server.asked = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("name", sorted(TESTED - WITHOUT_A_CHAT_MODEL))
def test_a_real_model_is_asked_where_the_environment_names_one(name, tmp_path, monkeypatch, provider):
    """Each runs with a real model by an environment variable: HARDWON_MODEL, and where it is."""
    pytest.importorskip("langchain_openai")
    where = {"OPENAI_BASE_URL": f"http://127.0.0.1:{provider.server_port}/v1", "OPENAI_API_KEY": "none"}
    for variable, value in {"HARDWON_MODEL": "openai:tiny", **where}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert set(provider.asked) == {"tiny"}


def test_quickstart_learns_and_its_library_can_be_inspected(run):
    """The agent wins more games after learning, and the library tells why it acts as it does."""
    told = run("quickstart.py")
    before, after = (int(number) for number in re.findall(r"^(?:before|after): +(\d+) of 20", told, re.MULTILINE))
    assert after > before
    explained = run("inspect_library.py")
    assert "strategy: " in explained
    assert "was expected, from" in explained


def test_inspecting_a_library_that_is_not_there_says_how_to_make_one(tmp_path):
    with pytest.raises(AssertionError, match=re.escape("run examples/quickstart.py to create one")):
        run_script("inspect_library.py", tmp_path, "nowhere.db")
    assert not (tmp_path / "nowhere.db").exists()


def test_chat_model_is_shown_what_the_first_episode_found_out(run):
    """Nothing before the first episode, the failed refund before the first step of the second."""
    first, _, second = run("chat_scripted.py").partition("Grace wants")
    assert "experience:" not in first
    failed = "experience: - in 1 of 2 similar situations, `refund(order={order})` failed"
    assert failed in second.partition('find_order(customer="Grace")')[0]
    assert second.count("was accepted") == 1


def test_an_agent_that_exists_stops_making_a_mistake(run):
    """Three requests share the words of the error; the fourth one reads them and does not fail."""
    first, _, second = run("middleware_agent.py").partition("Trains to Rome")
    assert first.count("error:") == 3
    assert "error:" not in second
    assert "success: trains to Rome" in second


def test_a_support_agent_stops_repeating_a_mistake_and_only_with_a_library(run):
    """The guardrail is made after the fourth failure."""
    told = run("support_agent.py")
    served = re.findall(
        r"^(\w+) +cash failed, voucher worked +cash (failed|not tried), voucher worked$", told, re.MULTILINE
    )
    assert [after for _, after in served] == ["failed"] * 4 + ["not tried"] * 4
    assert re.search(r"^failed +8 +4$", told, re.MULTILINE)
    assert 'Do not `choose_method(method="cash")`' in told
    assert "voucher" in told.partition("would have been told")[2]


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of `examples/demo.py`, whose first agent uses no model even if the environment names one."""
    monkeypatch.setenv("HARDWON_MODEL", "nobody:has-this")
    return runpy.run_path(str(EXAMPLES / "demo.py"))


def replace_hardwon(demo: dict[str, Any], monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    command = folder / "hardwon"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setitem(demo["main"].__globals__, "HARDWON", command)


def test_the_demo_shows_both_agents_and_says_what_to_do_next(demo, monkeypatch, tmp_path, capsys):
    """Also the second time. Each command that it names exists; the game itself is played by `make demo` alone."""
    arms = {"random": 0.0, "empty": 0.0, "task": 0.1, "step": 0.96}
    result = json.dumps({"arms": {arm: {"success_rate": rate} for arm, rate in arms.items()}})
    replace_hardwon(demo, monkeypatch, tmp_path, f"echo '{result}'")
    monkeypatch.setattr(sys, "argv", ["demo.py", str(tmp_path / "demo")])
    for _ in range(2):
        demo["main"]()
        told = capsys.readouterr().out
        assert "failed  8 " in told
        assert "with its library, asked before every action     48 of 50 games won" in told
        names = re.findall(r" hardwon ([\w ]+?) \S*demo", told.partition("WHAT NEXT")[2])
        assert len(names) == 3
        for name in names:
            assert CliRunner().invoke(app, [*name.split(), "--help"]).exit_code == 0
        assert (tmp_path / "demo" / "agent.png").stat().st_size > 10_000


def test_an_error_of_the_game_ends_the_demo(demo, monkeypatch, tmp_path):
    """Such as a folder of an older version: the command has said what to do."""
    replace_hardwon(demo, monkeypatch, tmp_path, "exit 2")
    with pytest.raises(SystemExit, match="2"):
        demo["learn_game"](tmp_path)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_ends_the_demo_after_its_command(demo, monkeypatch, tmp_path):
    """The command is interrupted as well, and needs a moment to stop its own processes."""
    replace_hardwon(demo, monkeypatch, tmp_path, f"sleep 0.4; touch {tmp_path / 'stopped'}")
    monkeypatch.setattr(subprocess.Popen, "communicate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        demo["learn_game"](tmp_path)
    assert (tmp_path / "stopped").exists()


def test_ctrl_c_while_the_demo_starts_is_no_traceback(monkeypatch, tmp_path):
    """Its imports take a second."""
    monkeypatch.setattr(sys, "argv", ["demo.py", str(tmp_path)])
    monkeypatch.delitem(sys.modules, "examples.support_agent", raising=False)
    monkeypatch.setattr(sys, "meta_path", [SimpleNamespace(find_spec=interrupt)])
    with pytest.raises(SystemExit, match="The same command continues"):
        runpy.run_path(str(EXAMPLES / "demo.py"), run_name="__main__")


def test_a_langgraph_app_remembers_each_user(run):
    """From visit to visit, and nobody else's."""
    told = run("langgraph_store.py")
    assert "ada: What do I drink?\n    You told me: I drink green tea." in told
    assert "grace: Where does my sister live?\n    You never told me." in told


def test_a_coding_agent_is_told_of_a_trap_over_mcp(run):
    """The second project's build fails no more."""
    first, _, second = run("coding_agent_mcp.py").partition("Let the warehouse")
    assert "test failed" in first
    assert "edit settings.template\n  build\n    -> all tests pass" in second
    assert "test failed: PORT" not in second.partition("edit")[2]


def test_the_graph_of_langgraph_studio_runs_and_learns(run, tmp_path):
    """As `langgraph.json` names it."""
    named = json.loads((EXAMPLES.parent / "langgraph.json").read_text(encoding="utf-8"))
    (where,) = named["graphs"].values()
    assert where == "./examples/studio.py:graph"
    assert run("studio.py").rstrip().endswith("A-1042 was refunded")
    assert (tmp_path / "runs" / "studio.db").exists()


def test_a_team_makes_fewer_calls_than_its_agents_alone(run):
    told = run("team.py")
    alone, sharing = (int(number) for number in re.findall(r"80 after .* s: (\d+) calls", told))
    assert sharing < alone
