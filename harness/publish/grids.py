"""Grids: tables of fields, coloured by a number or by a word, a panel for each variant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import altair as alt

from harness.api.pictures import Grid
from harness.publish.chart import Chart, made, text
from harness.publish.drawing import OTHERS, SHAPES, cycle, finite

FEW_COLUMNS = 8
"""Up to this many columns, the values are written in the fields, also on a phone."""
MANY_COLUMNS = 24
"""With more columns, a panel takes the width of the page."""


def draw(picture: Grid) -> Chart:
    """The chart of this picture."""
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
    drawing = made(picture.title, picture.caption, drawn, columns, picture.fields)
    return replace(drawing, abreast=1 if wide else 2 if len(panels) in (2, 4) else 3)


def _panel(picture: Grid, fields: Sequence[tuple[Any, ...]], colour: Any, words: bool) -> Any:
    across = list(dict.fromkeys(str(field[1]) for field in fields))
    down = list(dict.fromkeys(str(field[2]) for field in fields))
    rows = [
        {"x": str(x), "y": str(y), "value": _value(value), "label": text(value)}
        for _, x, y, value in fields
    ]
    few = len(across) <= FEW_COLUMNS
    base = alt.Chart(alt.Data(values=rows)).encode(
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


def _by_word(words: list[str], wrong: Sequence[str]) -> Any:
    """A colour for each word; words that should not occur have that of the bug."""
    right = [word for word in words if word not in wrong]
    colours = dict(zip(right, cycle(OTHERS, right), strict=True))
    shades = [colours.get(word, "var:--buggy") for word in words]
    return alt.Color("value:N", title=None, sort=words, scale=alt.Scale(domain=words, range=shades))


def _written(base: Any, picture: Grid) -> Any:
    """The values in their fields, in a readable colour."""
    found = [_value(value) for *_, value in picture.fields]
    numbers = [value for value in found if isinstance(value, float)]
    middle = (min(numbers, default=0.0) + max(numbers, default=0.0)) / 2
    ink = alt.condition(
        f"datum.value > {middle!r}", alt.value("var:--on-most"), alt.value("var:--on-least")
    )
    return base.mark_text(fontSize=10).encode(text=alt.Text("value:Q", format=".3~g"), color=ink)


def _signed(base: Any, colour: Any) -> Any:
    """A sign for each word, for readers who cannot distinguish the colours."""
    words = colour.to_dict()["scale"]["domain"]
    shape = alt.Shape(
        "value:N", title=None, sort=words, scale=alt.Scale(domain=words, range=cycle(SHAPES, words))
    )
    return base.mark_point(filled=True, size=22, opacity=0.9).encode(
        shape=shape, color=alt.value("var:--page")
    )
