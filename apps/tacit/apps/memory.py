"""`tacit memory`: looking at a library. The commands that change one are in `curate`.

tacit memory stats runs/demo/library.db
tacit memory ls runs/demo/library.db --kind guardrail
tacit memory show runs/demo/library.db ID          an item, an episode or a step, and why
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from .doors import AsJson, ItemId, Library, Namespace, excerpt, opened, out, say_json, table

if TYPE_CHECKING:
    from tacit.memory import Hit

app = typer.Typer(no_args_is_help=True, help="Look at a library, and tend it.")

Limit = Annotated[int, typer.Option("--limit", "-k", min=0, help="How many to show.")]
Offset = Annotated[int, typer.Option(min=0, help="How many to skip first.")]


@app.command()
def stats(
    path: Library,
    namespace: Namespace = "default",
    migrate: Annotated[
        bool, typer.Option("--migrate", help="Bring a library of an older tacit to this one's schema first.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Counts, sizes and ages."""
    with opened(path, namespace, write=migrate) as library:
        figures = library.stats()
    if as_json:
        say_json(figures)
        return
    out().print(table("", "", rows=[(name, _words(value)) for name, value in figures.items()]))
    if not figures["episodes"]:
        out().print(_bare(path), soft_wrap=True)


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {count}" for name, count in value.items()) or "none"
    return ", ".join(value) if isinstance(value, list) else "-" if value is None else str(value)


def _print(found: Sequence[Any], layout: Callable[[Any], Table], nothing: str, bare: Path | None) -> None:
    """A list for people, or why there is none; `bare` is a library without experience."""
    if found:
        out().print(layout(found))
    else:
        out().print(_bare(bare) if bare else nothing, soft_wrap=True)


def _bare(path: Path) -> str:
    return f"This library has no experience yet. Record some with: tacit run textworld --library {path}"


@app.command()
def ls(
    path: Library,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Only items of this kind; may be given several times.", show_default="every kind"),
    ] = None,
    status: Annotated[str, typer.Option(help="Items that are active, retired, or all.")] = "active",
    sort: Annotated[str, typer.Option(help="Order of items: score, confidence, new or old.")] = "score",
    episodes: Annotated[
        bool, typer.Option("--episodes", help="List episodes, newest first, instead of items.")
    ] = False,
    limit: Limit = 50,
    offset: Offset = 0,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """List items, or episodes."""
    from . import lists

    if episodes and (kind or status != "active" or sort != "score"):
        raise typer.BadParameter("--kind, --status and --sort are about items; leave them out with --episodes.")
    with opened(path, namespace) as library:
        if episodes:
            found: Any = lists.episodes(library, limit, offset)
        else:
            found = lists.items(library, kind, status, sort, limit, offset)
        bare = not library.trajectories(limit=1)
    if as_json:
        say_json(found)
        return
    layout = lists.episode_table if episodes else lists.item_table
    _print(found, layout, f"No {'episodes' if episodes else 'items'} of this description.", path if bare else None)


@app.command()
def show(
    path: Library,
    ref: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="An item or an episode, by its id or an unambiguous beginning of it, or a step: step:1234.",
            show_default=False,
        ),
    ],
    brief: Annotated[bool, typer.Option("--brief", help="One line for every step of an episode.")] = False,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Show an item, an episode or a step, and what each rests on.

    An item: what it says, the steps it was made of, how those who got it fared, and its history. An
    episode: what the agent saw and did at every step, and why it chose that: the return it expected,
    the earlier steps that this rests on, and what a guardrail kept it from.
    """
    from . import explain, views

    with opened(path, namespace) as library:
        told = explain.explain(library, ref)
    if as_json:
        say_json(told)
    elif "item" in told:
        out().print(views.item_view(told["item"]))
    elif "step" in told:
        out().print(views.step_view(told["step"]))
    else:
        out().print(views.episode_view(told["episode"], brief=brief))


@app.command()
def search(
    path: Library,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to look for.", show_default=False)],
    how: Annotated[str, typer.Option(help="By words (text), by meaning (dense), or both (hybrid).")] = "hybrid",
    limit: Limit = 10,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Find items and steps by words and by meaning, each with the reason it was found."""
    from . import lists

    with opened(path, namespace) as library:
        hits = lists.search(library, text, limit, how)
        bare = not library.trajectories(limit=1)
    if as_json:
        say_json([_hit(hit) for hit in hits])
    else:
        _print(hits, lists.hit_table, "Nothing in this library speaks of that.", path if bare else None)


def _hit(hit: "Hit") -> dict[str, Any]:
    from tacit.memory import Item

    what = "item" if isinstance(hit.what, Item) else "step"
    return {"similarity": hit.similarity, "why": hit.why, what: asdict(hit.what)}


@app.command()
def guardrails(
    path: Library,
    status: Annotated[str, typer.Option(help="Guardrails that are active, retired, or all.")] = "active",
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """What is forbidden, when, on what evidence, and how often it was blocked."""
    from . import explain, lists

    with opened(path, namespace) as library:
        found = explain.guardrails(library, lists.known_status(status))
        bare = not library.trajectories(limit=1)
    if as_json:
        say_json(found)
        return
    nothing = f"No guardrails yet. They are made from failures by: tacit memory evolve {path}"
    _print(found, lists.guardrail_table, nothing, path if bare else None)


@app.command()
def clusters(
    path: Library,
    limit: Limit = 20,
    offset: Offset = 0,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Situations that share a signature: how often they were met, and what pays there."""
    from . import inside, lists

    found = inside.clusters(path, namespace, limit, offset)
    if as_json:
        say_json(found)
    else:
        _print(found, lists.cluster_table, "No more situations.", path if not found and not offset else None)


@app.command()
def history(path: Library, item_id: ItemId, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """Every change of an item, oldest first."""
    from . import views

    with opened(path, namespace) as library:
        changes = library.history(item_id)
    say_json(changes) if as_json else out().print(views.history_view(changes))


@app.command()
def verify(path: Library, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """Check everything derived against the truth; exit code 1 when something is wrong."""
    with opened(path, namespace) as library:
        problems = library.verify()
    if as_json:
        say_json({"sound": not problems, "problems": problems})
    elif problems:
        out().print(table("where", "what", "remedy", rows=[(p.where, p.what, p.remedy) for p in problems]))
    else:
        out().print(f"{excerpt(str(path), 500)} is sound.", soft_wrap=True)
    if problems:
        raise typer.Exit(1)
