"""Items and episodes as lines of JSON, out of one library and into another.

Each line is {"item": {...}} or {"episode": {...}}. Evidence is written as [episode id, step number],
for step ids differ from file to file.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .catalogue import identify
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
    try:
        with partial.open("w", encoding="utf-8") as file:
            for line in _lines(library):
                file.write(dumps(line) + "\n")
                count += 1
        partial.replace(path)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}. Give a path in a folder that exists."
        ) from error
    finally:
        partial.unlink(missing_ok=True)
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

    Raises: ConfigError for a file that cannot be read, or naming the line that is not of the form.
    """
    known = {row["id"] for row in library.trajectories()}
    have = {item.id for item in library.items(status=None)}
    places: dict[tuple[str, int], int] = {}
    count = 0
    for number, line in enumerate(_read(path), 1):
        try:
            value = json.loads(line)
            if "episode" in value:
                episode = _episode(value["episode"])
                count += episode.id not in known
                if episode.id not in known:
                    known.add(library.record(episode))
                for step in library.trajectory(episode.id).steps:
                    places[episode.id, step.t] = step.id or 0
            else:
                item = _item(value["item"], places)
                count += item.id not in have
                if item.id not in have:
                    library.restore(item)
                    have.add(item.id)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path}, line {number}: not an episode or item of tacit ({error!r}).") from error
    return count


def _read(path: str | Path) -> Iterator[str]:
    """The lines of a file; only a line feed ends one, for text may hold other separators."""
    try:
        with Path(path).open(encoding="utf-8", newline="\n") as file:
            yield from file
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}). Give a file that `tacit memory export` wrote.") from error


def _item(value: dict[str, Any], places: dict[tuple[str, int], int]) -> Item:
    found = tuple(places[ref, t] for ref, t in value["provenance"] if (ref, t) in places)
    item = Item(**{**value, "provenance": found})
    return replace(item, id=item.id or identify(item))


def _episode(value: dict[str, Any]) -> Trajectory:
    if not value["id"]:
        raise ValueError("an episode without an id")
    steps = tuple(_step(step) for step in value.pop("steps"))
    return Trajectory(steps=steps, **value)


def _step(value: dict[str, Any]) -> Step:
    judged = value["diagnosis"]
    return replace(
        Step(**{**value, "pre": State(**value["pre"]), "post": State(**value["post"])}),
        diagnosis=Diagnosis(**{**judged, "failure": Failure(judged["failure"])}),
        id=None,
    )
