"""Parts of every chart: colours, signs, axes, limits.

Colours have names such as ``var:--buggy``, which the page replaces by those of its colour scheme.
Colour is never the only difference: lines also have dashes and shapes of points, bars have
positions, words in a grid have signs, and every chart has a table of its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt

from harness.api.spec import BUGGY, FIXED

OWN = {BUGGY: "var:--buggy", FIXED: "var:--fixed"}
OTHERS = [f"var:--other-{number}" for number in range(1, 7)]
DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 2], [1, 3]]
SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down"]


def finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def colours(names: Sequence[str]) -> list[str]:
    """A colour for each name; buggy and fixed have the same colours everywhere."""
    rest = [name for name in names if name not in OWN]
    return [OWN.get(name) or OTHERS[rest.index(name) % len(OTHERS)] for name in names]


def cycle(values: Sequence[Any], names: Sequence[str]) -> list[Any]:
    return [values[n % len(values)] for n in range(len(names))]


def names_of(found: Iterable[str]) -> list[str]:
    """Names in their order, buggy and fixed first."""
    ordered = list(dict.fromkeys(found))
    return sorted(ordered, key=lambda name: (name != BUGGY, name != FIXED, ordered.index(name)))


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
    base = alt.Chart(alt.Data(values=levels))
    hover = [alt.Tooltip("name:N", title="limit"), alt.Tooltip("level:Q", title="at")]
    if along == "y":
        base = base.encode(y="level:Q", tooltip=hover)
        align: dict[str, Any] = {"align": "right", "baseline": "bottom", "dx": -4, "dy": -3}
        words = base.mark_text(**align, fontStyle="italic", color="var:--ink").encode(
            x=alt.value("width"), text="name:N"
        )
    else:
        base = base.encode(x="level:Q", tooltip=hover)
        align = {"align": "right", "baseline": "top", "dx": -4, "dy": 4}
        words = base.mark_text(**align, fontStyle="italic", color="var:--ink").encode(
            y=alt.value(0), text="name:N"
        )
    return [base.mark_rule(strokeDash=[5, 4], strokeWidth=1.5, color="var:--ink"), words]
