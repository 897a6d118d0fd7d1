"""Define the commands of `hardwon memory` for people who review what was recorded: late grades and corrections.

hardwon memory grade work.db EPISODE --failure --why "the customer called back"
hardwon memory grade work.db EPISODE --instead "refund(order=7)" --step 3
"""

import getpass
from typing import TYPE_CHECKING, Annotated

import typer

from hardwon.apps.shared.common import AsJson, Library, Namespace, opened, out, say_json

if TYPE_CHECKING:
    from hardwon.memory import Grade

app = typer.Typer()


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
