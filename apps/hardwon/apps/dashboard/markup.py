"""HTML, written so that text is always text: what comes out of a library is escaped, and ids become links.

tag("td", excerpt, class_="wide")
"""

import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

from hardwon.apps.shared.common import cell

_MARKED = re.compile(r"`([^`]+)`|\b(?:(step|attempt):(\d+)|((?:st|wa|sk|gu|re|in)-[0-9a-f]{12}))\b")
"""Actions, and what the pages have a page for."""
_EMPTY = frozenset({"input", "br", "meta", "link"})

Link = Callable[..., str]
"""From a path of the dashboard to an address in the same namespace."""


class Html(str):
    """Text that is HTML already."""


def tag(element: str, /, *children: Any, **attributes: Any) -> Html:
    """An element; a child that is no `Html` is text. `class_` and `for_` are class and for; True is a bare name."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if element in _EMPTY:
        return Html(f"<{element}{written}>")
    return Html(f"<{element}{written}>{join(children)}</{element}>")


def join(parts: Iterable[Any]) -> Html:
    """Parts after one another."""
    return Html("".join(part if isinstance(part, Html) else escape(str(part)) for part in parts))


def linked(text: str, link: Link | None = None) -> Html:
    """A text in which `actions` are set as code and, given a link, ids lead to their pages."""
    parts: list[Any] = []
    at = 0
    for found in _MARKED.finditer(text):
        action, what, number, item = found.groups()
        path = f"/items/{item}" if item else f"/{what}s/{number}"
        marked = tag("code", action) if action else tag("a", found.group(), href=link(path)) if link else found.group()
        parts += [text[at : found.start()], marked]
        at = found.end()
    return join([*parts, text[at:]])


def table(
    head: Sequence[str], rows: Iterable[Sequence[Any]], *, caption: str, numbers: Sequence[str] = (), empty: str = ""
) -> Html:
    """A table that can be moved sideways where it is wider than the page; `numbers` are right-aligned columns."""
    body = list(rows)
    if not body and empty:
        return tag("p", empty, class_="empty")
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
                    tag("tr", *(tag("td", _cell(v), class_=c) for v, c in zip(row, classes, strict=True)))
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
    """Labels and texts, as `views` gives them; a line without a label goes on with the one before."""
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


def section(title: str, *contents: Any, name: str | None = None) -> Html:
    """A part of a page under a heading."""
    return tag("section", tag("h2", title, id=name), *contents)


def pager(link: Link, path: str, total: int, limit: int, offset: int, query: dict[str, Any]) -> Html:
    """Which part of a list is shown, and the pages before and after."""
    if not total:
        return Html("")
    shown = f"{offset + 1} to {min(offset + limit, total)} of {total}" if offset < total else f"none of {total}"
    parts: list[Any] = []
    if offset > 0:
        parts.append(tag("a", "← before", href=link(path, **query, offset=max(0, offset - limit)), rel="prev"))
    parts.append(tag("span", shown))
    if offset + limit < total:
        parts.append(tag("a", "after →", href=link(path, **query, offset=offset + limit), rel="next"))
    return tag("nav", *parts, class_="pager", aria_label="Pages of the list")
