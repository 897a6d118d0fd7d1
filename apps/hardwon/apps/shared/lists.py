"""List the contents of a library by page, and render the lists as text.

A list is the rows of a page and the total number of rows. In text, a row is a line of figures and the words:
whole for items, and else cut to the page width; `hardwon memory show` prints everything.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from hardwon.memory import ExperienceLibrary, Hit, Item, Step
from hardwon.memory.errors import UnknownName
from hardwon.memory.records import KINDS, SOURCES, Kind
from hardwon.memory.situations.titles import end_sentence
from hardwon.memory.upkeep.figures import deciding_episodes

from .common import WIDEST, as_text, cell, excerpt

_STATUS = {"active": "active", "quarantined": "quarantined", "retired": "retired", "all": None}
_TRUST = ("trusted", "untrusted")
_SORTS = ("score", "confidence", "new", "old", "used")
_HOW = ("hybrid", "dense", "text")
_WHAT = ("items", "steps", "all")

PageRows = tuple[list[Any], int]
"""The rows of a page, and the total number of rows."""


def parse_status(status: str) -> str | None:
    """Return the status to filter by, or None for "all"."""
    return _STATUS[_check_name("status", status, tuple(_STATUS))]


def _check_name(what: str, name: str, names: Sequence[str]) -> str:
    if name not in names:
        raise UnknownName.of(what, name, names)
    return name


def list_items(
    library: ExperienceLibrary,
    kinds: Sequence[str] | None = None,
    *,
    status: str = "active",
    trust: str | None = None,
    source: str | None = None,
    min_score: float = 0.0,
    sort: str = "score",
    limit: int,
    offset: int = 0,
    **among: str | None,
) -> PageRows:
    """Return a page of items."""
    _check_name("order", sort, _SORTS)
    if trust is not None:
        _check_name("trust", trust, _TRUST)
    if source is not None:
        _check_name("source", source, SOURCES)
    filters = {"status": parse_status(status), "trust": trust, "source": source}
    filters |= {name: value if value is None else as_text(value) for name, value in among.items()}
    items = library.items.find(cast("Sequence[Kind] | None", kinds or None), sort=cast(Any, sort), **cast(Any, filters))
    items = [item for item in items if item.score >= min_score]
    if sort == "used":  # the library sorts by recorded usages alone; the listed count includes estimates
        counts = dict(zip([item.id for item in items], count_uses(library, items), strict=True))
        items.sort(key=lambda item: -counts[item.id])
    return items[offset : offset + limit], len(items)


def count_uses(library: ExperienceLibrary, items: Sequence[Item]) -> list[int]:
    """Return for each item the number of episodes that it influenced.

    An item influences an episode if it is shown, followed, blocks an action, or takes part in an estimate.
    """
    estimated = find_estimates(library, items)
    return [
        len(
            # A withheld item was kept from the agent on purpose, so it had no influence.
            {
                usage["trajectory_id"]
                for usage in library.items.usages(item.id)
                if usage["mode"] not in ("withheld", "masked")
            }
            | estimated.get(item.id, set())
        )
        for item in items
    ]


def find_estimates(library: ExperienceLibrary, items: Sequence[Item]) -> dict[str, set[str]]:
    """Return, by item id, the episodes in which a strategy took part in an estimate that chose an action."""
    strategies = {item.id: item.provenance for item in items if item.kind == "strategy"}
    return library.admin.query(deciding_episodes, strategies) if strategies else {}


def find_moment(row: Mapping[str, Any]) -> str:
    """Return the time at which an episode began, if a log has it, else the time at which it was recorded."""
    at = row["meta"].get("started_at")
    return at if isinstance(at, str) and at else str(row["recorded_at"])


def sort_episodes(rows: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return rows of episodes, which come in the order of recording, by the time at which they began, newest first."""
    return sorted(rows, key=find_moment, reverse=True)


def list_episodes(library: ExperienceLibrary, limit: int, offset: int = 0, sort: str = "began") -> PageRows:
    """Return a page of episodes, the newest first, and the total number.

    `success` is true or false, or None for an excluded episode.
    """
    rows = library.episodes.find()
    rows = rows if sort == "recorded" else sort_episodes(rows)
    page = rows[offset : offset + limit]
    return [{**row, "success": None if row["success"] is None else bool(row["success"])} for row in page], len(rows)


def search(
    library: ExperienceLibrary,
    text: str,
    k: int,
    *,
    how: str = "hybrid",
    among: str = "all",
    kinds: Sequence[str] | None = None,
) -> list[Hit]:
    """Return items and steps that match a text."""
    _check_name("way to search", how, _HOW)
    _check_name("thing to find", among, _WHAT)
    for kind in kinds or ():
        _check_name("kind of item", kind, KINDS)
    filtered = among != "all" or bool(kinds)
    # The index cannot filter, so more hits are fetched and filtered here.
    hits = library.search(text, max(k, 400) if filtered else k, how=cast(Any, how))
    return [hit for hit in hits if _is_wanted(hit.what, among, kinds)][:k]


def _is_wanted(what: Item | Step, among: str, kinds: Sequence[str] | None) -> bool:
    if isinstance(what, Item):
        return among != "steps" and (not kinds or what.kind in kinds)
    return among != "items" and not kinds


def render_items(items: Sequence[Item], used: Sequence[int]) -> Group:
    """Render items: a line of figures each, and the whole text."""
    rows = [
        (item.id, item.kind, item.score, item.confidence, count, _format_marks(item))
        for item, count in zip(items, used, strict=True)
    ]
    says = [_format_item(item) for item in items]
    return render_rows("id", "kind", "score", "conf.", "used", "", rows=rows, says=says, is_cut=False)


def _format_marks(item: Item) -> str:
    """Return the unusual properties of an item: not active, not trusted, or pinned."""
    marks = (
        item.status if item.status != "active" else "",
        item.trust if item.trust != "trusted" else "",
        "pinned" if item.pinned else "",
    )
    return ", ".join(filter(None, marks))


def _format_item(item: Item) -> str:
    return f"{end_sentence(item.title)} {item.body}" if item.body else item.title


def render_quarantine(items: Sequence[Item]) -> Group:
    """Render quarantined items: a line about the origin each, and the whole text, which a person is to judge."""
    rows = [(item.id, item.kind, item.source, item.writer) for item in items]
    says = [_format_item(item) for item in items]
    return render_rows("id", "kind", "source", "writer", rows=rows, says=says, is_cut=False)


def render_episodes(episodes: Sequence[Mapping[str, Any]]) -> Group:
    """Render episodes, two lines each: the outcome and the task."""
    rows = [(row["id"], row["ending"], row["score"], row["n_steps"]) for row in episodes]
    says = [row["task"] for row in episodes]
    return render_rows("id", "ending", "score", "steps", rows=rows, says=says)


def render_hits(hits: Sequence[Hit]) -> Group:
    """Render hits, two lines each: the similarity with the reason of the match, and the text."""
    rows: list[tuple[Any, ...]] = []
    says: list[str] = []
    for hit in hits:
        if isinstance(hit.what, Item):
            rows.append((hit.similarity, hit.why, hit.what.id, hit.what.kind))
            says.append(_format_item(hit.what))
        else:
            rows.append((hit.similarity, hit.why, f"step:{hit.what.id}", "step"))
            says.append(_format_step(hit.what))
    return render_rows("similarity", "match", "id", "kind", rows=rows, says=says)


def _format_step(step: Step) -> str:
    return f"`{step.action}` (return {step.return_to_go or 0:.2f}) after: {step.pre.observation}"


def render_guardrails(guardrails: Sequence[Mapping[str, Any]]) -> Group:
    """Render guardrails, two lines each.

    `right` is how often an overridden action failed, of the number of overrides.
    """
    rows = [
        (
            row["id"],
            row["evidence"],
            row["confidence"],
            row["blocked"],
            _format_precision(row),
            row["precision"],
            _format_state(row),
        )
        for row in guardrails
    ]
    says = [
        f"Do not `{row['forbids']}`{_format_when(row['when'])}. {row['because']}{_format_causes(row)}"
        for row in guardrails
    ]
    names = ("id", "evidence", "conf.", "blocked", "right", "precision", "")
    return render_rows(*names, rows=rows, says=says, is_cut=False)


def _format_when(when: str) -> str:
    return "" if when == "always" else f" when {when}"


def _format_causes(row: Mapping[str, Any]) -> str:
    """Return the first cause of failure in the evidence, and when the guardrail is tried next."""
    # what is kept of a result that nobody vouches for says no more than the cause
    causes = [
        f" ({failure['cause'].replace('_', ' ')}{'' if failure['words'] == 'failed' else ': ' + failure['words'][:80]})"
        for failure in row["failures"][:1]
    ]
    after = row["probation"]["next_trial_after_refusals"]
    return "".join(causes) + (
        f"; next trial after {after} refusal{'' if after == 1 else 's'}" if after is not None else ""
    )


def _format_precision(row: Mapping[str, Any]) -> str | None:
    return f"{row['overridden'] - row['worked']} of {row['overridden']}" if row["overridden"] else None


def _format_state(row: Mapping[str, Any]) -> str:
    marks = [row["status"]] if row["status"] != "active" else []
    return ", ".join([*marks, *(["pinned"] if row["pinned"] else [])])


def render_rows(*columns: str, rows: Sequence[Sequence[Any]], says: Sequence[str], is_cut: bool = True) -> Group:
    """Render rows: a line of cells in columns, and a text below."""
    cells = [[cell(value) for value in row] for row in rows]
    # cell_len, because wide characters take two columns of a terminal.
    widths = [max(map(cell_len, column)) for column in zip(columns, *cells, strict=True)]
    right = [any(isinstance(row[at], int | float) for row in rows) for at in range(len(columns))]

    def line(values: Sequence[str], style: str = "") -> Text:
        padded = [
            " " * (width - cell_len(value)) + value if number else value + " " * (width - cell_len(value))
            for value, width, number in zip(values, widths, right, strict=True)
        ]
        return Text("  ".join(padded).rstrip(), style)

    lines: list[RenderableType] = [line(columns, "bold")]
    for values, text in zip(cells, says, strict=True):
        words = Text(excerpt(text, WIDEST if is_cut else 600), "dim")
        lines += [line(values), Padding(words, (0, 0, 0, 4))]
    return Group(*lines)
