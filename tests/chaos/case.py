"""One fault: a command in a place of its own, and what must hold once it is over."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from harness.trial.records import EXIT_FILE, RUN_FILE, VERDICT_FILE
from tests.sandbox import ROOT, Sandbox

PATIENCE = 300
"""Seconds for a command to end, beyond every deadline that it is given."""
GRACE = 15
"""Seconds for the processes of a command to end after it, where it was killed itself."""
NOISE = re.compile(r"Traceback \(most recent|Exception ignored|^Error in ", re.MULTILINE)


@dataclass
class Case:
    """A command that is being disturbed."""

    number: int
    kind: str
    scenario: str
    place: Sandbox
    random: random.Random
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """The command; before it, others that ran beside it."""
    touched: float | None = None
    """When evidence was tampered with, in seconds of the wall clock, as files have them."""
    late: bool = False
    """Whether the fault found nothing to disturb any more."""
    undo: list[Callable[[], object]] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.place.cwd.parent

    def start(self, *words: str) -> None:
        """Start the run that is to be disturbed."""
        asked = [f"scenario={self.scenario}", "launch=cpu"]
        command = [sys.executable, "-m", "harness", "run", *asked, *words]
        self.begin(command)

    def begin(self, command: list[str]) -> None:
        with (self.log / "stdout").open("ab") as out, (self.log / "stderr").open("ab") as err:
            started = subprocess.Popen(
                command,
                cwd=self.place.cwd,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.processes.append(started)

    def environment(self) -> dict[str, str]:
        ours = {
            "PYTHONPATH": str(ROOT),
            "HARNESS_RUNS": str(self.place.runs),
            "UV_OFFLINE": "1",
            "HARNESS_CACHE": str(self.place.cache),
        }
        return os.environ | ours

    @property
    def harness(self) -> subprocess.Popen[bytes]:
        return self.processes[-1]

    def rank(self) -> psutil.Process | None:
        """One of the ranks, as soon as there is one; None if the command ended before."""
        return self._one("rank ")

    def torchrun(self) -> psutil.Process | None:
        """torchrun or its keeper, as soon as it is there."""
        return self._one("torchrun", "pt_elastic", "keeper")

    def forkserver(self) -> psutil.Process | None:
        """A process that has imported torch, or upstream as well, or does so just now."""
        return self._one("forkserver")

    def _one(self, *names: str) -> psutil.Process | None:
        found: list[psutil.Process] = []
        while not found and self.harness.poll() is None:
            found = [p for p in self.place.living() if _name(p).startswith(names)]
            time.sleep(0.1)
        return self.random.choice(found) if found else None

    def pause(self, most: float) -> None:
        """Wait for a while, at most ``most`` seconds or until the command ends."""
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
            for folder in self.place.runs.glob("[0-9]*"):
                return folder
            time.sleep(0.05)
        return None

    def records(self) -> list[Path]:
        """The files that ranks write, as soon as there is one; none if the command ended before."""
        found: list[Path] = []
        while not found and self.harness.poll() is None:
            time.sleep(0.05)
            found = sorted(self.place.runs.rglob("rank_*.jsonl*"))
        return found


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
class Came:
    """How a fault came out."""

    number: int
    kind: str
    scenario: str
    code: int | None
    outcome: str
    """The verdict on disk; ``none`` without one."""
    late: bool
    seconds: float
    wrong: list[str]
    """In what it is not as documented."""


def finish(case: Case, codes: frozenset[int]) -> Came:
    """Wait for the end of a command, and look at what it left: nothing of it may be wrong."""
    started = time.monotonic()
    wrong: list[str] = []
    for process in case.processes:
        try:
            code: int | None = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            code = None
            process.kill()
        if code not in codes:
            wrong.append(f"exit code {code}, documented {sorted(codes)}")
    wrong += _processes_left(case)
    noise = NOISE.search((case.log / "stderr").read_text(errors="replace"))
    if noise:
        wrong.append(f"stderr has '{noise[0]}'")
    verdicts = []
    for folder in sorted(case.place.runs.glob("[0-9]*")) if case.place.runs.is_dir() else []:
        verdict, complaints = _verdict(case, folder, code)
        verdicts.append(verdict)
        wrong += complaints
    if code == 0 and not verdicts and case.touched is None:
        wrong.append("exit code 0, and no run on disk")
    wrong += _half_made(case)
    outcome = "+".join(verdicts) or "none"
    seconds = time.monotonic() - started
    return Came(case.number, case.kind, case.scenario, code, outcome, case.late, seconds, wrong)


def _processes_left(case: Case) -> list[str]:
    deadline = time.monotonic() + (GRACE if case.harness.poll() != 0 else 1)
    while (left := case.place.living()) and time.monotonic() < deadline:
        time.sleep(0.1)
    told = [f"process {p.pid} is left: {_name(p)}, {_words(p)[:80]}" for p in left]
    case.place.end()
    return told


def _verdict(case: Case, folder: Path, code: int | None) -> tuple[str, list[str]]:
    """The verdict on disk, and what is wrong with it: it must be whole, and grade the same again.

    Evidence that was tampered with before the verdict must never have made it ``reproduced``.
    """
    file = folder / VERDICT_FILE
    try:
        stored: dict[str, Any] = json.loads(file.read_text())
        verdict = str(stored["verdict"])
    except OSError:
        lost = code == 0 and case.touched is None
        return "none", ["exit code 0 without a verdict on disk"] if lost else []
    except (ValueError, KeyError):
        return "broken", ["its verdict on disk is not whole"]
    if case.touched is not None:
        tampered = file.stat().st_mtime > case.touched and verdict == "reproduced"
        return verdict, ["reproduced on evidence that was tampered with"] if tampered else []
    wrong = []
    if verdict == "reproduced" and stored["exit_code"] != 0:
        wrong.append("reproduced, but not its exit code")
    again = _command(case, "grade", "--json", str(folder))
    graded = json.loads(again.stdout or "{}").get("verdict")
    if (again.returncode, graded) != (stored["exit_code"], verdict):
        wrong.append(f"{verdict} on disk, graded again {graded}: {again.stderr.strip()[:200]}")
    return verdict, wrong


def _half_made(case: Case) -> list[str]:
    """What is half-made after the next run: one that needs GPUs comes to its end in a second."""
    runs = case.place.runs
    if runs.is_dir():
        _command(case, "run", f"scenario={case.scenario}", "launch=gpu")
    found = list(runs.rglob(".*"))
    if case.place.cache.is_relative_to(case.log):  # else others may be making overlays just now
        found += case.place.cache.glob("overlays/.*")
    for name in (RUN_FILE, EXIT_FILE, VERDICT_FILE):
        found += [f for f in runs.rglob(name) if not _is_json(f)]
    return [f"half-made: {path}" for path in found]


def _is_json(file: Path) -> bool:
    try:
        return bool(json.loads(file.read_text()))
    except ValueError:
        return False


def _command(case: Case, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness", *words],
        cwd=case.place.cwd,
        env=case.environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
