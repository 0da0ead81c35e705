"""Draws each kind of picture with Altair, as Vega-Lite."""

from __future__ import annotations

from harness.api.pictures import Bars, Lines, Picture
from harness.publish import bars, grids, lines
from harness.publish.chart import Chart


def chart(picture: Picture) -> Chart:
    """The chart of a scenario's picture."""
    if isinstance(picture, Lines):
        return lines.draw(picture)
    if isinstance(picture, Bars):
        return bars.draw(picture)
    return grids.draw(picture)
