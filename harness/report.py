"""Verdicts -> terminal and JSON. Plain lines where the output is no terminal."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from harness.spec import BUGGY, FIXED, Outcome, RunResult, TrialResult, Verdict
from harness.text import plain, silence

COLOURS = {
    Verdict.REPRODUCED: "green",
    Verdict.NOT_REPRODUCED: "red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.UNSUPPORTED: "yellow",
    Verdict.UNJUDGED: "cyan",
}

LOG_LINES = 12
LOG_BYTES = 64 * 1024
"""Of the end of a log: a rank that ran wild can leave gigabytes."""
ERROR_FILE = "error.json"
"""What torchrun has a rank write down of the exception that ended it."""
TRACEBACK_LINES = 5


class Terminal(Console):
    """A console that prints what others wrote as plain text, and outlives its reader."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, with every control character in a text spelt out."""
        super().print(*(plain(o) if isinstance(o, str) else o for o in objects), **options)

    def on_broken_pipe(self) -> None:
        """Go on in silence: a run whose reader is gone (``| head``) still comes to its verdict."""
        silence(sys.stdout)


def terminal(file: TextIO | None = None) -> Terminal:
    """Where reports go: coloured and as wide as the terminal, or plain lines of any length."""
    live = file is None and sys.stdout.isatty()
    return Terminal(
        file=file,
        highlight=False,
        soft_wrap=True,
        width=None if live else 10_000,
        markup=False,
        emoji=False,
    )


class Progress:
    """What is being done just now: a live line on a terminal, otherwise a line for each new thing.

    Variants may run at the same time, so the things that are being done alternate.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._said = ""
        self._printed: set[str] = set()
        self._since = time.monotonic()
        self._spinner = Spinner("dots")
        self._live = Live(self._spinner, console=console, transient=True, refresh_per_second=8)

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def say(self, what: str, detail: str = "") -> None:
        """Show what is being done; ``detail`` (a step, say) is for the live line alone."""
        if what != self._said:
            self._said, self._since = what, time.monotonic()
            if not self.console.is_terminal and what not in self._printed:
                self._printed.add(what)
                self.console.print(f"... {what}")
        seconds = time.monotonic() - self._since
        self._spinner.update(text=Text(plain(f"{what}  {detail}  {seconds:.0f} s")))


def print_header(console: Console, run: Mapping[str, Any]) -> None:
    """One line that says what is being run: every release, and of those that differ, whose."""
    stack = releases({variant: trial["pins"] for variant, trial in run["trials"].items()})
    lane = {"cpu": "cpu (gloo)", "gpu": "gpu (NCCL)"}[run["lane"]]
    console.print(f"{run['scenario']}: {stack}; {lane}; seed {run['seed']}", style="bold")


def releases(pins: Mapping[str, Mapping[str, str]]) -> str:
    """The releases of variants: ``accelerate 0.29.3 (buggy) / 0.30.0 (fixed), torch 2.2``."""
    names = dict.fromkeys(name for chosen in pins.values() for name in chosen)
    return ", ".join(_versions(name, pins) for name in names) or "torch alone"


def _versions(name: str, pins: Mapping[str, Mapping[str, str]]) -> str:
    variants: dict[str, list[str]] = {}
    for variant, chosen in pins.items():
        variants.setdefault(chosen.get(name, "none"), []).append(variant)
    if len(variants) == 1:
        return f"{name} {next(iter(variants))}"
    return f"{name} " + " / ".join(f"{v} ({', '.join(who)})" for v, who in variants.items())


def print_trial(console: Console, result: TrialResult) -> None:
    """A trial: its outcome, why, and what was found, where and how large."""
    surprising = not result.as_expected and result.expected is not None
    mark = f"  (expected {result.expected})" if surprising else ""
    style = "green" if result.as_expected else "red"
    console.print(
        f"  {result.variant:<10} {result.outcome}{mark}  [{result.seconds:.1f} s]", style=style
    )
    for line in result.reason.splitlines()[:LOG_LINES]:
        console.print(f"    {line}")
    if where := first_seen(result):
        console.print(f"    {where}")
    for name, fired in (result.insufficient_checks or {}).items():
        if result.outcome is Outcome.SYMPTOM:
            console.print(f"    a wrong detector, '{name}': {'fired' if fired else 'silent'}")


def first_seen(result: TrialResult) -> str:
    """Where a finding shows and how large it is; empty without one, or where it does not say."""
    finding = result.finding
    if finding is None:
        return ""
    parts = []
    if finding.step is not None:
        clock = finding.clock
        parts.append(f"{clock} {finding.step}" if finding.step else f"before the first {clock}")
    if finding.ranks:
        parts.append(f"ranks {', '.join(map(str, finding.ranks))}")
    if finding.magnitude is not None:
        parts.append(f"by up to {finding.magnitude:.4g} {finding.unit}".rstrip())
    if finding.parameters:
        parts.append(_some(finding.parameters))
    return "first seen: " + "; ".join(parts) if parts else ""


def _some(names: tuple[str, ...], most: int = 3) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def print_verdict(console: Console, result: RunResult, seconds: float, folder: Path) -> None:
    """The verdict's line, why it is not better, the time it took and where the evidence is."""
    console.print(
        f"{result.scenario}: {result.verdict} in {seconds:.1f} s; {folder}",
        style=f"bold {COLOURS[result.verdict]}",
    )
    for reason in result.reasons:
        console.print(f"  {reason.splitlines()[0]}")


SUMMARY = ("scenario", "releases", "lane", "buggy", "fixed", "others", "step", "seconds", "verdict")


def summary(rows: list[list[str]]) -> Table:
    """The table that several scenarios end with, a row for each; see ``summary_row``."""
    return table("", list(SUMMARY), rows)


def summary_row(result: RunResult, run: Mapping[str, Any] | None, seconds: float) -> list[str]:
    """A scenario's row: ``run`` is its run.json, None where it came to none."""
    outcomes = {trial.variant: _marked(trial) for trial in result.trials}
    others = [f"{v} {o}" for v, o in outcomes.items() if v not in (BUGGY, FIXED)]
    findings = [t.finding for t in result.trials if t.finding and t.finding.step is not None]
    trials = run["trials"] if run else {}
    pins = {variant: trial["pins"] for variant, trial in trials.items()}
    return [
        result.scenario,
        releases(pins) if pins else "",
        str(run["lane"]) if run else "",
        outcomes.get(BUGGY, ""),
        outcomes.get(FIXED, ""),
        ", ".join(others),
        str(findings[0].step) if findings else "",
        f"{seconds:.1f}",
        str(result.verdict),
    ]


def _marked(trial: TrialResult) -> str:
    surprising = not trial.as_expected and trial.outcome is not Outcome.UNSUPPORTED
    return f"{trial.outcome} (!)" if surprising else str(trial.outcome)


def last_lines(folder: Path, result: TrialResult, most: int = LOG_LINES) -> list[str]:
    """What the first failing rank of a trial says of it: the end of its own traceback, else the
    last lines that it wrote to stderr or stdout. Nothing of a rank that has done all it had to do.

    Read are regular files in the folder alone, and of those the last LOG_BYTES: what else has the
    name of a log could keep the reader for ever, or lead it elsewhere.
    """
    rank = failing_rank(result)
    for name in (ERROR_FILE, "stderr.log", "stdout.log"):
        logs = (folder / result.variant).glob(f"**/logs/rank_{rank}/{name}")
        failed = [log for log in logs if result.failure or not _finished(log)]
        ends = [end for log in failed if (end := _end(log, folder))]
        text = max(ends)[1] if ends else ""
        lines = _traceback(text) if name == ERROR_FILE else text.splitlines()[-most:]
        if any(line.strip() for line in lines):
            return lines
    return []


def _finished(log: Path) -> bool:
    """Whether the rank of a log left its records complete: then grading has found what is wrong,
    and the log ends with what upstream says of its settings."""
    launch, rank = log.parent.parent.parent, log.parent.name
    return (launch / f"{rank}.jsonl").is_file()


def _traceback(text: str) -> list[str]:
    """The end of the traceback in an error file of torchrun's; nothing where it is none."""
    try:
        told = json.loads(text)["message"]["extraInfo"]["py_callstack"]
        lines = str(told).strip().splitlines()
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    return [line for line in lines if line.strip(" ^~")][-TRACEBACK_LINES:]


def failing_rank(result: TrialResult) -> int:
    """The rank that failed first; 0 where that is not known."""
    rank = (result.failure or {}).get("rank")
    return rank if isinstance(rank, int) else 0


def _end(log: Path, folder: Path) -> tuple[float, str] | None:
    """When a log was last written to, and its end; None where it is not to be read."""
    try:
        if log.resolve() != folder.resolve() / log.relative_to(folder):
            return None  # it lies behind a link
        handle = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        with open(handle, "rb") as file:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                return None
            file.seek(max(0, found.st_size - LOG_BYTES))
            return found.st_mtime, file.read(LOG_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return None  # gone meanwhile, or not ours to read: the trial's reason says enough


def print_failure(console: Console, folder: Path, result: TrialResult) -> None:
    """For a trial that is inconclusive: what the first failing rank says of it."""
    if result.outcome is not Outcome.INCONCLUSIVE:
        return
    lines = last_lines(folder, result)
    if lines:
        console.print(f"    last lines of rank {failing_rank(result)}:")
    for line in lines:
        console.print(f"    | {line}")


def count(number: int, what: str) -> str:
    """``1 release``, ``2 releases``."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def table(title: str, columns: list[str], rows: list[list[str]]) -> Table:
    """A plain table for the commands that list things: its cells are text, and never markup."""
    made = Table(title=Text(plain(title)), title_justify="left", box=None, pad_edge=False)
    for column in columns:
        made.add_column(Text(column), overflow="fold")
    for row in rows:
        made.add_row(*(Text(plain(cell)) for cell in row))
    return made
