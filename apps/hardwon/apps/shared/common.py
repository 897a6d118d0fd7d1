"""What the commands share: their common parameters, opening a library, printing.

Results go to stdout, as words for people or as one JSON document; everything else goes to stderr.
Nothing of the library, the runtime or a model is imported before a command opens it.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from hardwon.memory import ExperienceLibrary

WIDEST = 120
"""Columns that are used, however wide the terminal."""
PIPED_WIDTH = 80
"""Columns when stdout is not a terminal and COLUMNS does not say."""

Library = Annotated[Path, typer.Argument(metavar="LIBRARY", help="The library file.", show_default=False)]
ItemId = Annotated[
    str, typer.Argument(metavar="ID", help="An item's id, or an unambiguous beginning of it.", show_default=False)
]


def as_text(typed: str) -> str:
    """What was typed, with bytes that are no text as `?`."""
    return typed.encode(errors="replace").decode()


Namespace = Annotated[
    str, typer.Option("--namespace", "-n", help="The part of the library to look at.", callback=as_text)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of words.")]


@contextmanager
def opened(path: Path, namespace: str = "default", *, write: bool = False) -> "Iterator[ExperienceLibrary]":
    """The library at `path`, which must exist, as its namespace; an interruption says where it is."""
    from hardwon.memory import ExperienceLibrary
    from hardwon.memory.errors import NotALibrary

    if path.exists() and not path.is_dir() and not path.stat().st_size:
        raise NotALibrary(
            f"{path} is empty, not a hardwon library. Make one with: hardwon run textworld --library {path}"
        )
    if write:
        must_exist(path, namespace)
    try:
        with ExperienceLibrary.open(path, namespace=namespace, read_only=not write) as library:
            yield library
    except KeyboardInterrupt as stop:
        stop.add_note(f"The library is at {path}; what was written is kept.")
        raise


def must_exist(path: Path, namespace: str | None = None) -> None:
    """Raise NotALibrary or UnknownName where a writer would otherwise make a new library or namespace."""
    from hardwon.memory.errors import NotALibrary, UnknownName

    from .file_queries import namespaces

    if not path.exists():
        raise NotALibrary(f"there is no library at {path}. Make one with: hardwon run textworld --library {path}")
    if namespace is not None and namespace not in (known := namespaces(path, read_only=False)):
        raise UnknownName.of("namespace", namespace, known)


def out() -> Console:
    """Where results go. Text of a library is printed as it is, never as markup."""
    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPED_WIDTH
    console.width = min(console.width, WIDEST)
    return console


def tell(message: str) -> None:
    """A line about progress, on stderr."""
    typer.echo(message, err=True)


def say_json(value: Any) -> None:
    """One JSON document on stdout."""
    typer.echo(json.dumps(value, ensure_ascii=False, indent=2, default=_plain))


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def table(
    *columns: str, rows: Sequence[Sequence[Any]], numbers: Sequence[str] = (), whole: Sequence[str] = ()
) -> Table:
    """A table; the columns in `numbers` are right-aligned, those in `whole` are never wrapped or cut."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_header=any(columns))
    for column in columns:
        kept = column in whole or column in numbers
        made.add_column(
            column, justify="right" if column in numbers else "left", no_wrap=kept, overflow="fold", vertical="top"
        )
    for row in rows:
        made.add_row(*(cell(value) for value in row))
    return made


def cell(value: Any) -> str:
    """A value as it stands in a table."""
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) >= 100 else f"{value:.2f}"
    return "-" if value is None else str(value)


def excerpt(text: str, length: int = 160) -> str:
    """A text on one line, printable, cut after a word at about `length` characters."""
    line = "".join(char if char.isprintable() else " " for char in text)
    line = " ".join(line.split())
    if len(line) <= length:
        return line
    return line[:length].rsplit(" ", 1)[0] + " …"
