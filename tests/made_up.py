"""Upstream releases and cells that are made up, so that asking them launches nothing."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from pathlib import Path

from packaging.version import Version
from rich.console import Console

from harness import catalog
from harness.results import RunResult, TrialResult
from harness.run_config import RunConfig
from harness.spec import RELEASED, Finding, Lane, Outcome, Verdict
from harness.sweep.cell import Cell, Status
from harness.trial.records import RUN_FILE, Exit, Identity, write_exit, write_json
from harness.trial.server_pool import Pool
from harness.upstream.index import Release

KNOWN = ["4.38.2", "4.38.0", "4.37.2", "4.37.0", "4.36.2", "0.19.8", "0.13.3"]
"""The releases that there are, newest first."""
FIXED_IN = "4.38"
YES, NO, UNCLEAR = Status.AFFECTED, Status.NOT_AFFECTED, Status.INCONCLUSIVE


OF = Identity("run", "run_json", "rope_zero_init", RELEASED, "", 0, "params", 2)


class Upstream:
    """Stands in for ``run``: releases before 4.38 have the bug; notes which ones were asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        self.outcomes: dict[str, Outcome] = {}
        self.error: Exception | None = None
        self.timed_out = False

    def __call__(
        self,
        asked: RunConfig,
        console: Console,
        stop: threading.Event | None = None,
        pool: Pool | None = None,
    ) -> tuple[RunResult, Path]:
        told = {**catalog.scenario(asked.scenario).pins, **asked.pins}
        release = told["transformers"]
        self.asked.append(release)
        if self.error:
            raise self.error
        symptom = Outcome.SYMPTOM if release < FIXED_IN else Outcome.CLEAN
        outcome = self.outcomes.get(release, symptom)
        folder = self.folder / f"{uuid.uuid4().hex}-{release}"
        (folder / RELEASED).mkdir(parents=True)
        facts = {"python": "3.11.7", "torch": "2.13.0"}
        trials = {RELEASED: {"pins": told}}
        write_json(folder / RUN_FILE, {"lane": Lane.CPU, "trials": trials, "machine": facts})
        write_exit(folder / RELEASED, Exit(0, 1.0, timed_out=self.timed_out), OF)
        finding = Finding("wrong", step=0) if outcome is Outcome.SYMPTOM else None
        trial = TrialResult(RELEASED, outcome, None, "because\nof this", 1.5, finding)
        return RunResult(asked.scenario, Verdict.UNJUDGED, (), (trial,)), folder


def scenario_module(upstream: Path, name: str, text: str) -> None:
    """Make the folder of a scenario whose module has this text."""
    (upstream / name).mkdir()
    (upstream / name / "__init__.py").touch()
    (upstream / name / "scenario.py").write_text(text)


def published(*versions: str, yanked: str = "") -> Callable[..., list[Release]]:
    """Stands in for ``index.releases``: every package has these releases, as nobody knows when."""
    found = [Release("up", each, "", each == yanked) for each in sorted(versions, key=Version)]
    return lambda *_: found


def cell(release: str, status: Status) -> Cell:
    told = {"transformers": release.removeprefix("v"), "deepspeed": "0.13.3"}
    return Cell(
        "rope_zero_init",
        told,
        status,
        f"because of {release}\nand",
        "cpu",
        "3.11.7",
        "2.13.0",
        "2026-11-21",
    )
