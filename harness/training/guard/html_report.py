"""The report of a training as one HTML page, with pictures, and without a link to anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment

from harness.rank.guard.check_table import NAMES
from harness.rank.guard.sentences import few
from harness.system import html_page
from harness.system.text import plain
from harness.training.guard.report import Report, lines

WIDTH, ROW, LEFT = html_page.WIDTH, 26, 260
"""Of a picture, in pixels: its width, a row's height, and the room for names."""
MOST_PARAMETERS = 40


@dataclass(frozen=True)
class Lane:
    """A check over the steps: where its faults begin and end, in pixels."""

    check: str
    y: int
    faults: tuple[tuple[float, float, str], ...]


Bar = tuple[str, int, float, str]
"""A parameter, its place and width in pixels, and the largest size of a fault that names it."""


def page(report: Report) -> str:
    """The page. Everything that a training wrote is escaped."""
    checked = report.checked
    last = max([*checked, *(_end(fault) for fault in report.faults), 1])

    def at(step: int) -> float:
        return round(LEFT + (WIDTH - LEFT - 20) * (step - 1) / max(1, last - 1) + 5, 1)

    names = [*NAMES, *sorted({fault["check"] for fault in report.faults} - set(NAMES))]
    lanes = [
        Lane(name, ROW * (row + 1), tuple(_marks(report, name, at)))
        for row, name in enumerate(names)
    ]
    ticks = sorted({round(at(step)) for step in checked})  # no more than there are pixels
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["plain"] = lambda value: plain(str(value))
    environment.filters["few"] = few
    body = environment.from_string(TEMPLATE).render(
        lines=[line for line in lines(report) if not line.startswith("ALARM: ")],
        faults=report.faults,
        lanes=lanes,
        ticks=ticks,
        last=last,
        pictures=dict(_pictures(report)),
        width=WIDTH,
        left=LEFT,
        row=ROW,
    )
    return html_page.page("guard: report of a training", body)


def _end(fault: Mapping[str, Any]) -> int:
    return int(fault.get("last_step") or fault["step"])


def _marks(report: Report, check: str, at: Any) -> Iterator[tuple[float, float, str]]:
    for fault in report.faults:
        if fault["check"] == check:
            start, end = int(fault["step"]), _end(fault)
            yield at(start), at(end), f"steps {start} to {end}: {fault['text']}"


def _pictures(report: Report) -> Iterator[tuple[str, list[Bar]]]:
    """For each check with faults that name parameters, those by size."""
    for check in dict.fromkeys(fault["check"] for fault in report.faults):
        sizes: dict[str, float] = {}
        of_check = [fault for fault in report.faults if fault["check"] == check]
        for fault in of_check:
            for name in fault["parameters"]:
                sizes[name] = max(sizes.get(name, 0.0), abs(float(fault["size"])))
        largest = max(sizes.values(), default=0.0) or 1.0
        ordered = sorted(sizes.items(), key=lambda item: -item[1])[:MOST_PARAMETERS]
        if ordered:
            room = WIDTH - LEFT - 100
            # A report leaves out parameters of a fault that has many.
            counts = [len(f["parameters"]) + int(f.get("more_parameters", 0)) for f in of_check]
            total = max(len(sizes), *counts)
            yield (
                check if total == len(ordered) else f"{check} ({len(ordered)} of {total})",
                [
                    (name, ROW * row, round(max(2.0, room * size / largest), 1), f"{size:.3g}")
                    for row, (name, size) in enumerate(ordered)
                ],
            )


TEMPLATE = """\
<h1>Report of guard</h1>
<ul>
{% for line in lines %}
<li>{{ line | plain }}</li>
{% endfor %}
</ul>
<h2>Faults</h2>
{% if faults %}
<div class="wide"><table>
<tr><th>first step</th><th>ranks</th><th>check</th><th>what is wrong</th><th>size</th>\
<th>times</th><th>last step</th><th>perhaps the bug</th></tr>
{% for fault in faults %}
<tr><td>{{ fault.step | plain }}</td>\
<td>{{ fault.ranks | few | plain }}</td>\
<td>{{ fault.check | plain }}</td>\
<td>{{ fault.text | plain }}</td>\
<td>{{ "%.3g" % fault.size }}</td>\
<td>{{ fault.times | plain }}</td>\
<td>{{ fault.last_step | plain }}</td>\
<td>{{ fault.bugs | default([]) | join(", ") | plain }}</td></tr>
{% endfor %}
</table></div>
{% else %}
<p>No alarm.</p>
{% endif %}
<h2>Each check over the steps</h2>
<p>Grey: the checked steps. Red: from the first to the last alarm of a fault.</p>
<div class="wide"><svg viewBox="0 0 {{ width }} {{ row * (lanes | length + 2) }}" role="img" \
aria-label="each check over the steps">
{% for lane in lanes %}
<text x="0" y="{{ lane.y + 5 }}">{{ lane.check | plain }}</text>
<path class="tick" d="{% for x in ticks %}M{{ x }} {{ lane.y - 5 }}v10{% endfor %}"/>
{% for start, end, text in lane.faults %}
<g class="fault"><title>{{ text | plain }}</title>
<line x1="{{ start }}" x2="{{ end }}" y1="{{ lane.y }}" y2="{{ lane.y }}" stroke-width="5"/>
<circle cx="{{ start }}" cy="{{ lane.y }}" r="5"/></g>
{% endfor %}
{% endfor %}
<text x="{{ left }}" y="{{ row * (lanes | length + 1) + 5 }}">step 1</text>
<text x="{{ width - 5 }}" y="{{ row * (lanes | length + 1) + 5 }}" text-anchor="end">\
step {{ last }}</text>
</svg></div>
{% for check, bars in pictures.items() %}
<h2>Parameters by size of the fault: {{ check | plain }}</h2>
<div class="wide"><svg viewBox="0 0 {{ width }} {{ row * (bars | length) }}" role="img" \
aria-label="parameters by size of the fault">
{% for name, y, length, size in bars %}
<text x="0" y="{{ y + 17 }}">{{ name | plain | truncate(38, true, "...", 0) }}\
<title>{{ name | plain }}</title></text>
<rect class="fault" x="{{ left }}" y="{{ y + 5 }}" width="{{ length }}" height="15"/>
<text x="{{ left + length + 6 }}" y="{{ y + 17 }}">{{ size }}</text>
{% endfor %}
</svg></div>
{% endfor %}
"""
