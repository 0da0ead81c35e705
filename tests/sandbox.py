"""A sandbox for the commands of a test: where they run, what they leave, and how they end."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.__main__ import main
from harness.rank.exits import EXIT_FILE
from harness.rank.run_folder import RUN_FILE, VERDICT_FILE

ROOT = Path(__file__).parent.parent
PATIENCE = 240
"""Seconds to wait for what must happen; no test asserts how long a thing took."""


@dataclass
class Sandbox:
    """A folder for runs, a working directory and a cache for a test's commands."""

    runs: Path
    cwd: Path
    cache: Path
    warm: bool = True
    """Whether launches are forked from servers; otherwise they are cold."""

    @staticmethod
    def under(folder: Path, cache: Path, runs: Path | None = None) -> Sandbox:
        sandbox = Sandbox(runs or folder / "runs", folder / "cwd", cache)
        sandbox.cwd.mkdir()
        return sandbox

    def start(
        self, *arguments: str, through: Sequence[str] = (), **environment: str
    ) -> subprocess.Popen[str]:
        """Start ``python -m harness``; all its processes have this sandbox's HARNESS_RUNS.

        ``through`` is a command that executes the command appended to it.
        """
        if not self.warm and arguments[0] == "run":
            arguments = (*arguments, "launch.warm=false")
        return subprocess.Popen(
            [*through, sys.executable, "-m", "harness", *arguments],
            cwd=self.cwd,
            env=self.environment() | environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=hear_signals,
        )

    def environment(self) -> dict[str, str]:
        """The environment variables of a command."""
        ours = {
            "PYTHONPATH": str(ROOT),
            "HARNESS_RUNS": str(self.runs),
            "HARNESS_CACHE": str(self.cache),
            "UV_OFFLINE": "1",  # tests must not depend on a package index
        }
        return os.environ | ours

    def run(self, *arguments: str, through: Sequence[str] = (), **environment: str) -> Ended:
        return ended(self.start(*arguments, through=through, **environment))

    def living(self) -> list[psutil.Process]:
        """Every living process that a command of this sandbox started."""
        return living(lambda each: each.environ().get("HARNESS_RUNS") == str(self.runs))

    def folder(self) -> Path:
        """The only run folder."""
        (folder,) = self.runs.iterdir()
        return folder

    def unfinished(self) -> list[str]:
        """Files that a command should not leave."""
        files = [*self.cwd.iterdir(), *self.cache.glob("overlays/.*"), *self.runs.rglob(".*")]
        files += [f for f in self.runs.rglob("*.part") if f.with_suffix("").exists()]
        files += self.runs.rglob("elastic")
        for name in (RUN_FILE, EXIT_FILE, VERDICT_FILE):
            files += [f for f in self.runs.rglob(name) if not is_json(f)]
        return [str(path) for path in files]

    def assert_nothing_left(self) -> None:
        assert self.living() == []
        assert self.unfinished() == []

    def end(self) -> None:
        """Kill the processes that a failed test or a killed harness left."""
        while living := self.living():
            for process in living:
                process.kill()
            psutil.wait_procs(living, timeout=5)


@dataclass
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The message on stderr, which must be one line of the harness. On a busy machine another
        one before it may say what the command waits for."""
        lines = [line for line in self.err.splitlines() if "harness: waiting for " not in line]
        assert len(lines) == 1, self.err
        assert lines[0].startswith("harness: ")
        return lines[0].removeprefix("harness: ")


def git(folder: Path, *words: str) -> str:
    """Run git with a made-up committer; returns what it prints."""
    person = {
        f"GIT_{who}_{what}": "me@example.org"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    process = subprocess.run(
        ["git", "-C", str(folder), *words],
        text=True,
        check=True,
        capture_output=True,
        env={**os.environ, **person},
    )
    return process.stdout.strip()


def living(ours: Callable[[psutil.Process], object]) -> list[psutil.Process]:
    """Every living process for which ``ours`` is true; processes may end meanwhile."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if ours(process) and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes


def lives(pid: int) -> bool:
    """Whether a process has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def refused(capsys: pytest.CaptureFixture[str], words: Sequence[str], code: int = 2) -> str:
    """Run a command in this process, which must end with ``code``; returns its one-line message."""
    capsys.readouterr()
    assert main(words) == code
    _, err = capsys.readouterr()
    return f"harness: {Ended(code, '', err).complaint}\n"


def hear_signals() -> None:
    """Let a process handle SIGINT and SIGHUP. It would ignore them if the tests run in the
    background, started by nohup or by a shell without job control."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def is_json(path: Path) -> bool:
    try:
        return bool(json.loads(path.read_text()))
    except ValueError:
        return False


def ended(process: subprocess.Popen[str]) -> Ended:
    out, err = process.communicate(timeout=PATIENCE)
    return Ended(process.returncode, out, err)


def until(condition: Callable[[], bool], event: str, process: subprocess.Popen[str]) -> None:
    """Wait for ``condition``; fail if ``process`` ends before."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if process.poll() is not None:
            pytest.fail(f"ended before {event}: {ended(process)}")
        assert time.monotonic() < deadline, f"did not happen: {event}"
        time.sleep(0.02)


def within(seconds: float, condition: Callable[[], object], event: str) -> None:
    """Wait for ``condition``; fail after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"did not happen: {event}"
        time.sleep(0.02)


def mid_run(sandbox: Sandbox, process: subprocess.Popen[str]) -> list[int]:
    """Wait until both ranks train; returns their process ids."""

    def records(rank: int) -> list[dict[str, Any]]:
        parts = sandbox.runs.glob(f"*/buggy/rank_{rank}.jsonl.part")
        return [_record(line) for part in parts for line in part.read_text().splitlines()]

    def training() -> bool:
        return all("epoch" in [r.get("kind") for r in records(rank)] for rank in (0, 1))

    until(training, "an epoch of both ranks", process)
    return [next(r["pid"] for r in records(n) if r.get("kind") == "begin") for n in (0, 1)]


def _record(line: str) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(line)
        return record
    except ValueError:
        return {}  # the rank is writing this line now


def trial(run: Path) -> dict[str, Any]:
    """The only trial in a run's verdict.json."""
    entry: dict[str, Any] = json.loads((run / VERDICT_FILE).read_text())["trials"][0]
    return entry


def outcome(sandbox: Sandbox) -> tuple[str, str]:
    """The outcome and reason of the only trial in the only run."""
    folder = sandbox.folder()
    verdict, buggy = json.loads((folder / VERDICT_FILE).read_text()), trial(folder)
    assert verdict["verdict"] == buggy["outcome"]
    return buggy["outcome"], buggy["reason"]


def fill(folder: Path) -> None:
    """Fill the file system of ``folder``."""
    with (folder / "ballast").open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
