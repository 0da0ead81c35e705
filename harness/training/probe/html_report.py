"""The report of a probe as one HTML page, with a picture of the modules, and without a link."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from jinja2 import Environment

from harness.system import html_page
from harness.system.text import plain
from harness.training.probe.answers import Answers
from harness.training.probe.probe_report import headline, text
from harness.training.probe.signatures import KnownBug
from harness.training.probe.where.place import Distance, Place

GAP, HEIGHT, LEFT = 1, 34, 80
"""Of a picture, in pixels: between modules, the height of a strip, and the room for its name."""

GREEN, RED, GREY = (46, 140, 70), (204, 34, 34), "#8886"
"""The colours of a module that agrees, of one that differs wholly, and of an unknown one."""


class Box(NamedTuple):
    """A module in a strip."""

    x: float
    width: float
    colour: str
    title: str


def page(answers: Answers, seconds: float, bugs: Sequence[KnownBug] = ()) -> str:
    """The page. Everything that the script determines is escaped."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["plain"] = lambda value: plain(str(value))
    place = answers.where
    modules = place.distances if place is not None else ()
    body = environment.from_string(TEMPLATE).render(
        headline=headline(answers),
        lines=list(text(answers, seconds, bugs)),
        place=place,
        modules=modules,
        strips={
            name: strip(modules, name, place)
            for name in ("forward", "backward")
            if place and modules
        },
        width=html_page.WIDTH,
        height=HEIGHT,
        tops={"forward": 0, "backward": HEIGHT + 10},
        shown=_shown,
    )
    return html_page.page(f"probe: {answers.script}", body)


def strip(modules: Sequence[Distance], direction: str, place: Place) -> list[Box]:
    """The modules in the order of their calls, coloured by how far they are off."""
    step = (html_page.WIDTH - LEFT) / len(modules)
    return [
        Box(
            round(LEFT + n * step, 2),
            round(max(step - GAP, 0.5), 2),
            _colour(getattr(one, direction), one.rounding),
            f"{one.name or one.kind} ({one.kind}): {_shown(getattr(one, direction))}"
            + (", the place" if (one.name, direction) == (place.module, place.stage) else ""),
        )
        for n, one in enumerate(modules)
    ]


def _shown(far: float | None) -> str:
    return "not compared" if far is None else f"{far:.2g}"


def _colour(far: float | None, unsure: float) -> str:
    """Green up to what rounding may do, red from a distance of 1 on; between them by logarithm."""
    if far is None:
        return GREY
    if far <= unsure:
        portion = 0.0
    else:
        least = math.log(max(unsure, 1e-7))
        portion = min(1.0, 0.35 + 0.65 * (math.log(min(far, 1.0)) - least) / -min(least, -1e-9))
    return "#" + "".join(
        f"{round(g + portion * (r - g)):02x}" for g, r in zip(GREEN, RED, strict=True)
    )


TEMPLATE = """\
<h1>Report of probe</h1>
<p>{{ headline | plain }}</p>
{% if place %}
<p><b>Where ({{ place.layout | plain }}):</b> {{ place.sentence | plain }}</p>
{% endif %}
{% if strips %}
<h2>The modules in the order of their calls</h2>
<p>Green: as in the reference. Red: as far off as the reference is large. Grey: not compared.
Forward is what a module returns, backward the gradient of what it is given.</p>
<div class="wide"><svg viewBox="0 0 {{ width }} {{ (height + 10) * 2 }}" role="img" \
aria-label="the modules, coloured by their distance from the reference">
{% for name, boxes in strips.items() %}
<text x="0" y="{{ tops[name] + 22 }}">{{ name }}</text>
{% for box in boxes %}
<rect x="{{ box.x }}" y="{{ tops[name] }}" width="{{ box.width }}" height="{{ height }}" \
fill="{{ box.colour }}">\
<title>{{ box.title | plain }}</title></rect>
{% endfor %}
{% endfor %}
</svg></div>
<div class="wide"><table>
<tr><th>module</th><th>class</th><th>forward</th><th>backward</th><th>rounding</th></tr>
{% for one in modules %}
<tr><td>{{ one.name | plain }}</td><td>{{ one.kind | plain }}</td>\
<td>{{ shown(one.forward) }}</td><td>{{ shown(one.backward) }}</td>\
<td>{{ shown(one.rounding) }}</td></tr>
{% endfor %}
</table></div>
{% endif %}
<h2>The report</h2>
<pre>{% for line in lines %}{{ line | plain }}
{% endfor %}</pre>
"""
