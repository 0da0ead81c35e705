"""Draws each kind of a scenario's picture with Altair, as Vega-Lite: lines, bars, grids.

Colours have names such as ``var:--buggy``, which the page replaces by colours of its scheme.
Colour is never the only difference: lines also have dashes and shapes of points, bars have
positions, words in a grid have signs, and every chart has a table of its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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


def _by(channel: Any, field: str, names: list[str], looks: Sequence[Any], **more: Any) -> Any:
    """An encoding channel with a look for each name, in the order of the names."""
    scale = alt.Scale(domain=names, range=looks)
    return channel(f"{field}:N", title=None, sort=names, scale=scale, **more)


def plain_axis(title: str | None, values: Iterable[float] = (), **more: Any) -> Any:
    """An axis of plain numbers; its ticks are integers if all values are."""
    whole = [float(value).is_integer() for value in values]
    if whole and all(whole):
        more["tickMinStep"] = 1
    return alt.Axis(title=title or None, labelExpr="format(datum.value, '.6~g')", **more)


def limits(limits: Mapping[str, float], along: str = "y") -> list[Any]:
    """A dashed line across the chart for each limit, with its name."""
    if not limits:
        return []
    levels = [{"name": name, "level": level} for name, level in limits.items()]
    base = alt.Chart(alt.InlineData(values=levels))
    hover = [alt.Tooltip("name:N", title="limit"), alt.Tooltip("level:Q", title="at")]
    base = base.encode(**{along: "level:Q"}, tooltip=hover)
    words = {"align": "right", "dx": -4, "fontStyle": "italic", "color": "var:--ink"}
    if along == "y":
        text = base.mark_text(**words, baseline="bottom", dy=-3).encode(x=alt.value("width"))
    else:
        text = base.mark_text(**words, baseline="top", dy=4).encode(y=alt.value(0))
    return [
        base.mark_rule(strokeDash=[5, 4], strokeWidth=1.5, color="var:--ink"),
        text.encode(text="name:N"),
    ]


MOST_ROWS = 400
"""The most rows of a chart's table of numbers."""

Spec = dict[str, Any]


@dataclass(frozen=True)
class Chart:
    """A chart on a page: its texts, its drawing, and its numbers."""

    title: str
    summary: str
    panels: tuple[tuple[str, Spec], ...]
    """The name of each part, empty if there is only one, and its Vega-Lite."""
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """The numbers as a table, up to MOST_ROWS."""
    left_out: int = 0
    """How many rows the table does not show."""
    abreast: int = 1
    """How many panels are side by side if there is room."""


def make_chart(
    title: str,
    summary: str,
    panels: Sequence[tuple[str, Any]],
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
) -> Chart:
    texts = tuple(tuple(map(text, row)) for row in rows[:MOST_ROWS])
    specs = tuple((name, _spec(drawn, summary)) for name, drawn in panels)
    return Chart(title, summary, specs, tuple(columns), texts, max(0, len(rows) - MOST_ROWS))


def _spec(drawn: Any, summary: str) -> Spec:
    spec: Spec = drawn.properties(description=summary).to_dict(validate=False)
    spec.pop("config", None)  # the page has its own, for its colour scheme
    return spec


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
    columns = ("line", picture.x, picture.y or "value")
    return make_chart(picture.title, picture.caption, [("", drawn)], columns, picture.points)


def _traces(picture: Lines, rows: list[dict[str, Any]], names: list[str], x: Any, y: Any) -> Any:
    """The lines, and their points with tooltips."""
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=x, y=y)
    longest = max((sum(row["name"] == name for row in rows) for name in names), default=0)
    few = longest <= FEW_POINTS
    legend = alt.Undefined if few else alt.Legend(symbolType="stroke")
    colour = _by(alt.Color, "name", names, colours(names), legend=legend)
    dash = _by(alt.StrokeDash, "name", names, cycle(DASHES, names), legend=legend)
    shape = _by(alt.Shape, "name", names, cycle(SHAPES, names))
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


FILLED = [1.0, 0.25, 0.65, 0.45, 0.85, 0.1]
"""The opacity of each variant's bars, for readers who cannot distinguish the colours."""


def _bars(picture: Bars) -> Chart:
    variants = names_of(variant for variant, *_ in picture.values)
    names = list(dict.fromkeys(name for _, name, _ in picture.values))
    rows = [
        {"variant": variant, "name": name, "value": finite(value)}
        for variant, name, value in picture.values
    ]
    hover = [
        alt.Tooltip("variant:N"),
        alt.Tooltip("name:N", title="of"),
        alt.Tooltip("value:Q", title=picture.x or "value", format=".5~g"),
    ]
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        y=alt.Y("name:N", title=None, sort=names), yOffset=alt.YOffset("variant:N", sort=variants)
    )
    bars = base.mark_bar(strokeWidth=1.5).encode(
        x=alt.X("value:Q", axis=plain_axis(picture.x, tickCount=5)),
        fill=_by(alt.Fill, "variant", variants, colours(variants)),
        stroke=_by(alt.Stroke, "variant", variants, colours(variants)),
        fillOpacity=_by(alt.FillOpacity, "variant", variants, cycle(FILLED, variants)),
        tooltip=hover,
    )
    tall = max(60, 14 * len(names) * len(variants) + 8 * len(names))
    drawn = alt.layer(bars, *limits(picture.limits, "x")).properties(width="container", height=tall)
    columns = ("variant", "of", picture.x or "value")
    return make_chart(picture.title, picture.caption, [("", drawn)], columns, picture.values)


FEW_COLUMNS = 8
"""Up to this many columns, the values are written in the fields, also on a phone."""
MANY_COLUMNS = 24
"""With more columns, a panel takes the width of the page."""


def _grid(picture: Grid) -> Chart:
    panels = list(dict.fromkeys(panel for panel, *_ in picture.fields))
    values = [value for *_, value in picture.fields if value is not None]
    words = [value for value in values if isinstance(value, str)]
    drawn = []
    for panel in panels:
        fields = [field for field in picture.fields if field[0] == panel]
        few = len({x for _, x, _, _ in fields}) <= FEW_COLUMNS
        colour = (
            _by_word(list(dict.fromkeys(words)), picture.wrong)
            if words
            else _by_number(values, few)
        )
        drawn.append((panel, _panel(picture, fields, colour, bool(words))))
    columns = ("panel", picture.x or "column", picture.y or "row", picture.value or "value")
    wide = len({x for _, x, _, _ in picture.fields}) > MANY_COLUMNS
    drawing = make_chart(picture.title, picture.caption, drawn, columns, picture.fields)
    return replace(drawing, abreast=1 if wide else 2 if len(panels) in (2, 4) else 3)


def _panel(picture: Grid, fields: Sequence[tuple[Any, ...]], colour: Any, words: bool) -> Any:
    across = list(dict.fromkeys(str(field[1]) for field in fields))
    down = list(dict.fromkeys(str(field[2]) for field in fields))
    rows = [
        {"x": str(x), "y": str(y), "value": _value(value), "label": text(value)}
        for _, x, y, value in fields
    ]
    few = len(across) <= FEW_COLUMNS
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        x=alt.X(
            "x:N",
            sort=across,
            title=picture.x or None,
            axis=alt.Axis(labelOverlap=True, labelAngle=0 if few else -60, orient="bottom"),
        ),
        y=alt.Y("y:N", sort=down, title=picture.y or None, axis=alt.Axis(labelOverlap=True)),
        tooltip=[
            alt.Tooltip("x:N", title=picture.x or "column"),
            alt.Tooltip("y:N", title=picture.y or "row"),
            alt.Tooltip("label:N", title=picture.value or "value"),
        ],
    )
    layers = [base.mark_rect(stroke="var:--page", strokeWidth=1).encode(color=colour)]
    if few and not words:
        layers.append(_written(base, picture))
    elif words:
        layers.append(_signed(base, colour))
    tall = max(70, min(28, max(8, 420 // len(down))) * len(down))
    return alt.layer(*layers).properties(width="container", height=tall)


def _value(value: float | str | None) -> float | str | None:
    return finite(value) if isinstance(value, (int, float)) else value


def _by_number(values: Sequence[Any], written: bool) -> Any:
    """Shades of one colour; with a legend if the values are not written in their fields."""
    numbers = [number for value in values if (number := finite(value)) is not None]
    ends = [min(numbers, default=0.0), max(numbers, default=1.0)]
    shades = alt.Scale(
        domain=ends, range=["var:--least", "var:--middle", "var:--most"], interpolate="lab"
    )
    legend = None if written else alt.Legend(gradientLength=120, format=".3~g")
    return alt.Color("value:Q", title=None, scale=shades, legend=legend)


def _by_word(words: list[str], wrong_words: Sequence[str]) -> Any:
    """A colour for each word; words that should not occur get the bug's colour."""
    right_words = [word for word in words if word not in wrong_words]
    colours = dict(zip(right_words, cycle(OTHERS, right_words), strict=True))
    shades = [colours.get(word, "var:--buggy") for word in words]
    return _by(alt.Color, "value", words, shades)


def _written(base: Any, picture: Grid) -> Any:
    """The values in their fields, in a readable colour."""
    values = [_value(value) for *_, value in picture.fields]
    numbers = [value for value in values if isinstance(value, float)]
    middle = (min(numbers, default=0.0) + max(numbers, default=0.0)) / 2
    ink = alt.condition(
        f"datum.value > {middle!r}", alt.value("var:--on-most"), alt.value("var:--on-least")
    )
    return base.mark_text(fontSize=10).encode(text=alt.Text("value:Q", format=".3~g"), color=ink)


def _signed(base: Any, colour: Any) -> Any:
    """A sign for each word, for readers who cannot distinguish the colours."""
    words = colour.to_dict()["scale"]["domain"]
    shape = _by(alt.Shape, "value", words, cycle(SHAPES, words))
    return base.mark_point(filled=True, size=22, opacity=0.9).encode(
        shape=shape, color=alt.value("var:--page")
    )


def chart(picture: Picture) -> Chart:
    """The chart of a scenario's picture."""
    if isinstance(picture, Lines):
        return _lines(picture)
    if isinstance(picture, Bars):
        return _bars(picture)
    return _grid(picture)
