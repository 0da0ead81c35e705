"""One fault: a command in its own sandbox, and the checks after its end."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from harness.rank.exits import EXIT_FILE
from harness.rank.run_folder import RUN_FILE, VERDICT_FILE
from tests.sandbox import Sandbox, is_json

PATIENCE = 300
"""Seconds for a command to end: longer than every deadline that it has."""
GRACE = 15
"""Seconds for the processes of a killed command to end."""
NOISE = re.compile(r"Traceback \(most recent|Exception ignored|^Error in ", re.MULTILINE)


@dataclass
class Case:
    """A command that is being disturbed."""

    number: int
    kind: str
    scenario: str
    sandbox: Sandbox
    random: random.Random
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    removed: bool = False
    """Whether the run folder was removed."""
    late: bool = False
    """Whether the command had ended before the fault."""

    @property
    def log(self) -> Path:
        return self.sandbox.cwd.parent

    def start(self, *words: str) -> None:
        """Start the run to disturb."""
        overrides = [f"scenario={self.scenario}", "lane=cpu", *words]
        self.begin([sys.executable, "-m", "harness", "run", *overrides])

    def begin(self, command: list[str]) -> None:
        with (self.log / "stdout").open("ab") as out, (self.log / "stderr").open("ab") as err:
            started = subprocess.Popen(
                command,
                cwd=self.sandbox.cwd,
                env=self.sandbox.environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.processes.append(started)

    @property
    def harness(self) -> subprocess.Popen[bytes]:
        return self.processes[-1]

    def rank(self) -> psutil.Process | None:
        """A random rank, as soon as there is one; None if the command ended before."""
        return self._wait_for("rank ")

    def torchrun(self) -> psutil.Process | None:
        """torchrun or its keeper, as soon as it is there."""
        return self._wait_for("torchrun", "pt_elastic", "keeper")

    def forkserver(self) -> psutil.Process | None:
        """A server, as soon as it is there."""
        return self._wait_for("forkserver")

    def _wait_for(self, *names: str) -> psutil.Process | None:
        candidates: list[psutil.Process] = []
        while not candidates and self.harness.poll() is None:
            candidates = [p for p in self.sandbox.living() if _name(p).startswith(names)]
            time.sleep(0.1)
        return self.random.choice(candidates) if candidates else None

    def pause(self, most: float) -> None:
        """Wait at most ``most`` seconds, or until the command ends."""
        deadline = time.monotonic() + self.random.uniform(0, most)
        while time.monotonic() < deadline and self.harness.poll() is None:
            time.sleep(0.02)

    def signal(self, process: psutil.Process | None, number: signal.Signals) -> None:
        try:
            if process is None:
                raise psutil.NoSuchProcess(0)
            process.send_signal(number)
        except psutil.NoSuchProcess:
            self.late = True

    def run_folder(self) -> Path | None:
        """The run folder, as soon as it is there."""
        while self.harness.poll() is None:
            for folder in self.sandbox.runs.glob("[0-9]*"):
                return folder
            time.sleep(0.05)
        return None


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return ""


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@dataclass
class Result:
    """The result of a fault."""

    number: int
    kind: str
    scenario: str
    code: int | None
    outcome: str
    """The verdict on disk; ``none`` without one."""
    late: bool
    seconds: float
    wrong: list[str]
    """What differs from the documentation."""


def finish(case: Case, codes: frozenset[int]) -> Result:
    """Wait for the end of a command, and check what it left."""
    started = time.monotonic()
    differences: list[str] = []
    for process in case.processes:
        try:
            code: int | None = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            code = None
            process.kill()
        if code not in codes:
            differences.append(f"exit code {code}, documented {sorted(codes)}")
    differences += _processes_left(case)
    noise = NOISE.search((case.log / "stderr").read_text(errors="replace"))
    if noise:
        differences.append(f"stderr has '{noise[0]}'")
    verdicts = []
    for folder in sorted(case.sandbox.runs.glob("[0-9]*")) if case.sandbox.runs.is_dir() else []:
        verdict, complaints = _verdict(case, folder, code)
        verdicts.append(verdict)
        differences += complaints
    if code == 0 and not verdicts and not case.removed:
        differences.append("exit code 0, and no run on disk")
    differences += _unfinished(case)
    outcome = "+".join(verdicts) or "none"
    seconds = time.monotonic() - started
    return Result(
        case.number, case.kind, case.scenario, code, outcome, case.late, seconds, differences
    )


def _processes_left(case: Case) -> list[str]:
    deadline = time.monotonic() + (GRACE if case.harness.poll() != 0 else 1)
    while (survivors := case.sandbox.living()) and time.monotonic() < deadline:
        time.sleep(0.1)
    lines = [f"process {p.pid} is left: {_name(p)}, {_words(p)[:80]}" for p in survivors]
    case.sandbox.end()
    return lines


def _verdict(case: Case, folder: Path, code: int | None) -> tuple[str, list[str]]:
    """The verdict on disk, and what is wrong with it: it must be complete and grade the same."""
    file = folder / VERDICT_FILE
    try:
        stored: dict[str, Any] = json.loads(file.read_text())
        verdict = str(stored["verdict"])
    except OSError:
        lost = code == 0 and not case.removed
        return "none", ["exit code 0 without a verdict on disk"] if lost else []
    except (ValueError, KeyError):
        return "broken", ["its verdict on disk is cut off"]
    complaints = []
    if verdict == "reproduced" and stored["exit_code"] != 0:
        complaints.append("reproduced, but not its exit code")
    again = _command(case, "grade", "--json", str(folder))
    graded = json.loads(again.stdout or "{}").get("verdict")
    if (again.returncode, graded) != (stored["exit_code"], verdict):
        complaints.append(f"{verdict} on disk, graded again {graded}: {again.stderr.strip()[:200]}")
    return verdict, complaints


def _unfinished(case: Case) -> list[str]:
    """Unfinished files after the next run, which needs GPUs and so ends within a second."""
    runs = case.sandbox.runs
    if runs.is_dir():
        _command(case, "run", f"scenario={case.scenario}", "lane=gpu")
    files = list(runs.rglob(".*"))
    for name in (RUN_FILE, EXIT_FILE, VERDICT_FILE):
        files += [f for f in runs.rglob(name) if not is_json(f)]
    return [f"unfinished: {path}" for path in files]


def _command(case: Case, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness", *words],
        cwd=case.sandbox.cwd,
        env=case.sandbox.environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
