"""Child processes that start warm: forks of a process that has imported what the tests import.

A new interpreter spends seven CPU seconds to import torch and transformers, so tests of kills and restarts would mostly
measure imports. `Popen` and `run` replace those of `subprocess` for commands of this interpreter (`-c CODE`,
`-m MODULE` or a file). Such a child is a child process like any other, with its own id, files, environment and
folder. What it cannot have is another `PYTHONHASHSEED` or a clean `sys.modules`: tests of imports start a real
interpreter. Where the forks are not possible (another system than Linux) or not started, `subprocess` is used.
"""

import atexit
import ctypes
import faulthandler
import gc
import inspect
import json
import logging
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PATHS = [path for path in sys.path if path != str(ROOT)]
"""Folders in which a child looks for modules: those of a new interpreter, without the folder of the project."""
SUBREAPER = 36
"""`PR_SET_CHILD_SUBREAPER` of Linux: a grandchild whose parent has ended becomes a child of this process."""
MOST_BYTES = 1 << 20
"""The size of a request: the command, the folder and the environment."""

_forks: "socket.socket | None" = None


def begin() -> None:
    """Start the process that forks, before any test has run. What is imported now is what children need not import."""
    global _forks
    if sys.platform != "linux" or _forks is not None:
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside xdist's thread, which waits for input
        if not os.fork():
            _serve(theirs)
    theirs.close()
    _forks = ours
    atexit.register(ours.close)


def run(
    command: Sequence[str],
    *,
    input: str | bytes | None = None,
    timeout: float | None = None,
    check: bool = False,
    capture_output: bool = False,
    **options: Any,
) -> "subprocess.CompletedProcess[Any]":
    """Run a command as `subprocess.run` does, in a warm process."""
    if capture_output:
        options["stdout"] = options["stderr"] = subprocess.PIPE
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Popen(command, **options) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


class Popen(subprocess.Popen[Any]):
    """A process as `subprocess.Popen` starts it, but warm."""

    def _execute_child(self, *args: Any) -> None:
        given = inspect.signature(super()._execute_child).bind(*args).arguments  # type: ignore[misc]
        command = [os.fspath(part) for part in given["args"]]
        if _forks is None or command[0] != sys.executable:
            super()._execute_child(*args)  # type: ignore[misc]
            return
        request = {
            "command": command[1:],
            "cwd": os.fspath(given["cwd"] or Path.cwd()),
            "env": dict(os.environ if given["env"] is None else given["env"]),
            "session": given["start_new_session"],
        }
        wanted = given["p2cread"], given["c2pwrite"], given["errwrite"]
        files = [number if fd == -1 else fd for number, fd in enumerate(wanted)]
        # Only meanwhile: other orphans, such as a killed child's Java, are for the system to collect.
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(_forks, [json.dumps(request).encode()], files)
            self.pid = int(_forks.recv(64))
        finally:
            ctypes.CDLL(None).prctl(SUBREAPER, 0, 0, 0, 0)
        self._child_created = True
        names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in names))  # type: ignore[attr-defined]


def _serve(requests: socket.socket) -> None:
    """Fork a process for every request until the tests end; never return."""
    code = 1
    try:
        _forget_tests(requests.fileno())
        while True:
            data, files, *_ = socket.recv_fds(requests, MOST_BYTES, 3)
            if not data:
                code = 0
                break
            ours, theirs = os.pipe()
            if not (between := os.fork()):
                # The process between ends at once, so that the tests' process becomes the parent.
                if pid := os.fork():
                    os.write(theirs, str(pid).encode())
                    os._exit(0)
                _become(json.loads(data), files)
            os.waitpid(between, 0)
            requests.send(os.read(ours, 64))
            for fd in (ours, theirs, *files):
                os.close(fd)
    finally:
        os._exit(code)


def _forget_tests(kept: int) -> None:
    """Undo what pytest did to this process, and close its files but one."""
    faulthandler.disable()
    atexit._clear()
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
    _reset_warnings()
    gc.freeze()


def _reset_warnings() -> None:
    """Print warnings as a new interpreter does."""
    warnings.resetwarnings()
    for category in (ResourceWarning, ImportWarning, PendingDeprecationWarning, DeprecationWarning):
        warnings.simplefilter("ignore", category)
    warnings.filterwarnings("default", category=DeprecationWarning, module="__main__")
    warnings._showwarnmsg_impl = lambda found: sys.stderr.write(warnings._formatwarnmsg(found))  # type: ignore[attr-defined]


def _become(request: Mapping[str, Any], files: Sequence[int]) -> None:
    """Run a command in this process and end it as an interpreter would."""
    code = 1
    try:
        if request["session"]:
            os.setsid()
        for number, fd in enumerate(files):
            os.dup2(fd, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
        sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
        sys.stderr = sys.__stderr__ = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # type: ignore[misc]  # noqa: SIM115
        code = _exit_code(request["command"])
    finally:
        os._exit(code)


def _exit_code(command: Sequence[str]) -> int:
    """Run what a command line says and return its exit code."""
    code = 0
    try:
        _run_command(*command)
    except SystemExit as ended:
        code = _read_code(ended.code)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    return code


def _read_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _run_command(kind: str, *rest: str) -> None:
    if kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        _find_modules("")
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    elif kind == "-m":
        sys.argv = ["-m", *rest[1:]]
        _find_modules(str(Path.cwd()))
        for name in (rest[0], f"{rest[0]}.__main__"):  # runpy warns of a main module that was imported
            if not hasattr(sys.modules.get(name), "__path__"):
                sys.modules.pop(name, None)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [kind, *rest]
        _find_modules(str(Path(kind).resolve().parent))
        runpy.run_path(kind, run_name="__main__")


def _find_modules(folder: str) -> None:
    """Search modules where a new interpreter would."""
    named = os.environ.get("PYTHONPATH", "")
    sys.path[:] = [folder, *filter(None, named.split(os.pathsep)), *PATHS]
