"""Pictures -> Vega-Lite. A colour is named, ``var:--buggy``: the page fills in what its scheme has.

Nothing is told by colour alone: a line has its dashes and its points' shape, a bar its place beside
the others, a word of a grid its sign, and every chart its table of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from harness.pictures import Bars, Grid, Lines, Picture
from harness.spec import BUGGY, FIXED

OWN = {BUGGY: "var:--buggy", FIXED: "var:--fixed"}
OTHERS = [f"var:--other-{number}" for number in range(1, 7)]
DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 2], [1, 3]]
SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down"]
TALL = 260
"""Height of a chart in pixels; its width is the page's."""
FEW_POINTS = 40
"""Of a line with more points than this none is drawn, though each still answers a pointer."""
FEW_COLUMNS = 8
"""A grid with at most so many columns has its values written in its fields, on a phone, too."""
MOST_ROWS = 400
"""Of a chart's table of numbers."""

Spec = dict[str, Any]


@dataclass(frozen=True)
class Chart:
    """A chart of a page: what it shows, how it is drawn, and its numbers."""

    title: str
    told: str
    panels: tuple[tuple[str, Spec], ...]
    """The name of each part, empty where there is but one, and its Vega-Lite."""
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """The numbers as a table, as far as MOST_ROWS."""
    left_out: int = 0
    """How many rows the table does not show."""


def chart(picture: Picture) -> Chart:
    """How a scenario's picture is drawn."""
    if isinstance(picture, Lines):
        return _lines(picture)
    if isinstance(picture, Bars):
        return _bars(picture)
    return _grid(picture)


def _made(title: str, told: str, panels: Sequence[tuple[str, Any]], columns: Sequence[str],
          rows: Sequence[Sequence[Any]]) -> Chart:  # fmt: skip
    texts = tuple(tuple(map(_text, row)) for row in rows[:MOST_ROWS])
    specs = tuple((name, _spec(drawn, told)) for name, drawn in panels)
    return Chart(title, told, specs, tuple(columns), texts, max(0, len(rows) - MOST_ROWS))


def _spec(drawn: Any, told: str) -> Spec:
    made: Spec = drawn.properties(description=told).to_dict()
    made.pop("config", None)  # the page's own, by its scheme
    tables: dict[str, list[Any]] = {}
    _name_the_data(made, tables)
    return made | {"datasets": tables}


def _name_the_data(part: Any, tables: dict[str, list[Any]]) -> None:
    """Have layers of the same rows share them, by a name."""
    if isinstance(part, list):
        for each in part:
            _name_the_data(each, tables)
    elif isinstance(part, dict):
        rows = part.get("data", {}).get("values")
        if rows is not None:
            name = next((n for n, same in tables.items() if same == rows), f"rows{len(tables)}")
            tables[name] = rows
            part["data"] = {"name": name}
        for key, each in part.items():
            if key != "data":
                _name_the_data(each, tables)


def _text(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _colours(names: Sequence[str]) -> list[str]:
    """A colour for each name: buggy and fixed have their own, everywhere."""
    rest = [name for name in names if name not in OWN]
    return [OWN.get(name) or OTHERS[rest.index(name) % len(OTHERS)] for name in names]


def _cycle(values: Sequence[Any], names: Sequence[str]) -> list[Any]:
    return [values[n % len(values)] for n in range(len(names))]


def _names(found: Iterable[str]) -> list[str]:
    """Names in their order, buggy and fixed first."""
    ordered = list(dict.fromkeys(found))
    return sorted(ordered, key=lambda name: (name != BUGGY, name != FIXED, ordered.index(name)))


# Lines


def _lines(picture: Lines) -> Chart:
    points = [(name, x, _finite(y)) for name, x, y in picture.points]
    names = _names(name for name, *_ in points)
    levels = [*(y for *_, y in points if y is not None), *picture.limits.values()]
    decades = _decades(levels) if picture.log else None
    x = alt.X("x:Q", title=picture.x, scale=alt.Scale(zero=False, nice=False),
              axis=_counting(at for _, at, _ in points))  # fmt: skip
    y = _upright(picture.y, decades)
    rows = [{"name": name, "x": at, "y": _lifted(value, decades), "value": value}
            for name, at, value in points]  # fmt: skip
    drawn = alt.layer(
        *_traces(picture, rows, names, x, y), *_limits(picture.limits), *_marks(picture.marks)
    ).properties(width="container", height=TALL)
    columns = ("line", picture.x, picture.y or "value")
    return _made(picture.title, picture.told, [("", drawn)], columns, points)


def _traces(picture: Lines, rows: list[dict[str, Any]], names: list[str], x: Any, y: Any) -> Any:
    """The lines, and their points with what they say to a pointer."""
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, y=y)
    colour = alt.Color("name:N", title=None, sort=names,
                       scale=alt.Scale(domain=names, range=_colours(names)))  # fmt: skip
    dash = alt.StrokeDash("name:N", title=None, sort=names,
                          scale=alt.Scale(domain=names, range=_cycle(DASHES, names)))  # fmt: skip
    shape = alt.Shape("name:N", title=None, sort=names,
                      scale=alt.Scale(domain=names, range=_cycle(SHAPES, names)))  # fmt: skip
    hover = [
        alt.Tooltip("name:N", title="line"),
        alt.Tooltip("x:Q", title=picture.x),
        alt.Tooltip("value:Q", title=picture.y or "value", format=".5~g"),
    ]
    longest = max((sum(row["name"] == name for row in rows) for name in names), default=0)
    seen = 1 if longest <= FEW_POINTS else 0
    bend = "step-after" if picture.stairs else "linear"
    yield base.mark_line(interpolate=bend, strokeWidth=2).encode(color=colour, strokeDash=dash)
    yield base.mark_point(filled=True, size=45, opacity=seen).encode(
        color=colour, shape=shape, tooltip=hover
    )


@dataclass(frozen=True)
class Decades:
    """An axis of orders of magnitude: from a power of ten, which stands for 0 where there is one,
    up to the greatest value."""

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
    """None where the axis has to be a plain one: nothing is above 0, or something below."""
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
        return alt.Y("y:Q", title=title or None, axis=alt.Axis(format="~g", tickCount=6))
    power = "format(datum.value, '.0~e')"
    at_foot = f"datum.value < {decades.foot * 1.01!r} ? '0' : {power}"
    scale = alt.Scale(type="log", domain=[decades.foot, 2 * decades.greatest], nice=False)
    axis = alt.Axis(values=decades.ticks, labelExpr=at_foot if decades.zero else power)
    return alt.Y("y:Q", title=title or None, scale=scale, axis=axis)


def _counting(places: Iterable[float]) -> Any:
    """Ticks at whole numbers alone, where all values are whole."""
    whole = all(float(place).is_integer() for place in places)
    return alt.Axis(tickMinStep=1, format="~g", grid=False) if whole else alt.Axis(grid=False)


def _limits(limits: Mapping[str, float], along: str = "y") -> list[Any]:
    """A dashed rule across the chart for each level that means something, with its name."""
    if not limits:
        return []
    levels = [{"name": name, "level": level} for name, level in limits.items()]
    base = alt.Chart(alt.Data(values=levels))
    hover = [alt.Tooltip("name:N", title="limit"), alt.Tooltip("level:Q", title="at")]
    if along == "y":
        base = base.encode(y="level:Q", tooltip=hover)
        place: dict[str, Any] = {"align": "right", "baseline": "bottom", "dx": -4, "dy": -3}
        words = base.mark_text(**place, fontStyle="italic", color="var:--ink").encode(
            x=alt.value("width"), text="name:N"
        )
    else:
        base = base.encode(x="level:Q", tooltip=hover)
        place = {"align": "right", "baseline": "top", "dx": -4, "dy": 4}
        words = base.mark_text(**place, fontStyle="italic", color="var:--ink").encode(
            y=alt.value(0), text="name:N"
        )
    return [base.mark_rule(strokeDash=[5, 4], strokeWidth=1.5, color="var:--ink"), words]


def _marks(marks: Sequence[tuple[str, float]]) -> list[Any]:
    """An upright rule for each event, with what happened."""
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


# Bars


def _bars(picture: Bars) -> Chart:
    variants = _names(variant for variant, *_ in picture.values)
    names = list(dict.fromkeys(name for _, name, _ in picture.values))
    rows = [{"variant": variant, "name": name, "value": _finite(value)}
            for variant, name, value in picture.values]  # fmt: skip
    hover = [
        alt.Tooltip("variant:N"),
        alt.Tooltip("name:N", title="of"),
        alt.Tooltip("value:Q", title=picture.x or "value", format=".5~g"),
    ]
    filled = [1.0, 0.25, 0.65, 0.45, 0.85, 0.1]
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("name:N", title=None, sort=names, axis=alt.Axis(labelLimit=150)),
        yOffset=alt.YOffset("variant:N", sort=variants),
    )
    bars = base.mark_bar(strokeWidth=1.5).encode(
        x=alt.X("value:Q", title=picture.x or None, axis=alt.Axis(format="~g", tickCount=5)),
        color=alt.Color("variant:N", title=None, sort=variants,
                        scale=alt.Scale(domain=variants, range=_colours(variants))),
        stroke=alt.Stroke("variant:N", title=None, sort=variants, legend=None,
                          scale=alt.Scale(domain=variants, range=_colours(variants))),
        fillOpacity=alt.FillOpacity("variant:N", title=None, sort=variants,
            scale=alt.Scale(domain=variants, range=_cycle(filled, variants))),
        tooltip=hover,
    )  # fmt: skip
    tall = max(60, 14 * len(names) * len(variants) + 8 * len(names))
    drawn = alt.layer(bars, *_limits(picture.limits, "x")).properties(
        width="container", height=tall
    )
    columns = ("variant", "of", picture.x or "value")
    return _made(picture.title, picture.told, [("", drawn)], columns, picture.values)


# Grids


def _grid(picture: Grid) -> Chart:
    panels = list(dict.fromkeys(panel for panel, *_ in picture.fields))
    values = [value for *_, value in picture.fields if value is not None]
    words = [value for value in values if isinstance(value, str)]
    drawn = []
    for panel in panels:
        fields = [field for field in picture.fields if field[0] == panel]
        colour = _by_word(list(dict.fromkeys(map(str, values)))) if words else _by_number(values)
        drawn.append((panel, _panel(picture, fields, colour, bool(words))))
    columns = ("panel", picture.x or "column", picture.y or "row", picture.value or "value")
    return _made(picture.title, picture.told, drawn, columns, picture.fields)


def _panel(picture: Grid, fields: Sequence[tuple[Any, ...]], colour: Any, words: bool) -> Any:
    across = list(dict.fromkeys(str(field[1]) for field in fields))
    down = list(dict.fromkeys(str(field[2]) for field in fields))
    rows = [{"x": str(x), "y": str(y), "value": _value(value), "said": _text(value)}
            for _, x, y, value in fields]  # fmt: skip
    few = len(across) <= FEW_COLUMNS
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("x:N", sort=across, title=picture.x or None,
                axis=alt.Axis(labelOverlap=True, labelAngle=0 if few else -60, orient="bottom")),
        y=alt.Y("y:N", sort=down, title=picture.y or None,
                axis=alt.Axis(labelOverlap=True, labelLimit=140)),
        tooltip=[
            alt.Tooltip("x:N", title=picture.x or "column"),
            alt.Tooltip("y:N", title=picture.y or "row"),
            alt.Tooltip("said:N", title=picture.value or "value"),
        ],
    )  # fmt: skip
    layers = [base.mark_rect(stroke="var:--page", strokeWidth=1).encode(color=colour)]
    if few and not words:
        layers.append(_written(base, [row["value"] for row in rows]))
    elif words:
        layers.append(_signed(base, colour))
    tall = max(70, min(28, max(8, 420 // len(down))) * len(down))
    return alt.layer(*layers).properties(width="container", height=tall)


def _value(value: float | str | None) -> float | str | None:
    return _finite(value) if isinstance(value, (int, float)) else value


def _by_number(values: Sequence[Any]) -> Any:
    numbers = [number for value in values if (number := _finite(value)) is not None]
    ends = [min(numbers, default=0.0), max(numbers, default=1.0)]
    shades = alt.Scale(domain=ends, range=["var:--least", "var:--middle", "var:--most"],
                       interpolate="lab")  # fmt: skip
    return alt.Color("value:Q", title=None, scale=shades,
                     legend=alt.Legend(gradientLength=120, format=".3~g"))  # fmt: skip


def _by_word(words: list[str]) -> Any:
    return alt.Color("value:N", title=None, sort=words,
                     scale=alt.Scale(domain=words, range=_cycle(OTHERS, words)))  # fmt: skip


def _written(base: Any, values: Sequence[Any]) -> Any:
    """The values in their fields, in an ink that can be read on each."""
    numbers = [value for value in values if isinstance(value, float)]
    middle = (min(numbers, default=0.0) + max(numbers, default=0.0)) / 2
    ink = alt.condition(
        f"datum.value > {middle!r}", alt.value("var:--on-most"), alt.value("var:--on-least")
    )
    return base.mark_text(fontSize=10).encode(text=alt.Text("value:Q", format=".3~g"), color=ink)


def _signed(base: Any, colour: Any) -> Any:
    """A sign for each word, for those who cannot tell the colours."""
    words = colour.to_dict()["scale"]["domain"]
    shape = alt.Shape("value:N", title=None, sort=words,
                      scale=alt.Scale(domain=words, range=_cycle(SHAPES, words)))  # fmt: skip
    return base.mark_point(filled=True, size=22, opacity=0.9).encode(
        shape=shape, color=alt.value("var:--page")
    )


# What is not a scenario's own picture


def strip(rows: Sequence[Mapping[str, str | None]], package: str) -> Chart:
    """Which releases have a bug, along the days they appeared on, or one after another.

    A row has ``version``, ``day`` (None where that is not known), ``answer`` and ``why``, the
    oldest first. Each answer has a line of its own in the chart, besides its colour and sign.
    """
    answers = [a for a in SIGNS if any(row["answer"] == a for row in rows)]
    versions = [str(row["version"]) for row in rows]
    dated = all(row["day"] for row in rows)
    x = (
        alt.X("day:T", title="released", axis=alt.Axis(grid=True, tickCount=8, labelOverlap=True))
        if dated
        else alt.X("version:N", sort=versions, title=f"{package}, oldest first",
                   axis=alt.Axis(labelAngle=-60, labelOverlap=True))
    )  # fmt: skip
    drawn = (
        alt.Chart(alt.Data(values=[dict(row) for row in rows]))
        .mark_point(filled=True, size=70, opacity=0.9)
        .encode(
            x=x,
            y=alt.Y("answer:N", sort=answers, title=None,
                    scale=alt.Scale(domain=answers), axis=alt.Axis(grid=True)),
            color=alt.Color("answer:N", legend=None, scale=alt.Scale(
                domain=answers, range=[SIGNS[a][0] for a in answers])),
            shape=alt.Shape("answer:N", legend=None, scale=alt.Scale(
                domain=answers, range=[SIGNS[a][1] for a in answers])),
            tooltip=[alt.Tooltip("version:N", title=package), alt.Tooltip("day:N"),
                     alt.Tooltip("answer:N"), alt.Tooltip("why:N")],
        )
        .properties(width="container", height=34 * max(1, len(answers)))
    )  # fmt: skip
    columns = (package, "released", "answer", "why")
    table = [(row["version"], row["day"] or "", row["answer"], row["why"]) for row in rows]
    told = f"{package}: {_spans(rows)}"
    return _made(f"Which releases of {package}", told, [("", drawn)], columns, table)


SIGNS = {
    "affected": ("var:--buggy", "circle"),
    "not affected": ("var:--fixed", "square"),
    "inconclusive": ("var:--dim", "cross"),
    "unsupported": ("var:--dim", "triangle-down"),
    "not asked": ("var:--faint", "stroke"),
}
"""The colour and the shape of each answer."""


def _spans(rows: Sequence[Mapping[str, str | None]]) -> str:
    """``4.31.0 to 4.37.2 affected; 4.38.2 to 5.14.1 not affected``: certain answers in a row."""
    certain = [row for row in rows if row["answer"] in ("affected", "not affected")]
    spans: list[tuple[str | None, list[str]]] = []
    for row in certain:
        if not spans or spans[-1][0] != row["answer"]:
            spans.append((row["answer"], []))
        spans[-1][1].append(str(row["version"]))
    told = [f"{_ends(versions)} {answer}" for answer, versions in spans]
    return "; ".join(told) or "no release gave a certain answer"


def _ends(versions: Sequence[str]) -> str:
    return versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"


def durations(nights: Sequence[tuple[str, float]]) -> Chart:
    """How long the runs of each night took, in minutes; of nights by their names."""
    rows = [{"night": name, "minutes": seconds / 60} for name, seconds in nights]
    drawn = (
        alt.Chart(alt.Data(values=rows))
        .mark_bar(color="var:--fixed")
        .encode(
            x=alt.X("night:N", sort=None, title=None,
                    axis=alt.Axis(labelAngle=-60, labelOverlap=True)),
            y=alt.Y("minutes:Q", title="minutes"),
            tooltip=["night:N", alt.Tooltip("minutes:Q", format=".1f")],
        )
        .properties(width="container", height=160)
    )  # fmt: skip
    longest = max((seconds for _, seconds in nights), default=0.0) / 60
    told = f"the runs of a night took up to {longest:.1f} minutes, one after another"
    table = [(name, round(seconds / 60, 1)) for name, seconds in nights]
    return _made("How long the runs took", told, [("", drawn)], ("night", "minutes"), table)
