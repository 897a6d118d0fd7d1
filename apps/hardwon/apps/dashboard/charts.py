"""Build the ECharts options of the dashboard's charts, with legends and descriptions for screen readers."""

from collections.abc import Mapping, Sequence
from typing import Any

COLOURS = ["#2f7ed8", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#767676", "#8c6bb1"]
"""Colors of lines, after Okabe and Ito: people who confuse red and green can tell them apart."""
RETURNS = ["#c75100", "#d9b38c", "#b8b8b8", "#7fb2d9", "#1467b3"]
"""Colors from low to high returns: orange to blue, which every common kind of color vision tells apart."""
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


def _center(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return bounds that put points of equal height into the middle: the axis would put them on its edge."""
    heights = {round(row["y"], 6) for row in rows}
    return {"min": min(heights) - 1, "max": max(heights) + 1} if len(heights) == 1 else {}


def situations(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a map of situations: the size shows the number of steps, the color the mean return."""
    most = max((row["steps"] for row in rows), default=1)
    returns = sorted(row["mean_return"] or 0.0 for row in rows)
    high = (
        returns[len(returns) * 95 // 100] if returns else 1.0
    )  # a percentile: a few outliers would take most of the color range
    return {
        "aria": {"enabled": True},
        "animation": False,
        "tooltip": {"confine": True, "extraCssText": "max-width: 300px; white-space: normal"},
        "grid": {"left": 10, "right": 10, "top": 10, "bottom": 54},
        "xAxis": {"show": False, "scale": True},
        "yAxis": {"show": False, "scale": True, **_center(rows)},
        "visualMap": {
            "dimension": 2, "orient": "horizontal", "left": "center", "bottom": 0, "precision": 2, "itemHeight": 120,
            "text": ["high return", "low"], "textStyle": _SOFT, "min": min(returns, default=0.0), "max": high or 1.0,
            "inRange": {"color": RETURNS},
        },
        "series": [
            {
                "type": "scatter",
                "data": [
                    {
                        "name": row["signature"],
                        "value": [row["x"], row["y"], round(row["mean_return"] or 0.0, 4)],
                        # The square root makes the area, not the diameter, grow with the number of steps.
                        "symbolSize": 7 + 25 * (row["steps"] / most) ** 0.5,
                        "tooltip": {"formatter": _format_tooltip(row)},
                    }
                    for row in rows
                ],
                "itemStyle": {"opacity": 0.8, "borderColor": "#fff"},
            }
        ],
    }  # fmt: skip


def _format_tooltip(row: Mapping[str, Any]) -> str:
    """Return the text of a tooltip, escaped because ECharts reads it as HTML and as a template."""
    seen = " ".join(str(row["example"])[:160].split())
    for char, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("{", "("), ("}", ")")):
        seen = seen.replace(char, safe)
    where = f" in {row['episodes']} episodes" if row["episodes"] is not None else f", {row['states']} states"
    return f"{row['steps']} steps{where}<br>{seen}"
