"""Made-up upstream releases and cells for tests that launch nothing."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from packaging.version import Version

from harness.bugs import catalog
from harness.bugs.api.spec import RELEASED, Finding, Lane, Outcome, Verdict
from harness.bugs.results import OUTCOMES, Result, RunResult, Status
from harness.rank.exits import Exit, Identity, write_exit
from harness.rank.run_folder import RUN_FILE
from harness.releases.index import Release
from harness.run.run_config import RunConfig
from harness.system import machine
from harness.system.files import write_json

KNOWN = ["4.38.2", "4.38.0", "4.37.2", "4.37.0", "4.36.2", "0.19.8", "0.13.3"]
"""The published releases, newest first."""
FIXED_IN = "4.38"
YES, NO, UNCLEAR = Status.AFFECTED, Status.NOT_AFFECTED, Status.INCONCLUSIVE


OF = Identity("run", "rope_zero_init", RELEASED, "", 2)


class Upstream:
    """Stands in for ``run``: releases before 4.38 have the bug; lists the tested releases."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tested: list[str] = []
        self.outcomes: dict[str, Outcome] = {}
        self.another = ""
        self.error: Exception | None = None
        self.timed_out = False

    def __call__(self, config: RunConfig, *_: object) -> tuple[RunResult, Path]:
        pins = {**catalog.scenario(config.scenario).pins, **config.pins}
        release = pins["transformers"]
        self.tested.append(release)
        if self.error:
            raise self.error
        symptom = Outcome.SYMPTOM if Version(release) < Version(FIXED_IN) else Outcome.CLEAN
        outcome = self.outcomes.get(release, symptom)
        folder = self.folder / f"{uuid.uuid4().hex}-{release}"
        (folder / RELEASED).mkdir(parents=True)
        facts = {"python": "3.11.7", "torch": "2.13.0"}
        trials = {RELEASED: {"pins": pins}}
        write_json(folder / RUN_FILE, {"lane": Lane.CPU, "trials": trials, "machine": facts})
        write_exit(folder / RELEASED, Exit(0, 1.0, timed_out=self.timed_out), OF)
        finding = Finding("wrong", step=0) if outcome is Outcome.SYMPTOM else None
        if self.another and outcome is Outcome.INCONCLUSIVE:
            finding = Finding("odd", step=0, documented=False, another=self.another)
        trial = trial_result(
            RELEASED, outcome, None, "because\nof this", pins=pins, seconds=1.5, finding=finding
        )
        return RunResult(config.scenario, Verdict.UNJUDGED, (), (trial,)), folder


def one_to_two(function: Any) -> Iterator[tuple[Any, Any]]:
    """A defect's edit: it replaces each 1 in a function by 2."""
    import libcst as cst
    import libcst.matchers as m

    for old in m.findall(function, m.Integer("1")):
        yield old, cst.Integer("2")


def full_disk(*_: object, **__: object) -> NoReturn:
    """Stands in for a function that writes."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def set_gpus(monkeypatch: pytest.MonkeyPatch, count: int, free: int = 80_000) -> None:
    """Pretend that this machine has ``count`` GPUs, with so many MiB that nobody uses."""
    gpus = tuple(machine.Gpu(str(n), f"GPU-{n}", "H") for n in range(count))
    monkeypatch.setattr(machine, "gpus", lambda: gpus)
    monkeypatch.setattr(machine, "_free_memory", lambda: [free] * count)


BUG = """\
title = "It is wrong"
report = ["https://example.org/1"]
fix = "none"
symptom = "a wrong number"
trigger = "two ranks"
pins = { up = "1.0" }
params.lr = { default = 0.1, above = 0, about = "of SGD" }
variants = { buggy = {}, fixed = { release = "2.0" } }
"""


def scenario_files(upstream: Path, name: str, code: str = "", bug: str = BUG) -> None:
    """Make the folder of a scenario with this code and this bug.toml."""
    (upstream / name).mkdir()
    (upstream / name / "__init__.py").touch()
    (upstream / name / "scenario.py").write_text(code)
    (upstream / name / "bug.toml").write_text(bug)


def published(*versions: str, yanked: str = "") -> Callable[..., list[Release]]:
    """Stands in for ``index.releases``: every package has these releases, of unknown days."""
    listing = [
        Release("up", version, "", version == yanked) for version in sorted(versions, key=Version)
    ]
    return lambda *_: listing


MACHINE = {"python": "3.11.7", "torch": "2.13.0", "cpus": 2, "gpus": []}


def trial_result(
    variant: str,
    outcome: Outcome,
    expected: Outcome | None,
    reason: str,
    scenario: str = "rope_zero_init",
    **more: Any,
) -> Result:
    """The result of a trial, on some machine and day."""
    facts: dict[str, Any] = {"pins": {}, "lane": "cpu", "day": "2026-11-21", "machine": MACHINE}
    facts |= {"expected": expected, **more}
    return Result(scenario, variant, outcome=outcome, reason=reason, **facts)


def cell_of(
    scenario: str, pins: dict[str, str], status: Status, reason: str, **more: Any
) -> Result:
    """The result of releases with this status."""
    more.setdefault("finding", Finding(reason) if status is YES else None)
    return trial_result(RELEASED, OUTCOMES[status], None, reason, scenario, pins=pins, **more)


def cell(release: str, status: Status) -> Result:
    pins = {"transformers": release.removeprefix("v"), "deepspeed": "0.13.3"}
    return cell_of("rope_zero_init", pins, status, f"because of {release}\nand")
