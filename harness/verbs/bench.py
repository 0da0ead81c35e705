"""where a run's time goes, printed as a table; asserts nothing"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from harness import catalog
from harness.machine import cache_folder, own_place
from harness.report import table, terminal
from harness.spec import BUGGY, FIXED, ExitCode, Lane, Scenario
from harness.trial.launch import rank_environment, torchrun
from harness.trial.records import RUN_FILE, VERDICT_FILE, read_json, write_json
from harness.upstream import overlay, pins
from harness.verbs import Arguments

PHASES = {
    "start": "torchrun and interpreter",
    "torch": "import torch",
    "upstream": "import upstream",
    "init": "init",
    "steps": "steps",
    "check": "check",
}


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("scenario", nargs="?", default="bf16_clip", choices=catalog.names())
    parser.add_argument("--rounds", type=int, default=3, help="runs to take the median of")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        measure(options.scenario, options.rounds, Path(folder))
    return ExitCode.AS_EXPECTED


def measure(name: str, rounds: int, folder: Path) -> None:
    """Run a scenario warm ``rounds`` times, each beside the bare torchrun of the same ranks."""
    cold = _overlay_seconds(catalog.scenario(name), folder / "cold")
    _run(name, folder / "first")  # makes the overlays, and brings them into the page cache
    runs, walls, bare = [], [], []
    for number in range(rounds):
        seconds, run_folder = _timed(partial(_run, name, folder / str(number)))
        walls.append(seconds)
        runs.append(run_folder)
        bare.append(sum(_bare(run_folder, variant) for variant in (BUGGY, FIXED)))
    _print_parts(name, [read_json(run / VERDICT_FILE) for run in runs], cold)
    _print_share(walls, bare)


def _run(name: str, runs: Path) -> Path:
    command = [sys.executable, "-m", "harness", "run", f"scenario={name}", f"runs={runs}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return next(path.parent for path in runs.glob(f"*/{RUN_FILE}"))


def _bare(run_folder: Path, variant: str) -> float:
    """The wall seconds of torchrun alone on a trial's ranks, in a copy of its run folder."""
    run = read_json(run_folder / RUN_FILE)
    trial = run["trials"][variant]
    copy = run_folder.with_name(f"bare-{variant}")
    (copy / variant).mkdir(parents=True)
    write_json(copy / RUN_FILE, run)
    site = Path(trial["overlay"]["site"])
    extensions = own_place(cache_folder(), "extensions") / trial["overlay"]["key"]
    environment = rank_environment(Lane(run["lane"]), site, extensions, run["launch"]["threads"])
    command = torchrun(copy, variant, trial["ranks"])
    seconds, _ = _timed(
        lambda: subprocess.run(command, env=environment, check=True, capture_output=True)
    )
    shutil.rmtree(copy)
    return seconds


def _overlay_seconds(told: Scenario, cache: Path) -> dict[str, float]:
    """Wall seconds to make the overlays in an empty cache (uv's own is warm), and to reopen one."""
    stack = pins.stack(told, pins.complete(told, {}), cache_folder())
    defects = told.variants[BUGGY].defects

    def borrow() -> None:
        with overlay.borrowed(stack, defects, cache):
            pass

    return {"cold": _timed(borrow)[0], "warm": _timed(borrow)[0]}


def _timed(action: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def _print_parts(name: str, verdicts: list[dict[str, Any]], cold: dict[str, float]) -> None:
    rows = [
        ["resolve", _median([v["seconds"]["resolve"] for v in verdicts])],
        ["overlay, cold", f"{cold['cold']:.3f}"],
        ["overlay, warm", f"{cold['warm']:.3f}"],
    ]
    trials = [trial for verdict in verdicts for trial in verdict["trials"]]
    for phase, label in PHASES.items():
        rows.append([f"{label}, a trial", _median([t["phases"].get(phase, 0.0) for t in trials])])
    leaving = [t["seconds"] - sum(t["phases"].values()) for t in trials]
    rows.append(["leave, a trial", _median(leaving)])
    rows.append(["a trial in all", _median([t["seconds"] for t in trials])])
    rows.append(["grade", _median([v["seconds"]["grade"] for v in verdicts])])
    terminal().print(table(f"{name}: wall seconds, median", ["part", "seconds"], rows))


def _median(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.3f}"


def _print_share(walls: list[float], bare: list[float]) -> None:
    own = statistics.median(w - b for w, b in zip(walls, bare, strict=True))
    whole = statistics.median(walls)
    rows = [
        ["the whole command, both variants", f"{whole:.2f}"],
        ["bare torchrun of the same ranks", f"{statistics.median(bare):.2f}"],
        ["the harness's own share", f"{own:.2f} ({100 * own / whole:.1f} %)"],
    ]
    terminal().print(table("\nbeside bare torchrun", ["", "seconds"], rows))
