"""A private PostgreSQL server on a Unix socket in a temporary folder, run by an unprivileged user.

It never touches a server that is already there: it has its own folder, listens on no network and is ended with the
test.
"""

import atexit
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

OWNER = "hardwon"


def find_binaries() -> Path | None:
    """Return the folder with the programs of the newest PostgreSQL of this machine, or None."""
    if (found := shutil.which("postgres")) is not None and shutil.which("initdb") is not None:
        return Path(found).resolve().parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return folders[-1].parent if folders else None


def find_user() -> str | None:
    """Return the account that runs the server: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in names)


@cache
def _make_cluster(binaries: Path) -> Path:
    """Return the folder of an empty cluster, made once in a process."""
    folder, user = Path(tempfile.mkdtemp(prefix="hardwon-pg-", dir="/tmp")), find_user()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if user is not None:
        shutil.chown(folder, user)
    options = ("-U", OWNER, "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
    subprocess.run(
        [str(binaries / "initdb"), "-D", str(folder / "data"), *options], user=user, cwd=folder, check=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=120,
    )  # fmt: skip
    return folder / "data"


class PrivateServer:
    """One server and its folder."""

    options: tuple[str, ...] = ("-c", "fsync=off", "-c", "autovacuum=off")
    """Settings of the server. The tests end processes, never the machine, so what was written to files stays.

    Autovacuum would visit each of some hundred databases every minute, as long as the tests last.
    """

    def __init__(self, binaries: Path, folder: Path | None = None) -> None:
        self.binaries, self.user = binaries, find_user()
        # Not below the folder of a test: the path of a socket has at most 107 bytes.
        self.folder = folder or Path(tempfile.mkdtemp(prefix="hardwon-pg-", dir="/tmp"))
        self.data = self.folder / "data"
        if self.user is not None:
            shutil.chown(self.folder, self.user)
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self.binaries / program), *arguments], user=self.user, cwd=self.folder, check=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=120,
        )  # fmt: skip

    def create(self) -> None:
        """Put an empty cluster into the folder: a copy, because `initdb` takes a second each time."""
        copy = ("cp", "-a", str(_make_cluster(self.binaries)), str(self.data))
        subprocess.run(copy, user=self.user, cwd=self.folder, check=True, timeout=120)

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        self._launch()
        until = time.monotonic() + 60
        ready = [str(self.binaries / "pg_isready"), "-q", "-h", str(self.folder)]
        while subprocess.run(ready, check=False).returncode:
            has_ended = self._process is not None and self._process.poll() is not None
            words = (self.folder / "log").read_text(errors="replace")[-2000:] if has_ended else ""
            if time.monotonic() > until or (has_ended and "still in use" not in words):
                raise RuntimeError(words)
            if has_ended:  # sessions of a killed server have not ended yet
                self._launch()
            time.sleep(0.05)

    def _launch(self) -> None:
        with (self.folder / "log").open("ab") as log:
            where = ("-D", str(self.data), "-k", str(self.folder), "-h", "")
            self._process = subprocess.Popen(
                [str(self.binaries / "postgres"), *where, *self.options],
                user=self.user, cwd=self.folder, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """End the server and its sessions as a power failure would."""
        assert self._process is not None
        sessions = self._list_sessions()
        self._process.kill()
        for session in sessions:  # by themselves, they notice that the server is gone when they have answered
            with suppress(ProcessLookupError):
                os.kill(session, signal.SIGKILL)
        self._process.wait()

    def _list_sessions(self) -> list[int]:
        assert self._process is not None
        pid = self._process.pid
        return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    def send_all(self, number: signal.Signals) -> None:
        """Send a signal to the server and its sessions, such as SIGSTOP."""
        assert self._process is not None
        for each in (self._process.pid, *self._list_sessions()):
            os.kill(each, number)

    def stop(self) -> None:
        """End the server and all its sessions at once."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(60)

    def remove_data(self) -> None:
        """End the server and delete its data, for a new one at the same address."""
        self.stop()
        shutil.rmtree(self.data)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str = "postgres", user: str = OWNER) -> str:
        return f"postgresql://{user}@/{database}?host={self.folder}"

    def sql(self, statement: str, database: str = "postgres", user: str = OWNER) -> list[tuple[Any, ...]]:
        """Run SQL without hardwon."""
        import psycopg

        with psycopg.connect(self.url(database, user), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def create_database(self, name: str) -> str:
        """Return the address of a new database."""
        self.sql(f"CREATE DATABASE {name}")
        return self.url(name)
