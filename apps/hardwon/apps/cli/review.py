"""Define the commands of `hardwon memory` for people who review a library: late grades, and items as files.

hardwon memory grade work.db EPISODE --failure --why "the customer called back"
hardwon memory grade work.db EPISODE --instead "refund(order=7)" --step 3
hardwon memory checkout work.db lessons           items as Markdown files, for an editor and for git
hardwon memory commit work.db lessons             the changed, new and deleted files, back into the library
"""

import getpass
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hardwon.apps.shared.common import AsJson, Library, Namespace, library_name, opened, out, say_json, table, tell

if TYPE_CHECKING:
    from hardwon.memory import Grade

app = typer.Typer()
FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the files.", show_default=False)]


@app.command()
def grade(
    path: Library,
    episode: Annotated[
        str,
        typer.Argument(metavar="EPISODE", help="The episode, by its id or an unambiguous prefix.", show_default=False),
    ],
    success: Annotated[
        bool | None, typer.Option("--success/--failure", help="Whether it succeeded.", show_default="unchanged")
    ] = None,
    score: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="How well; without --success, only 1 is a success.", show_default=False),
    ] = None,
    unknown: Annotated[
        bool, typer.Option("--unknown", help="The outcome is unknown: learn nothing from the episode.")
    ] = False,
    why: Annotated[str, typer.Option(help="The reason, kept in the history.", show_default=False)] = "",
    lesson: Annotated[str, typer.Option(help="What to learn from it; becomes an item.", show_default=False)] = "",
    instead: Annotated[
        str, typer.Option(help="The action that should have been taken; becomes an item.", show_default=False)
    ] = "",
    step: Annotated[
        int | None,
        typer.Option(min=0, help="With --instead: the number of the step.", show_default="the last failed step"),
    ] = None,
    by: Annotated[str | None, typer.Option(help="Who grades it.", show_default="your user name")] = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Grade, correct or explain a recorded episode. What was learned from it is computed again.

    The same grade twice changes nothing. `hardwon memory show LIBRARY EPISODE` lists the steps and the grades.
    """
    with opened(path, namespace, write=True) as library:
        given = library.grade(
            episode, success=success, score=score, unknown=unknown, why=why, lesson=lesson, instead=instead, step=step,
            grader=by if by is not None else _find_user(),
        )  # fmt: skip
    say_json(given) if as_json else out().print(_describe(given), soft_wrap=True)


def _find_user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in some containers
        return "user"


def _describe(given: "Grade") -> str:
    """Return a grade in words."""
    now, before = (
        _describe_outcome(given.success, given.score),
        _describe_outcome(given.previous_success, given.previous_score),
    )
    if not given.is_new:
        words = f"{given.episode} has this grade already ({now})."
    elif now == before:
        words = f"{given.episode} stays a {now}; the note of {given.grader} is kept."
    else:
        words = f"{given.episode} is now a {now}, before a {before}; graded by {given.grader}."
    if given.admission is None:
        return words
    item = f" {given.admission.item_id}" if given.admission.item_id else ""
    return f"{words}\nThe lesson was {given.admission.status}:{item} ({given.admission.reason})."


def _describe_outcome(success: bool | None, score: float) -> str:
    name = "run with unknown outcome" if success is None else "success" if success else "failure"
    return name if success is None or score == float(success) else f"{name} with score {score:g}"


@app.command()
def checkout(
    path: Library,
    folder: FolderArgument,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that were edited and not committed.")] = False,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Write active and quarantined items as Markdown files with front matter, one file per item.

    Edit, add or delete files, then run `hardwon memory commit`. Run `checkout` again to get what the library learned.
    """
    from hardwon.apps.shared.checkout import check_out

    with opened(path, namespace) as library:
        manifest = check_out(library, folder, Path(library_name(path)).name, force=force)
    if as_json:
        say_json({"folder": str(folder), "files": sorted(manifest.files.values())})
        return
    count = len(manifest.files)
    out().print(f"{count} {'item' if count == 1 else 'items'} in {folder}.", soft_wrap=True)


@app.command()
def commit(
    path: Library,
    folder: FolderArgument,
    why: Annotated[str | None, typer.Option(help="The reason, kept in the history.", show_default=False)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and write nothing.")] = False,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Write changed, new and deleted files of a checkout to the library.

    Edited text becomes a new version of the item, a new file without an id becomes an item if the curator admits it,
    and a deleted file retires its item. An item that the library changed since the checkout is a conflict: it is named
    and left as it is, and the exit code is 1.
    """
    from hardwon.apps.shared.checkout import commit as commit_files

    reason = why or f"edited in {folder.name} by {_find_user()}"
    with opened(path, namespace, write=not dry_run) as library:
        changes = commit_files(library, folder, why=reason, dry_run=dry_run)
    if as_json:
        say_json({"dry_run": dry_run, "changes": changes})
    elif changes:
        rows = [(change.what, change.file, change.item or None, change.detail) for change in changes]
        out().print(table("what", "file", "item", "detail", rows=rows, whole=("what",)))
    else:
        out().print("Nothing has changed.")
    counts = Counter(change.what for change in changes)
    if changes:
        tell(("would be: " if dry_run else "") + ", ".join(f"{count} {what}" for what, count in counts.items()))
    if counts["older"]:
        tell(f"To get the library's version of older files, run: hardwon memory checkout {library_name(path)} {folder}")
    if counts["conflict"]:
        tell(f"To get the library's version, run: hardwon memory checkout {library_name(path)} {folder} --force")
    if counts["conflict"] or counts["rejected"]:
        raise typer.Exit(1)
