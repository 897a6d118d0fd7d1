"""Share parameters, output helpers and the opening of a library among the commands.

Results go to stdout, as text or as one JSON document; everything else goes to stderr. Neither the library nor the
runtime is imported before a command opens a library.
"""

import fcntl
import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit, urlunsplit

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from hardwon.memory.errors import ConfigError
from hardwon.memory.privacy.private_files import refuse_links

if TYPE_CHECKING:
    from hardwon.memory import ExperienceLibrary

WIDEST = 120
"""Largest width of the output, in columns."""

ADDRESSES = ("postgresql://", "postgres://")
"""Beginnings of the addresses of shared libraries."""


def parse_library(typed: str) -> Path | str:
    """Return the path of a library file, or the address of a shared library as it is: a path would lose its slashes."""
    if "://" in typed and not typed.startswith(ADDRESSES):  # a path would make a folder of it
        scheme = typed.partition("://")[0]  # the rest may have a password
        raise typer.BadParameter(f"{scheme}:// is no library; give a file, or postgresql://USER@HOST/DB.")
    if not typed.startswith(ADDRESSES) and ("\0" in typed or not Path(typed).name):  # such as a dot, or nothing
        raise typer.BadParameter(f"{typed!r} names no file; give a library file, such as experience.db.")
    return typed if typed.startswith(ADDRESSES) else Path(typed)


# Typed as a path, which most callers need; those that take an address, too, test for it with `is_address`.
Library = Annotated[
    Path,
    typer.Argument(
        metavar="LIBRARY", help="The library file, or postgresql://USER@HOST/DB.", show_default=False,
        parser=parse_library,
    ),
]  # fmt: skip
ServedLibrary = Annotated[
    Path,
    typer.Argument(
        metavar="LIBRARY",
        help="The library file, created if it does not exist, or postgresql://USER@HOST/DB.",
        show_default=False,
        parser=parse_library,
    ),
]
ItemId = Annotated[
    str, typer.Argument(metavar="ID", help="The id of an item, or an unambiguous prefix.", show_default=False)
]


def as_text(typed: str) -> str:
    """Replace bytes of an argument that are not valid text by `?`."""
    return typed.encode(errors="replace").decode()


Namespace = Annotated[str, typer.Option("--namespace", "-n", help="The namespace to use.", callback=as_text)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


def is_address(path: Path | str) -> bool:
    """Return whether a library is shared: its path is the address of a database."""
    return isinstance(path, str) and path.startswith(ADDRESSES)


@contextmanager
def opened(path: Path, namespace: str = "default", *, write: bool = False) -> "Iterator[ExperienceLibrary]":
    """Open an existing library for a command."""
    from hardwon.memory import ExperienceLibrary
    from hardwon.memory.storage.database import make_missing_error
    from hardwon.memory.upkeep.damage import readable

    # SQLite accepts an empty file as an empty database; here it is most likely a wrong path.
    if not is_address(path) and path.exists() and not path.is_dir() and not path.stat().st_size:
        raise make_missing_error(path, "the file is empty, so there is no library at")
    if write and not is_address(path):
        must_exist(path, namespace)
    try:
        with (
            readable(library_name(path)),
            ExperienceLibrary.open(path, namespace=namespace, read_only=not write) as library,
        ):
            yield library
    except KeyboardInterrupt as stop:
        stop.add_note(f"The library is at {library_name(path)}; finished writes are kept.")
        raise


def library_name(path: Path | str) -> str:
    """Return the path of a library for a message, without the password of an address."""
    if not is_address(path):
        return str(path)
    address = urlsplit(str(path))
    return urlunsplit(
        address._replace(netloc=f"{address.username or ''}@{address.netloc.rpartition('@')[2]}", query="")
    )


def list_ways(path: str) -> list[tuple[str, str]]:
    """Return the ways to fill an empty library, each with the line to write or to run."""
    quoted = shlex.quote(path)
    return [
        ("LangChain", f'middleware=[ExperienceMiddleware(ExperienceLibrary.open("{path}"))]  # in create_agent(...)'),
        ("A coding agent", f"hardwon hook install claude-code --library {quoted}"),
        ("Any client of MCP", f"claude mcp add hardwon -- hardwon mcp {quoted}"),
        ("Any client of OpenAI's API, by its base URL", f"hardwon proxy {quoted} --upstream https://api.openai.com/v1"),
        ("Logs that you have", f"hardwon memory import {quoted} FILE"),
        ("A text game, to see it learn", f"hardwon run textworld --game coin --library {quoted}"),
    ]


def must_exist(path: Path, namespace: str | None = None) -> None:
    """Check that a library, and optionally a namespace, exists; opening for writing would create it."""
    from hardwon.memory.errors import NotALibrary, UnknownName
    from hardwon.memory.storage.database import make_missing_error
    from hardwon.memory.upkeep.file_queries import list_namespaces

    if is_address(path):
        raise NotALibrary(f"{library_name(path)} is a shared library, and this command needs a library file. Give one.")
    if not path.exists():
        raise make_missing_error(path)
    if namespace is not None and namespace not in (existing := list_namespaces(path, read_only=False)):
        raise UnknownName.of("namespace", namespace, existing)


_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters but line breaks and tabs, and characters that reverse the direction of a line."""


def show_controls(text: str) -> str:
    r"""Return a text with its control characters shown, because a terminal would obey them.

    >>> show_controls("\x1b[2J")
    '\\x1b[2J'
    """
    if text.isprintable():  # a cheap test: almost every line
        return text
    return _CONTROLS.sub(lambda char: ascii(char[0])[1:-1], text.replace("\r\n", "\n"))


class LiteralConsole(Console):
    """A console that prints text of a library literally: without markup, and with control characters shown."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, highlight=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string as text; its controls are shown before it is measured."""
        return super().render_str(show_controls(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Return the segments of anything to print; the controls of a text in it are shown."""
        if isinstance(renderable, Text) and (text := show_controls(renderable.plain)) != renderable.plain:
            # a copy without styles, whose places in the text have moved
            renderable = Text(text, renderable.style, overflow=renderable.overflow, no_wrap=renderable.no_wrap)
        return super().render(renderable, options)


def out() -> Console:
    """Return a console for results on stdout."""
    console = LiteralConsole()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        # Width in columns if stdout is not a terminal and COLUMNS is not set.
        console.width = 80
    console.width = min(console.width, WIDEST)
    return console


def tell(message: str) -> None:
    """Print a line about progress on stderr."""
    typer.echo(show_controls(message), err=True)


def say_json(value: Any) -> None:
    """Print a value as one JSON document on stdout."""
    text = json.dumps(value, ensure_ascii=False, indent=2, default=_plain)
    if not _can_print(text):  # a replaced character would be lost, an escape is the same text
        text = json.dumps(value, indent=2, default=_plain)
    # `json` itself escapes the controls of ASCII; others are only inside strings, where an escape is the same text
    typer.echo(text if text.isascii() else _CONTROLS.sub(lambda char: f"\\u{ord(char[0]):04x}", text))


def _can_print(text: str) -> bool:
    """Return whether stdout can encode a text."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _plain(value: Any) -> Any:
    """Return a record as a dict whose values `json` converts in turn, and another value as text."""
    from hardwon.memory.reasons import Reasons

    if isinstance(value, Reasons):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return str(value)


def table(
    *columns: str, rows: Sequence[Sequence[Any]], numbers: Sequence[str] = (), whole: Sequence[str] = ()
) -> Table:
    """Return a table with formatted cells."""
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_header=any(columns))
    for column in columns:
        is_whole = column in whole or column in numbers
        grid.add_column(
            column, justify="right" if column in numbers else "left", no_wrap=is_whole, overflow="fold", vertical="top"
        )
    for row in rows:
        grid.add_row(*(cell(value) for value in row))
    return grid


def print_figures(grid: Table) -> None:
    """Print a table of a measurement on stdout. No cell is cut, even if lines are longer than the terminal's."""
    console = out()
    wanted = console.measure(grid, options=console.options.update(max_width=10_000))
    console.width = max(console.width, wanted.minimum if console.is_terminal else wanted.maximum)
    console.print(grid)


def cell(value: Any) -> str:
    """Return a value as text for a table cell."""
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) >= 100 else f"{value:.2f}"
    return "-" if value is None else str(value)


def excerpt(text: str, length: int = 160) -> str:
    """Return a text on one line without control characters, cut after a word at about `length` characters."""
    line = "".join(char if char.isprintable() else " " for char in text)
    line = " ".join(line.split())
    if len(line) <= length:
        return line
    return line[:length].rsplit(" ", 1)[0] + " …"


@contextmanager
def lock_folder(out: Path) -> Iterator[None]:
    """Keep other processes out of a folder: two that go on with one run would learn every episode twice."""
    folder = os.open(out, os.O_RDONLY)
    try:
        _take_lock(folder, out)
        refuse_links(out)
        yield
    finally:
        os.close(folder)  # and with it the lock, also after a kill


def _take_lock(folder: int, out: Path) -> None:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(
            f"another process is running in {out}. Wait until it has ended, or give another --out."
        ) from error
