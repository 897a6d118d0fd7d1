"""Turns that Claude Code reports to its hooks and writes into its transcript: both doors tell the same."""

import json
from itertools import count

import pytest
from tests.apps.coding_agents.test_hooks import Session

from hardwon.apps.importers import filing, reading
from hardwon.memory import ExperienceLibrary, Failure

FINISHED = "<task-notification>\n<task-id>b1</task-id>\n<status>completed</status>\n</task-notification>"
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
REJECTED = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was a file edit, "
    "the new_string was NOT written to the file)."
)


class Claude:
    """A session whose events reach the hooks and, as lines, the transcript; a subagent has a file of its own."""

    def __init__(self, session):
        self.session, self.numbers, self.last = session, count(1), {}

    def send(self, name, agent="", **fields):
        part = {"agent_id": agent, "agent_type": "general-purpose"} if agent else {}
        return self.session.send(name, **part, **fields)

    def path(self, agent=""):
        own = self.session.transcript
        return own.with_suffix("") / "subagents" / f"agent-{agent}.jsonl" if agent else own

    def write(self, role, content, agent="", **fields):
        uuid = f"{self.session.session}-{next(self.numbers)}"
        line = {
            "type": role, "uuid": uuid, "parentUuid": self.last.get(agent), "sessionId": self.session.session,
            "isSidechain": bool(agent), "message": {"role": role, "content": content}, **fields,
        }  # fmt: skip
        self.last[agent] = uuid
        path = self.path(agent)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps({**line, "agentId": agent} if agent else line) + "\n")

    def ask(self, prompt, content=None):
        self.send("UserPromptSubmit", prompt=prompt)
        self.write("user", content or prompt)

    def begin(self, tool, arguments, agent="", call_id=""):
        ref = call_id or f"toolu_01A2b3C4d5E6f7G8h9{next(self.numbers)}"
        self.write("assistant", [{"type": "tool_use", "id": ref, "name": tool, "input": arguments}], agent)
        self.send("PreToolUse", agent, tool_name=tool, tool_input=arguments, tool_use_id=ref)
        return {"tool_name": tool, "tool_input": arguments, "tool_use_id": ref}

    def end(self, call, text="ok", *, response=None, is_error=False, agent=""):
        if is_error:
            self.send("PostToolUseFailure", agent, **call, error=text)
        else:
            self.send("PostToolUse", agent, **call, tool_response=response or {"stdout": text, "stderr": ""})
        result = {"type": "tool_result", "tool_use_id": call["tool_use_id"], "content": text}
        self.write("user", [{**result, "is_error": True} if is_error else result], agent)

    def call(self, tool, arguments, text="ok", *, agent="", call_id="", **fields):
        self.end(self.begin(tool, arguments, agent, call_id), text, agent=agent, **fields)

    def stop(self, text="Done."):
        self.write("assistant", [{"type": "text", "text": text}])
        self.send("Stop")

    def read(self):
        """Return the episodes of the hooks, after an import that must add nothing, and those of an import alone."""
        files = [self.path(), *sorted(self.path("x").parent.glob("*.jsonl"))]
        alone = self.session.library.with_name("alone.db")
        for path in files:
            form, logged = reading.read(path)
            for place, number in ((self.session.library, 0), (alone, len(logged))):
                with ExperienceLibrary.open(place) as library:
                    assert filing.write(library, logged, source=form, trust="trusted") == number
        return [read_outcomes(place) for place in (self.session.library, alone)]


def read_outcomes(place):
    with ExperienceLibrary.open(place) as library:
        episodes = [library.episodes.get(row["id"]) for row in library.episodes.find()]
    return {
        episode.task: (episode.success, [(step.action, step.diagnosis.success) for step in episode.steps])
        for episode in episodes
    }


@pytest.fixture
def claude(tmp_path, monkeypatch):
    return Claude(Session(tmp_path, monkeypatch))


def test_the_calls_of_a_subagent_are_an_episode_of_its_own(claude):
    """Their failures say nothing about the turn; the request is in the subagent's transcript."""
    claude.ask("Fix the parser.")
    call = claude.begin("Agent", {"description": "Look", "prompt": "Find parse()."})
    claude.write("user", "Find parse().", "a1")
    claude.call("Read", {"file_path": "no.py"}, "File does not exist.", is_error=True, agent="a1")
    claude.write("assistant", [{"type": "text", "text": "In a.py."}], "a1")
    claude.send("SubagentStop", "a1", agent_transcript_path=str(claude.path("a1")))
    claude.end(call, "In a.py.", response={"status": "completed", "content": [{"type": "text", "text": "In a.py."}]})
    claude.stop()
    told, alone = claude.read()
    assert told == alone
    assert told["Fix the parser."] == (True, [('Agent(description="Look", prompt="Find parse().")', True)])
    assert told["Find parse()."] == (False, [('Read(file_path="no.py")', False)])


def test_a_subagent_whose_last_answer_was_cut_has_no_outcome(claude):
    claude.ask("Fix the parser.")
    claude.write("user", "Find parse().", "a1")
    claude.call("Bash", {"command": "make"}, agent="a1")
    claude.write("assistant", [{"type": "text", "text": "It is"}], "a1")
    line = json.loads(claude.path("a1").read_text().splitlines()[-1])
    line["message"]["stop_reason"] = "max_tokens"
    claude.path("a1").write_text("\n".join([*claude.path("a1").read_text().splitlines()[:-1], json.dumps(line)]))
    claude.send("SubagentStop", "a1")
    assert read_outcomes(claude.session.library) == {"Find parse().": (None, [('Bash(command="make")', True)])}


def test_the_end_of_a_subagent_that_has_no_name_ends_no_turn(claude):
    claude.ask("Fix it.")
    claude.call("Bash", {"command": "make"})
    claude.send("SubagentStop")
    claude.call("Bash", {"command": "make test"})
    claude.stop()
    assert [len(steps) for _, steps in read_outcomes(claude.session.library).values()] == [2]


def test_what_the_agent_reports_to_itself_begins_no_turn(claude):
    claude.ask("Build it.")
    claude.call("Bash", {"command": "make"})
    claude.stop("It builds.")
    claude.ask(FINISHED)
    claude.call("Read", {"file_path": "out"})
    claude.stop()
    told, alone = claude.read()
    assert told == alone == {"Build it.": (True, [('Bash(command="make")', True), ('Read(file_path="out")', True)])}


@pytest.mark.parametrize(
    ("tool", "text", "response"),
    [
        ("Write", "File created.", {"type": "create", "filePath": "e.md", "content": "Error: no such user"}),
        ("Grep", "Error: no such user", {"mode": "content", "filenames": [], "content": "Error: no such user"}),
        ("WebFetch", "Error: no such user", {"code": 200, "result": "Error: no such user", "url": "https://e.example"}),
        ("Bash", "Switched.", {"stdout": "", "stderr": "error: 0 left\nSwitched.", "interrupted": False}),
        ("Read", "Traceback (most recent call last):", {"type": "text", "file": {"content": "Traceback"}}),
    ],
)
def test_the_text_of_a_file_or_a_page_is_no_failure_of_the_tool_that_reads_it(claude, tool, text, response):
    """Claude Code marks the failures of its own tools, in its events as in its transcript."""
    claude.ask("Look at it.")
    claude.call(tool, {"path": "x"}, text, response=response)
    claude.stop()
    told, alone = claude.read()
    assert told == alone == {"Look at it.": (True, [(f'{tool}(path="x")', True)])}


@pytest.mark.parametrize("response", [[{"type": "text", "text": "Error: no"}], {"content": "Error: no"}])
def test_the_text_of_a_server_decides_whether_its_tool_failed(claude, response):
    """A server may say an error as a text without a mark."""
    claude.ask("Look at it.")
    claude.call("mcp__desk__get", {"id": 5}, "Error: no such ticket", response=response)
    claude.stop("It is gone.")
    told, alone = claude.read()
    assert told == alone == {"Look at it.": (False, [("mcp__desk__get(id=5)", False)])}


def test_parallel_calls_count_in_the_order_in_which_they_were_made(claude):
    claude.ask("Check it.")
    calls = [claude.begin("Bash", {"command": command}) for command in ("make a", "make b")]
    claude.end(calls[1])
    claude.end(calls[0], "Exit code 2", is_error=True)
    claude.stop()
    told, alone = claude.read()
    assert told == alone
    assert told["Check it."] == (True, [('Bash(command="make a")', False), ('Bash(command="make b")', True)])


@pytest.mark.parametrize("call_id", ["", "Bash_0"])
def test_a_request_with_a_picture_is_one_request_in_both_doors(claude, call_id):
    claude.ask("Fix this [Image #1]", [{"type": "text", "text": "Fix this [Image #1]"}, IMAGE])
    claude.call("Bash", {"command": "make"}, call_id=call_id)
    claude.stop()
    told, alone = claude.read()
    assert told == alone == {"Fix this [Image #1]": (True, [('Bash(command="make")', True)])}


@pytest.mark.parametrize("door", ["hooks", "import"])
def test_a_call_that_the_person_rejected_is_no_failure_of_its_tool(claude, door):
    """No hook reports it, so it is read from the transcript."""
    claude.ask("Release it.")
    call = claude.begin("Bash", {"command": "git push"})
    result = {"type": "tool_result", "tool_use_id": call["tool_use_id"], "content": REJECTED, "is_error": True}
    claude.write("user", [result])
    claude.call("Bash", {"command": "gh pr create"})
    claude.stop()
    claude.read()
    place = claude.session.library.with_name("work.db" if door == "hooks" else "alone.db")
    with ExperienceLibrary.open(place) as library:
        (row,) = library.episodes.find()
        steps = library.episodes.get(row["id"]).steps
    assert [step.diagnosis.failure for step in steps] == [Failure.REJECTED, Failure.NONE]


@pytest.mark.parametrize("way", ["text", "flag"])
def test_a_call_that_was_stopped_is_no_step(claude, way):
    claude.ask("Wait for it.")
    claude.call("Bash", {"command": "make"})
    call = claude.begin("Bash", {"command": "sleep 100"})
    if way == "flag":
        response = {"stdout": "", "stderr": "", "interrupted": True}
        claude.send("PostToolUse", **call, tool_response=response)
    stopped = "[Request interrupted by user for tool use]"
    result = {"type": "tool_result", "tool_use_id": call["tool_use_id"], "content": stopped, "is_error": True}
    claude.write("user", [result])
    claude.write("user", [{"type": "text", "text": stopped}])
    claude.ask("Next.")
    told, alone = claude.read()
    assert told == alone == {"Wait for it.": (None, [('Bash(command="make")', True)])}
