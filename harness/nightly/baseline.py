"""The results that come with the harness, added to a history before its first nightly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from harness import catalog
from harness.api.spec import Scenario
from harness.nightly.history import History
from harness.nightly.history_rows import Kind, ReleaseResult
from harness.ranges import affected
from harness.upstream import pins


def add(history: History, now: str) -> None:
    """Add ``affected.json`` of the scenarios without any result, as a nightly of its own kind.

    Results of a nightly that did not finish do not count. ``now`` is the time (ISO, UTC).
    """
    finished = {nightly.id for nightly in history.nightlies() if nightly.ended}
    have = {r.cell.scenario for r in history.results() if r.nightly in finished}
    found = [result for result in recorded() if result.cell.scenario not in have]
    if found:
        days = [n.day for n in history.nightlies() if n.kind is Kind.RECORDED]
        day = max([*days, *(result.cell.date for result in found)])
        nightly = history.start(Kind.RECORDED, day, now, {})
        history.add_results(
            ReleaseResult(nightly.id, result.package, result.version, result.cell)
            for result in found
        )
        history.finish(nightly, now)


def recorded() -> Iterator[ReleaseResult]:
    """Every recorded result of a sound scenario, once for each package that it is about."""
    for scenario in catalog.sound():
        for cell in affected.of(scenario):
            for package in about(catalog.scenario(scenario), cell.pins):
                yield ReleaseResult(0, package, cell.pins[package], cell)


def about(scenario: Scenario, recorded: Mapping[str, str]) -> Iterable[str]:
    """The packages that a recorded result is about: all other pins follow from their release."""
    return [
        package
        for package, version in recorded.items()
        if package in scenario.pins and pins.complete(scenario, {package: version}) == recorded
    ]
