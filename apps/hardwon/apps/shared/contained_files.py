"""Write and delete files inside a folder, whatever links are in it.

Folders are opened one by one without following links, so that a link that appears meanwhile leads nowhere either.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hardwon.memory.errors import ConfigError


def write_file(folder: Path, name: str, text: str | bytes) -> None:
    """Write a file of the folder, as a whole and never through a link."""
    content = text.encode() if isinstance(text, str) else text
    with _open_parent(folder, name) as (parent, last):
        try:
            if _read_regular(parent, last) == content:  # an unchanged file keeps its time
                return
            partial = f".{os.getpid()}.partial"
            with suppress(FileNotFoundError):
                os.unlink(partial, dir_fd=parent)
            file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666, dir_fd=parent)
            with os.fdopen(file, "wb") as stream:
                stream.write(content)
            # replaces a link itself, not the file that it leads to
            os.replace(partial, last, src_dir_fd=parent, dst_dir_fd=parent)
        except OSError as error:
            raise _make_write_error(folder / name, error) from error


def remove_file(folder: Path, name: str) -> None:
    """Delete a file of the folder if it exists."""
    with _open_parent(folder, name) as (parent, last), suppress(FileNotFoundError):
        os.unlink(last, dir_fd=parent)


@contextmanager
def _open_parent(folder: Path, name: str) -> Iterator[tuple[int, str]]:
    """Yield the open folder of a file, which is created, and the file's last name."""
    *parents, last = name.split("/")
    if not {"", ".", ".."}.isdisjoint((*parents, last)):
        raise ConfigError(f"{name!r} leads out of {folder}. Check out into another folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _make_write_error(folder, error) from error
    try:
        for parent in parents:
            with suppress(FileExistsError):
                os.mkdir(parent, dir_fd=place)
            inner = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
            os.close(place)
            place = inner
        yield place, last
    except OSError as error:
        raise _make_write_error(folder / name, error) from error
    finally:
        os.close(place)


def _read_regular(parent: int, name: str) -> bytes | None:
    """Return the content of a regular file in an open folder; None for anything else."""
    try:
        # without waiting, because it may be a pipe
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
    except OSError:
        return None
    with os.fdopen(file, "rb") as stream:
        return stream.read() if stat.S_ISREG(os.fstat(file).st_mode) else None


def _make_write_error(path: Path, error: OSError) -> ConfigError:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return ConfigError(f"{path.parent} is a link or no folder, so nothing is written there. Remove it.")
    return ConfigError(f"{path} cannot be written ({error.strerror}). Give a folder that you may write.")
