"""The standby: a process that has imported the library, and answers the hooks of one library over a socket.

Importing the library takes half a second, and an answer a hundredth of one. The standby opens the library for every
answer, so it knows what was just written and keeps no file busy. It ends when nobody asked for `IDLE_S`, and when its
socket is removed or belongs to another standby. Hooks that get no answer import the library themselves.
"""

import json
import os
import socket
import sys
import time
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import Any

from .events import HookEvent

IDLE_S = 600.0
"""Seconds without a question after which a standby ends."""
POLL_S = 5.0
"""Seconds between two looks at its socket."""
PATIENCE_S = 2.0
"""Seconds for which a hook waits for an answer, and a standby for a question."""


def find_socket(folder: Path) -> Path:
    """Return the socket in a folder of journals. Another version of this package has another one."""
    stat = Path(__file__).stat()
    return folder / f"{stat.st_mtime_ns ^ stat.st_ino:x}.sock"


def ask(folder: Path, options: Namespace, event: HookEvent) -> Any:
    """Return the answer of the standby to an event; raise OSError or ValueError if none answers in time."""
    question = {"options": vars(options), "event": event, "folder": str(Path.cwd())}
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(PATIENCE_S)
        line.connect(str(find_socket(folder)))
        line.sendall(json.dumps(question).encode())
        line.shutdown(socket.SHUT_WR)
        return json.loads(_read(line))


def start(folder: Path) -> None:
    """Start a standby, unless one listens, or the path is too long for a socket."""
    # Bytes of a socket's path that every system allows, without the id of a process.
    if len(os.fsencode(find_socket(folder))) > 96:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX) as line:
        line.connect(str(find_socket(folder)))
        return
    import subprocess

    null = subprocess.DEVNULL
    command = [sys.executable, "-m", "hardwon.apps.coding_agents.standby", str(folder)]
    subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True)


def serve(folder: Path) -> None:
    """Answer hooks until nobody needs it any more."""
    path = find_socket(folder)
    own = path.with_suffix(f".{os.getpid()}")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(own))
        listener.listen()
        own.replace(path)  # hooks that ask now wait for the import, which would take them as long
        inode = path.stat().st_ino
        from .experience import advise

        listener.settimeout(POLL_S)
        asked_at = time.monotonic()
        while time.monotonic() < asked_at + IDLE_S and _is_own(path, inode):
            with suppress(OSError):  # also when nobody asks in time
                line, _ = listener.accept()
                asked_at = time.monotonic()
                with line:
                    line.settimeout(PATIENCE_S)
                    if question := _read(line):
                        line.sendall(_answer(advise, question))
        if _is_own(path, inode):
            path.unlink()


def _answer(advise: Any, question: bytes) -> bytes:
    """Return the answer to a question; empty if it fails, so that the hook finds out why."""
    try:
        given = json.loads(question)
        os.chdir(given["folder"])  # the library may be named by a relative path
        return json.dumps(advise(Namespace(**given["options"]), HookEvent(*given["event"]))).encode()
    except Exception:
        return b""


def _is_own(path: Path, inode: int) -> bool:
    """Return whether a socket is still that of this process."""
    try:
        return path.stat().st_ino == inode
    except OSError:
        return False


def _read(line: socket.socket) -> bytes:
    """Return everything that the other side sends."""
    parts = []
    while part := line.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
