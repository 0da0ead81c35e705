"""Runs the report.py of bugs: second reproductions, with upstream alone.

A scenario and its report.py share no code. If both say the same of a release, a fault of one of
them is unlikely. Of each bug, one recorded result is drawn by lot.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.bugs import catalog, pins
from harness.bugs.api.spec import Lane
from harness.bugs.pins import describe
from harness.bugs.results import Result, Status
from harness.publish.confirmations import key
from harness.rank import shims
from harness.releases import overlay, resolution
from harness.run.launch import NOT_INHERITED
from harness.system.errors import ExitCode, HarnessError, Inconclusive
from harness.system.files import ROOT, locked
from harness.system.launch_token import TOKEN, new_token
from harness.system.machine import cache_folder
from harness.system.processes import end_all
from harness.system.text import count

RIGHT, WRONG = 0, 3
"""The exit codes of a script. Python's own, 1, is that of a script that raises."""
SAYS = {RIGHT: ("right", Status.NOT_AFFECTED), WRONG: ("WRONG", Status.AFFECTED)}
"""How the last line of a script begins, by exit code, and what it says of the releases."""
AGREES, CONTRADICTS, NO_ANSWER = "agrees", "contradicts", "does not answer"
ANSWERS = {
    AGREES: ExitCode.AS_EXPECTED,
    CONTRADICTS: ExitCode.NOT_AS_EXPECTED,
    NO_ANSWER: ExitCode.INCONCLUSIVE,
}
"""The exit code of each answer."""
LIMIT = 300.0
"""Seconds for a script."""
ABORTED = "terminate called without an active exception"
"""What C++ prints if a process ends while a thread of gloo still runs: by chance, in a script that
does not end its process group. That says nothing of a bug, ..."""
TRIES = 5
"""... so the script is run again, at most so often in all."""

SITECUSTOMIZE = """
import os
import sys

sys.path.append(os.environ["HARNESS"])
from harness.rank import shims

shims.install(os.environ["SHIMS"].split())
"""
"""Installs the shims that a release needs on this machine, in each process that a script starts."""


def of_scenarios_choice(cells: Iterable[Result]) -> list[Result]:
    """The results with the other packages that a scenario itself chooses for the release. A script
    need not use all of them: it knows nothing of a fix in another package."""
    return [
        cell
        for cell in cells
        for scenario in [catalog.scenario(cell.scenario)]
        if scenario.pins
        and dict(cell.pins)
        == pins.complete(scenario, {scenario.subject: cell.pins[scenario.subject]})
    ]


def drawn(cells: Iterable[Result], day: str, most: int | None = None) -> list[Result]:
    """A result that is certain of each scenario, or of as many scenarios as asked for, by lot.

    On the same day (ISO) every machine draws the same. Sorted by scenario.
    """

    def lot(*words: str) -> str:
        return hashlib.sha256("\n".join([day, *words]).encode()).hexdigest()

    by_scenario: dict[str, Result] = {}
    for cell in sorted(cells, key=lambda cell: lot(*key(cell))):
        if cell.status.certain:
            by_scenario.setdefault(cell.scenario, cell)
    names = sorted(by_scenario, key=lot)[:most]
    return [by_scenario[name] for name in sorted(names)]


@dataclass(frozen=True)
class Reproduction:
    """What a script says of the releases of a recorded result."""

    recorded: Result
    status: Status
    """Inconclusive if it raised or could not be run."""
    line: str
    """Its last line, or why it says nothing."""
    seconds: float = 0.0
    """How long it ran, after its packages were there."""

    def __str__(self) -> str:
        name = f"{self.recorded.scenario}, {describe(self.recorded.pins)}"
        says = f"report.py {self.answer}: {self.line}"
        script = catalog.folder(self.recorded.scenario) / catalog.REPORT_SCRIPT
        lines = sum(not line.isspace() for line in script.open(encoding="utf-8"))
        cost = f"{count(lines, 'line')}, {self.seconds:.1f} s"
        return f"{name}: {self.recorded.status}; {says} ({cost})"

    @property
    def answer(self) -> str:
        if not self.status.certain:
            return NO_ANSWER
        return AGREES if self.status is self.recorded.status else CONTRADICTS

    @property
    def exit_code(self) -> int:
        return ANSWERS[self.answer]


def reproduced(cells: Sequence[Result]) -> Iterator[Reproduction]:
    """Run the script of each result's scenario on its releases, one after another."""
    for cell in cells:
        try:
            process, seconds = _run_on(cell)
            word, status = SAYS.get(process.returncode, ("", Status.INCONCLUSIVE))
            # Some libraries print more when they end.
            lines = [line for line in process.stdout.splitlines() if line.startswith(word)]
            status = status if word and lines else Status.INCONCLUSIVE
            output = lines if status.certain else process.stderr.strip().splitlines()
            yield Reproduction(cell, status, (output or ["it printed nothing"])[-1], seconds)
        except (HarnessError, subprocess.TimeoutExpired) as error:
            yield Reproduction(cell, Status.INCONCLUSIVE, str(error))


def _run_on(cell: Result) -> tuple[subprocess.CompletedProcess[str], float]:
    """The ended script and its seconds."""
    scenario, cache = catalog.scenario(cell.scenario), cache_folder()
    releases = pins.complete(scenario, pins.without_companions(scenario, cell.pins))
    with (
        overlay.borrow(resolution.stack(scenario, releases, cache), (), cache) as loan,
        tempfile.TemporaryDirectory() as folder,
    ):
        start = time.monotonic()
        process = run(cell.scenario, loan.site, releases, Path(folder))
        return process, time.monotonic() - start


def _completed(
    script: Path, folder: Path, settings: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a script to its end; after LIMIT, also the ranks end that it has started."""
    token = new_token()
    inherited = {k: v for k, v in os.environ.items() if not NOT_INHERITED.match(k)}
    command = [sys.executable, str(script)]
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**inherited, **settings, TOKEN: token},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=LIMIT)
        finally:
            end_all(token)
        return subprocess.CompletedProcess(command, process.returncode, output, errors)


def run(
    name: str, site: Path, releases: dict[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run the script of a bug in a folder, with these packages and the shims that they need.

    Raises Inconclusive if this Python cannot import the releases.
    """
    if why := pins.why_not_imported(releases, platform.python_version()):
        raise Inconclusive(why)
    scenario = catalog.scenario(name)
    lane = Lane.CPU if Lane.CPU in scenario.lanes else Lane.GPU
    with (
        tempfile.TemporaryDirectory() as shimmed,
        # A script has one port: two runs of it at once would disturb each other.
        locked(cache_folder() / f"report-{name}.lock"),
    ):
        Path(shimmed, "sitecustomize.py").write_text(SITECUSTOMIZE, encoding="utf-8")
        settings = {
            "PYTHONPATH": os.pathsep.join([shimmed, str(site)]),
            "SHIMS": " ".join(point.name for point in shims.needed(releases, lane)),
            "HARNESS": str(ROOT),
            "DS_ACCELERATOR": lane.replace("gpu", "cuda"),
            "PYTHONDONTWRITEBYTECODE": "1",  # an overlay must not change
            "OMP_NUM_THREADS": "1",
            # Where ranks exchange nothing, one that ends while gloo still connects the others
            # breaks their connections: 6 of 40 runs on a busy machine.
            "TORCH_DIST_INIT_BARRIER": "1",
            "HF_HUB_OFFLINE": "1",
        }
        for _ in range(TRIES):
            process = _completed(catalog.folder(name) / catalog.REPORT_SCRIPT, folder, settings)
            if ABORTED not in process.stderr:
                break
        return process
