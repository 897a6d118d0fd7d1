"""Check out items as files, and commit the changed, new and deleted files to the library.

The folder has a list of what was checked out, `.hardwon.json`, with a hash of each item. A file that differs from its
hash was edited; an item that differs from it was changed by the library in the meantime. Where both are so, nothing is
written, and the item is reported as a conflict.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hardwon.memory import ExperienceLibrary, Item
from hardwon.memory.errors import ConfigError, UnknownName
from hardwon.memory.upkeep.text_files import read_text

from .contained_files import remove_file, write_file
from .editing import check_changes
from .item_files import ItemFile, build_item, compute_digest, name_file, parse_file, read_file, read_values, render_file

MANIFEST = ".hardwon.json"
FORMAT = 1
STATUSES = ("active", "quarantined")
"""Items of these states are checked out. Retired items have no file."""

ChangeKind = Literal["new", "changed", "retired", "conflict", "rejected", "older"]
"""older: the file is as it was checked out, but the library changed the item since."""
LARGEST = 1_000_000  # bytes of the largest file that is read


@dataclass(frozen=True, slots=True)
class FileChange:
    """What a commit does with one file."""

    what: ChangeKind
    file: str
    item: str = ""
    """Id of the item; empty while it has none."""
    detail: str = ""
    """The changed fields, or the reason of a conflict or a rejection."""


@dataclass(slots=True)
class CheckoutManifest:
    """What was checked out, by the id of the item."""

    library: str = ""
    namespace: str = ""
    files: dict[str, str] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)


def read_manifest(folder: Path) -> CheckoutManifest | None:
    """Return what was checked out into a folder, or None."""
    path = folder / MANIFEST
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise ConfigError(f"{path} is no file. Remove it, or check out into another folder.")
    try:
        text = read_text(path)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}). Check out into another folder.") from error
    try:
        value = json.loads(text)
        if value["format"] != FORMAT:
            raise ConfigError(f"{path} has format {value['format']!r:.40}, not {FORMAT}. Update hardwon.")
        items: Mapping[str, list[str]] = value["items"]
        return CheckoutManifest(
            str(value["library"]), str(value["namespace"]),
            {ref: str(file) for ref, (file, _) in items.items()},
            {ref: str(digest) for ref, (_, digest) in items.items()},
        )  # fmt: skip
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"{path} is damaged ({error!r:.80}). Restore it, for example with `git checkout`, or check out into "
            "another folder."
        ) from error


def write_manifest(folder: Path, manifest: CheckoutManifest) -> None:
    """Write the list of a folder, with one line per item, so that a difference is small."""
    lines = [
        f"{json.dumps(ref)}: {json.dumps([manifest.files[ref], manifest.digests[ref]])}"
        for ref in sorted(manifest.files)
    ]
    head = f'{{"format": {FORMAT}, "library": {json.dumps(manifest.library)}, '
    text = f'{head}"namespace": {json.dumps(manifest.namespace)}, "items": {{\n' + ",\n".join(lines) + "\n}}\n"
    write_file(folder, MANIFEST, text)


def read_items(library: ExperienceLibrary) -> dict[str, Item]:
    """Return the items that have files, by id."""
    return {item.id: item for status in STATUSES for item in library.items.find(status=status, sort="old")}


def check_out(library: ExperienceLibrary, folder: Path, name: str, *, force: bool = False) -> CheckoutManifest:
    """Write the items of a library as files."""
    before = read_manifest(folder) or CheckoutManifest()
    items = read_items(library)
    if not force:
        _check_places(folder, before)
    if not force and (edited := list(_find_edited(folder, before, items))):
        more = f" and {len(edited) - 5} more" if len(edited) > 5 else ""
        raise ConfigError(
            f"{', '.join(edited[:5])}{more} in {folder} would be overwritten. Commit the changes with `hardwon memory "
            "commit`, or give --force."
        )
    after = CheckoutManifest(name, library.namespace)
    for item in items.values():
        _write_item(folder, item, after)
    for file in set(before.files.values()) - set(after.files.values()):
        remove_file(folder, file)
    write_manifest(folder, after)
    return after


def _write_item(folder: Path, item: Item, manifest: CheckoutManifest) -> None:
    manifest.files[item.id], manifest.digests[item.id] = name_file(item), compute_digest(read_values(item))
    write_file(folder, manifest.files[item.id], render_file(item))


def _find_edited(folder: Path, manifest: CheckoutManifest, items: Mapping[str, Item]) -> Iterator[str]:
    """Yield the files that checking out would overwrite although they hold something else than the library."""
    ids_by_file = {file: ref for ref, file in manifest.files.items()}
    for file in dict.fromkeys([*ids_by_file, *map(name_file, items.values())]):
        path = _find_path(folder, file)
        if not path.is_file():
            continue
        try:
            digest = parse_file(read_text(path), file).digest
        except (ConfigError, UnicodeDecodeError):
            digest = ""
        if digest != manifest.digests.get(ids_by_file.get(file, "")):
            item = next((item for item in items.values() if name_file(item) == file), None)
            if item is None or digest != compute_digest(read_values(item)):
                yield file


def _find_path(folder: Path, file: str) -> Path:
    """Return the path of a file in the folder."""
    path = folder / file
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{file!r} in {MANIFEST} leads out of {folder}. Restore the list, or check out again.")
    return path


def _check_places(folder: Path, manifest: CheckoutManifest) -> None:
    """Check that no missing file lies elsewhere in the folder: its item would be retired, or get a second file."""
    missing = {f"id: {ref}": file for ref, file in manifest.files.items() if not _find_path(folder, file).exists()}
    for path in sorted(folder.rglob("*") if missing else ()):
        name = path.relative_to(folder)
        if ".git" in name.parts or not path.is_file() or path.stat().st_size > LARGEST:
            continue
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()[:3]:
            if file := missing.get(line.strip()):
                raise ConfigError(
                    f"Nothing was written. {name.as_posix()} is {file} under another name. Rename it to {file}; to "
                    "retire its item instead, delete it."
                )


def read_files(folder: Path, manifest: CheckoutManifest) -> list[ItemFile]:
    """Return all item files of a folder, in the order of their names."""
    refs = {file: ref for ref, file in manifest.files.items()}
    files: list[ItemFile] = []
    wrong: list[str] = []
    for path in sorted(folder.glob("*/*.md")):
        name = path.relative_to(folder).as_posix()
        if name.startswith("."):
            continue
        if path.is_symlink() or path.parent.is_symlink():
            wrong.append(f"{name}:1: this is a link, which may lead out of the folder. Replace it by a file.")
            continue
        if not path.is_file() or path.stat().st_size > LARGEST:  # a pipe would be waited for
            wrong.append(f"{name}:1: this is no file of at most {LARGEST:,} bytes. Remove it.")
            continue
        try:
            files.append(read_file(path, name, manifest.digests))
        except UnicodeDecodeError as error:
            wrong.append(f"{name}:1: the file is not UTF-8 ({error.reason} at byte {error.start}). Save it as UTF-8.")
        except OSError as error:
            wrong.append(f"{name}:1: the file cannot be read ({error.strerror}). Restore it, or remove it.")
        except ConfigError as error:
            wrong.append(str(error))
    seen: dict[str, str] = {}
    for file in files:
        if file.id and file.id in seen:
            wrong.append(f"{file.name}:2: {seen[file.id]} has the id {file.id!r}, too. Remove the id of the new item.")
        seen.setdefault(file.id, file.name)
        if not file.id and not file.kind:
            wrong.append(f"{file.name}:2: the new item has no kind. Write a line such as `kind: strategy`.")
        if (ref := refs.get(file.name, file.id)) != file.id:
            wrong.append(f"{file.name}:2: the id was {ref!r} at the checkout. Write it again, or name a new file.")
    if wrong:
        raise ConfigError("Nothing was committed. " + " ".join(wrong))
    return files


def commit(library: ExperienceLibrary, folder: Path, *, why: str, dry_run: bool = False) -> list[FileChange]:
    """Write the changed, new and deleted files of a folder to the library."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise ConfigError(
            f"{folder} is no checkout: it has no {MANIFEST}. Run: hardwon memory checkout LIBRARY {folder}"
        )
    if manifest.namespace != library.namespace:
        raise ConfigError(
            f"{folder} is a checkout of the namespace {manifest.namespace!r}, not of {library.namespace!r}. Give the "
            "namespace with --namespace."
        )
    _check_places(folder, manifest)
    files = read_files(folder, manifest)
    work = _Commit(library, folder, manifest, why, dry_run)
    deleted = sorted(set(manifest.files) - {file.id for file in files})  # before new items get their files
    older = list(_find_older(files, manifest, read_items(library)))
    changes = [change for file in files if (change := work.take(file)) is not None]
    # a new file that the curator merged into the item of a deleted one brings it back
    deleted = [ref for ref in deleted if not _find_path(folder, manifest.files[ref]).exists()]
    changes += [change for ref in deleted if (change := work.remove(ref)) is not None]
    if not dry_run:
        write_manifest(folder, manifest)
    return [*changes, *older]


def _find_older(files: list[ItemFile], manifest: CheckoutManifest, items: Mapping[str, Item]) -> Iterator[FileChange]:
    """Yield the unedited files whose items the library changed, such as those that `git revert` brought back."""
    for file in files:
        item = items.get(file.id)
        if manifest.digests.get(file.id) != file.digest:
            continue
        if item is None:
            yield FileChange("older", file.name, file.id, "the item is not active in the library any more")
        elif compute_digest(read_values(item)) != file.digest:
            yield FileChange("older", file.name, file.id, f"the library has version {item.version}")


class _Commit:
    """One commit of a folder."""

    def __init__(
        self, library: ExperienceLibrary, folder: Path, manifest: CheckoutManifest, why: str, dry_run: bool
    ) -> None:
        self._library, self._folder, self._manifest = library, folder, manifest
        self._why, self._dry_run = why, dry_run

    def _read(self, ref: str) -> Item | None:
        try:
            item = self._library.items.get(ref)
        except UnknownName:
            return None
        return item if item.id == ref else None  # not a longer id that begins so

    def take(self, file: ItemFile) -> FileChange | None:
        """Take over one file, and return what was done, or None if it is unchanged."""
        base = self._manifest.digests.get(file.id)
        item = self._read(file.id) if file.id else None
        if item is not None and file.kind != item.kind:
            reason = f"the kind of an item cannot change. Write `kind: {item.kind}`, or a new file without the id"
            return FileChange("conflict", file.name, item.id, reason)
        if base == file.digest:
            return None
        if item is None:
            if base is not None:
                return FileChange("conflict", file.name, file.id, "the item is not in the library any more")
            return self._add(file)
        now = read_values(item)
        if file.values == now:
            self._refresh(item, file)
            return None
        if item.status == "retired" and not base:
            reason = f"the item is retired; bring it back with `hardwon memory undo LIBRARY {item.id}`"
            return FileChange("conflict", file.name, item.id, reason)
        if base != compute_digest(now):
            reason = "the library changed it since the checkout" if base else "it is not of this checkout"
            return FileChange("conflict", file.name, item.id, f"{reason} (version {item.version} now)")
        return self._change(item, file, {name: value for name, value in file.values.items() if value != now[name]})

    def _add(self, file: ItemFile) -> FileChange:
        if not file.kind:
            return FileChange("rejected", file.name, file.id, "it has no kind")
        if self._dry_run:
            return FileChange("new", file.name, file.id)
        admission = self._library.add(build_item(file))
        if admission.status == "rejected" or not admission.item_id:
            return FileChange("rejected", file.name, file.id, admission.reason)
        item = self._library.items.get(admission.item_id)
        self._refresh(item, file)
        return FileChange("new", file.name, item.id, admission.reason)

    def _change(self, item: Item, file: ItemFile, values: dict[str, Any]) -> FileChange:
        change = FileChange("changed", file.name, item.id, ", ".join(values))
        status = values.pop("status", None)
        if status == "active" and item.status != "quarantined":
            return FileChange("rejected", file.name, item.id, f"it is {item.status}; use `hardwon memory undo`")
        if status == "quarantined":
            return FileChange("rejected", file.name, item.id, "a person does not put items in quarantine; retire it")
        pinned = values.pop("pinned", None)
        checked = check_changes(item, values)
        if self._dry_run:
            return change
        if checked:
            self._library.items.update(item.id, **checked)
        if pinned is not None:
            self._library.items.update(item.id, pinned=pinned)
        if status == "active":
            self._library.items.release(item.id, self._why)
        elif status == "retired":
            self._library.items.retire(item.id, self._why)
        self._refresh(self._library.items.get(item.id), file)
        return change

    def remove(self, ref: str) -> FileChange | None:
        """Retire the item of a deleted file, unless the library changed it in the meantime."""
        file = self._manifest.files[ref]
        item = self._read(ref)
        if item is None or item.status == "retired":
            self._drop(ref)
            return None
        if self._manifest.digests[ref] != compute_digest(read_values(item)):
            reason = (
                f"the file is deleted, but the library changed the item since the checkout (version {item.version} now)"
            )
            return FileChange("conflict", file, ref, reason)
        if not self._dry_run:
            self._library.items.retire(ref, self._why)
            self._drop(ref)
        return FileChange("retired", file, ref, self._why)

    def _drop(self, ref: str) -> None:
        if not self._dry_run:
            self._manifest.files.pop(ref, None)
            self._manifest.digests.pop(ref, None)

    def _refresh(self, item: Item, file: ItemFile) -> None:
        """Write the file of an item as the library has it now; a new item gets the name of its id."""
        if self._dry_run:
            return
        if item.status in STATUSES:
            _write_item(self._folder, item, self._manifest)
        else:
            self._drop(item.id)
        if item.status not in STATUSES or self._manifest.files[item.id] != file.name:
            remove_file(self._folder, file.name)
