"""A chart of a page, whatever it draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    abreast: int = 1
    """How many panels stand beside each other where there is room."""


def made(
    title: str,
    told: str,
    panels: Sequence[tuple[str, Any]],
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
) -> Chart:
    texts = tuple(tuple(map(text, row)) for row in rows[:MOST_ROWS])
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


def text(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
