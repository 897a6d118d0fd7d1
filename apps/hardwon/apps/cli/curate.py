"""Define the commands of `hardwon memory` that change a library: editing, evolution, import, export, repair."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

import typer

from hardwon.apps.shared.common import (
    AsJson,
    ItemId,
    Library,
    Namespace,
    ServedLibrary,
    as_text,
    is_address,
    library_name,
    must_exist,
    opened,
    out,
    say_json,
    table,
    tell,
)
from hardwon.apps.shared.trained import HELP, ExtractorOption, open_extractor, open_server_roles

app = typer.Typer()
SMALL = 2**20
"""Largest file, in bytes, that is imported without a progress bar."""
UNANSWERED = " No tool call in it has an answer. Log tool results as well."


def _require_reason(text: str) -> str:
    if not text.strip():
        raise typer.BadParameter("give a short reason; it is kept in the item's history.")
    return text


WhyOption = Annotated[
    str,
    typer.Option("--why", help="The reason, kept in the item's history.", callback=_require_reason, show_default=False),
]


def _field_option(words: str) -> Any:
    """Return an option for a field; an omitted option leaves the field unchanged."""
    return typer.Option(help=words, show_default=False)


@app.command()
def edit(
    path: Library,
    item_id: ItemId,
    title: Annotated[str | None, _field_option("One sentence that summarizes the item.")] = None,
    body: Annotated[str | None, _field_option("The full text of the item.")] = None,
    when_to_use: Annotated[str | None, _field_option("When it helps.")] = None,
    when_not_to_use: Annotated[str | None, _field_option("When it does not help.")] = None,
    forbids: Annotated[str | None, _field_option("A guardrail's action pattern: 'cook {1} in stove'.")] = None,
    condition: Annotated[str | None, _field_option("When a guardrail, skill or remedy applies, as JSON.")] = None,
    step: Annotated[
        list[str] | None, _field_option("An action of a skill or remedy; repeat it, in order, for several.")
    ] = None,
    verify: Annotated[
        str | None, _field_option("The condition that must hold after a skill's last step, as JSON.")
    ] = None,
    location: Annotated[list[str] | None, _field_option("A location where it applies; repeat it for several.")] = None,
    tag: Annotated[list[str] | None, _field_option("A tag; repeat it for several.")] = None,
    score: Annotated[float | None, _field_option("Usefulness, from 0 to 1; 0.5 is neutral.")] = None,
    confidence: Annotated[float | None, _field_option("Confidence, from 0 to 1.")] = None,
    ttl: Annotated[int | None, _field_option("Episodes after which it retires without new evidence.")] = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Change fields of an item. The history keeps the old values, and `undo` restores them.

    An invalid value is rejected, and then no field changes. `checkout` and `commit` edit items as files.
    """
    from hardwon.apps.shared import editing

    given = {
        "title": title, "body": body, "when_to_use": when_to_use, "when_not_to_use": when_not_to_use,
        "forbids": forbids, "condition": _parse_object(condition, "--condition"), "steps": step,
        "verify": _parse_object(verify, "--verify"), "locations": location, "tags": tag, "score": score,
        "confidence": confidence, "ttl": ttl,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        raise typer.BadParameter("nothing to change: give a field, such as --title or --score.")
    with opened(path, namespace, write=True) as library:
        item = library.items.get(item_id)
        item = library.items.update(item.id, **editing.check_changes(item, given))
    _print_result(as_json, {"item": item}, f"{item.id} is now version {item.version}: {', '.join(given)} changed.")


def _parse_object(text: str | None, option: str) -> Mapping[str, Any] | None:
    from hardwon.apps.shared import editing

    return None if text is None else editing.parse_fields(text, option)


def _print_result(as_json: bool, value: Mapping[str, Any], words: str) -> None:
    say_json(value) if as_json else out().print(words)


@app.command()
def retire(
    path: Library, item_id: ItemId, why: WhyOption, namespace: Namespace = "default", as_json: AsJson = False
) -> None:
    """Prune an item: stop using it. The history keeps the item and the reason, and `undo` restores it."""
    with opened(path, namespace, write=True) as library:
        item = library.items.get(item_id)
        library.items.retire(item.id, why)
        _print_result(as_json, {"item": library.items.get(item.id)}, f"{item.id} is retired: {why}")


@app.command()
def forget(
    path: Library,
    episode: Annotated[str | None, _field_option("Forget the episode with this id or prefix.")] = None,
    writer: Annotated[str | None, _field_option("Forget everything that this writer recorded or wrote.")] = None,
    text: Annotated[
        str | None,
        _field_option("Forget every episode and item of the namespace with this text in any field, ignoring case."),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", "-n", callback=lambda typed: typed and as_text(typed), show_default=False,
            help="The namespace to search; if given alone, forget the whole namespace.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the records without deleting them.")] = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Delete experience permanently: from the file and its free pages, indexes, summaries, history and derived items.

    You cannot undo this, and earlier copies and exports are not changed. A receipt without content remains.
    """
    chosen = {name: value for name, value in (("episode", episode), ("writer", writer), ("text", text)) if value}
    if len(chosen) > 1 or not (chosen or namespace):
        raise typer.BadParameter("give one of --episode, --writer, --text, or --namespace alone.")
    what: dict[str, Any] = dict(chosen) or {"namespace": namespace}
    with opened(path, namespace or "default", write=True) as library:
        if episode:
            matches = [row["id"] for row in library.episodes.find() if row["id"].startswith(episode)]
            what["episode"] = matches[0] if len(matches) == 1 else episode
        # Count first, so that the question below states what the deletion would remove.
        counted = library.admin.forget(**what, dry_run=True)
        if not as_json:
            tell(_format_selection(counted.counts))
        if dry_run or not counted.counts:
            receipt = counted
        else:
            if not yes:
                _confirm_deletion()
            receipt = library.admin.forget(**what)
    if as_json:
        say_json(receipt)
    elif not receipt.dry_run:
        out().print(f"Forgotten. Receipt {receipt.digest} of {receipt.at}.", soft_wrap=True)
        if is_address(path):
            out().print("Other hosts erase it when their replicas follow. Backups of the database are not changed.")
        if not receipt.erased:
            out().print(
                "Another process still reads the old data; its bytes are erased when the library is next opened."
            )


def _format_selection(counts: Mapping[str, int]) -> str:
    """Describe the selected records."""
    records = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items())
    return f"Selected: {records}." if records else "No record in this library matches."


def _confirm_deletion() -> None:
    """Ask for confirmation; fail with the option to use where no terminal is attached."""
    if not sys.stdin.isatty():
        raise typer.BadParameter(
            "deletion is permanent and there is no terminal to confirm it; give --yes, or try --dry-run first."
        )
    typer.confirm("Delete these records permanently?", abort=True, err=True)


@app.command()
def release(
    path: Library, item_id: ItemId, why: WhyOption, namespace: Namespace = "default", as_json: AsJson = False
) -> None:
    """Release an item from quarantine on your authority; from then on it is trusted."""
    with opened(path, namespace, write=True) as library:
        item = library.items.release(item_id, why)
    _print_result(as_json, {"item": item}, f"{item.id} is released and active: {why}")


@app.command()
def pin(path: Library, item_id: ItemId, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """Protect an item from automatic replacement, eviction and retirement."""
    with opened(path, namespace, write=True) as library:
        item = library.items.update(item_id, pinned=True)
    _print_result(as_json, {"item": item}, f"{item.id} is pinned.")


@app.command()
def unpin(path: Library, item_id: ItemId, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """Remove the protection of a pinned item."""
    with opened(path, namespace, write=True) as library:
        item = library.items.update(item_id, pinned=False)
    _print_result(as_json, {"item": item}, f"{item.id} is no longer pinned.")


@app.command()
def undo(path: Library, item_id: ItemId, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """Reset an item to what it was before its newest change, the next time before that. It keeps its earned score."""
    from hardwon.apps.render.views import describe_changes

    with opened(path, namespace, write=True) as library:
        item = library.items.undo(item_id)
        fields = describe_changes(library.items.history(item.id))[-1]
    _print_result(as_json, {"item": item}, f"{item.id} is restored ({fields}), now version {item.version}.")


@app.command()
def evolve(
    path: Library,
    extractor: ExtractorOption = None,
    roles: Annotated[
        Path | None,
        typer.Option("--roles", help=f"{HELP} Its extractor reads the episodes.", show_default="no trained extractor"),
    ] = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Create items from recorded steps by rules, within the rate limits.

    With --extractor or --roles, a model also reads the 20 oldest episodes that none has read; repeat the command for
    more.
    """
    reader = open_extractor(extractor, open_server_roles(roles, "extractor").extractor)
    with opened(path, namespace, write=True) as library:
        report = library.evolve(extractor=reader)
    if as_json:
        say_json(report)
        return
    counts = {status: report.count(status) for status in ("added", "merged", "replaced", "rejected")}
    decisions = ", ".join(f"{count} {status}" for status, count in counts.items())
    out().print(f"{report.candidates} candidates: {decisions}; {len(report.retired)} retired.")
    rows = [(a.item_id or "-", a.status, a.reason) for a in report.admissions]
    if rows:
        out().print(table("id", "decision", "reason", rows=rows, whole=("id",)))


@app.command("export")
def export_(
    path: Library,
    target: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to write, as JSON lines.", show_default=False)
    ],
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Export episodes and items as JSON lines.

    Of a damaged library, what can be read is exported, what cannot is named, and the exit code is 1.
    """
    from hardwon.memory.errors import LibraryError

    damage: list[str] = []
    try:
        with opened(path, namespace) as library:
            lines = library.admin.export_jsonl(target)
    except LibraryError as error:
        if is_address(path) or not path.is_file():
            raise
        lines, damage = _salvage(path, namespace, target, error)
    for line in damage[:100]:
        tell(line)
    words = f"{lines} lines written to {target}."
    if damage:
        words += f" {len(damage)} rows or records are damaged."
    _print_result(as_json, {"lines": lines, "file": str(target), "damage": damage}, words)
    if damage:
        raise typer.Exit(1)


def _salvage(path: Path, namespace: str, target: Path, error: Exception) -> tuple[int, list[str]]:
    """Export what can be read of a damaged library; raise the error that opening it raised if nothing can."""
    from hardwon.memory.errors import NotALibrary
    from hardwon.memory.upkeep.salvage import salvage

    try:
        return salvage(path, namespace, target)
    except NotALibrary as reason:
        # not the advice to export it
        raise (reason if "memory export" in str(error) else error) from None


LogFormat = Annotated[
    str,
    typer.Option(
        "--format", help="auto, hardwon, openai, anthropic, responses, claude-code, codex, langsmith, langfuse or otel."
    ),
]


@app.command("import")
def import_(
    path: ServedLibrary,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A file from `hardwon memory export`, or a log of another program; see --format. A pipe works, and - "
            "is the standard input.",
            show_default=False,
        ),
    ],
    form: LogFormat = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the new episodes without importing them.")] = False,
    trust: Annotated[
        str | None,
        typer.Option(
            help="trusted: use the text like that of your own agents; untrusted: learn only from actions and outcomes.",
            show_default="trusted for a hardwon export, untrusted for other logs",
        ),
    ] = None,
    extractor: ExtractorOption = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Import experience into LIBRARY from an export, or from the log of another program.

    The whole file is checked before anything is written. Existing records are left unchanged, so you can repeat an
    interrupted import.
    """
    from hardwon.apps import importers
    from hardwon.memory.errors import ConfigError

    if trust not in (None, "trusted", "untrusted"):
        raise ConfigError(f"--trust is {trust!r}; use trusted or untrusted.")
    reader = open_extractor(extractor)
    with importers.copy_pipe(source) as file:
        # Before the library is opened, so that a bad file does not leave a new, empty library.
        with _show_file_progress(file, "reading") as advance:
            source_format, logged = importers.read(file, form, on_progress=advance)
        log = _Log(source, file, source_format, logged)
        is_trusted = source_format == "hardwon" if trust is None else trust == "trusted"
        trust_level: Literal["trusted", "untrusted"] = "trusted" if is_trusted else "untrusted"
        if reader is not None and source_format == "hardwon":
            raise ConfigError(
                f"--extractor reads logs of other programs, and {source} is an export of hardwon. Import it without, "
                f"and run: hardwon memory evolve {path} --extractor {extractor}"
            )
        if dry_run:
            counted, words = _count_new(path, namespace, log)
        elif source_format == "hardwon":
            counted, words = _import_export(path, namespace, source, file, trust_level)
        else:
            counted, words = _import_log(path, namespace, log, trust_level, reader)
    _print_result(as_json, {"format": source_format, "library": library_name(path), **counted}, words)


class _Log(NamedTuple):
    """A log that was read: its name, the file, which is a copy of a pipe, its format, and its episodes."""

    source: Path
    file: Path
    form: Any
    episodes: Any


def _count_new(path: Path, namespace: str, log: _Log) -> tuple[dict[str, Any], str]:
    """Count the new episodes of a file, without creating the library or the namespace."""
    from hardwon.apps import importers
    from hardwon.memory import ExperienceLibrary
    from hardwon.memory.upkeep import file_queries

    if is_address(path):
        from hardwon.memory.fleet.places import list_namespaces

        exists = namespace in list_namespaces(str(path))
    else:
        exists = path.exists() and namespace in file_queries.list_namespaces(path)
    with opened(path, namespace) if exists else ExperienceLibrary.open(":memory:") as library:
        counted: dict[str, Any] = dict(importers.count(library, log.file, log.form, log.episodes))
    words = f"{counted['new']} of {counted['episodes']} episodes in {log.source} are new"
    if counted.get("updated"):
        words += f", and {counted['updated']} have grown"
    return counted, f"{words}. Nothing was written.{'' if counted['steps'] else UNANSWERED}"


def _import_log(
    path: Path, namespace: str, log: _Log, trust: Literal["trusted", "untrusted"], extractor: Any = None
) -> tuple[dict[str, Any], str]:
    """Import the log of another program, and let a chat model read the new episodes."""
    from hardwon.apps import importers
    from hardwon.apps.shared.reading import read_all
    from hardwon.memory import ExperienceLibrary

    new: list[str] = []
    updated: list[str] = []
    with ExperienceLibrary.open(path, namespace=namespace) as library:
        counted: dict[str, Any] = dict(importers.measure(log.episodes))
        with _show_file_progress(log.file, "writing") as advance:
            counted["new"] = importers.write(
                library,
                log.episodes,
                source=log.form,
                trust=trust,
                writer=f"import:{log.file.name}",
                on_progress=advance,
                on_recorded=new.append,
                on_updated=updated.append,
            )
        counted |= {"updated": len(updated), "known": len(log.episodes) - len(new) - len(updated)}
        words = (
            f"{counted['new']} new episodes of {counted['episodes']} from {log.source} ({log.form}); "
            f"{counted['updated']} updated, {counted['known']} known.{'' if counted['steps'] else UNANSWERED}"
        )
        if extractor is not None:
            failures: list[str] = []
            counted["lessons"] = read_all(new, extractor, library, on_failure=failures.append)
            words += f" {counted['lessons']} lessons written."
            for failure in failures:
                tell(failure)
            if failures:
                tell(f"To read them later: hardwon memory evolve {path} --extractor MODEL")
    return counted, words


def _import_export(
    path: Path, namespace: str, source: Path, file: Path, trust: Literal["trusted", "untrusted"]
) -> tuple[dict[str, Any], str]:
    """Import a file that hardwon exported."""
    from hardwon.memory import ExperienceLibrary
    from hardwon.memory.errors import ConfigError

    try:
        with ExperienceLibrary.open(path, namespace=namespace) as library:
            lines = library.admin.import_jsonl(file, trust=trust)
            if lines:
                if file.stat().st_size >= SMALL:
                    tell("embedding")
                library.admin.index()  # closing and the first recall would have to do it
    except RecursionError as error:
        raise ConfigError(f"{source} is not a file from `hardwon memory export`: {error}.") from error
    return {"lines": lines}, f"{lines} new lines from {source}."


@app.command()
def repair(path: Library, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """Rebuild the derived data that `verify` reports as damaged."""
    with opened(path, namespace, write=True) as library:
        repaired = library.admin.repair()
        left = library.admin.verify()
    if as_json:
        say_json({"repaired": repaired, "left": left})
    elif not repaired:
        out().print("No problems found.")
    else:
        rows = [(p.where, p.what, "not repaired" if p in left else "rebuilt") for p in repaired]
        out().print(table("where", "problem", "now", rows=rows))
    if left:
        raise typer.Exit(1)


@app.command()
def grant(
    path: Library,
    role: Annotated[str, typer.Argument(metavar="ROLE", help="A role of the database.", show_default=False)],
    namespace: Namespace = "default",
    write: Annotated[bool, typer.Option("--write", help="Let it record, and change items.")] = False,
    manage: Annotated[bool, typer.Option("--manage", help="Let it also forget, and store snapshots.")] = False,
    as_json: AsJson = False,
) -> None:
    """Let a role of the database use one namespace of a shared library: to read it, and more with the options.

    The rights of an earlier call are replaced. The owner of the schema calls this.
    """
    _require_address(path)
    from hardwon.memory.fleet.log import grant as give

    give(str(path), role, namespace, write=write, manage=manage)
    rights = ["read", *(["write"] if write or manage else []), *(["manage"] if manage else [])]
    result = {"role": role, "namespace": namespace, "rights": rights}
    _print_result(as_json, result, f"{role} may {', '.join(rights)} in {namespace}.")


@app.command()
def snapshot(
    path: Library,
    namespace: Namespace = "default",
    folder: Annotated[
        str | None,
        typer.Option(
            help="Store snapshots of all namespaces there from now on: a folder of fsspec such as s3://BUCKET/FOLDER, "
            "or `database`."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Store a copy of this host's replica for new hosts of a shared library, so that they start quickly."""
    _require_address(path)
    with opened(path, namespace, write=True) as library:
        position = cast(Any, library).admin.store_snapshot(folder=folder)
    _print_result(as_json, {"position": position}, f"New replicas begin from position {position}.")


def _require_address(path: Path) -> None:
    """Check that a library is shared."""
    if not is_address(path):
        raise typer.BadParameter(f"{path} is a file; this command needs a shared library, postgresql://USER@HOST/DB.")


@app.command()
def reembed(
    path: Library,
    embedder: Annotated[
        str | None,
        typer.Option(
            help="hashing, hashing:DIM or sentence-transformers:MODEL.", show_default="the library's current embedder"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change the library's embedder and embed all namespaces again.

    Progress is saved as it is made: if the command is interrupted, run it again to continue.
    """
    from hardwon.memory.library import reembed as embed_again

    must_exist(path)
    # Closed again before embedding starts: `reembed` opens the file itself and takes the write lock.
    with opened(path) as library:
        wanted = embedder or library.admin.embedder.name
    with _show_progress("embedding") as advance:
        name = embed_again(path, wanted, advance).name
    _print_result(as_json, {"embedder": name, "library": str(path)}, f"{path} now uses the embedder {name}.")


@contextmanager
def _show_file_progress(file: Path, what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a progress callback for a large file, or None for a small one."""
    if file.stat().st_size < SMALL:
        yield None
        return
    with _show_progress(what) as advance:
        yield advance


@contextmanager
def _show_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a callback `advance(done, total)` that draws a progress bar on stderr.

    Without a terminal, print one line per tenth instead, with the time that is left.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _print_tenths(what)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def _print_tenths(what: str) -> Callable[[int, int], None]:
    last_tenth, begun = -1, time.monotonic()

    def advance(done: int, total: int) -> None:
        nonlocal last_tenth
        tenth = 10 * done // max(1, total)
        if tenth != last_tenth:
            last_tenth = tenth
            left_s = (time.monotonic() - begun) * (total - done) / max(1, done)
            tell(f"{what} {done}/{total}" + (f", about {left_s:.0f} s left" if 0 < done < total else ""))

    return advance
