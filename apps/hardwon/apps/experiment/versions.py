"""Read what the results of an experiment depend on beside its plan: versions, source files and models.

An experiment whose folder was made with other ones is another experiment, although its settings are the same.
"""

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import TYPE_CHECKING

from hardwon.apps.shared.trained import FOLDER, RANKED, TRAINED, split_ranked

from .folder import PLAN

if TYPE_CHECKING:
    from .plan import ExperimentPlan

PACKAGES = {
    "textworld": "textworld-express",
    **{name: name for name in ("alfworld", "scienceworld", "miniwob")},
    "babyai": "minigrid",
    "bfcl": "bfcl-eval",
}
"""The package whose version decides what a built-in environment does."""
_INSTALLED = {"site-packages", "dist-packages"}
"""Folders of installed packages, which have a version and need no digest."""


def read_versions(plan: "ExperimentPlan") -> dict[str, str]:
    """Return a version or a digest of everything that the results of a plan depend on, by its name.

    The environment must have been opened, so that its modules are imported.
    """
    name = plan.environment.strip()
    module, has_class, _ = name.partition(":")
    package = PACKAGES.get(name.lower())
    world = {f"the source of {name}": _describe_module(module)} if has_class else {}
    world |= {package: _find_version(package)} if package else {}
    files = {str(path): _digest(path) for path in _find_files(plan)}
    return {"hardwon": version("hardwon"), "the source of hardwon": _digest_modules(_find_folders()), **world, **files}


def _find_folders() -> list[Path]:
    """Return the folders of hardwon's modules that play and learn; a change of the others changes no result."""
    names = ("hardwon.memory", "hardwon.runtime", "hardwon.apps.experiment")
    return [Path(sys.modules[name].__file__ or "").parent for name in names]


def _digest_modules(folders: Iterable[Path]) -> str:
    modules = ((path, folder) for folder in folders for path in sorted(folder.rglob("*.py")))
    return _combine(f"{folder.name} {path.relative_to(folder)} {_digest(path)}" for path, folder in modules)


def _describe_module(name: str) -> str:
    """Return the version of an installed module, or a digest of its file and of what it imports and names beside it."""
    file = Path(sys.modules[name].__file__ or "")
    if _INSTALLED & set(file.parts):
        return _find_version((packages_distributions().get(name.partition(".")[0]) or [name])[0])
    sources: dict[str, Path] = {}
    _add_sources(name, file.parents[name.count(".") + (file.name == "__init__.py")], sources)
    return _combine(f"{module} {_digest(path)}" for module, path in sorted(sources.items()))


def _add_sources(name: str, folder: Path, sources: dict[str, Path]) -> None:
    """Add the file of a module in a folder, the modules that it imports, and the data that it names."""
    file = _find_module(name, folder)
    if name in sources or name.partition(".")[0] == "hardwon" or folder not in file.parents or file.suffix != ".py":
        return
    if _INSTALLED & set(file.parts):
        return
    sources[name] = file
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            sources |= _find_data(node.value, {file.parent, folder})
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            names = [base, *(f"{base}.{name}" for name in names)]
        for imported in names:
            _add_sources(imported, folder, sources)


def _find_module(name: str, folder: Path) -> Path:
    """Return the file of a module, also of one that is imported later; an empty path if there is none."""
    if name in sys.modules:
        return Path(getattr(sys.modules[name], "__file__", None) or "")
    place = folder.joinpath(*name.split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), Path())


def _find_data(words: str, folders: set[Path]) -> dict[str, Path]:
    """Return the files and folders that a text in a source names, but no results of experiments."""
    if not 0 < len(words) <= 200 or not words.isprintable():
        return {}
    paths = [folder / words for folder in folders if (folder / words).exists() and folder in (folder / words).parents]
    return {str(path): path for path in paths if ".." not in path.parts and not next(path.rglob(PLAN), None)}


def _find_version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def _find_files(plan: "ExperimentPlan") -> Iterator[Path]:
    """Yield the files and folders that a plan names and that its agents read: strategies, roles and models."""
    paths, policy = [plan.strategies, plan.roles], plan.policy
    while policy.startswith((RANKED, TRAINED)):
        folder, policy = split_ranked(policy)
        paths.append(folder)
    if policy.startswith(FOLDER):
        paths.append(policy.removeprefix(FOLDER))
    yield from (Path(name) for name in paths if name and Path(name).exists())


def _digest(path: Path) -> str:
    """Return a digest of a file, or of all files in a folder with their names."""
    if path.is_dir():
        inner = sorted(child for child in path.rglob("*") if child.is_file())
        return _combine(f"{child.relative_to(path)} {_digest(child)}" for child in inner)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


def _combine(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode(errors="replace")).hexdigest()[:32]
