"""Items and episodes as lines of JSON, out of one library and into another.

Each line is {"item": {...}} or {"episode": {...}}. Evidence is written as [episode id, step number],
for step ids differ from file to file.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import ConfigError
from .ledger import dumps
from .records import Diagnosis, Failure, Item, State, Step, Trajectory

if TYPE_CHECKING:
    from .library import ExperienceLibrary


def export_jsonl(library: "ExperienceLibrary", path: str | Path) -> int:
    """Episodes, oldest first, then items; written beside and moved into place."""
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    count = 0
    with partial.open("w", encoding="utf-8") as file:
        for line in _lines(library):
            file.write(dumps(line) + "\n")
            count += 1
    partial.replace(path)
    return count


def _lines(library: "ExperienceLibrary") -> Iterator[dict[str, Any]]:
    places: dict[int, tuple[str, int]] = {}
    for row in reversed(library.trajectories()):
        episode = library.trajectory(row["id"])
        places.update({step.id: (episode.id, step.t) for step in episode.steps if step.id is not None})
        yield {"episode": asdict(episode)}
    for item in library.items(status=None, sort="old"):
        yield {"item": {**asdict(item), "provenance": [places[ref] for ref in item.provenance if ref in places]}}


def import_jsonl(library: "ExperienceLibrary", path: str | Path) -> int:
    """Record the episodes and add the items that are not there yet.

    Raises: ConfigError naming the line that is not of the form.
    """
    known = {row["id"] for row in library.trajectories()}
    have = {item.id for item in library.items(status=None)}
    places: dict[tuple[str, int], int] = {}
    count = 0
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        try:
            value = json.loads(line)
            if "episode" in value:
                episode = _episode(value["episode"])
                if episode.id not in known:
                    library.record(episode)
                    count += 1
                for step in library.trajectory(episode.id).steps:
                    places[episode.id, step.t] = step.id or 0
            else:
                item = value["item"]
                found = tuple(places[ref, t] for ref, t in item["provenance"] if (ref, t) in places)
                restored = Item(**{**item, "provenance": found, "signatures": tuple(item["signatures"])})
                if restored.id not in have:
                    library.restore(restored)
                    count += 1
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path}, line {number}: not an episode or item of tacit ({error}).") from error
    return count


def _episode(value: dict[str, Any]) -> Trajectory:
    steps = tuple(_step(step) for step in value.pop("steps"))
    return Trajectory(steps=steps, **value)


def _step(value: dict[str, Any]) -> Step:
    judged = value["diagnosis"]
    return replace(
        Step(**{**value, "pre": _state(value["pre"]), "post": _state(value["post"]), "keys": tuple(value["keys"])}),
        diagnosis=Diagnosis(**{**judged, "failure": Failure(judged["failure"])}),
        id=None,
    )


def _state(value: dict[str, Any]) -> State:
    return State(**{**value, "notes": tuple(value["notes"])})
