"""A chart on a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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


def made(
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
    made: Spec = drawn.properties(description=summary).to_dict(validate=False)
    made.pop("config", None)  # the page has its own, for its colour scheme
    tables: dict[str, list[Any]] = {}
    _name_the_data(made, tables)
    return made | {"datasets": tables}


def _name_the_data(part: Any, tables: dict[str, list[Any]]) -> None:
    """Name the rows, so that layers with the same rows share them."""
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


def text(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
