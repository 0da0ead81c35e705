"""Lines along an axis: values by step, or by position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from harness.api.pictures import Lines
from harness.publish.chart import Chart, made
from harness.publish.drawing import (
    DASHES,
    SHAPES,
    colours,
    cycle,
    finite,
    limits,
    names_of,
    plain_axis,
)

TALL = 260
"""The height of a chart in pixels; its width is that of the page."""
FEW_POINTS = 40
"""With more points, the points of a line are invisible, but still have tooltips."""


def draw(picture: Lines) -> Chart:
    """The chart of this picture."""
    points = [(name, x, finite(y)) for name, x, y in picture.points]
    names = names_of(name for name, *_ in points)
    levels = [*(y for *_, y in points if y is not None), *picture.limits.values()]
    decades = _decades(levels) if picture.log else None
    positions = [at for _, at, _ in points]
    x = alt.X(
        "x:Q",
        scale=alt.Scale(zero=False, nice=False),
        axis=plain_axis(picture.x, positions, grid=False, tickCount=10),
    )
    y = _upright(picture.y, decades)
    rows = [
        {"name": name, "x": at, "y": _lifted(value, decades), "value": value}
        for name, at, value in points
    ]
    drawn = alt.layer(
        *_traces(picture, rows, names, x, y), *limits(picture.limits), *_marks(picture.marks)
    ).properties(width="container", height=TALL)
    columns = ("line", picture.x, picture.y or "value")
    return made(picture.title, picture.caption, [("", drawn)], columns, picture.points)


def _traces(picture: Lines, rows: list[dict[str, Any]], names: list[str], x: Any, y: Any) -> Any:
    """The lines, and their points with tooltips."""
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, y=y)
    longest = max((sum(row["name"] == name for row in rows) for name in names), default=0)
    few = longest <= FEW_POINTS
    legend = alt.Undefined if few else alt.Legend(symbolType="stroke")
    colour = alt.Color(
        "name:N",
        title=None,
        sort=names,
        legend=legend,
        scale=alt.Scale(domain=names, range=colours(names)),
    )
    dash = alt.StrokeDash(
        "name:N",
        title=None,
        sort=names,
        legend=legend,
        scale=alt.Scale(domain=names, range=cycle(DASHES, names)),
    )
    shape = alt.Shape(
        "name:N", title=None, sort=names, scale=alt.Scale(domain=names, range=cycle(SHAPES, names))
    )
    hover = [
        alt.Tooltip("name:N", title="line"),
        alt.Tooltip("x:Q", title=picture.x),
        alt.Tooltip("value:Q", title=picture.y or "value", format=".5~g"),
    ]
    bend = "step-after" if picture.stairs else "linear"
    yield base.mark_line(interpolate=bend, strokeWidth=2).encode(color=colour, strokeDash=dash)
    points = base.mark_point(filled=True, size=45, opacity=1 if few else 0)
    yield points.encode(color=colour, tooltip=hover, **({"shape": shape} if few else {}))


def _marks(marks: Sequence[tuple[str, float]]) -> list[Any]:
    """A vertical line for each event, with its name."""
    if not marks:
        return []
    events = [{"name": name, "at": at, "line": n % 3} for n, (name, at) in enumerate(marks)]
    base = alt.Chart(alt.Data(values=events)).encode(x="at:Q", tooltip="name:N")
    words = [
        base.transform_filter(f"datum.line == {line}")
        .mark_text(align="left", baseline="top", dx=4, fontStyle="italic", color="var:--ink")
        .encode(y=alt.value(4 + 14 * line), text="name:N")
        for line in range(min(3, len(events)))
    ]
    return [base.mark_rule(strokeWidth=1, strokeDash=[2, 3], color="var:--ink"), *words]


@dataclass(frozen=True)
class Decades:
    """A logarithmic axis from a power of ten up to the greatest value. If there are zeros, they are
    drawn at the lowest power."""

    bottom: int
    greatest: float
    zero: bool

    @property
    def foot(self) -> float:
        return float(10.0**self.bottom)

    @property
    def ticks(self) -> list[float]:
        """Powers of ten, at most eight or so."""
        top = math.floor(math.log10(self.greatest))
        stride = max(1, math.ceil((top - self.bottom) / 7))
        return [float(10.0**power) for power in range(self.bottom, top + 1, stride)]


def _decades(levels: Sequence[float]) -> Decades | None:
    """None if a logarithmic axis is not possible: no value is above 0, or one is below."""
    above = [level for level in levels if level > 0]
    if not above or min(levels) < 0:
        return None
    zero = min(levels) == 0
    return Decades(math.floor(math.log10(min(above))) - zero, max(above), zero)


def _lifted(value: float | None, decades: Decades | None) -> float | None:
    return value if value is None or decades is None else max(value, decades.foot)


def _upright(title: str, decades: Decades | None) -> Any:
    """The axis of the values."""
    if decades is None:
        return alt.Y("y:Q", axis=plain_axis(title, tickCount=6))
    power = (
        "datum.value >= 9e-5 && datum.value < 2e5 ? format(datum.value, ',.1~r') "
        ": format(datum.value, '.0~e')"
    )
    at_foot = f"datum.value < {decades.foot * 1.01!r} ? '0' : ({power})"
    scale = alt.Scale(type="log", domain=[decades.foot, 2 * decades.greatest], nice=False)
    axis = alt.Axis(values=decades.ticks, labelExpr=at_foot if decades.zero else power)
    return alt.Y("y:Q", title=title or None, scale=scale, axis=axis)
