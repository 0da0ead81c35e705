"""docs/ranges.md: which releases have each bug, from the recorded runs."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from harness import catalog
from harness.ranges.periods import Period, newest, periods, tested
from harness.system.text import markdown_table
from harness.upstream.pins import TORCH

NAME = "ranges.md"
"""The page, beside docs/bugs.md."""

INTRODUCTION = (
    "Every status is from a run of that release as published, by `matrix` or `bisect`, and so is "
    "every end of a range; the bug's page has the days. *Right before* and *right after* are the "
    "nearest releases that were tested and are not affected. Where one is missing, no such release "
    "was tested, or none can run here."
)


def text() -> str:
    """The page: a row for each period of each bug, and torch's releases as a grid."""
    columns = ["bug", "package", "right before", "affected", "right after", "tested"]
    return (
        "\n\n".join(
            [
                "# Which releases have each bug",
                "<!-- Made by `python -m harness pages`. Write nothing here. -->",
                INTRODUCTION,
                markdown_table(columns, [row for name in catalog.sound() for row in _rows(name)]),
                "## Torch",
                markdown_table(*_grid()),
            ]
        )
        + "\n"
    )


def _rows(name: str) -> Iterator[list[str]]:
    found = periods(name)
    subject = next(iter(catalog.scenario(name).pins), TORCH)
    count = str(len(tested(name)))
    for period in found:
        yield [
            link(name),
            subject,
            period.before or "",
            _affected(period),
            "alive" if period.alive else period.after or "",
            count,
        ]
    if not found and (last := newest(name)):
        yield [link(name), subject, "", "none: an edit puts it back", last[0], count]


def _affected(period: Period) -> str:
    one = period.first == period.last
    return period.first if one else f"{period.first} to {period.last}"


def _grid() -> tuple[list[str], list[list[str]]]:
    """The columns and rows: the status of each bug of torch in each tested release."""
    found = {n: tested(n) for n in catalog.sound() if TORCH in catalog.scenario(n).pins}
    releases = sorted({v for statuses in found.values() for v in statuses}, key=Version)
    rows = [
        [link(name), *(str(statuses.get(release, "")) for release in releases)]
        for name, statuses in found.items()
    ]
    return ["bug", *releases], rows


def link(name: str) -> str:
    """A link to a bug's page."""
    return f"[`{name}`](../scenarios/{catalog.folder(name).parent.name}/{name}/README.md)"
