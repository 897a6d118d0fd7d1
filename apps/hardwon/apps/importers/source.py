"""Read the JSON values of a file one at a time, regardless of its size.

A file has one value per line, or it is a document: an array of values, a single object, or indented objects in a row.
Values come with their line number (in a document, their position) for error messages. No value longer than `MAX_VALUE`
is kept in memory.
"""

import codecs
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

import ijson

from hardwon.memory.errors import ConfigError
from hardwon.memory.upkeep.text_files import find_encoding

MAX_VALUE = 64 * 2**20
"""Largest size of one value in bytes: a line, or an object that is a whole file."""
STDIN = Path("-")
"""Stands for the standard input."""
LISTS = ("resourceSpans.item", "runs.item", "data.item")
"""Lists in a large document that are read one element at a time."""

OnProgress = Callable[[int, int], None]
PlacedValue = tuple[str, Any]
"""The place of a value, such as "line 3", and the value."""


def read_values(path: Path, on_progress: OnProgress | None = None) -> Iterator[PlacedValue]:
    """Yield every JSON value of a file with its place."""
    with open_seekable(path) as file:
        size = os.fstat(file.fileno()).st_size
        # Both are generators: they read nothing before the file is back at its start.
        values = _read_lines(path, file) if _is_lines(file) else _read_document(path, file, size)
        file.seek(0)
        empty = True
        for value in values:
            empty = False
            if on_progress is not None:
                on_progress(file.tell(), size)
            yield value
        if empty:
            raise ConfigError(f"{path} is empty.")


@contextmanager
def copy_pipe(path: Path) -> Iterator[Path]:
    """Yield a file; a pipe, and `-` for the standard input, is copied to a temporary one, because it is read twice."""
    try:
        mode = stat.S_IFIFO if path == STDIN else path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}). Give a file of JSON.") from error
    if stat.S_ISREG(mode):
        yield path
        return
    if not stat.S_ISFIFO(mode):
        raise ConfigError(f"{path} is neither a file nor a pipe. Give a file of JSON.")
    with tempfile.TemporaryDirectory(prefix="hardwon-") as folder:
        copy = Path(folder) / "pipe"
        with nullcontext(sys.stdin.buffer) if path == STDIN else path.open("rb") as pipe, copy.open("wb") as file:
            shutil.copyfileobj(pipe, file)
        yield copy


@contextmanager
def open_seekable(path: Path) -> Iterator[IO[bytes]]:
    """Open a file of UTF-8 that can be read twice; a pipe or a file with a byte order mark is copied first."""
    try:
        with copy_pipe(path) as whole, whole.open("rb") as file, _open_decoded(path, file) as decoded:
            yield decoded
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}). Give a file of JSON.") from error


@contextmanager
def _open_decoded(path: Path, file: IO[bytes]) -> Iterator[IO[bytes]]:
    """Open a file as UTF-8 without a byte order mark; one that is not is copied to a temporary file."""
    encoding = find_encoding(file.read(4), path)
    file.seek(0)
    if encoding == "utf-8":
        yield file
        return
    with tempfile.TemporaryFile() as copy:
        decoder = codecs.getincrementaldecoder(encoding)()
        try:
            while data := file.read(1 << 20):
                copy.write(decoder.decode(data).encode())
            copy.write(decoder.decode(b"", final=True).encode())
        except UnicodeError as error:
            raise ConfigError(f"{path}: not {encoding.upper()} ({error}). Save it as UTF-8.") from error
        copy.seek(0)
        yield copy


class UnfinishedLine(ConfigError):
    """The last line of a file ends in the middle of its value."""


def _is_lines(file: IO[bytes]) -> bool:
    """Return whether the file has one value per line, judged by its first line that is not blank.

    A single line that is an array is a document.
    """
    line = _read_line(file)
    try:
        value = json.loads(line)
    except RecursionError:  # reading it as a document would take memory with the square of its levels
        return True
    except UnicodeDecodeError:
        return True
    except ValueError as error:
        head = line.lstrip()[:1]
        return head not in (b"[", b"{") or not (_is_joined(error) or _is_continued(line, file))
    more = _read_line(file)
    return not (isinstance(value, list) and not more.strip())


def _is_joined(error: Exception) -> bool:
    """Return whether values stand in a line one after the other."""
    return isinstance(error, json.JSONDecodeError) and error.msg == "Extra data"


def _is_continued(line: bytes, file: IO[bytes]) -> bool:
    """Return whether a document continues after a first line that is not a whole value."""
    return len(line) > MAX_VALUE or bool(_read_line(file).strip())


def _read_line(file: IO[bytes]) -> bytes:
    """Return the next line that is not blank, cut after MAX_VALUE bytes; empty at the end."""
    while line := file.readline(MAX_VALUE + 1):
        if line.strip():
            return line
    return b""


def _read_lines(path: Path, file: IO[bytes]) -> Iterator[PlacedValue]:
    number = 0
    while line := file.readline(MAX_VALUE + 1):
        number += 1
        if len(line) > MAX_VALUE:
            raise ConfigError(
                f"{path}, line {number}: longer than {MAX_VALUE >> 20} MB. Write one conversation or run per line."
            )
        if not line.strip():
            continue
        try:
            yield f"line {number}", json.loads(line)
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}, line {number}: not UTF-8 ({error.reason}). Save it as UTF-8.") from error
        except (ValueError, RecursionError) as error:
            # No newline at the end of the file: the program was probably still writing, or was killed.
            if not line.endswith(b"\n") and not file.read(1) and not _is_joined(error):
                why = "the file ends in the middle of it; write the file again or remove the line"
                raise UnfinishedLine(f"{path}, line {number}: not JSON ({why}).") from error
            raise ConfigError(f"{path}, line {number}: not JSON ({error}).") from error


def _read_document(path: Path, file: IO[bytes], size: int) -> Iterator[PlacedValue]:
    """Yield the elements of an array, or of the list in a large object; else the object itself and those after it."""
    head = _read_line(file).lstrip()[:1]
    file.seek(0)
    prefixes = ["item"] if head == b"[" else list(LISTS) if size > MAX_VALUE else [""]
    for prefix in prefixes:
        file.seek(0)
        has_values = False
        for number, value in enumerate(_read_elements(path, file, prefix), 1):
            has_values = True
            # Restore the envelope by which `is_span` recognizes resources.
            if isinstance(value, dict) and prefix == LISTS[0]:
                value = {"resourceSpans": [value]}
            yield (f"value {number}" if prefix or number > 1 else "line 1"), value
        if has_values or head == b"[":
            return
    raise ConfigError(
        f"{path} is one JSON object of {size >> 20} MB, more than {MAX_VALUE >> 20}. "
        "Write one conversation or run per line."
    )


def _read_elements(path: Path, file: IO[bytes], prefix: str) -> Iterator[Any]:
    number = 0
    try:
        # Without `use_float`, ijson returns Decimal, which `json` cannot write.
        for value in ijson.items(file, prefix, use_float=True, multiple_values=not prefix):
            number += 1
            yield value
    except (ijson.JSONError, ValueError, RecursionError) as error:
        is_cut = isinstance(error, ijson.IncompleteJSONError) and " error:" not in str(error)
        why = "the file ends in the middle of it" if is_cut else _first_line(error)
        raise ConfigError(f"{path}, line 1, after {number} values: not JSON ({why}).") from error


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:120]
