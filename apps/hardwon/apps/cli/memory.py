"""`hardwon memory`: looking at a library. The commands that change one are in `cli.curate`.

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

from hardwon.apps.shared.common import AsJson, ItemId, Library, Namespace, opened, out, say_json, table, tell

if TYPE_CHECKING:
    from hardwon.memory import ExperienceLibrary, Hit

app = typer.Typer(no_args_is_help=True, help="Look at a library, and tend it.")

Limit = Annotated[int, typer.Option("--limit", "-k", min=1, max=100_000, help="How many to show.")]
Offset = Annotated[int, typer.Option(min=0, max=1_000_000_000, help="How many to skip first.")]
Page = Annotated[
    int | None,
    typer.Option(min=1, max=1_000_000, help="Which page of --limit to show, not --offset.", show_default="the first"),
]
Kinds = Annotated[
    list[str] | None,
    typer.Option(
        "--kind", help="Only items of this kind; may be given several times.", show_default="every kind"
    ),
]  # fmt: skip
Status = Annotated[str, typer.Option(help="Those that are active, quarantined, retired, or all.")]


def _only(words: str) -> Any:
    """An option that lets everything pass unless it is given."""
    return typer.Option(help=words, show_default=False)


@app.command()
def stats(
    path: Library,
    namespace: Namespace = "default",
    migrate: Annotated[
        bool, typer.Option("--migrate", help="Bring a library of an older hardwon to this one's schema first.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Counts of every tier, sizes and ages."""
    from hardwon.apps.render import tier_views
    from hardwon.apps.shared import file_queries

    with opened(path, namespace, write=migrate) as library:
        figures = {**library.stats(), **file_queries.tiers(path, namespace)}
    if as_json:
        say_json(figures)
        return
    out().print(tier_views.stats_view(figures))
    if not figures["episodes"]:
        _say_bare(path)


def _skipped(limit: int, offset: int, page: int | None) -> int:
    """How many rows come before what is to be shown."""
    if page is not None and offset:
        raise typer.BadParameter("--page and --offset say the same; give one of them.")
    return offset if page is None else (page - 1) * limit


def _say_bare(path: Path) -> None:
    """What to do about a namespace without experience; the command is never broken over lines."""
    from hardwon.apps.shared import file_queries

    if others := file_queries.filled(path):
        named = ", ".join(f"{name} ({count} episodes)" for name, count in others.items())
        out().print(f"Nothing is recorded in this namespace. Others have experience: {named}.", soft_wrap=True)
        out().print(f"  hardwon memory ls {path} --namespace {shlex.quote(next(iter(others)))}", soft_wrap=True)
        return
    out().print("This library has no experience yet. Record some with:")
    out().print(f"  hardwon run textworld --library {path}", soft_wrap=True)


def _print_page(
    found: Sequence[Any],
    layout: Callable[[Any], RenderableType],
    noun: str,
    offset: int,
    total: int,
    bare: Path | None,
) -> None:
    """A page of a list for people, or why there is none; which part it is goes to stderr."""
    if found:
        out().print(layout(found))
        tell(f"{noun} {offset + 1}-{offset + len(found)} of {total}")
    elif bare is not None and not total:
        _say_bare(bare)
    else:
        out().print(f"No {noun} from number {offset + 1} on: there are {total}." if total else f"No such {noun}.")


def _bare(library: "ExperienceLibrary", path: Path) -> Path | None:
    """The path of a library in which nothing was recorded."""
    return None if library.trajectories(limit=1) else path


@app.command()
def ls(
    path: Library,
    kind: Kinds = None,
    status: Status = "active",
    trust: Annotated[str | None, _only("Only items that are trusted, or untrusted.")] = None,
    source: Annotated[
        str | None, _only("Only items from: person, experience, model, import, client or environment.")
    ] = None,
    writer: Annotated[str | None, _only("Only items by this writer: user, rules, chat:MODEL/3.")] = None,
    tag: Annotated[str | None, _only("Only items with this tag: a verb, a thing, a failure.")] = None,
    location: Annotated[str | None, _only("Only items known to apply in this place.")] = None,
    signature: Annotated[
        str | None, _only("Only items known to apply in this situation; `hardwon memory clusters` lists them.")
    ] = None,
    text: Annotated[str | None, _only("Only items with these words.")] = None,
    min_score: Annotated[float, typer.Option(min=0, max=1, help="Only items with at least this score.")] = 0.0,
    sort: Annotated[str, typer.Option(help="Order of items: score, confidence, new, old or used.")] = "score",
    episodes: Annotated[
        bool, typer.Option("--episodes", help="List episodes, newest first, instead of items.")
    ] = False,
    limit: Limit = 20,
    offset: Offset = 0,
    page: Page = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """List items, or episodes, a page at a time."""
    from hardwon.apps.shared import lists

    filters = {
        "trust": trust, "source": source, "writer": writer, "tag": tag,
        "location": location, "signature": signature, "text": text,
    }  # fmt: skip
    unusual = kind or status != "active" or sort != "score" or min_score or any(v is not None for v in filters.values())
    if episodes and unusual:
        raise typer.BadParameter("filters and --sort are about items; leave them out with --episodes.")
    offset = _skipped(limit, offset, page)
    with opened(path, namespace) as library:
        if episodes:
            found, total = lists.episodes(library, limit, offset)
        else:
            found, total = lists.items(
                library, kind, status=status, min_score=min_score, sort=sort, limit=limit, offset=offset, **filters
            )
        used = [] if episodes or as_json else lists.uses(library, found)
        bare = _bare(library, path)
    noun = "episodes" if episodes else "items"
    if as_json:
        say_json({noun: found, "total": total})
        return
    layout = lists.episode_listing if episodes else lambda rows: lists.item_listing(rows, used)
    _print_page(found, layout, noun, offset, total, bare)


@app.command()
def quarantine(
    path: Library,
    limit: Limit = 20,
    offset: Offset = 0,
    page: Page = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Items from untrusted sources that wait, the newest first: neither recalled nor enforced.

    One is let out with `hardwon memory release`, or by evidence: when the library's own experience says the same.
    """
    from hardwon.apps.shared import lists

    offset = _skipped(limit, offset, page)
    with opened(path, namespace) as library:
        found, total = lists.items(library, status="quarantined", sort="new", limit=limit, offset=offset)
    if as_json:
        say_json({"items": found, "total": total})
    elif total:
        _print_page(found, lists.quarantine_listing, "items", offset, total, None)
    else:
        out().print("Nothing waits in quarantine.")


@app.command()
def show(
    path: Library,
    ref: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="An item or an episode, by its id or an unambiguous beginning of it; a step: step:1234; "
            "or an attempt: attempt:17.",
            show_default=False,
        ),
    ],
    brief: Annotated[bool, typer.Option("--brief", help="One line for every step of an episode.")] = False,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Show an item, an episode, a step or an attempt, and what each rests on.

    An item: what it says, the steps it was made of, how those who got it fared, what it is worth, and
    its history. An episode: what the agent saw and did at every step, and why it chose that: the return
    it expected, the earlier steps that this rests on, and what a guardrail kept it from. An attempt:
    what came of one kind of action in one kind of situation, with the steps behind every count.
    """
    from hardwon.apps.render import tier_views, views
    from hardwon.apps.shared import explain

    with opened(path, namespace) as library:
        told = explain.explain(library, ref)
    if as_json:
        say_json(told)
        return
    ((what, value),) = told.items()
    layouts: dict[str, Callable[[Any], RenderableType]] = {
        "item": views.item_view,
        "episode": lambda episode: views.episode_view(episode, brief=brief),
        "step": views.step_view,
        "attempt": tier_views.attempt_view,
    }
    out().print(layouts[what](value))


@app.command()
def search(
    path: Library,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to look for.", show_default=False)],
    how: Annotated[str, typer.Option(help="By words (text), by meaning (dense), or both (hybrid).")] = "hybrid",
    among: Annotated[str, typer.Option(help="Look among items, steps, or all.")] = "all",
    kind: Kinds = None,
    limit: Limit = 10,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Find items and steps by words and by meaning, each with the reason it was found."""
    from hardwon.apps.shared import lists

    if not text.strip():
        raise typer.BadParameter("there is nothing to look for; give some words.", param_hint="TEXT")

    with opened(path, namespace) as library:
        hits = lists.search(library, text, limit, how=how, among=among, kinds=kind)
        bare = _bare(library, path)
    if as_json:
        say_json([_hit(hit) for hit in hits])
    elif hits:
        out().print(lists.hit_listing(hits))
    elif bare:
        _say_bare(path)
    else:
        out().print("Nothing in this library speaks of that.")


def _hit(hit: "Hit") -> dict[str, Any]:
    from hardwon.memory import Item

    what = "item" if isinstance(hit.what, Item) else "step"
    return {"similarity": hit.similarity, "why": hit.why, what: asdict(hit.what)}


@app.command()
def guardrails(
    path: Library,
    status: Status = "active",
    limit: Limit = 20,
    offset: Offset = 0,
    page: Page = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """What is forbidden, when, on what evidence, how often it was blocked, and whether that was right.

    A guardrail was right when what it forbids was done all the same, under override, and failed.
    """
    from hardwon.apps.shared import explain, lists

    offset = _skipped(limit, offset, page)
    with opened(path, namespace) as library:
        known = lists.known_status(status)
        found = explain.guardrails(library, known, limit, offset)
        total = len(library.items(["guardrail"], status=known))
        bare = _bare(library, path)
    if as_json:
        say_json({"guardrails": found, "total": total})
    elif total or bare:
        _print_page(found, lists.guardrail_listing, "guardrails", offset, total, bare)
    else:
        out().print("No such guardrails. They are made from failures by:")
        out().print(f"  hardwon memory evolve {path}", soft_wrap=True)


@app.command()
def clusters(
    path: Library,
    limit: Limit = 10,
    offset: Offset = 0,
    page: Page = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Situations that share a signature, the most frequent first, and what came of every kind of action there.

    The steps behind each count are named by `hardwon memory show LIBRARY attempt:17`.
    """
    from hardwon.apps.render import tier_views
    from hardwon.apps.shared import explain

    offset = _skipped(limit, offset, page)
    with opened(path, namespace) as library:
        found = explain.clusters(library, limit, offset)
        total = library.stats()["clusters"]
    if as_json:
        say_json({"clusters": found, "total": total})
    else:
        _print_page(found, tier_views.clusters_view, "situations", offset, total, path)


@app.command()
def history(path: Library, item_id: ItemId, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """Every change of an item, oldest first."""
    from hardwon.apps.render import views

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
        out().print(f"{path} is sound.")
    if problems:
        raise typer.Exit(1)
