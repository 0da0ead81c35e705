"""Runs recorded results again: which are due, and how a new result differs.

Nothing else notices when a recorded result stops being true: a shim, a scenario or the harness
changes, and the releases that it breaks are old ones, which nobody runs.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from harness.bugs import catalog, result_file
from harness.bugs.api.numbers import near
from harness.bugs.api.spec import RELEASED
from harness.bugs.pins import describe, why_not_imported, without_companions
from harness.bugs.results import Result, Status
from harness.run.executor import find_all
from harness.run.run_config import RunConfig
from harness.system.errors import ExitCode, HarnessError
from harness.system.text import short

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
SHARE, WITHIN = 0.25, 1e-3
"""How much a number in a reason may differ, relatively or absolutely."""
OTHER_NUMBERS = "with other numbers"
"""A difference that is no fault: some figures depend on the processor. In half precision, scores
overflow at step 89 on one, at step 93 on another."""

RANK = re.compile(r"\brank \d+ failed first")
UNINSTALLABLE = "could not be installed"
"""The text after it is uv's, which changes with uv's release and with the index."""
TRIGGER = re.compile(r"(the trigger (?:occurred|did not occur)): .*", re.DOTALL)
"""What follows says what was seen of the trigger. Whether that is enough was judged with it."""


def recorded(names: Iterable[str], platform_: tuple[str, ...]) -> list[Result]:
    """The recorded results of scenarios on a platform, see ``Result.platform``. On another
    platform the status may differ, and this Python may be unable to import the releases."""
    return [
        cell
        for name in names
        for cell in result_file.statuses(name)
        if cell.platform == platform_ and not why_not_imported(cell.pins, platform.python_version())
    ]


def key(cell: Result) -> tuple[str, str]:
    """The scenario of a result, and its releases as JSON."""
    return cell.scenario, json.dumps(dict(cell.pins), sort_keys=True)


def due(of: Iterable[Result], day: str, count: int) -> list[Result]:
    """The results to run again on a day (ISO): those that were confirmed longest ago.

    Every machine chooses the same results on the same day. They are sorted by releases, since
    results of one release share an overlay.
    """

    def order(cell: Result) -> tuple[str, str]:
        text = "\n".join([day, *key(cell)])
        return cell.day, hashlib.sha256(text.encode()).hexdigest()

    return sorted(sorted(of, key=order)[:count], key=lambda cell: key(cell)[::-1])


def difference(recorded: Result, rerun: Result) -> str:
    """How today's result of the same releases differs from a recorded one; empty if it does not."""
    if rerun.status is not recorded.status:
        return f"{rerun.status}, recorded as {recorded.status}"
    if rerun.status is Status.UNSUPPORTED:
        return ""
    reason, old_reason = _reason(rerun), _reason(recorded)
    if NUMBER.split(reason) != NUMBER.split(old_reason):
        return f"{rerun.status} as recorded, but for another reason"
    pairs = zip(NUMBER.findall(reason), NUMBER.findall(old_reason), strict=True)
    if not all(near(float(a), float(b), share=SHARE, within=WITHIN) for a, b in pairs):
        return f"{rerun.status} as recorded, {OTHER_NUMBERS}"
    return ""


def _reason(cell: Result) -> str:
    """A reason without the parts that differ between two runs of the same code."""
    text = result_file.portable(cell.reason).partition(UNINSTALLABLE)
    return TRIGGER.sub(r"\1", RANK.sub("a rank failed first", "".join(text[:2])))


@dataclass(frozen=True)
class Confirmation:
    """A recorded result that was run again."""

    recorded: Result
    found: Result | None
    """None if it could not be run; ``why`` says why not."""
    difference: str = ""
    why: str = ""

    @property
    def exit_code(self) -> int:
        if self.found is None:
            return ExitCode.INCONCLUSIVE
        return ExitCode.NOT_AS_EXPECTED if self.is_wrong else ExitCode.AS_EXPECTED

    @property
    def is_wrong(self) -> bool:
        """Whether something is to be repaired: our code, or the record."""
        return bool(self.difference) and not self.difference.endswith(OTHER_NUMBERS)

    def __str__(self) -> str:
        name = f"{self.recorded.scenario}, {describe(self.recorded.pins)}"
        if self.found is None:
            return f"{name}: could not be run: {self.why}"
        if not self.difference:
            return f"{name}: {self.found.status}, as recorded"
        reason = short(self.found.reason.splitlines()[0] if self.found.reason else "")
        return f"{name}: {self.difference}: {reason}"


def confirm(bases: Mapping[str, RunConfig], due: Sequence[Result]) -> Iterator[Confirmation]:
    """Run results again, with their scenarios' settings in ``bases``; yield each when it ends."""
    configs = [
        replace(
            bases[cell.scenario],
            variants=(RELEASED,),
            pins=without_companions(catalog.scenario(cell.scenario), cell.pins),
        )
        for cell in due
    ]
    failed: list[Confirmation] = []

    def fail(number: int, error: HarnessError) -> None:
        failed.append(Confirmation(due[number], None, why=str(error)))

    with closing(find_all(configs, again=True, failed=fail)) as results:
        for number, cell in results:
            while failed:
                yield failed.pop()
            yield Confirmation(due[number], cell, difference(due[number], cell))
    yield from failed
