"""Build the ECharts options of the dashboard's charts, with legends and descriptions for screen readers."""

from collections.abc import Mapping, Sequence
from typing import Any

COLOURS = ["#2f7ed8", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#767676", "#8c6bb1"]
"""Colors of lines, after Okabe and Ito: people who confuse red and green can tell them apart."""
_SOFT = {"color": "#767676"}
"""A gray that is readable on the light and on the dark background."""
_FAINT = {"lineStyle": {"color": "rgba(128, 128, 128, .25)"}}

Points = Sequence[Sequence[float]]


def lines(
    curves: Mapping[str, Points], *, x: str, y: str, share: bool = False, is_time: bool = False, is_count: bool = False
) -> dict[str, Any]:
    """Return a line chart."""
    return {
        "aria": {"enabled": True},
        "animation": False,
        "color": COLOURS,
        "tooltip": {"trigger": "axis"},
        "useUTC": True,
        "legend": {"show": len(curves) > 1, "top": 0, "left": 70, "right": 0, "textStyle": _SOFT},
        "grid": {"left": 8, "right": 20, "top": _find_top(curves, 3), "bottom": 28, "containLabel": True},
        "xAxis": {
            "type": "time" if is_time else "value", "name": x, "nameLocation": "middle", "nameGap": 26,
            "nameTextStyle": _SOFT, "axisLabel": {**_SOFT, "hideOverlap": True}, "splitLine": {"show": False},
            "min": "dataMin", **({} if is_time else {"minInterval": 1}),
        },
        "yAxis": {
            "type": "value", "name": y, "nameTextStyle": {**_SOFT, "align": "left"}, "nameGap": 12,
            "axisLabel": _SOFT, "splitLine": _FAINT, **_find_bounds(share=share, is_count=is_count),
        },
        "series": series(curves),
        "media": [
            {"query": {"maxWidth": 420}, "option": {"legend": {"left": 0}, "grid": {"top": _find_top(curves, 2)}}}
        ],
    }  # fmt: skip


def _find_top(curves: Mapping[str, Points], a_line: int) -> int:
    """Return the space above a chart, in pixels, for a legend with so many names a line."""
    return 34 + 25 * ((max(len(curves), 1) - 1) // a_line)


def _find_bounds(*, share: bool, is_count: bool) -> dict[str, Any]:
    """Return the bounds of a y axis."""
    if share:
        return {"min": 0, "max": 1}
    return {"min": 0, "minInterval": 1} if is_count else {"scale": True}


def series(curves: Mapping[str, Points]) -> list[dict[str, Any]]:
    """Return only the lines, to update an existing chart."""
    return [
        {"type": "line", "name": name, "data": [list(point) for point in points], "showSymbol": len(points) < 30}
        for name, points in curves.items()
    ]
