"""Runs recorded results again: which are due, how a new result differs, and what caused that.

Nothing else notices when a recorded result stops being true: a shim, a scenario or the harness
changes, and the releases that it breaks are old ones, which nobody runs. A result that differs is
run again with the code of the commit that recorded it. If that code still gives the recorded
result, our code caused the difference. Otherwise the record was wrong, or its releases changed.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

from harness.bugs import catalog, result_file
from harness.bugs.api.numbers import near
from harness.bugs.api.spec import RELEASED
from harness.bugs.pins import describe, why_not_imported, without_companions
from harness.bugs.results import OUTCOMES, CellJson, Result, Status
from harness.run import cells, executor
from harness.run.run_config import RunConfig
from harness.system import archives, git
from harness.system.errors import ExitCode, Fault, HarnessError, Inconclusive
from harness.system.files import ROOT
from harness.system.machine import cache_folder
from harness.system.text import short

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
SHARE, WITHIN = 0.25, 1e-3
"""How much a number in a reason may differ, relatively or absolutely. In half precision
some figures depend on the processor: scores overflow at step 89 on one, at step 93 on another."""

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


def due(
    of: Iterable[Result], day: str, count: int, days: Mapping[tuple[str, str], str] | None = None
) -> list[Result]:
    """The results to run again on a day (ISO): those that were confirmed longest ago.

    Every machine chooses the same results on the same day. ``days`` has later days of confirmation,
    by ``key``. The results are sorted by releases, since results of one release share an overlay.
    """
    later = days or {}

    def order(cell: Result) -> tuple[str, str]:
        text = "\n".join([day, *key(cell)])
        confirmed = max(cell.day, later.get(key(cell), ""))
        return confirmed, hashlib.sha256(text.encode()).hexdigest()

    return sorted(sorted(of, key=order)[:count], key=lambda cell: key(cell)[::-1])


def difference(recorded: Result, rerun: Result) -> str:
    """How today's result of the same releases differs from a recorded one; empty if it does not."""
    if rerun.status is not recorded.status:
        return f"{rerun.status}, recorded as {recorded.status}"
    if rerun.status is not Status.UNSUPPORTED and not _alike(_reason(rerun), _reason(recorded)):
        return f"{rerun.status} as recorded, but for another reason"
    return ""


def _reason(cell: Result) -> str:
    """A reason without the parts that differ between two runs of the same code."""
    text = result_file.portable(cell.reason).partition(UNINSTALLABLE)
    return TRIGGER.sub(r"\1", RANK.sub("a rank failed first", "".join(text[:2])))


def _alike(reason: str, other_reason: str) -> bool:
    """Whether two texts have the same words, and numbers that are nearly equal."""
    if NUMBER.split(reason) != NUMBER.split(other_reason):
        return False
    pairs = zip(NUMBER.findall(reason), NUMBER.findall(other_reason), strict=True)
    return all(near(float(a), float(b), share=SHARE, within=WITHIN) for a, b in pairs)


def commit_of(cell: Result) -> str:
    """The commit of our code that gave a recorded result. If files were changed then, that is the
    commit that added its line.

    Raises Inconclusive if no commit of this checkout has it.
    """
    if cell.source.get("commit") and not cell.source.get("dirty"):
        return str(cell.source["commit"])
    lines = enumerate(result_file.read(cell.scenario), start=1)
    number = max(n for n, each in lines if replace(each, since=cell.since) == cell)
    file = catalog.folder(cell.scenario) / result_file.FILE
    blame = _git("blame", "-s", "-l", f"-L{number},{number}", "--", str(file))
    commit = blame.split()[0].lstrip("^")
    if not commit.strip("0"):
        raise Inconclusive("the recorded result is not committed")
    return commit


def found_at(commit: str, cell: Result) -> Result:
    """The result of the same releases, from a run with our code as of a commit.

    Raises Inconclusive if that code does not run here.
    """
    with tempfile.TemporaryDirectory() as folder:
        _unpack(commit, Path(folder))
        pins = without_companions(catalog.scenario(cell.scenario), cell.pins)
        words = [f"pins.{name}={version}" for name, version in pins.items()]
        # An older commit does not know the name lane=.
        name = "lane" if Path(folder, "configs", "lane").is_dir() else "launch"
        process = subprocess.run(
            [
                *(sys.executable, "-m", "harness", "matrix", f"scenario={cell.scenario}", *words),
                *(f"{name}={cell.lane}", "--again", "--json", "cells.json"),
            ],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            (fields,) = json.loads(Path(folder, "cells.json").read_text(encoding="utf-8"))
            status = Status(fields.get("status") or fields["answer"])  # an older commit's word
            return replace(cell, outcome=OUTCOMES[status], reason=fields["reason"], finding=None)
        except (OSError, ValueError, KeyError):
            last_line = (process.stderr.strip().splitlines() or ["no output"])[-1]
            raise Inconclusive(f"the code of {commit[:8]} did not run: {last_line}") from None


def _unpack(commit: str, folder: Path) -> None:
    archive = folder / "code.tar"
    _git("archive", "--output", str(archive), commit)
    archives.unpack(archive, folder)
    archive.unlink()


def _git(*arguments: str) -> str:
    process = git.run(ROOT, *arguments)
    if process.returncode:
        raise Inconclusive(f"no history of this checkout: {process.stderr.strip()}")
    return process.stdout


def _has_other_numbers(recorded: Result, rerun: Result) -> bool:
    """Whether two results have the same status, for a reason with the same words."""
    reasons = (NUMBER.split(_reason(result)) for result in (recorded, rerun))
    return recorded.status is rerun.status and next(reasons) == next(reasons)


OURS, THE_RECORDS, UNKNOWN = "ours", "the record's", "of unknown origin"
THE_MACHINES = "the machine's"
"""Only numbers differ, and the code that recorded them gives today's numbers here, too."""


class ConfirmationJson(TypedDict):
    """A confirmation in the JSON of ``confirm``."""

    recorded: CellJson
    found: CellJson | None
    difference: str
    whose: str
    why: str


@dataclass(frozen=True)
class Confirmation:
    """A recorded result that was run again."""

    recorded: Result
    found: Result | None
    """None if it could not be run; ``why`` says why not."""
    difference: str = ""
    whose: str = ""
    """Of a difference: ours, the record's, the machine's, or of unknown origin."""
    why: str = ""

    @property
    def exit_code(self) -> int:
        if self.found is None:
            return ExitCode.INCONCLUSIVE
        return ExitCode.NOT_AS_EXPECTED if self.is_wrong else ExitCode.AS_EXPECTED

    @property
    def is_wrong(self) -> bool:
        """Whether something is to be repaired: our code, or the record."""
        return bool(self.difference) and self.whose != THE_MACHINES

    def __str__(self) -> str:
        name = f"{self.recorded.scenario}, {describe(self.recorded.pins)}"
        if self.found is None:
            return f"{name}: could not be run: {self.why}"
        if not self.difference:
            return f"{name}: {self.found.status}, as recorded"
        reason = short(self.found.reason.splitlines()[0] if self.found.reason else "")
        return f"{name}: {self.difference}: {reason}; the difference is {self.whose}: {self.why}"

    def to_json(self) -> ConfirmationJson:
        """The field ``found`` is null if it could not be run."""
        return {
            "recorded": self.recorded.of_releases(),
            "found": self.found.of_releases() if self.found else None,
            "difference": self.difference,
            "whose": self.whose,
            "why": self.why,
        }


def confirm(
    bases: Mapping[str, RunConfig], due: Sequence[Result], say: Callable[[str], object]
) -> Iterator[Confirmation]:
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

    jobs = configs[0].jobs
    results = executor.find_all(configs, again=True, jobs=jobs, failed=fail, say=say)
    with closing(results):
        for number, cell in results:
            while failed:
                yield failed.pop()
            yield _compared(configs[number], due[number], cell)
    yield from failed


def _compared(config: RunConfig, recorded: Result, rerun: Result) -> Confirmation:
    differs = difference(recorded, rerun)
    origin, why = _origin(config, recorded) if differs else ("", "")
    return Confirmation(recorded, rerun, differs, origin, why)


def _origin(config: RunConfig, recorded: Result) -> tuple[str, str]:
    """What caused a difference, our code or the record, and how we know."""
    try:
        again = cells.find(config, cache_folder(), again=True, faults=True)
        if not difference(recorded, again):
            return OURS, "a second run gave the recorded result, so ours cannot be repeated"
        commit = commit_of(recorded)
        old = found_at(commit, recorded)
    except (Inconclusive, Fault) as error:
        return UNKNOWN, str(error)
    if _has_other_numbers(recorded, again) and not difference(old, again):
        return THE_MACHINES, f"the code of {commit[:8]}, which recorded it, gives the same here"
    if old_difference := difference(recorded, old):
        return THE_RECORDS, f"the code of {commit[:8]}, which recorded it, gives {old_difference}"
    return OURS, f"the code of {commit[:8]}, which recorded it, still gives the recorded result"
