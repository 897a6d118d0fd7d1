"""A connection to PostgreSQL: opened when it is first used and again after it is lost, with the errors of this package.

A message names the server without the password, which comes from the address or from where libpq looks for it: the
environment, a service file or a password file.
"""

import logging
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from hardwon.memory.errors import (
    ConfigError,
    HardwonError,
    LeaseLost,
    LibraryError,
    LibraryForbidden,
    LibraryReadOnly,
    LibraryUnreachable,
    LibraryUnwritable,
    NotALibrary,
    ServerTooOld,
    require_extra,
)

PREFIXES = ("postgresql://", "postgres://")
"""Beginnings of the addresses of shared libraries."""
_DEFAULTS = {
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
    "application_name": "hardwon",
}
"""Settings that an address may override. They bound how long a network that went silent holds up a caller."""
MIN_SERVER = 140000
"""Oldest server that the log is made for, as PostgreSQL numbers its versions."""
ANSWER_S = 60.0
"""Seconds to wait for the answer to one statement."""

_RISKS = {
    "fsync": "a power failure may damage the database",
    "full_page_writes": "a power failure may damage the database",
    "synchronous_commit": "a crash of the server loses the newest entries",
}
"""Settings of a server that must not be off, with what may happen."""
_READ_RISKS = "SELECT name FROM pg_settings WHERE setting = 'off' AND name = ANY(%(names)s) ORDER BY name"

logger = logging.getLogger("hardwon.memory")
_warned: set[tuple[str, str]] = set()


class KeyExists(LibraryError):
    """A row with this key exists; the caller compares the contents."""


_CLASSES: tuple[tuple[str, type[HardwonError], str], ...] = (
    ("HW001", LeaseLost, "Another process learns items for this namespace now; call it again later."),
    ("25P03", LeaseLost, "The operation took too long, so the server ended it. Nothing was written; call it again."),
    (
        "42501",
        LibraryForbidden,
        "The owner grants rights: hardwon memory grant ADDRESS ROLE --write; see docs/fleet.md.",
    ),
    ("3F000", NotALibrary, "Open it once with a role that may create the schema."),
    ("42P01", NotALibrary, "Open it once with a role that may create the schema."),
    ("25006", LibraryReadOnly, "It is a standby; give all hosts and target_session_attrs=read-write in the address."),
    ("53100", LibraryUnwritable, "Free some space on the disk of the server."),
    ("55P03", LibraryUnwritable, "Another process changes items of this namespace; try again."),
    (
        "23505",
        KeyExists,
        "Choose another key, or compare the contents.",
    ),
    ("57P", LibraryUnreachable, "Start the server, then try again."),
    ("08", LibraryUnreachable, "Check the network, then try again."),
)
"""Error classes by the beginning of the SQLSTATE, with the next step."""
_REFUSALS: tuple[tuple[tuple[str, ...], type[HardwonError], str], ...] = (
    (("FATAL:  database",), NotALibrary, "Create the database first, for example with: createdb NAME"),
    (
        ("FATAL:  role", "password", "authentication", "pg_hba"),
        LibraryForbidden,
        "Check the user and the password, for example in ~/.pgpass.",
    ),
)
"""The same for refused connections, by words of the message: libpq gives no SQLSTATE for them."""


class WaitLimit:
    """Shuts a connection down if a wait for it exceeds a limit, which ends the wait with an error.

    The limits of TCP notice a machine that is gone, but not a server that is stopped or stuck: its machine still
    answers.
    """

    def __init__(self, limit_s: float) -> None:
        """Watch nothing yet."""
        self._limit_s = limit_s
        self._descriptor = -1
        self._deadline = 0.0
        self._thread: threading.Thread | None = None
        self.is_exhausted = False
        """Whether the last wait was ended."""

    def begin(self, descriptor: int) -> None:
        """Begin to wait for a connection."""
        self._descriptor, self.is_exhausted = descriptor, False
        self._deadline = time.monotonic() + self._limit_s
        if self._thread is None:
            self._thread = threading.Thread(
                target=_watch,
                args=(weakref.ref(self), self._limit_s / 4),
                name="hardwon waits for a server",
                daemon=True,
            )
            self._thread.start()

    def end(self) -> None:
        """End the wait, because the server has answered."""
        self._deadline = 0.0

    def check(self) -> None:
        """Shut the connection down if the wait is too long."""
        deadline = self._deadline
        if deadline and time.monotonic() > deadline:
            self._deadline, self.is_exhausted = 0.0, True
            with suppress(OSError), socket.fromfd(self._descriptor, socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.shutdown(socket.SHUT_RDWR)


def _watch(wait: "weakref.ref[WaitLimit]", every_s: float) -> None:
    """Check a wait now and then, until nobody has it any more."""
    while True:
        time.sleep(every_s)
        watched = wait()
        if watched is None:
            return
        watched.check()
        del watched


class ServerSession:
    """One connection that several threads share, each for one statement or one transaction at a time."""

    def __init__(self, url: str) -> None:
        """Read an address. The server is not asked yet.

        Raises:
            ConfigError: The address cannot be read.
            MissingExtra: psycopg is not installed.
        """
        with require_extra("postgres"):
            import psycopg.conninfo
        try:
            given = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.Error:  # not its message, which may quote the password
            raise ConfigError("the address cannot be read. Give postgresql://USER@HOST:PORT/DATABASE.") from None
        self._psycopg = psycopg
        self._settings: dict[str, Any] = {**_DEFAULTS, **given}
        self.name = name_server(given)
        """The address without the password."""
        self.identity = self._identify(given)
        """The same with what libpq adds from the environment; equal for two addresses of one user and database."""
        self._lock = threading.RLock()
        self._wait = WaitLimit(ANSWER_S)
        self._connection: Any = None
        self._cursor: Any = None
        """Runs every statement: making one takes a third of the time that an append takes here."""
        self._descriptor = -1
        self._channel = ""
        self._on_wake: Callable[[], None] | None = None

    def _identify(self, given: Mapping[str, Any]) -> str:
        names = ("service", "host", "hostaddr", "port", "user", "dbname")
        defaults = {option.keyword.decode(): option.val for option in self._psycopg.pq.Conninfo.get_defaults()}
        values = [given.get(name) or (defaults.get(name) or b"").decode(errors="replace") for name in names]
        return hide_password(" ".join(f"{name}={value}" for name, value in zip(names, values, strict=True)), given)

    def listen(self, channel: str, on_wake: Callable[[], None]) -> None:
        """Listen to a channel of the server, on this connection and on those that replace it.

        Args:
            channel: Name of the channel.
            on_wake: Called when another session notifies, in the thread that reads it from the connection.
        """
        with self._lock:
            self._channel, self._on_wake = channel, on_wake
            if self._connection is not None:
                with self._translate():
                    self._start_listening(self._connection)

    def _start_listening(self, connection: Any) -> None:
        own = connection.info.backend_pid

        def wake(notification: Any) -> None:
            if notification.pid != own and self._on_wake is not None:
                self._on_wake()

        connection.add_notify_handler(wake)
        connection.execute(f'LISTEN "{self._channel}"')

    def fileno(self) -> int | None:
        """Return the descriptor of the connection, or None if there is none."""
        connection = self._connection
        try:
            return None if connection is None or connection.closed else int(connection.fileno())
        except self._psycopg.Error:
            return None

    def run(self, query: str, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        """Run one statement in a transaction of its own, and return its rows.

        Args:
            query: The statement.
            parameters: Values of its placeholders.

        Raises:
            LibraryUnreachable: The server does not answer.
            LibraryForbidden: The role may not do this.
            LibraryError: The server refused the statement.
        """
        with self._lock:
            is_old = self._connection is not None
            try:
                return self._fetch(query, parameters)
            except LibraryUnreachable:
                if not is_old or self.in_transaction():
                    raise
                return self._fetch(query, parameters)  # the connection may be lost while the server is up again

    def _fetch(self, query: str, parameters: Mapping[str, Any] | None) -> list[Any]:
        # One cursor and no context managers: every append comes through here, and both cost as much as its parameters.
        try:
            self._connect()
            self._wait.begin(self._descriptor)
            try:
                self._cursor.execute(query, parameters)
            finally:
                self._wait.end()
            return list(self._cursor.fetchall()) if self._cursor.pgresult.nfields else []
        except self._psycopg.Error as error:
            raise self._drop_lost(error) from None  # its text may hold more than it should

    @contextmanager
    def _awaited(self) -> Iterator[None]:
        """Bound the wait for an answer."""
        self._wait.begin(self._descriptor)
        try:
            yield
        finally:
            self._wait.end()

    def in_transaction(self) -> bool:
        """Return whether a transaction is open on the connection."""
        return self._connection is not None and self._connection.info.transaction_status.name == "INTRANS"

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all statements inside together, or none. No other thread uses the connection meanwhile."""
        with self._lock, self._translate(), ExitStack() as stack:
            connection = self._connect()
            with connection.transaction():
                yield
                stack.enter_context(self._awaited())  # for the commit

    def _connect(self) -> Any:
        """Return the open connection, opening it if there is none."""
        if self._connection is None:
            connection = self._psycopg.connect(autocommit=True, **self._settings)
            version = connection.info.server_version
            if version < MIN_SERVER:
                connection.close()
                raise ServerTooOld(
                    f"{self.name} is PostgreSQL {version // 10000}; a shared library needs "
                    f"{MIN_SERVER // 10000} or newer. Update the server."
                )
            if self._channel:
                self._start_listening(connection)
            self._connection, self._cursor = connection, connection.cursor()
            self._descriptor = connection.fileno()
        return self._connection

    @contextmanager
    def _translate(self) -> Iterator[None]:
        """Convert errors of psycopg, and drop a connection that is lost."""
        try:
            yield
        except self._psycopg.Error as error:
            raise self._drop_lost(error) from None

    def _drop_lost(self, error: Any) -> HardwonError:
        """Return the converted error of psycopg, after dropping the connection if it is lost."""
        if self._connection is not None and self._connection.closed:
            self._connection = None
        return self._convert(error)

    def _convert(self, error: Any) -> HardwonError:
        state = error.sqlstate or ""
        text = error.diag.message_primary or str(error).strip().partition("\n")[0]
        text = hide_password(text, self._settings)
        for start, kind, advice in _CLASSES:
            if state.startswith(start):
                return kind(f"{self.name}: {text}. {advice}")
        if isinstance(error, self._psycopg.OperationalError) and not state:  # it did not come to a session
            for words, kind, advice in _REFUSALS:
                if any(word in text for word in words):
                    return kind(f"{self.name}: {text}. {advice}")
            if self._wait.is_exhausted:
                text = f"nothing for {ANSWER_S:.0f} s"
            return LibraryUnreachable(f"{self.name} does not answer ({text}). Start the server, then try again.")
        return LibraryError(f"{self.name}: {text} (SQLSTATE {state}). The log of the server says more.")

    def close(self) -> None:
        """Close the connection. A later call opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


def is_address(path: object) -> bool:
    """Return whether a path is the address of a shared library."""
    return isinstance(path, str) and path.startswith(PREFIXES)


def name_server(settings: Mapping[str, Any]) -> str:
    """Return the address of a server without the password."""
    user, host, port = settings.get("user"), settings.get("host") or settings.get("service") or "", settings.get("port")
    address = f"{f'{user}@' if user else ''}{host}{f':{port}' if port else ''}/{settings.get('dbname') or ''}"
    return f"postgresql://{hide_password(address, settings)}"


def hide_password(text: str, settings: Mapping[str, Any]) -> str:
    """Return a text without the password of an address, wherever a misread address put it."""
    password = settings.get("password")
    return text.replace(password, "[password]") if password else text


def list_risks(read: Callable[[str, dict[str, Any]], list[Any]]) -> tuple[str, ...]:
    """Return a sentence for each setting of a connection's role with which the server may lose entries."""
    names = [name for (name,) in read(_READ_RISKS, {"names": list(_RISKS)})]
    return tuple(f"{name} is off: {_RISKS[name]}. Set it to on, then reload the server." for name in names)


def warn(server: str, read: Callable[[str, dict[str, Any]], list[Any]]) -> None:
    """Log each risk of a server once in a process."""
    try:
        risks = list_risks(read)
    except LibraryError:  # the server is gone again; the next statement tells the caller
        return
    for risk in risks:
        if (server, risk) not in _warned:
            _warned.add((server, risk))
            logger.warning("%s: %s", server, risk)
