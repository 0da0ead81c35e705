"""Verdicts as text: for a terminal, or as plain lines if the output is not a terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from harness.bugs.api.spec import BUGGY, FIXED, Outcome, Verdict
from harness.bugs.results import Result, RunResult
from harness.system.terminal import table
from harness.system.text import count, several

COLOURS = {
    Verdict.REPRODUCED: "green",
    Verdict.NOT_REPRODUCED: "red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.UNSUPPORTED: "yellow",
    Verdict.UNJUDGED: "cyan",
}

LOG_LINES = 12
LOG_BYTES = 64 * 1024
"""How much of the end of a log is read: a log can have gigabytes."""
ERROR_FILE = "error.json"
"""The file in which torchrun has a rank write the exception that ended it."""
TRACEBACK_LINES = 5


def print_header(console: Console, run: Mapping[str, Any]) -> None:
    """One line with the scenario, its releases (by variant where they differ), lane and seed."""
    stack = releases({variant: trial["pins"] for variant, trial in run["trials"].items()})
    lane = "cpu (gloo)" if run["lane"] == "cpu" else "gpu (NCCL)"
    if run["lane"] != "cpu" and run["machine"]["gpus"]:
        ranks = max(trial["ranks"] for trial in run["trials"].values())
        names = run["machine"]["gpus"][:ranks]
        lane = f"{count(ranks, 'rank')} on {count(len(names), 'GPU')} ({names[0]}) over NCCL"
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


def print_trial(console: Console, result: Result) -> None:
    """A trial: its outcome, the reason, and where the finding shows and how large it is."""
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
    for name, check in (result.insufficient_checks or {}).items():
        if result.outcome is Outcome.SYMPTOM:
            console.print(f"    a check that misses it (alarm if {name}): {alarm(check)}")


def first_seen(result: Result) -> str:
    """Where a finding shows and how large it is; empty if there is no finding or no figure."""
    finding = result.finding
    if finding is None:
        return ""
    parts = []
    if finding.step is not None:
        clock = finding.clock
        parts.append(f"{clock} {finding.step}" if finding.step else f"before the first {clock}")
    if finding.ranks:
        ranks = "rank" if len(finding.ranks) == 1 else "ranks"
        parts.append(f"{ranks} {', '.join(map(str, finding.ranks))}")
    if finding.magnitude is not None:
        parts.append(f"off by up to {finding.magnitude:.4g} {finding.unit}".rstrip())
    if finding.parameters:
        parts.append(several(finding.parameters))
    return "first seen: " + "; ".join(parts) if parts else ""


def print_verdict(console: Console, result: RunResult, seconds: float, folder: Path) -> None:
    """The verdict, the time, the run folder, and the reasons if it is not ``reproduced``."""
    console.print(
        f"{result.scenario}: {result.verdict} (wall time {seconds:.1f} s); {folder}",
        style=f"bold {COLOURS[result.verdict]}",
    )
    printed = {f"{trial.variant}: {trial.reason}" for trial in result.trials}
    for reason in result.reasons:
        if reason not in printed:
            console.print(f"  {reason.splitlines()[0]}")


SUMMARY = ("scenario", "releases", "lane", "buggy", "fixed", "others", "step", "seconds", "verdict")


def summary(rows: list[list[str]]) -> Table:
    """The table of several scenarios, with a row from ``summary_row`` for each."""
    return table("", list(SUMMARY), rows)


def summary_row(result: RunResult, run: Mapping[str, Any] | None, seconds: float) -> list[str]:
    """A scenario's row. ``run`` is the content of run.json, or None if there is none."""
    outcomes = {}
    for trial in result.trials:
        surprising = not trial.as_expected and trial.outcome is not Outcome.UNSUPPORTED
        outcomes[trial.variant] = f"{trial.outcome} (!)" if surprising else str(trial.outcome)
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


def last_lines(folder: Path, result: Result, most: int = LOG_LINES) -> list[str]:
    """The end of the traceback of the rank that failed first, otherwise of its stderr or stdout.

    Empty if that rank wrote all its records. Only the last LOG_BYTES of a file are read."""
    rank = failing_rank(result)
    for name in (ERROR_FILE, "stderr.log", "stdout.log"):
        logs = (folder / result.variant).glob(f"**/logs/rank_{rank}/{name}")
        failed = [  # a rank that finished its records has nothing to explain
            log
            for log in logs
            if result.failure
            or not (log.parent.parent.parent / f"{log.parent.name}.jsonl").is_file()
        ]
        ends = [end for log in failed if (end := _end(log))]
        text = max(ends)[1] if ends else ""
        lines = _traceback(text) if name == ERROR_FILE else text.splitlines()[-most:]
        if any(line.strip() for line in lines):
            return lines
    return []


def _traceback(text: str) -> list[str]:
    """The end of the traceback in torchrun's error file; empty if the file has none."""
    try:
        lines = str(json.loads(text)["message"]["extraInfo"]["py_callstack"]).strip().splitlines()
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    return [line for line in lines if line.strip(" ^~")][-TRACEBACK_LINES:]


def failing_rank(result: Result) -> int:
    """The rank that failed first; 0 if that is not known."""
    return int(result.failure["rank"]) if result.failure else 0


def _end(log: Path) -> tuple[float, str] | None:
    """The time at which a log was last written, and its end; None if it cannot be read."""
    try:
        with log.open("rb") as file:
            attributes = os.fstat(file.fileno())
            file.seek(max(0, attributes.st_size - LOG_BYTES))
            return attributes.st_mtime, file.read(LOG_BYTES).decode(errors="replace")
    except OSError:
        return None  # deleted meanwhile


def print_failure(console: Console, folder: Path, result: Result) -> None:
    """For an inconclusive trial: the last lines of the rank that failed first."""
    if result.outcome is not Outcome.INCONCLUSIVE:
        return
    lines = last_lines(folder, result)
    if lines:
        console.print(f"    last lines of rank {failing_rank(result)}:")
    for line in lines:
        console.print(f"    | {line}")


def alarm(fired: bool) -> str:
    """Whether a check gave an alarm, in words."""
    return "alarm" if fired else "no alarm"
