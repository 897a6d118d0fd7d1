"""Define the commands of `hardwon memory` that read a library; `cli.curate` defines the commands that change one.

hardwon memory stats runs/demo/library.db
hardwon memory ls runs/demo/library.db --kind guardrail
hardwon memory show runs/demo/library.db ID          an item, an episode, a step or an attempt, and why
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType

from hardwon.apps.shared.common import (
    AsJson,
    ItemId,
    Library,
    Namespace,
    is_address,
    library_name,
    list_ways,
    opened,
    out,
    say_json,
    table,
    tell,
)

if TYPE_CHECKING:
    from hardwon.memory import ExperienceLibrary, Hit

app = typer.Typer(no_args_is_help=True, help="Inspect and edit a library.")

LimitOption = Annotated[int, typer.Option("--limit", "-k", min=1, max=100_000, help="Number of rows to show.")]
PageOption = Annotated[int, typer.Option(min=1, max=1_000_000, help="Page number, in pages of --limit rows.")]
KindsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--kind", help="Only items of this kind; repeat it for several.", show_default="every kind"
    ),
]  # fmt: skip
StatusOption = Annotated[str, typer.Option(help="Status: active, quarantined, retired or all.")]


def _filter_option(words: str) -> Any:
    """Return an option for a filter; an omitted option filters nothing."""
    return typer.Option(help=words, show_default=False)


@app.command()
def stats(
    path: Library,
    namespace: Namespace = "default",
    migrate: Annotated[
        bool, typer.Option("--migrate", help="First migrate a library of an older version to the current schema.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the number of episodes, steps, situations and items, and the size and age of the library."""
    from hardwon.apps.render import tier_views
    from hardwon.memory.upkeep.figures import count_tiers
    from hardwon.memory.upkeep.file_queries import list_index_files

    with opened(path, namespace, write=migrate) as library:
        figures = {**library.admin.stats(), **asdict(library.admin.query(count_tiers))}
        file = Path(getattr(library.admin, "replica", path))
    figures["index_bytes"] = sum(list_index_files(file).values())
    if as_json:
        say_json(figures)
        return
    out().print(tier_views.render_stats(figures))
    if not figures["episodes"]:
        _print_empty_advice(path)


def _print_empty_advice(path: Path) -> None:
    """Explain what to do when a namespace has no experience.

    Lines do not wrap, so that you can copy the command.
    """
    from hardwon.memory.upkeep import file_queries

    if not is_address(path) and (counts := file_queries.count_episodes(path)):
        names = ", ".join(f"{name} ({count} episodes)" for name, count in counts.items())
        out().print(f"Nothing is recorded in this namespace. Namespaces with episodes: {names}.", soft_wrap=True)
        out().print(
            f"  hardwon memory ls {library_name(path)} --namespace {shlex.quote(next(iter(counts)))}", soft_wrap=True
        )
        return
    out().print("This library has no experience yet. Ways to record some:")
    for name, line in list_ways(library_name(path)):
        out().print(f"{name}:\n  {line}", soft_wrap=True, markup=False)


def _print_page(
    rows: Sequence[Any],
    layout: Callable[[Any], RenderableType],
    noun: str,
    offset: int,
    total: int,
    empty_path: Path | None,
) -> None:
    """Print one page of a list, or explain why it is empty; the position in the list goes to stderr."""
    if rows:
        out().print(layout(rows))
        tell(f"{noun} {offset + 1}-{offset + len(rows)} of {total}")
    elif empty_path is not None and not total:
        _print_empty_advice(empty_path)
    else:
        out().print(f"No {noun} from number {offset + 1} on: there are {total}." if total else f"No such {noun}.")


def _find_empty(library: "ExperienceLibrary", path: Path) -> Path | None:
    """Return the path if nothing is recorded in the library, else None."""
    return None if library.episodes.find(limit=1) else path


@app.command()
def ls(
    path: Library,
    kind: KindsOption = None,
    status: StatusOption = "active",
    trust: Annotated[str | None, _filter_option("Only trusted or only untrusted items.")] = None,
    source: Annotated[
        str | None,
        _filter_option("Only items from this source: person, experience, model, import, client or environment."),
    ] = None,
    writer: Annotated[
        str | None, _filter_option("Only items by this writer, such as user, rules or chat:MODEL/3.")
    ] = None,
    tag: Annotated[str | None, _filter_option("Only items with this tag: a verb, an object or a failure.")] = None,
    location: Annotated[str | None, _filter_option("Only items that apply in this location.")] = None,
    signature: Annotated[
        str | None,
        _filter_option("Only items that apply in this situation; `hardwon memory clusters` lists the signatures."),
    ] = None,
    text: Annotated[str | None, _filter_option("Only items that contain these words.")] = None,
    min_score: Annotated[float, typer.Option(min=0, max=1, help="Only items with at least this score.")] = 0.0,
    sort: Annotated[str, typer.Option(help="Order of items: score, confidence, new, old or used.")] = "score",
    episodes: Annotated[
        bool, typer.Option("--episodes", help="List episodes, newest first, instead of items.")
    ] = False,
    limit: LimitOption = 20,
    page: PageOption = 1,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """List items or episodes, one page at a time."""
    from hardwon.apps.shared import lists

    filters = {
        "trust": trust, "source": source, "writer": writer, "tag": tag,
        "location": location, "signature": signature, "text": text,
    }  # fmt: skip
    # Episodes have none of these properties, so a filter together with --episodes is a mistake.
    has_filters = (
        kind or status != "active" or sort != "score" or min_score or any(v is not None for v in filters.values())
    )
    if episodes and has_filters:
        raise typer.BadParameter("filters and --sort apply to items; leave them out with --episodes.")
    offset = (page - 1) * limit
    with opened(path, namespace) as library:
        if episodes:
            rows, total = lists.list_episodes(library, limit, offset)
        else:
            rows, total = lists.list_items(
                library, kind, status=status, min_score=min_score, sort=sort, limit=limit, offset=offset, **filters
            )
        # Counting uses scans the recorded steps; JSON output does not have the column.
        used = [] if episodes or as_json else lists.count_uses(library, rows)
        empty_path = _find_empty(library, path)
    noun = "episodes" if episodes else "items"
    if as_json:
        say_json({noun: rows, "total": total})
        return
    layout = lists.render_episodes if episodes else lambda rows: lists.render_items(rows, used)
    if status == "quarantined":
        layout = lists.render_quarantine
    _print_page(rows, layout, noun, offset, total, empty_path)


@app.command()
def show(
    path: Library,
    ref: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="An item or an episode, by its id or an unambiguous prefix; a step, as step:1234; "
            "or an attempt, as attempt:17.",
            show_default=False,
        ),
    ],
    brief: Annotated[bool, typer.Option("--brief", help="Print one line per step of an episode.")] = False,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Show an item, an episode, a step or an attempt with its evidence.

    An item: its text, the steps it was created from, its effect on the episodes that used it, its value and its
    history. An episode: for every step the observation, the action, and the reasons for it: the expected return, the
    earlier steps behind that estimate, and the guardrails that blocked other actions. An attempt: the outcomes of one
    kind of action in one kind of situation, with the steps behind every count.
    """
    from hardwon.apps.render import tier_views, views
    from hardwon.apps.shared import explain

    with opened(path, namespace) as library:
        explanation = explain.explain(library, ref)
        if as_json:
            say_json(explanation)
            return
        ((what, value),) = explanation.items()
        layouts: dict[str, Callable[[Any], RenderableType]] = {
            "item": views.render_item,
            "episode": lambda episode: views.render_episode(episode, brief=brief),
            "step": views.render_step,
            "attempt": tier_views.render_attempt,
        }
        out().print(layouts[what](value))


@app.command()
def why(
    path: Library,
    about: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ABOUT", help="The id of a lesson, or words of a lesson or an action.", show_default="what was told"
        ),
    ] = None,
    at: Annotated[
        str,
        typer.Option(
            metavar="ID", help="The episode, or step:1234 for the episode of a step.", show_default="the newest"
        ),
    ] = "",
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Say why the agent was told something, or why not: not recorded, indexed, recalled, shown or followed."""
    from hardwon.apps.render import views
    from hardwon.apps.shared import explain

    with opened(path, namespace) as library:
        answer = explain.explain_advice(library, " ".join(about or ()), at)
        say_json(answer) if as_json else out().print(views.render_trace(answer))


@app.command()
def search(
    path: Library,
    words: Annotated[list[str], typer.Argument(metavar="TEXT", help="Words to search for.", show_default=False)],
    how: Annotated[str, typer.Option(help="Search by words (text), by meaning (dense), or both (hybrid).")] = "hybrid",
    among: Annotated[str, typer.Option(help="Search items, steps, or all.")] = "all",
    kind: KindsOption = None,
    limit: LimitOption = 10,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Find items and steps by words and by meaning, and explain each match."""
    from hardwon.apps.shared import lists

    if not (text := " ".join(words).strip()):
        raise typer.BadParameter("the text is empty; give some words to search for.", param_hint="TEXT")

    with opened(path, namespace) as library:
        hits = lists.search(library, text, limit, how=how, among=among, kinds=kind)
        empty_path = _find_empty(library, path)
    if as_json:
        say_json([_format_hit(hit) for hit in hits])
    elif hits:
        out().print(lists.render_hits(hits))
    elif empty_path:
        _print_empty_advice(path)
    else:
        out().print("Nothing in this library matches.")


def _format_hit(hit: "Hit") -> dict[str, Any]:
    from hardwon.memory import Item

    what = "item" if isinstance(hit.what, Item) else "step"
    return {"similarity": hit.similarity, "why": hit.why, what: hit.what}


@app.command()
def guardrails(
    path: Library,
    status: StatusOption = "active",
    limit: LimitOption = 20,
    page: PageOption = 1,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """List guardrails: the forbidden action, the condition, the evidence, and how often blocking was right.

    A guardrail was right if its action was run anyway, as a trial, and failed.
    """
    from hardwon.apps.shared import explain, lists

    offset = (page - 1) * limit
    with opened(path, namespace) as library:
        status_filter = lists.parse_status(status)
        rows = explain.list_guardrails(library, status_filter, limit, offset)
        total = len(library.items.find(["guardrail"], status=status_filter))
        empty_path = _find_empty(library, path)
    if as_json:
        say_json({"guardrails": rows, "total": total})
    elif total or empty_path:
        _print_page(rows, lists.render_guardrails, "guardrails", offset, total, empty_path)
    else:
        out().print("No guardrails match. Create guardrails from failures with:")
        out().print(f"  hardwon memory evolve {library_name(path)}", soft_wrap=True)


@app.command()
def clusters(
    path: Library,
    limit: LimitOption = 10,
    page: PageOption = 1,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """List situations by signature, most frequent first, with the outcomes of every kind of action.

    `hardwon memory show LIBRARY attempt:17` names the steps behind each count.
    """
    from hardwon.apps.render import tier_views
    from hardwon.apps.shared import explain

    offset = (page - 1) * limit
    with opened(path, namespace) as library:
        rows = explain.list_clusters(library, limit, offset)
        total = library.admin.stats()["clusters"]
    if as_json:
        say_json({"clusters": rows, "total": total})
    else:
        _print_page(rows, tier_views.render_clusters, "situations", offset, total, path)


@app.command()
def history(path: Library, item_id: ItemId, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """List every change of an item, oldest first."""
    from hardwon.apps.render import views

    with opened(path, namespace) as library:
        changes = library.items.history(item_id)
        say_json(changes) if as_json else out().print(views.render_history(changes))


@app.command()
def verify(path: Library, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """Check all derived data against the recorded episodes. The exit code is 1 if it finds a problem."""
    with opened(path, namespace) as library:
        problems = library.admin.verify()
    if as_json:
        say_json({"sound": not problems, "problems": problems})
    elif problems:
        out().print(table("where", "problem", "remedy", rows=[(p.where, p.what, p.remedy) for p in problems]))
    else:
        out().print(f"{library_name(path)} is sound.")
    if problems:
        raise typer.Exit(1)
