"""Build HTML in which text is always escaped and ids become links.

tag("td", excerpt, class_="wide")
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from hardwon.apps.shared.common import cell

_MARKED = re.compile(
    r"`([^`]+)`|\b(?:(step|attempt):(\d+)|((?:st|wa|sk|gu|re|in)-[0-9a-f]{12})|episode:([0-9a-f]{32}))\b"
)
"""Actions, and ids that have a page."""
_EMPTY = frozenset({"input", "br", "meta", "link"})

Link = Callable[..., str]
"""Function from a path of the dashboard to an address in the same namespace."""


# Concatenation and f-strings return a plain str, which `join` would escape again.
class Html(str):
    """Text that is already HTML."""


EMPTY = "Nothing is recorded yet. The overview has the line that connects your agent."
"""Text of a page about a library without episodes."""


def shorten(ref: str) -> str:
    """Return the beginning of a long id, which commands accept, and its end.

    Ids of one process differ in the first 16 characters, the time; ids of one program of yours often in their end.
    """
    return ref if len(ref) <= 21 else f"{ref[:16]}…{ref[-4:]}"


def tag(element: str, /, *children: Any, **attributes: Any) -> Html:
    """Return an element."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if element in _EMPTY:
        return Html(f"<{element}{written}>")
    return Html(f"<{element}{written}>{join(children)}</{element}>")


def join(parts: Iterable[Any]) -> Html:
    """Concatenate parts, and escape those that are not `Html`."""
    return Html("".join(part if isinstance(part, Html) else escape(str(part)) for part in parts))


def linked(text: str, link: Link | None = None) -> Html:
    """Return a text with `actions` formatted as code and, given a link function, ids linked to their pages."""
    parts: list[Any] = []
    at = 0
    for match in _MARKED.finditer(text):
        action, what, number, item, episode = match.groups()
        path = f"/items/{item}" if item else f"/episodes/{episode}" if episode else f"/{what}s/{number}"
        marked = tag("code", action) if action else tag("a", match.group(), href=link(path)) if link else match.group()
        parts += [text[at : match.start()], marked]
        at = match.end()
    return join([*parts, text[at:]])


def table(
    head: Sequence[str], rows: Iterable[Sequence[Any]], *, caption: str, numbers: Sequence[str] = (), empty: str = ""
) -> Html:
    """Return a table that scrolls sideways if it is wider than the page; on a phone, a row is a block of labels."""
    body = list(rows)
    if not body and empty:
        return tag("p", linked(empty), class_="empty")
    classes = ["number" if name in numbers else None for name in head]
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption, class_="hidden"),
            tag("thead", tag("tr", *(tag("th", n, scope="col", class_=c) for n, c in zip(head, classes, strict=True)))),
            tag(
                "tbody",
                *(
                    tag(
                        "tr",
                        *(
                            # The roles keep rows and cells for screen readers where the style makes them blocks.
                            tag("td", _cell(v), class_=c, data_label=n, role="cell")
                            for n, v, c in zip(head, row, classes, strict=True)
                        ),
                        role="row",
                    )
                    for row in body
                ),
            ),
        ),
        class_="sideways",
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def _cell(value: Any) -> Any:
    return value if isinstance(value, Html) else cell(value)


def pairs(lines: Iterable[tuple[str, str]], link: Link) -> Html:
    """Return a list of labels and texts from `views`; a line without a label continues the previous one."""
    grouped: list[tuple[str, list[Html]]] = []
    for label, text in lines:
        if label or not grouped:
            grouped.append((label, []))
        grouped[-1][1].append(linked(text, link))
    return tag(
        "dl",
        *(
            tag("div", tag("dt", label), *(tag("dd", text) for text in texts), class_=f"line {label.split()[0]}")
            for label, texts in grouped
            if label
        ),
        class_="pairs",
    )


def count(n: int, noun: str) -> str:
    """Return a number of things: `1 episode`, `1,204 episodes`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def section(title: str, *contents: Any, name: str | None = None) -> Html:
    """Return a section of a page with a heading."""
    return tag("section", tag("h2", title, id=name), *contents)


def choice(name: str, label: str, options: Mapping[str, str], chosen: str) -> Html:
    """Return a labeled menu of a form."""
    lines = [tag("option", words, value=value, selected=value == chosen) for value, words in options.items()]
    return tag("label", label, tag("select", *lines, name=name))


def pager(link: Link, path: str, total: int, limit: int, offset: int, query: dict[str, Any]) -> Html:
    """Return the position in a list, with links to the previous and the next page."""
    if not total:
        return Html("")
    position = f"{offset + 1} to {min(offset + limit, total)} of {total}" if offset < total else f"none of {total}"
    parts: list[Any] = []
    if offset > 0:
        parts.append(tag("a", "← previous", href=link(path, **query, offset=max(0, offset - limit)), rel="prev"))
    parts.append(tag("span", position))
    if offset + limit < total:
        parts.append(tag("a", "next →", href=link(path, **query, offset=offset + limit), rel="next"))
    return tag("nav", *parts, class_="pager", aria_label="Pages of the list")
