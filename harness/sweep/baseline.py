"""What was known before the first night: the answers that came with the harness, as a night's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harness import catalog
from harness.spec import Scenario
from harness.sweep import affected
from harness.sweep.cells import Cell
from harness.sweep.history import History, Kind, ReleaseResult
from harness.upstream import pins


def keep(history: History, now: str) -> None:
    """Keep what ``affected.json`` says of scenarios without any answer yet, as a night of its kind.

    What was begun and killed does not count. ``now`` is the time (ISO, UTC).
    """
    ended = {night.id for night in history.nights() if night.ended}
    have = {asked.cell.scenario for asked in history.answers() if asked.night in ended}
    found = [cell for cell in cells() if cell.cell.scenario not in have]
    if found:
        days = [night.day for night in history.nights() if night.kind is Kind.RECORDED]
        day = max([*days, *(asked.cell.date for asked in found)])
        night = history.begin(Kind.RECORDED, day, now, {})
        history.keep_answers(
            ReleaseResult(night.id, asked.package, asked.version, asked.cell) for asked in found
        )
        history.end(night, now)


def cells() -> Iterator[ReleaseResult]:
    """Every recorded answer of a sound scenario, once for each package that it is about."""
    for scenario in catalog.sound():
        for fact in affected.of(scenario):
            cell = Cell.of_fact(scenario, fact)
            for package in about(catalog.scenario(scenario), fact["pins"]):
                yield ReleaseResult(0, package, fact["pins"][package], cell)


def about(scenario: Scenario, recorded: dict[str, str]) -> Iterable[str]:
    """The packages of which a recorded answer tells a release: all else is as it goes with that."""
    return [
        package
        for package, version in recorded.items()
        if package in scenario.pins and pins.complete(scenario, {package: version}) == recorded
    ]
