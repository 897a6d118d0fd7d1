"""The folder of an experiment: its plan, what it depends on, and a row for every finished episode.

A folder belongs to one experiment. Another plan, another source of the environment, or another version is refused, so
that figures of an earlier one are never shown as new.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hardwon.apps.shared.common import library_name, lock_folder
from hardwon.memory.errors import ConfigError, HardwonError

from .plan import ExperimentPlan

ResultRow = dict[str, Any]
ROWS, PLAN = "episodes.jsonl", "plan.json"
COUNTS = "counts.json"
"""File with the number of episodes that each library had before the experiment."""
VERSIONS = "versions"
"""Key of the plan file with what the results depend on."""


@contextmanager
def own_folder(out: Path) -> Iterator[list[ResultRow]]:
    """Create and lock the folder of an experiment. Yield a list for its rows.

    If it fails before there is a row, as with an invalid setting, nothing of a new folder remains.
    """
    new_folders = [] if out.exists() else [folder for folder in (out, *out.parents) if not folder.exists()]
    out.mkdir(parents=True, exist_ok=True)
    rows: list[ResultRow] = []
    try:
        with lock_folder(out):
            yield rows
    except HardwonError:
        if new_folders and not rows:
            shutil.rmtree(out, ignore_errors=True)
            for folder in new_folders[1:]:
                with suppress(OSError):  # somebody else uses it by now
                    folder.rmdir()
        raise


def load_rows(plan: ExperimentPlan, versions: Mapping[str, str], out: Path) -> list[ResultRow]:
    """Return the rows of an earlier run of the same experiment; write its plan if there is none."""
    # Through JSON, so that tuples compare equal to the lists in the file.
    entry = json.loads(json.dumps({**_as_dict(plan), VERSIONS: dict(versions)}))
    config, episodes = out / PLAN, out / ROWS
    if config.exists():
        # A plan of an earlier version has no field that came later.
        later = {"roles": "", "device": "auto", "budget": "fixed", "beside": [], "strategies": ""}
        before = later | json.loads(config.read_text(encoding="utf-8"))
        if difference := _describe_difference(before, entry):
            raise ConfigError(
                f"{out} holds the results of another experiment: {difference}. Give another --out, or start anew "
                f"with: rm -r {out}"
            )
    else:
        _begin(plan, entry, out)
    if not episodes.exists():
        return []
    lines = episodes.read_bytes().split(b"\n")
    whole = [line for line in lines[:-1] if line]
    if lines[-1]:  # the last line is incomplete: the process was killed while writing it
        episodes.write_bytes(b"\n".join(whole) + (b"\n" if whole else b""))
    return [json.loads(line) for line in whole]


def _begin(plan: ExperimentPlan, entry: Mapping[str, Any], out: Path) -> None:
    """Write the plan and the number of episodes that each library has now."""
    for seed in plan.seeds:
        if (plan.is_shared or plan.library_path(seed).exists()) and (out / ROWS).exists():
            raise ConfigError(f"{out / ROWS} belongs to an unknown experiment. Give another --out, or remove the file.")
    counts = {seed: plan.count_episodes(seed) for seed in plan.seeds}
    (out / COUNTS).write_text(json.dumps(counts) + "\n", encoding="utf-8")
    (out / PLAN).write_text(json.dumps(entry, indent=2) + "\n", encoding="utf-8")


def _describe_difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the first difference between two plans; empty if there is none."""
    for name in sorted((before.keys() | now.keys()) - {VERSIONS}):
        if before.get(name) != now.get(name):
            return f"{name} was {before.get(name)!r:.100} and is {now.get(name)!r:.100}"
    old, new = before.get(VERSIONS, {}), now[VERSIONS]
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            is_version = name == "hardwon" or "." in str(new.get(name))
            if is_version:
                return f"the version of {name} was {old.get(name, 'unknown')} and is {new.get(name)}"
            return f"{name} has changed" if name in old else f"it does not say which {name.removeprefix('the ')} it had"
    return ""


def read_counts(out: Path) -> dict[int, int]:
    """Return the number of episodes that the library of each agent seed had before the experiment."""
    path = out / COUNTS
    counts = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}  # earlier versions wrote none
    return {int(seed): count for seed, count in counts.items()}


def _as_dict(plan: ExperimentPlan) -> dict[str, Any]:
    """Return the fields of a plan, without the passwords of addresses."""
    beside = tuple(library_name(library) for library in plan.beside)
    return {**asdict(plan), "library": library_name(plan.library), "beside": beside}
