"""The commands of `hardwon memory` that change a library: items by hand, evolution, moving, mending."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hardwon.apps.shared.common import (
    AsJson,
    ItemId,
    Library,
    Namespace,
    as_text,
    must_exist,
    opened,
    out,
    say_json,
    table,
    tell,
)

app = typer.Typer()
SMALL = 4 * 2**20
"""Bytes of a file that is imported without a word about progress."""


def _reason(text: str) -> str:
    if not text.strip():
        raise typer.BadParameter("give a reason in a few words; it is kept in the item's history.")
    return text


Why = Annotated[
    str,
    typer.Option("--why", help="The reason, kept in the item's history.", callback=_reason, show_default=False),
]


def _new(words: str) -> Any:
    """An option that changes a field; one that is not given leaves it."""
    return typer.Option(help=words, show_default=False)


@app.command()
def edit(
    path: Library,
    item_id: ItemId,
    title: Annotated[str | None, _new("One sentence that says what it is about.")] = None,
    body: Annotated[str | None, _new("The knowledge itself.")] = None,
    when_to_use: Annotated[str | None, _new("When it helps.")] = None,
    when_not_to_use: Annotated[str | None, _new("When it does not.")] = None,
    forbids: Annotated[str | None, _new("A guardrail's action pattern: 'cook {1} in stove'.")] = None,
    condition: Annotated[str | None, _new("When a guardrail, skill or remedy applies, as JSON.")] = None,
    step: Annotated[list[str] | None, _new("An action of a skill or remedy; give each in its order.")] = None,
    verify: Annotated[str | None, _new("What must hold after a skill's last step, as JSON.")] = None,
    location: Annotated[list[str] | None, _new("A place where it applies; may be given several times.")] = None,
    tag: Annotated[list[str] | None, _new("A tag; may be given several times.")] = None,
    score: Annotated[float | None, _new("How useful it proved, 0 to 1; 0.5 is neutral.")] = None,
    confidence: Annotated[float | None, _new("How sure it is, 0 to 1.")] = None,
    ttl: Annotated[int | None, _new("Episodes that it lives without new evidence.")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="A file with a JSON object of fields.", show_default=False)
    ] = None,
    editor: Annotated[
        bool, typer.Option("--editor", "-e", help="Edit all fields as JSON in $VISUAL or $EDITOR.")
    ] = False,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Change fields of an item; the old values stay in its history, and `undo` brings them back.

    A value that cannot be is refused, and then nothing is changed.
    """
    from hardwon.apps.shared import editing

    given = {
        "title": title, "body": body, "when_to_use": when_to_use, "when_not_to_use": when_not_to_use,
        "forbids": forbids, "condition": _object(condition, "--condition"), "steps": step,
        "verify": _object(verify, "--verify"), "locations": location, "tags": tag, "score": score,
        "confidence": confidence, "ttl": ttl,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    if source is not None:
        given = {**editing.read(source), **given}
    with opened(path, namespace, write=True) as library:
        item = library.get(item_id)
        changes = editing.checked(item, given)
        if editor:
            changes = {**editing.in_editor(item), **changes}
        elif not changes:
            raise typer.BadParameter("nothing to change: give a field, such as --title or --score, or --editor.")
        if changes:
            item = library.update(item.id, **changes)
    if changes:
        _done(as_json, {"item": item}, f"{item.id} is now version {item.version}: {', '.join(changes)} changed.")
    else:
        _done(as_json, {"item": item}, f"{item.id} is left as it was.")


def _object(text: str | None, option: str) -> Mapping[str, Any] | None:
    from hardwon.apps.shared import editing

    return None if text is None else editing.parsed(text, option)


def _done(as_json: bool, value: Mapping[str, Any], words: str) -> None:
    say_json(value) if as_json else out().print(words)


@app.command()
def retire(path: Library, item_id: ItemId, why: Why, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """Take an item out of use; it and the reason stay in the history, and `undo` brings it back."""
    with opened(path, namespace, write=True) as library:
        item = library.get(item_id)
        library.retire(item.id, why)
        _done(as_json, {"item": library.get(item.id)}, f"{item.id} is retired: {why}")


@app.command()
def forget(
    path: Library,
    episode: Annotated[str | None, _new("Forget the episode with this id.")] = None,
    writer: Annotated[str | None, _new("Forget what this writer recorded or wrote.")] = None,
    text: Annotated[
        str | None, _new("Forget every episode and item that holds this text in any field, whatever its case.")
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", "-n", callback=lambda typed: typed and as_text(typed), show_default=False,
            help="Where to look; given alone, forget all of this namespace.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what would go, and change nothing.")] = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Delete experience for good: from the file and its bytes, indices, summaries, history and items made of it.

    This cannot be undone, and copies and exports made before are not touched. A receipt without content stays.
    """
    chosen = {name: value for name, value in (("episode", episode), ("writer", writer), ("text", text)) if value}
    if len(chosen) > 1 or not (chosen or namespace):
        raise typer.BadParameter("give one of --episode, --writer, --text, or --namespace alone.")
    what: dict[str, Any] = dict(chosen) or {"namespace": namespace}
    with opened(path, namespace or "default", write=True) as library:
        counted = library.forget(**what, dry_run=True)
        if not as_json:
            tell(_would_go(counted.counts))
        if dry_run or not counted.counts:
            receipt = counted
        else:
            if not yes:
                _ask_to_forget()
            receipt = library.forget(**what)
    if as_json:
        say_json(receipt)
    elif not receipt.dry_run:
        out().print(f"Forgotten. Receipt {receipt.digest} of {receipt.at}.", soft_wrap=True)
        if not receipt.erased:
            out().print("Another process reads an old version: the bytes are erased when the library is next opened.")


def _would_go(counts: Mapping[str, int]) -> str:
    """Return what is selected, in words."""
    found = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items())
    return f"Selected: {found}." if found else "Nothing in this library is selected by that."


def _ask_to_forget() -> None:
    """Ask the person; a program that cannot answer is told which option does."""
    if not sys.stdin.isatty():
        raise typer.BadParameter("this deletes for good, and nobody is there to ask; give --yes, or --dry-run first.")
    typer.confirm("Delete this for good?", abort=True, err=True)


@app.command()
def release(
    path: Library, item_id: ItemId, why: Why, namespace: Namespace = "default", as_json: AsJson = False
) -> None:
    """Let an item out of quarantine, on your word: it is trusted from then on."""
    with opened(path, namespace, write=True) as library:
        item = library.release(item_id, why)
    _done(as_json, {"item": item}, f"{item.id} is released, and active: {why}")


@app.command()
def pin(path: Library, item_id: ItemId, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """Protect an item from being replaced, evicted or retired by the library itself."""
    with opened(path, namespace, write=True) as library:
        item = library.pin(item_id)
    _done(as_json, {"item": item}, f"{item.id} is pinned.")


@app.command()
def unpin(path: Library, item_id: ItemId, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """Take an item's protection away again."""
    with opened(path, namespace, write=True) as library:
        item = library.pin(item_id, False)
    _done(as_json, {"item": item}, f"{item.id} is not pinned any more.")


@app.command()
def undo(path: Library, item_id: ItemId, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """Take back an item's last change that was not taken back yet; the score it earned stays."""
    with opened(path, namespace, write=True) as library:
        item = library.undo(item_id)
    _done(as_json, {"item": item}, f"{item.id} is as it was before: {item.status}, version {item.version}.")


@app.command()
def evolve(path: Library, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """Distil recorded steps into items of every kind that rules can make; within the rate limits."""
    with opened(path, namespace, write=True) as library:
        report = library.evolve()
    if as_json:
        say_json(report)
        return
    counts = {status: report.count(status) for status in ("added", "merged", "replaced", "rejected")}
    said = ", ".join(f"{count} {status}" for status, count in counts.items())
    out().print(f"{report.candidates} candidates: {said}; {len(report.retired)} retired.")
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
            metavar="FILE",
            help="What `hardwon memory export` wrote, or a log of another program; see --format.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ],
    form: Annotated[
        str,
        typer.Option("--format", help="auto, hardwon, openai, anthropic, responses, claude-code, langsmith or otel."),
    ] = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be imported, and write nothing.")] = False,
    trust: Annotated[
        str | None,
        typer.Option(
            help="trusted: believe what it says, as of your own agents; untrusted: learn only which actions were taken "
            "and how they ended.",
            show_default="trusted for an export of hardwon, untrusted for other logs",
        ),
    ] = None,
    untrusted: Annotated[bool, typer.Option("--untrusted", help="The same as --trust untrusted.")] = False,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Read a file of experience into LIBRARY: an export, or what an agent did elsewhere.

    The file is checked to its end before anything is written. What is there already is left as it is, so an import
    that was interrupted goes on when it is repeated.
    """
    from hardwon.apps import importers
    from hardwon.apps.shared import file_queries
    from hardwon.memory import ExperienceLibrary
    from hardwon.memory.errors import ConfigError

    if trust not in (None, "trusted", "untrusted"):
        raise ConfigError(f"--trust is {trust!r}; use trusted or untrusted.")
    with _progress_of(source, "reading") as advance:
        known, logged = importers.read(source, form, on_progress=advance)
    own = known == "hardwon" if trust is None else trust == "trusted"
    believed: Literal["trusted", "untrusted"] = "trusted" if own and not untrusted else "untrusted"
    counted: dict[str, Any] = {"format": known, "library": str(path)}
    if dry_run:
        there = path.exists() and namespace in file_queries.namespaces(path)
        with opened(path, namespace) if there else ExperienceLibrary.open(":memory:") as library:
            counted |= importers.count(library, source, known, logged)
        words = f"{counted['new']} of {counted['episodes']} episodes in {source} are new. Nothing was written."
        _done(as_json, counted, words)
        return
    with ExperienceLibrary.open(path, namespace=namespace) as library:
        if known != "hardwon":
            counted |= importers.count(library, source, known, logged)
            with _progress_of(source, "writing") as advance:
                importers.write(
                    library, logged, source=known, trust=believed, writer=f"import:{source.name}", on_progress=advance
                )
            words = f"{counted['new']} new episodes of {counted['episodes']} from {source} ({known})."
            _done(as_json, counted, words)
            return
        try:
            lines = library.import_jsonl(source, trust=believed)
        except RecursionError as error:
            raise ConfigError(f"{source} is not what `hardwon memory export` wrote: {error}.") from error
    _done(as_json, {**counted, "lines": lines}, f"{lines} new lines from {source}.")


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
    as_json: AsJson = False,
) -> None:
    """Make another embedder the library's own, and embed all of it, in every namespace.

    What is embedded is kept at once: one that was interrupted goes on when it is called again.
    """
    from hardwon.memory.library import reembed as embed_again

    must_exist(path)
    with opened(path) as library:
        wanted = embedder or library.embedder.name
    with _progress("embedding") as advance:
        name = embed_again(path, wanted, advance).name
    _done(as_json, {"embedder": name, "library": str(path)}, f"{path} is embedded by {name}.")


@contextmanager
def _progress_of(source: Path, what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Progress for a file that takes a while; None for a small one."""
    if source.stat().st_size < SMALL:
        yield None
        return
    with _progress(what) as advance:
        yield advance


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, told how many of how many are done; where that is no terminal, a line for every tenth."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _by_tenths(what)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def _by_tenths(what: str) -> Callable[[int, int], None]:
    told = -1

    def advance(done: int, of: int) -> None:
        nonlocal told
        tenth = 10 * done // max(1, of)
        if tenth != told:
            told = tenth
            tell(f"{what} {done}/{of}")

    return advance
