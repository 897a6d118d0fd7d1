"""Items as Markdown files with front matter, which a person can read, edit and keep in git.

    ---
    id: st-0f3c2a
    kind: strategy
    title: Check the order before you refund it
    status: active
    # evidence: 12 steps, score 0.7, confidence 0.9 (read-only)
    ---
    Refunds of unpaid orders fail.

The body of the file is the body of the item. Empty fields are left out, and the order of fields is fixed, so that a
difference shows only what changed. Figures that move by themselves stand in one comment.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from hardwon.memory import Item
from hardwon.memory.errors import ConfigError
from hardwon.memory.upkeep.text_files import read_text
from hardwon.trainers.config.yaml_bounds import check_yaml

from .common import show_controls
from .editing import check_changes

HEAD = ("id", "kind", "title", "when_to_use", "when_not_to_use", "status", "pinned")
PARTS = ("condition", "forbids", "granularity", "steps", "verify", "repairs", "scope", "locations", "tags", "ttl")
EDITABLE = (*HEAD[2:], *PARTS, "body")
"""Fields that a file decides."""
LONGEST = 200
"""Characters of a file name that come from the id. File systems allow 255 bytes with the hash and the ending."""
_RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))}
"""Names that Windows reserves, with any ending."""
_FENCE = re.compile(r"^---[ \t]*$", re.MULTILINE)
_MARKERS = re.compile(r"\A(?>.*?(?P<first>^<<<<<<< ))(?>.*?^=======\r?$).*?^>>>>>>> ", re.MULTILINE | re.DOTALL)
_DEFAULTS = {field.name: field.default for field in fields(Item) if field.default is not MISSING}


@dataclass(frozen=True, slots=True)
class ItemFile:
    """The content of one file."""

    name: str
    """Its path in the folder, with slashes."""
    values: Mapping[str, Any]
    """The values of the editable fields, as JSON values; a field that is left out has its default."""
    id: str = ""
    kind: str = ""

    @property
    def digest(self) -> str:
        """Return a hash of the editable fields."""
        return compute_digest(self.values)


def name_file(item: Item) -> str:
    """Return the path of an item's file in a folder; it depends on the kind and the id alone.

    The name ends with a hash where the id does not fit into a file name, or where another id could have the same name
    on a system that ignores case or reserves names.
    """
    name = quote(item.id, safe="")
    if name.partition(".")[0].lower() in _RESERVED:
        name = f"_{name}"
    if len(name) > LONGEST or name.startswith("_") or re.search("[A-Z]", item.id):
        name = f"{name[:LONGEST]}-{hashlib.blake2b(item.id.encode(), digest_size=8).hexdigest()}"
    return f"{item.kind}/{name}.md"


def read_values(item: Item) -> dict[str, Any]:
    """Return the editable fields of an item as JSON values."""
    values = {name: json.loads(json.dumps(getattr(item, name))) for name in EDITABLE}
    # the front matter escapes control characters, and a file that is printed must not write them to a terminal either
    return {**values, "body": show_controls(_normalize(values["body"]))}


def compute_digest(values: Mapping[str, Any]) -> str:
    """Return a hash of editable fields."""
    text = json.dumps(values, sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def render_file(item: Item) -> str:
    """Return an item as the text of its file."""
    values = {"id": item.id, "kind": item.kind, **read_values(item)}
    body = values.pop("body")
    kept = {
        name: values[name]
        for name in (*HEAD, *PARTS)
        if name in ("id", "kind", "title", "status") or values[name] != _get_default(name)
    }
    front = yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, width=10_000)
    figures = f"score {item.score:.1f}, confidence {item.confidence:.1f}"
    count = len(item.provenance)
    evidence = f"# evidence: {count} {'step' if count == 1 else 'steps'}, {figures} (read-only)\n"
    return f"---\n{front}{evidence}---\n{body}\n" if body else f"---\n{front}{evidence}---\n"


def _get_default(name: str) -> Any:
    default = _DEFAULTS.get(name, "")
    return list(default) if isinstance(default, tuple) else default


def read_file(path: Path, name: str, digests: Mapping[str, str]) -> ItemFile:
    """Read a file. Git's conflict markers are an error, unless the file is as it was checked out."""
    text = read_text(path)
    markers = _MARKERS.search(text)
    if markers is None:
        return parse_file(text, name)
    with suppress(ConfigError):
        file = parse_file(text, name)
        if file.digest == digests.get(file.id):
            return file
    line = text.count("\n", 0, markers.start("first")) + 1
    raise ConfigError(f"{name}:{line}: git left conflict markers here. Resolve the conflict, and remove the markers.")


def parse_file(text: str, name: str) -> ItemFile:
    """Read the text of a file."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    fences = list(_FENCE.finditer(text))
    if not fences or fences[0].start() != 0:
        raise ConfigError(f"{name}:1: the file does not begin with a line of ---. Begin it with front matter.")
    if len(fences) < 2:
        raise ConfigError(f"{name}:1: the front matter has no end. Add a line of --- after its fields.")
    front, body = text[fences[0].end() + 1 : fences[1].start()], text[fences[1].end() + 1 :]
    fields_given, lines = _parse_front(front, name)
    for key in fields_given:
        if key not in (*HEAD, *PARTS):
            raise ConfigError(
                f"{name}:{lines.get(key, 2)}: {key!r:.60} is not a field; use {', '.join((*HEAD, *PARTS))}."
            )
    ref, kind = fields_given.pop("id", None) or "", fields_given.pop("kind", None) or ""
    for key, value in (("id", ref), ("kind", kind)):
        if not isinstance(value, str):
            raise ConfigError(f"{name}:{lines[key]}: {key} is {value!r}; give text.")
    values = {key: _get_default(key) for key in EDITABLE} | fields_given | {"body": _normalize(body)}
    _check_values(values, kind, name, lines)
    return ItemFile(name, values, ref, kind)


def _parse_front(front: str, name: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the fields of front matter, and the line of each in the file."""
    try:
        check_yaml(front, name, first_line=2)
        node = yaml.compose(front, Loader=yaml.SafeLoader)
        values = yaml.safe_load(front)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 2 if mark is not None else 2
        raise ConfigError(f"{name}:{line}: {getattr(error, 'problem', None) or error}. Write YAML.") from error
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:  # such as a date that does not exist
        raise ConfigError(f"{name}:2: the front matter cannot be read ({error}). Write YAML.") from error
    if not isinstance(node, yaml.MappingNode) or not isinstance(values, dict):
        raise ConfigError(f"{name}:2: the front matter has no fields. Write a line such as `kind: strategy`.")
    lines: dict[str, int] = {}
    for key, _ in node.value:
        if key.value in lines:
            raise ConfigError(f"{name}:{key.start_mark.line + 2}: {key.value!r} stands there twice. Remove one.")
        lines[str(key.value)] = key.start_mark.line + 2
    return {str(key): value for key, value in values.items()}, lines


def _check_values(values: Mapping[str, Any], kind: str, name: str, lines: Mapping[str, int]) -> None:
    """Check each value as a field of an item."""
    sample = Item("insight", "a sample")
    for key, value in values.items():
        where = f"{name}:{lines.get(key, 2)}"
        if key == "status":
            if value not in ("active", "quarantined", "retired"):
                raise ConfigError(f"{where}: status is {value!r}; use active, quarantined or retired.")
        elif key == "pinned":
            if not isinstance(value, bool):
                raise ConfigError(f"{where}: pinned is {value!r}; use true or false.")
        else:
            try:
                check_changes(sample, {key: value})
            except (ConfigError, TypeError) as error:
                raise ConfigError(f"{where}: {error!s:.500}") from error
    if not values["title"]:
        raise ConfigError(f"{name}:2: the item has no title; give one sentence that summarizes it.")
    try:
        build_item(ItemFile(name, values, "", kind or "insight"))
    except ConfigError as error:
        raise ConfigError(f"{name}:{lines.get('kind', 2)}: {error}") from error


def build_item(file: ItemFile) -> Item:
    """Return the item that a new file describes."""
    changes = {key: value for key, value in file.values.items() if key != "status"}
    lists = ("steps", "locations", "tags")
    given = {key: tuple(value) if key in lists else value for key, value in changes.items()}
    return Item(kind=file.kind, id=file.id, source="person", writer="user", **given)  # type: ignore[arg-type]


def _normalize(text: str) -> str:
    """Return a body without what editors change: line ends, and space at its beginning and end."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip("\n").rstrip()
