"""How each kind of picture is drawn: Vega-Lite, by way of Altair."""

from __future__ import annotations

from harness.pictures import Bars, Lines, Picture
from harness.site import bars, grids, lines
from harness.site.chart import Chart


def chart(picture: Picture) -> Chart:
    """How a scenario's picture is drawn."""
    if isinstance(picture, Lines):
        return lines.draw(picture)
    if isinstance(picture, Bars):
        return bars.draw(picture)
    return grids.draw(picture)
