"""Warm child processes do what those of `subprocess` do, and import nothing again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests import warm

PYTHON = sys.executable
linux = pytest.mark.skipif(sys.platform != "linux", reason="forks need Linux")


def both(command, **options):
    """Run a command cold and warm; return what each left."""
    options = {"capture_output": True, "text": True, **options}
    runs = (subprocess.run([PYTHON, *command], check=False, **options), warm.run([PYTHON, *command], **options))
    return [(done.returncode, done.stdout, done.stderr) for done in runs]


@linux
def test_what_the_tests_imported_is_there():
    code = "import sys; print('hardwon.memory' in sys.modules, 'pytest' in sys.modules)"
    assert warm.run([PYTHON, "-c", code], capture_output=True, text=True).stdout == "True True\n"


@pytest.mark.parametrize(
    "code",
    [
        "import sys; print(sys.argv[1:], sys.stdin.read()); print('to err', file=sys.stderr)",
        "import os; print(os.getcwd(), os.environ['HARDWON_WARM'], 'HOME' in os.environ)",
        "raise SystemExit",
        "raise SystemExit(7)",
        "raise SystemExit('no')",
        "import os; os._exit(9)",
        "import atexit; atexit.register(print, 'bye'); print(__name__)",
        "import threading, time; threading.Thread(target=lambda: (time.sleep(.05), print('late'))).start()",
        "import warnings; warnings.warn('old', DeprecationWarning); warnings.warn('hidden', ResourceWarning)",
        "import signal, os; os.kill(os.getpid(), signal.SIGKILL)",
    ],
)
def test_a_child_ends_and_writes_as_a_cold_one(code, tmp_path):
    cold, hot = both(["-c", code, "a", "b"], input="words", cwd=tmp_path, env={"HARDWON_WARM": "1"})
    assert cold == hot


def test_an_exception_is_printed():
    code, out, err = both(["-c", "1 / 0"])[1]
    assert (code, out, err.splitlines()[-1]) == (1, "", "ZeroDivisionError: division by zero")


def test_modules_and_files_are_run_as_main(tmp_path):
    (tmp_path / "beside.py").write_text("name = 'beside'")
    (tmp_path / "script.py").write_text("import sys, beside; print(__name__, beside.name, sys.argv[1:])")
    for command in (["-m", "script", "a"], [str(tmp_path / "script.py"), "a"]):
        cold, hot = both(command, cwd=tmp_path)
        assert hot == cold == (0, "__main__ beside ['a']\n", "")


def test_two_children_differ_by_chance():
    code = "import random; print(random.random())"
    assert both(["-c", code])[1][1] != both(["-c", code])[1][1]


def test_a_child_is_killed_and_waited_for():
    code = "import time; print(1, flush=True); time.sleep(60)"
    with warm.Popen([PYTHON, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"1\n"
        assert child.poll() is None
        child.kill()
        assert child.wait(10) == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


@linux
def test_orphans_of_a_child_are_not_the_tests_children():
    """A server that a killed child left is collected by the system, as if a cold child had left it."""
    code = (
        "import subprocess, sys; print(subprocess.Popen(['sleep', '1.5'], stdout=subprocess.DEVNULL).pid, flush=True)"
    )
    # It ends after the test process has stopped adopting, which it does only while the child is made.
    code += "; import os, time; time.sleep(1); os._exit(0)"
    orphan = int(warm.run([PYTHON, "-c", code], capture_output=True).stdout)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            state, parent = Path(f"/proc/{orphan}/stat").read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state == "Z" and int(parent) != os.getpid():
            return  # the first process of a busy system collects it late
        time.sleep(0.05)
    pytest.fail("the orphan is still there")


def test_what_fails_is_raised(tmp_path):
    with pytest.raises(subprocess.CalledProcessError):
        warm.run([PYTHON, "-c", "raise SystemExit(3)"], check=True)
    with pytest.raises(subprocess.TimeoutExpired):
        warm.run([PYTHON, "-c", "import time; time.sleep(60)"], timeout=0.2)
