"""Public names of a package that are imported on first use, listed once.

    if TYPE_CHECKING:
        from .library import ExperienceLibrary as ExperienceLibrary

    __all__, __getattr__, __dir__ = attach_names(__name__)

The imports under `TYPE_CHECKING` are the list. Type checkers and documentation tools read them as imports, and
`attach_names` reads them from the source, so a name cannot be in one list and missing in another.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from .errors import require_extra


def attach_names(package: str, extra: str = "all") -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package whose public names are imported on first use.

    An error for a package that a name needs and that is missing tells to install `extra`.
    """
    module = sys.modules[package]
    homes = dict(_find_imports(_read_source(package)))
    names = sorted(homes)

    def import_name(name: str) -> Any:
        """Import a public name on first use."""
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with require_extra(extra):
            return getattr(import_module(f".{homes[name]}", package), name)

    def list_names() -> list[str]:
        """List the names of the module, including those that are not imported yet."""
        return sorted({*vars(module), *names})

    return names, import_name, list_names


def _read_source(package: str) -> str:
    """Return the source of a package's `__init__.py`, from a folder or an archive."""
    loader: Any = getattr(sys.modules[package].__spec__, "loader", None)
    source = loader.get_source(package) if hasattr(loader, "get_source") else None
    if source is None:
        raise ImportError(
            f"the source of {package}, which lists its public names, is missing; install it with its .py files.",
            name=package,
        )
    return str(source)


def _find_imports(source: str) -> Iterator[tuple[str, str]]:
    """Yield each name that is imported under `if TYPE_CHECKING` from a module of the package, with that module."""
    for block in ast.parse(source).body:
        if not isinstance(block, ast.If) or ast.unparse(block.test) != "TYPE_CHECKING":
            continue
        for line in block.body:
            if isinstance(line, ast.ImportFrom) and line.level == 1 and line.module:
                # `as NAME` marks a public name for type checkers; an import without it is private to the file
                yield from ((alias.name, line.module) for alias in line.names if alias.asname == alias.name)
