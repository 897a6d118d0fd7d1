"""The commands of `tacit memory` that change a library: items by hand, evolution, moving, mending."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from .doors import AsJson, ItemId, Library, Namespace, must_exist, opened, out, say_json, table, tell

app = typer.Typer()


@app.command()
def edit(
    path: Library,
    item_id: ItemId,
    title: Annotated[str | None, typer.Option(help="One sentence that says what it is about.")] = None,
    body: Annotated[str | None, typer.Option(help="The knowledge itself.")] = None,
    when_to_use: Annotated[str | None, typer.Option(help="When it helps.")] = None,
    when_not_to_use: Annotated[str | None, typer.Option(help="When it does not.")] = None,
    forbids: Annotated[str | None, typer.Option(help="A guardrail's action pattern: 'cook {1} in stove'.")] = None,
    condition: Annotated[str | None, typer.Option(help="A guardrail's condition, as JSON.")] = None,
    score: Annotated[float | None, typer.Option(min=0, max=1, help="How useful it proved; 0.5 is neutral.")] = None,
    confidence: Annotated[float | None, typer.Option(min=0, max=1, help="How sure it is.")] = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Change fields of an item; the old values stay in its history."""
    changes: dict[str, Any] = {
        "title": title, "body": body, "when_to_use": when_to_use, "when_not_to_use": when_not_to_use,
        "forbids": forbids, "condition": _condition(condition), "score": score, "confidence": confidence,
    }  # fmt: skip
    changes = {name: value for name, value in changes.items() if value is not None}
    if not changes:
        raise typer.BadParameter("nothing to change: give at least one field, such as --title or --score.")
    with opened(path, namespace, write=True) as library:
        item = library.update(item_id, **changes)
    _done(as_json, {"item": item}, f"{item.id} is now version {item.version}: {', '.join(changes)} changed.")


def _condition(text: str | None) -> Mapping[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise typer.BadParameter(f'--condition is {text!r}; write a JSON object such as {{"text": "is locked"}}.')
    return value


def _done(as_json: bool, value: Mapping[str, Any], words: str) -> None:
    say_json(value) if as_json else out().print(words, soft_wrap=True)


@app.command()
def retire(
    path: Library,
    item_id: ItemId,
    why: Annotated[str, typer.Option(help="The reason, kept in the item's history.", show_default=False)],
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Take an item out of use; it and the reason stay in the history."""
    with opened(path, namespace, write=True) as library:
        item = library.get(item_id)
        library.retire(item.id, why)
        _done(as_json, {"item": library.get(item.id)}, f"{item.id} is retired: {why}")


@app.command()
def pin(
    path: Library,
    item_id: ItemId,
    release: Annotated[bool, typer.Option("--release", help="Take the protection away again.")] = False,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Protect an item from being replaced or evicted."""
    with opened(path, namespace, write=True) as library:
        item = library.pin(item_id, not release)
    _done(as_json, {"item": item}, f"{item.id} is {'pinned' if item.pinned else 'not pinned any more'}.")


@app.command()
def evolve(path: Library, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """Distil recorded steps into items: guardrails, warnings, strategies; within the rate limits."""
    with opened(path, namespace, write=True) as library:
        report = library.evolve()
    if as_json:
        say_json(report)
        return
    counts = {status: report.count(status) for status in ("added", "merged", "replaced", "rejected")}
    said = ", ".join(f"{count} {status}" for status, count in counts.items())
    out().print(f"{report.candidates} candidates: {said}; {len(report.retired)} retired.", soft_wrap=True)
    rows = [(a.item_id or "-", a.status, a.reason) for a in report.admissions]
    if rows:
        out().print(table("id", "became", "because", rows=rows, whole=("id",)))


@app.command("export")
def export_(
    path: Library,
    target: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write lines of JSON.", show_default=False)],
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Write episodes and items as lines of JSON."""
    with opened(path, namespace) as library:
        lines = library.export_jsonl(target)
    _done(as_json, {"lines": lines, "file": str(target)}, f"{lines} lines written to {target}.")


@app.command("import")
def import_(
    path: Annotated[
        Path, typer.Argument(metavar="LIBRARY", help="The library file, made when new.", show_default=False)
    ],
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="What `tacit memory export` wrote.", exists=True, dir_okay=False, show_default=False
        ),
    ],
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Read what export wrote, all or nothing; what is there already is left as it is."""
    from tacit.memory import ExperienceLibrary

    with ExperienceLibrary.open(path, namespace=namespace) as library:
        lines = library.import_jsonl(source)
    _done(as_json, {"lines": lines, "library": str(path)}, f"{lines} new lines from {source}.")


@app.command()
def repair(path: Library, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """Rebuild from the truth what `verify` finds wrong."""
    with opened(path, namespace, write=True) as library:
        repaired = library.repair()
        left = library.verify()
    if as_json:
        say_json({"repaired": repaired, "left": left})
    elif not repaired:
        out().print("Nothing was wrong.")
    else:
        rows = [(p.where, p.what, "still wrong" if p in left else "rebuilt") for p in repaired]
        out().print(table("where", "what was wrong", "now", rows=rows))
    if left:
        raise typer.Exit(1)


@app.command()
def reembed(
    path: Library,
    embedder: Annotated[
        str | None,
        typer.Option(help="hashing, hashing:DIM or sentence-transformers:MODEL.", show_default="the library's own"),
    ] = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Make another embedder the library's own, and embed what has no vector of it."""
    if embedder is not None:
        from tacit.memory.library import reembed as change

        must_exist(path, namespace)
        tell(f"from now on {path} is embedded by {change(path, embedder).name}")
    with opened(path, namespace, write=True) as library:
        tell("embedding states and items ...")
        library.index()
        name = library.embedder.name
    _done(as_json, {"embedder": name, "library": str(path)}, f"{path} is embedded by {name}.")
