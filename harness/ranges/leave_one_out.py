"""How often an inferred status is wrong: each recorded one is inferred from all others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from packaging.version import Version

from harness import catalog
from harness.ranges import affected
from harness.ranges.neighbours import Point, neighbours
from harness.sweep.cell import Status

RIGHT, UNKNOWN, WRONG = "right", "unknown", "wrong"


def judged(name: str) -> Iterator[tuple[Point, str]]:
    """Each recorded point of a bug with a certain status, and what is inferred without it.

    All cells of the point are left out, also those with other releases of packages that do not
    decide.
    """
    packages = catalog.scenario(name).deciding
    tested: dict[Point, set[Status]] = {}
    for cell in affected.of(name) if packages else ():
        point = tuple(Version(cell.pins[package]) for package in packages)
        tested.setdefault(point, set()).add(cell.status)
    for point, statuses in tested.items():
        certain = {status for status in statuses if status.certain}
        if len(certain) == 1:
            others = {other: of for other, of in tested.items() if other != point}
            found = neighbours(others, point).status
            yield point, UNKNOWN if found is None else RIGHT if found in certain else WRONG


def counts(name: str) -> Counter[str]:
    """How many of a bug's recorded results are inferred right, wrong or not at all."""
    return Counter(how for _, how in judged(name))
