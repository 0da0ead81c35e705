"""Runs recorded results again, and finds out whose a difference is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from harness import catalog
from harness.api.spec import RELEASED
from harness.config.run_config import RunConfig
from harness.nightly import older_code
from harness.nightly.confirmations import Confirmation, Recorded
from harness.sweep import cells, executor
from harness.sweep.cell import Cell
from harness.system.errors import ExitCode, Fault, HarnessError, Inconclusive
from harness.system.machine import cache_folder
from harness.system.text import short
from harness.upstream.pins import describe

OURS, THE_RECORDS, UNKNOWN = "ours", "the record's", "of unknown origin"


@dataclass(frozen=True)
class Done:
    """A recorded result that was run again."""

    recorded: Cell
    found: Cell | None
    """None if it could not be run; ``why`` says why not."""
    difference: str = ""
    whose: str = ""
    """Of a difference: ours, the record's, or of unknown origin."""
    why: str = ""

    @property
    def exit_code(self) -> int:
        if self.found is None:
            return ExitCode.INCONCLUSIVE
        return ExitCode.NOT_AS_EXPECTED if self.difference else ExitCode.AS_EXPECTED

    def __str__(self) -> str:
        name = f"{self.recorded.scenario}, {describe(self.recorded.pins)}"
        if self.found is None:
            return f"{name}: could not be run: {self.why}"
        if not self.difference:
            return f"{name}: {self.found.status}, as recorded"
        now = short(self.found.reason.splitlines()[0] if self.found.reason else "")
        return f"{name}: {self.difference}: {now}; the difference is {self.whose}: {self.why}"

    def to_json(self) -> dict[str, Any]:
        return {
            "recorded": self.recorded.to_json(),
            "found": self.found and self.found.to_json(),
            "difference": self.difference,
            "whose": self.whose,
            "why": self.why,
        }


def confirm(
    bases: Mapping[str, RunConfig], due: Sequence[Recorded], say: Callable[[str], object]
) -> Iterator[Done]:
    """Run results again, with the settings of their scenarios in ``bases``; yields them as they
    end."""
    configs = [_config(bases[one.cell.scenario], one.cell) for one in due]
    failed: list[Done] = []

    def fail(number: int, error: HarnessError) -> None:
        failed.append(Done(due[number].cell, None, why=str(error)))

    jobs = configs[0].jobs
    found = executor.find_all(configs, again=True, jobs=jobs, failed=fail, say=say)
    with closing(found):
        for number, cell in found:
            while failed:
                yield failed.pop()
            yield _compared(configs[number], Confirmation(due[number].cell, cell))
    yield from failed


def _config(base: RunConfig, cell: Cell) -> RunConfig:
    """The config of a recorded result. Pins that follow from others are recorded, too."""
    named = catalog.scenario(cell.scenario).pins
    pins = {name: version for name, version in cell.pins.items() if name in named}
    return replace(base, variants=(RELEASED,), pins=pins)


def _compared(config: RunConfig, one: Confirmation) -> Done:
    if not one.difference:
        return Done(one.recorded, one.found)
    whose, why = _origin(config, one)
    return Done(one.recorded, one.found, one.difference, whose, why)


def _origin(config: RunConfig, one: Confirmation) -> tuple[str, str]:
    """Whose a difference is, and how that is known."""
    try:
        again = cells.find(config, cache_folder(), again=True, faults=True)
        if not Confirmation(one.recorded, again).difference:
            return OURS, "a second run gave the recorded result, so ours cannot be repeated"
        commit = older_code.commit_of(one.recorded)
        then = Confirmation(one.recorded, older_code.found_at(commit, one.recorded))
    except (Inconclusive, Fault) as error:
        return UNKNOWN, str(error)
    if then.difference:
        return THE_RECORDS, f"the code of {commit[:8]}, which recorded it, gives {then.difference}"
    return OURS, f"the code of {commit[:8]}, which recorded it, still gives the recorded result"
