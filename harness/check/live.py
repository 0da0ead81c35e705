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
) -> list[Checked]:
    """Run the scenarios; return the statuses in the same order. An uncertain run keeps the
    recorded status.

    ``words`` are overrides, as for ``run``. Raises Unsupported if the interpreter has no torch.
    """
    names = [checked.scenario for checked in bugs]
    interpreter = environment.interpreter
    if interpreter and "torch" not in interpreter.packages:
        raise Unsupported(f"{interpreter.executable} has no torch, which --run needs")
    if interpreter is None:  # overlays use the torch of this Python
        requested, local = environment.packages.get("torch"), release_of("torch")
        if requested and local and requested.public != local.partition("+")[0]:
            version = requested.version or "another torch"
            warn(f"{environment.where} has torch {version}, but the runs use torch {local}")
    with tempfile.TemporaryDirectory() as folder:
        composed = command_line.compose_each(
            names, [f"variant={RELEASED}", f"runs={folder}", *words]
        )
        packages = interpreter.packages.keys() if interpreter else set()
        pinned = {name: catalog.scenario(name).pins.keys() for name in names}
        together = tuple(n for n in names if interpreter and pinned[n] <= packages)
        if composed[0].on.where == SLURM:
            raise UserError("check --run tests the packages of this machine: leave on=slurm out")
        configs = [
            replace(
                config,
                installed=interpreter,
                together=together,
                pins={}
                if interpreter
                else {n: v for n, v in checked.releases.items() if n in pinned[checked.scenario]},
            )
            for checked, config in zip(bugs, composed, strict=True)
        ]
        return _with_runs(bugs, configs, progress)


def _with_runs(
    bugs: Sequence[Checked], configs: Sequence[RunConfig], progress: Progress
) -> list[Checked]:
    """Run all configurations, as many at once as there is room for."""
    results = list(bugs)
    positions = [index for index, config in enumerate(configs) if all(config.pins.values())]
    for index in set(range(len(configs))) - set(positions):
        missing = next(name for name, version in configs[index].pins.items() if not version)
        results[index] = _unclear(bugs[index], f"no release of {missing} is named")

    def failed(index: int, error: HarnessError) -> None:
        results[positions[index]] = _unclear(bugs[positions[index]], str(error))

    runnable = [configs[index] for index in positions]
    jobs = max(LEAST_AT_ONCE, min(map(room, runnable), default=1))
    for index, cell in find_all(runnable, jobs=jobs, failed=failed) if runnable else ():
        progress.say(f"checked {cell.scenario}")
        bug = bugs[positions[index]]
        results[positions[index]] = (
            replace(bug, status=BugStatus(str(cell.status)), why=cell.reason, how=RAN)
            if cell.status.certain
            else _unclear(bug, cell.reason)
        )
    return results


def _unclear(checked: Checked, why: str) -> Checked:
    """Keep the recorded status and add why the run gave none."""
    return replace(checked, why=f"{checked.why}; the run gave no certain status: {why}")
