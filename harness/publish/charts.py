"""Draws a scenario's pictures: lines with Altair, as Vega-Lite; bars and grids as tables.

Colours have names such as ``var:--buggy``, which the page replaces by colours of its scheme.
Colour is never the only difference: lines also have dashes and shapes of points, bars have their
numbers, words in a grid have signs, and lines have a table of their numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from harness.bugs.api.pictures import Bars, Grid, Lines, Picture
from harness.bugs.api.spec import BUGGY, FIXED

OWN = {BUGGY: "var:--buggy", FIXED: "var:--fixed"}
OTHERS = [f"var:--other-{number}" for number in range(1, 7)]
DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 2], [1, 3]]
SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down"]


def finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def colours(names: Sequence[str]) -> list[str]:
    """A colour for each name; buggy and fixed have the same colours everywhere."""
    others = [name for name in names if name not in OWN]
    return [OWN.get(name) or OTHERS[others.index(name) % len(OTHERS)] for name in names]


def cycle(values: Sequence[Any], names: Sequence[str]) -> list[Any]:
    return [values[n % len(values)] for n in range(len(names))]


def names_of(names: Iterable[str]) -> list[str]:
    """Names in their order, buggy and fixed first."""
    ordered = list(dict.fromkeys(names))
    return sorted(ordered, key=lambda name: (name != BUGGY, name != FIXED, ordered.index(name)))


def _by(channel: Any, names: list[str], looks: Sequence[Any], **more: Any) -> Any:
    """An encoding channel with a look for each name, in the order of the names."""
    scale = alt.Scale(domain=names, range=looks)
    return channel("name:N", title=None, sort=names, scale=scale, **more)


def plain_axis(title: str | None, values: Iterable[float] = (), **more: Any) -> Any:
    """An axis of plain numbers; its ticks are integers if all values are."""
    whole = [float(value).is_integer() for value in values]
    if whole and all(whole):
        more["tickMinStep"] = 1
    return alt.Axis(title=title or None, labelExpr="format(datum.value, '.6~g')", **more)


def limits(limits: Mapping[str, float]) -> list[Any]:
    """A dashed line across the chart for each limit, with its name."""
    if not limits:
        return []
    levels = [{"name": name, "level": level} for name, level in limits.items()]
    hover = [alt.Tooltip("name:N", title="limit"), alt.Tooltip("level:Q", title="at")]
    base = alt.Chart(alt.InlineData(values=levels)).encode(y="level:Q", tooltip=hover)
    words = base.mark_text(
        align="right", dx=-4, fontStyle="italic", color="var:--ink", baseline="bottom", dy=-3
    )
    return [
        base.mark_rule(strokeDash=[5, 4], strokeWidth=1.5, color="var:--ink"),
        words.encode(x=alt.value("width"), text="name:N"),
    ]


MOST_ROWS = 400
"""The most rows of a chart's table of numbers."""

Spec = dict[str, Any]


@dataclass(frozen=True)
class Bar:
    """A row of a table of bars."""

    name: str
    variant: str
    value: str
    share: float
    """The length of its bar, of the longest."""
    colour: str


@dataclass(frozen=True)
class Field:
    """A field of a grid."""

    text: str = ""
    sign: str = ""
    style: str = ""
    """Its colours, as CSS."""


@dataclass(frozen=True)
class Panel:
    """A table of a grid."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Field, ...]], ...]


@dataclass(frozen=True)
class Chart:
    """A chart on a page: its texts; and lines with their numbers, bars, or panels."""

    title: str
    summary: str
    spec: Spec | None = None
    """Lines, as Vega-Lite."""
    columns: tuple[str, ...] = ()
    """The titles of its columns, or what the axes of panels are."""
    rows: tuple[tuple[str, ...], ...] = ()
    """The numbers of lines as a table, up to MOST_ROWS."""
    left_out: int = 0
    """How many rows the table does not show."""
    bars: tuple[Bar, ...] = ()
    panels: tuple[Panel, ...] = ()
    legend: tuple[Field, ...] = ()
    """What the colours and the signs of the panels mean."""


def text(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


TALL = 260
"""The height of a chart in pixels; it is as wide as the page."""
FEW_POINTS = 40
"""With more points, the points of a line are invisible, but still have tooltips."""


def _lines(picture: Lines) -> Chart:
    points = [(name, x, finite(y)) for name, x, y in picture.points]
    names = names_of(name for name, *_ in points)
    levels = [*(y for *_, y in points if y is not None), *picture.limits.values()]
    x = alt.X(
        "x:Q",
        scale=alt.Scale(zero=False, nice=False),
        axis=plain_axis(picture.x, [at for _, at, _ in points], grid=False, tickCount=10),
    )
    y = _by_magnitude(picture.y, levels) if picture.log else None
    y = y or alt.Y("value:Q", axis=plain_axis(picture.y, tickCount=6))
    rows = [{"name": name, "x": at, "value": value} for name, at, value in points]
    drawn = alt.layer(
        *_traces(picture, rows, names, x, y), *limits(picture.limits), *_marks(picture.marks)
    ).properties(width="container", height=TALL)
    spec: Spec = drawn.properties(description=picture.caption).to_dict(validate=False)
    spec.pop("config", None)  # the page has its own, for its colour scheme
    return Chart(
        picture.title,
        picture.caption,
        spec,
        ("line", picture.x, picture.y or "value"),
        tuple(tuple(map(text, row)) for row in picture.points[:MOST_ROWS]),
        max(0, len(picture.points) - MOST_ROWS),
    )


def _traces(picture: Lines, rows: list[dict[str, Any]], names: list[str], x: Any, y: Any) -> Any:
    """The lines, and their points with tooltips."""
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=x, y=y)
    longest = max((sum(row["name"] == name for row in rows) for name in names), default=0)
    few = longest <= FEW_POINTS
    legend = alt.Undefined if few else alt.Legend(symbolType="stroke")
    colour = _by(alt.Color, names, colours(names), legend=legend)
    dash = _by(alt.StrokeDash, names, cycle(DASHES, names), legend=legend)
    shape = _by(alt.Shape, names, cycle(SHAPES, names))
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
    base = alt.Chart(alt.InlineData(values=events)).encode(x="at:Q", tooltip="name:N")
    words = [
        base.transform_filter(f"datum.line == {line}")
        .mark_text(align="left", baseline="top", dx=4, fontStyle="italic", color="var:--ink")
        .encode(y=alt.value(4 + 14 * line), text="name:N")
        for line in range(min(3, len(events)))
    ]
    return [base.mark_rule(strokeWidth=1, strokeDash=[2, 3], color="var:--ink"), *words]


def _by_magnitude(title: str, levels: Sequence[float]) -> Any:
    """A logarithmic axis that has room for 0. None if no value is above 0, or one is below."""
    above = [level for level in levels if level > 0]
    if not above or min(levels) < 0:
        return None
    first, last = (math.floor(math.log10(end)) for end in (min(above), max(above)))
    stride = max(1, math.ceil((last - first) / 7))
    powers = [float(10.0**power) for power in range(first, last + 1, stride)]
    foot = 0.0 if 0 in levels else powers[0]
    label = (
        "datum.value == 0 ? '0' : datum.value >= 9e-5 && datum.value < 2e5 "
        "? format(datum.value, ',.1~r') : format(datum.value, '.0~e')"
    )
    scale = alt.Scale(
        type="symlog", constant=powers[0] / 2, domain=[foot, 2 * max(above)], nice=False
    )
    axis = alt.Axis(values=sorted({foot, *powers}), labelExpr=label)
    return alt.Y("value:Q", title=title or None, scale=scale, axis=axis)


def _bars(picture: Bars) -> Chart:
    variants = names_of(variant for variant, *_ in picture.values)
    looks = dict(zip(variants, colours(variants), strict=True))
    names = list(dict.fromkeys(name for _, name, _ in picture.values))
    rows = sorted(picture.values, key=lambda row: (names.index(row[1]), variants.index(row[0])))
    rows += [("limit", name, level) for name, level in picture.limits.items()]
    longest = max((abs(finite(value) or 0) for *_, value in rows), default=0) or 1
    bars = (
        Bar(name, variant, text(value), abs(finite(value) or 0) / longest, _css(looks.get(variant)))
        for variant, name, value in rows
    )
    return Chart(
        picture.title, picture.caption, columns=("", "", picture.x or "value"), bars=tuple(bars)
    )


def _css(colour: str | None) -> str:
    """A colour of the page as CSS has it."""
    return f"var({(colour or 'var:--dim').removeprefix('var:')})"


SIGNS = "○△□◇+-"


def _grid(picture: Grid) -> Chart:
    values = dict.fromkeys(value for *_, value in picture.fields)
    words = [value for value in values if isinstance(value, str)]
    right = [word for word in words if word not in picture.wrong]
    numbers = [n for v in values if not isinstance(v, str) and (n := finite(v)) is not None]
    least, most = min(numbers, default=0.0), max(numbers, default=0.0)

    def field(value: float | str | None) -> Field:
        if isinstance(value, str):
            wrong = value in picture.wrong
            number = 0 if wrong else right.index(value) % len(OTHERS)
            colour = _css("var:--buggy" if wrong else OTHERS[number])
            return Field(value, "●" if wrong else SIGNS[number], f"color: {colour}")
        if (level := finite(value)) is None:
            return Field(text(value))
        share = (level - least) / (most - least or 1)
        shade = f"color-mix(in srgb, var(--most) {share:.0%}, var(--least))"
        ink = "var(--on-most)" if share > 0.5 else "var(--on-least)"
        return Field(text(level), style=f"background: {shade}; color: {ink}")

    panels = []
    for panel in dict.fromkeys(name for name, *_ in picture.fields):
        fields = {(y, x): field(value) for name, x, y, value in picture.fields if name == panel}
        across = list(dict.fromkeys(x for _, x in fields))
        rows = (
            (str(y), tuple(fields.get((y, x), Field()) for x in across))
            for y in dict.fromkeys(y for y, _ in fields)
        )
        panels.append(Panel(panel, tuple(map(str, across)), tuple(rows)))
    legend = map(field, words or (dict.fromkeys([least, most]) if numbers else ()))
    axes = {"columns": picture.x, "rows": picture.y, "values": picture.value}
    return Chart(
        picture.title,
        picture.caption,
        columns=tuple(f"{axis}: {title}" for axis, title in axes.items() if title),
        panels=tuple(panels),
        legend=tuple(legend),
    )


def chart(picture: Picture) -> Chart:
    """The chart of a scenario's picture."""
    if isinstance(picture, Lines):
        return _lines(picture)
    if isinstance(picture, Bars):
        return _bars(picture)
    return _grid(picture)
