"""Libraries beside an agent's own one, for a command."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from hardwon.memory.errors import ConfigError

from .common import ADDRESSES, library_name

if TYPE_CHECKING:
    from hardwon.memory import ExperienceLibrary
    from hardwon.runtime.interfaces.extension import Recaller


def name_stores(libraries: Sequence[str]) -> dict[str, str]:
    """Return the libraries by the names that the records use: file names without their ends.

    Raises:
        ConfigError: Two libraries have the same name.
    """
    named: dict[str, str] = {}
    for library in libraries:
        name = library_name(library).rstrip("/").rpartition("/")[2].removesuffix(".db").replace(":", "-")
        if name in named:
            raise ConfigError(f"two libraries beside the own one are called {name}; rename one of the files.")
        named[name] = library
    return named


@contextmanager
def open_beside(libraries: Sequence[str], library: "ExperienceLibrary") -> Iterator["Recaller | None"]:
    """Open other libraries for reading and yield a recaller of all; None without any.

    Args:
        libraries: Files or addresses.
        library: The agent's own library.
    """
    if not libraries:
        yield None
        return
    from hardwon.memory import ExperienceLibrary
    from hardwon.runtime.loop.routed_recall import RoutedRecall

    with ExitStack() as stack:
        stores = {
            name: stack.enter_context(ExperienceLibrary.open(at, read_only=not at.startswith(ADDRESSES)))
            for name, at in name_stores(libraries).items()
        }
        yield RoutedRecall(library, stores)
