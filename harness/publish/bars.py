"""Bars: one value for each name, the variants side by side."""

from __future__ import annotations

import altair as alt

from harness.api.pictures import Bars
from harness.publish.chart import Chart, made
from harness.publish.drawing import colours, cycle, finite, limits, names_of, plain_axis

FILLED = [1.0, 0.25, 0.65, 0.45, 0.85, 0.1]
"""The opacity of each variant's bars, for readers who cannot distinguish the colours."""


def draw(picture: Bars) -> Chart:
    """The chart of this picture."""
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
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("name:N", title=None, sort=names), yOffset=alt.YOffset("variant:N", sort=variants)
    )
    bars = base.mark_bar(strokeWidth=1.5).encode(
        x=alt.X("value:Q", axis=plain_axis(picture.x, tickCount=5)),
        fill=alt.Fill(
            "variant:N",
            title=None,
            sort=variants,
            scale=alt.Scale(domain=variants, range=colours(variants)),
        ),
        stroke=alt.Stroke(
            "variant:N",
            title=None,
            sort=variants,
            scale=alt.Scale(domain=variants, range=colours(variants)),
        ),
        fillOpacity=alt.FillOpacity(
            "variant:N",
            title=None,
            sort=variants,
            scale=alt.Scale(domain=variants, range=cycle(FILLED, variants)),
        ),
        tooltip=hover,
    )
    tall = max(60, 14 * len(names) * len(variants) + 8 * len(names))
    drawn = alt.layer(bars, *limits(picture.limits, "x")).properties(width="container", height=tall)
    columns = ("variant", "of", picture.x or "value")
    return made(picture.title, picture.caption, [("", drawn)], columns, picture.values)
