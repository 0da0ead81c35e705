"""measure where the time of a run goes

    python -m harness bench
    python -m harness bench fp16_overflow --rounds 5
    python -m harness bench --all

Runs a scenario with forked and with cold launches, in turns. --all adds what takes minutes: all
scenarios, and a sweep.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from harness.bugs import catalog, pins
from harness.bugs.api.spec import BUGGY, Scenario
from harness.cli import Arguments
from harness.cli._values import whole_number
from harness.rank.exits import EXIT_FILE
from harness.rank.run_folder import RUN_FILE, VERDICT_FILE
from harness.releases import overlay, resolution
from harness.system.errors import ExitCode, Inconclusive
from harness.system.files import read_json
from harness.system.installation import refuse_without_torch
from harness.system.machine import cache_folder
from harness.system.terminal import table, terminal

STARTING = {"start": "torchrun, interpreters, waiting for shared imports", "torch": "import torch"}
"""Phases that every launch has."""

OWN = {"upstream": "import upstream", "init": "init", "steps": "steps", "check": "check"}
"""Phases of a rank's own work; scenarios may name others."""

HOW = {"forked": "launch.warm=true", "cold": "launch.warm=false"}
SWEEP = ["matrix", "scenario=tied_grad_reduce", "pins.deepspeed=0.14:0.19:minor", "--again"]
MANY = [["run", "scenario=all"], SWEEP]
QUICK = [["list"], ["--help"], ["check", "transformers==5.2.0", "torch==2.13.0"]]


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("scenario", nargs="?", default="bf16_clip", choices=catalog.names())
    parser.add_argument(
        "--rounds", type=whole_number(1), default=3, help="runs to take the median of"
    )
    parser.add_argument("--all", action="store_true", help="also all scenarios, and a sweep")
    options = parser.parse_args(arguments)
    refuse_without_torch("bench")
    with tempfile.TemporaryDirectory() as folder:
        measure(options.scenario, options.rounds, Path(folder))
        _print_commands("the command line", QUICK, {"": ""}, options.rounds, Path(folder))
        _print_commands("pip", [["list"]], {"": ""}, options.rounds, Path(folder), "pip")
        if options.all:
            _print_commands("many runs", MANY, HOW, 1, Path(folder))
    return ExitCode.AS_EXPECTED


def measure(name: str, rounds: int, folder: Path) -> None:
    """Run a scenario ``rounds`` times with each kind of launch, in turns, and print the parts."""
    overlays = _overlay_seconds(catalog.scenario(name), folder / "cache")
    _run(name, folder / "first", [])  # installs the overlays and fills the page cache
    walls: dict[str, list[float]] = {how: [] for how in HOW}
    runs: dict[str, list[Path]] = {how: [] for how in HOW}
    for number in range(rounds):
        for how, word in HOW.items():
            seconds, run = _timed(partial(_run, name, folder / f"{how}{number}", [word]))
            walls[how].append(seconds)
            runs[how].append(run)
    _print_parts(name, walls, runs, overlays)


def _run(name: str, runs: Path, words: Sequence[str]) -> Path:
    _harness("run", f"scenario={name}", f"runs={runs}", *words)
    return next(path.parent for path in runs.glob(f"*/{RUN_FILE}"))


def _harness(*words: str, module: str = "harness") -> None:
    process = subprocess.run([sys.executable, "-m", module, *words], stdout=subprocess.DEVNULL)
    if process.returncode == ExitCode.USER_MISTAKE:
        raise Inconclusive(f"{' '.join(words)} ended with exit code {process.returncode}")


def _overlay_seconds(scenario: Scenario, cache: Path) -> dict[str, float]:
    """Wall seconds to install an overlay in an empty cache (uv's cache is full), and to check
    it."""
    stack = resolution.stack(scenario, pins.complete(scenario, {}), cache_folder())
    defects = scenario.variants[BUGGY].defects

    def borrow() -> None:
        with overlay.borrow(stack, defects, cache):
            pass

    return {"made": _timed(borrow)[0], "checked": _timed(borrow)[0]}


def _timed(action: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def _print_parts(
    name: str,
    walls: dict[str, list[float]],
    runs: dict[str, list[Path]],
    overlays: dict[str, float],
) -> None:
    parts = {how: [_parts(run) for run in of] for how, of in runs.items()}
    names = list(dict.fromkeys(part for runs in parts.values() for run in runs for part in run))
    rows = [["the whole command", *(_median(walls[how]) for how in HOW)]]
    rows += [
        [part, *(_median([one.get(part, 0.0) for one in parts[how]]) for how in HOW)]
        for part in names
    ]
    rows.append(["an overlay, installed", f"{overlays['made']:.3f}", ""])
    rows.append(["an overlay, checked", f"{overlays['checked']:.3f}", ""])
    title = f"{name}: wall seconds, median of {len(walls['cold'])}"
    terminal().print(table(title, ["", *HOW], rows))


def _parts(run: Path) -> dict[str, float]:
    """The wall seconds of the parts of a run, and of its trials together."""
    verdict = read_json(run / VERDICT_FILE)
    trials = verdict["trials"]
    once = [read_json(file)["preloaded"] for file in sorted(run.rglob(EXIT_FILE))]
    parts = {f"  {step}": verdict["seconds"][step] for step in ("resolve", "overlay", "launch")}
    parts["  grade"] = verdict["seconds"]["grade"]
    phases: dict[str, float] = {}
    for trial in trials:
        for phase, seconds in trial["phases"].items():
            phases[phase] = phases.get(phase, 0.0) + seconds
    for phase in ("torch", "upstream"):
        phases[phase] = phases.get(phase, 0.0) + sum({s[phase] for s in once if phase in s})
    for phase in phases:
        parts[f"  all trials: {STARTING.get(phase) or OWN.get(phase) or phase}"] = phases[phase]
    own_seconds = sum(seconds for phase, seconds in phases.items() if phase not in STARTING)
    recorded = sum(sum(trial["phases"].values()) for trial in trials)
    parts["  all trials: leaving"] = sum(trial["seconds"] for trial in trials) - recorded
    parts["launch over the ranks' own work"] = verdict["seconds"]["launch"] / own_seconds
    return parts


def _print_commands(
    title: str,
    commands: Sequence[Sequence[str]],
    ways: Mapping[str, str],
    rounds: int,
    folder: Path,
    module: str = "harness",
) -> None:
    """Time commands with each of these ``ways``: a name and an override."""
    rows = []
    for number, words in enumerate(commands):
        medians = []
        for word in ways.values():
            overrides = [f"runs={folder / str(number)}", word] if word else []
            seconds = [
                _timed(partial(_harness, *words, *overrides, module=module))[0]
                for _ in range(rounds)
            ]
            medians.append(_median(seconds))
        rows.append([" ".join(words), *medians])
    terminal().print(table(f"\n{title}: wall seconds, median of {rounds}", ["", *ways], rows))


def _median(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.3f}"
