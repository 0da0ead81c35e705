"""Answers from runs, on the installed packages or on overlays of a file's releases."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace

from harness.bugs import catalog
from harness.bugs.api.spec import RELEASED
from harness.check.bug_status import RAN, BugStatus, Checked
from harness.check.environment import Environment
from harness.run import command_line
from harness.run.cells import room
from harness.run.executor import find_all
from harness.run.run_config import SLURM, RunConfig
from harness.system.errors import HarnessError, Unsupported, UserError
from harness.system.machine import release_of
from harness.system.terminal import Progress
from harness.system.text import warn

LEAST_AT_ONCE = 2
"""Trials at once, also on two cores: ranks wait for each other, so one trial leaves cores idle."""


def statuses(
    bugs: Sequence[Checked], environment: Environment, words: Sequence[str], progress: Progress
) -> dict[str, Checked]:
    """Run the scenarios; return the status of each by its name. An uncertain run keeps the recorded
    status.

    ``words`` are overrides, as for ``run``. Raises Unsupported if the interpreter has no torch.
    """
    interpreter = environment.interpreter
    if interpreter and "torch" not in interpreter.packages:
        raise Unsupported(f"{interpreter.executable} has no torch, which --run needs")
    if interpreter is None:  # overlays use the torch of this Python
        requested, local = environment.packages.get("torch"), release_of("torch")
        if requested and local and requested.public != local.partition("+")[0]:
            version = requested.version or "another torch"
            warn(f"{environment.where} has torch {version}, but the runs use torch {local}")
    names = [checked.scenario for checked in bugs]
    pinned = {name: catalog.scenario(name).pins.keys() for name in names}
    packages = interpreter.packages.keys() if interpreter else set()
    together = tuple(n for n in names if interpreter and pinned[n] <= packages)
    results: dict[str, Checked] = {}
    runs: list[tuple[Checked, RunConfig]] = []
    with tempfile.TemporaryDirectory() as folder:
        composed = command_line.compose_each(
            names, [f"variant={RELEASED}", f"runs={folder}", *words]
        )
        if composed[0].on.where == SLURM:
            raise UserError("check --run tests the packages of this machine: leave on=slurm out")
        for checked, config in zip(bugs, composed, strict=True):
            releases = {} if interpreter else checked.releases
            pins = {n: v for n, v in releases.items() if n in pinned[checked.scenario]}
            if missing := [name for name, version in pins.items() if not version]:
                results[checked.scenario] = _unclear(
                    checked, f"no release of {missing[0]} is named"
                )
                continue
            config = replace(config, installed=interpreter, together=together, pins=pins)
            runs.append((checked, config))

        def failed(index: int, error: HarnessError) -> None:
            results[runs[index][0].scenario] = _unclear(runs[index][0], str(error))

        configs = [config for _, config in runs]
        jobs = max(LEAST_AT_ONCE, min(map(room, configs), default=1))
        for index, cell in find_all(configs, jobs=jobs, failed=failed) if configs else ():
            progress.say(f"checked {cell.scenario}")
            checked, _ = runs[index]
            results[cell.scenario] = (
                replace(checked, status=BugStatus(str(cell.status)), why=cell.reason, how=RAN)
                if cell.status.certain
                else _unclear(checked, cell.reason)
            )
    return results


def _unclear(checked: Checked, why: str) -> Checked:
    """Keep the recorded status and add why the run gave none."""
    return replace(checked, why=f"{checked.why}; the run gave no certain status: {why}")
