"""Answers from runs, on the installed packages or on overlays of a file's releases."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace

from harness.bugs import catalog
from harness.bugs.api.spec import RELEASED
from harness.bugs.pins import Interpreter
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
    found: Sequence[Checked], environment: Environment, words: Sequence[str], progress: Progress
) -> list[Checked]:
    """The statuses of runs, in the same order. An uncertain run leaves the recorded status.

    ``words`` are overrides as to ``run``. Raises Unsupported if the interpreter has no torch.
    """
    names = [checked.scenario for checked in found]
    own = environment.interpreter
    if own and "torch" not in own.packages:
        raise Unsupported(f"{own.executable} has no torch, which --run needs")
    if own is None:
        _mention_torch(environment)
    with tempfile.TemporaryDirectory() as folder:
        composed = command_line.compose_each(
            names, [f"variant={RELEASED}", f"runs={folder}", *words]
        )
        together = _together(names, own)
        if composed[0].on.where == SLURM:
            raise UserError("check --run tests the packages of this machine: leave on=slurm out")
        configs = [
            replace(config, installed=own, together=together, pins={} if own else _pins(checked))
            for checked, config in zip(found, composed, strict=True)
        ]
        return _with_runs(found, configs, progress)


def _mention_torch(environment: Environment) -> None:
    """Say that overlays run on the torch of this Python, if a file selects another one."""
    wanted, here = environment.packages.get("torch"), release_of("torch")
    if wanted and here and wanted.public != here.partition("+")[0]:
        version = wanted.version or "another torch"
        warn(f"{environment.where} has torch {version}, but the runs use torch {here}")


def _together(names: Sequence[str], own: Interpreter | None) -> tuple[str, ...]:
    """The scenarios that share a server: those whose packages are all installed."""
    packages = own.packages if own else {}
    return tuple(n for n in names if own and catalog.scenario(n).pins.keys() <= packages.keys())


def _with_runs(
    found: Sequence[Checked], configs: Sequence[RunConfig], progress: Progress
) -> list[Checked]:
    """The statuses of all runs, as many at once as there is room for."""
    results = list(found)
    named = [at for at, config in enumerate(configs) if all(config.pins.values())]
    for at in set(range(len(configs))) - set(named):
        missing = next(name for name, version in configs[at].pins.items() if not version)
        results[at] = _unclear(found[at], f"no release of {missing} is named")

    def failed(at: int, error: HarnessError) -> None:
        results[named[at]] = _unclear(found[named[at]], str(error))

    wanted = [configs[at] for at in named]
    jobs = max(LEAST_AT_ONCE, min(map(room, wanted), default=1))
    for at, cell in find_all(wanted, jobs=jobs, failed=failed) if wanted else ():
        progress.say(f"checked {cell.scenario}")
        one = found[named[at]]
        results[named[at]] = (
            replace(one, status=BugStatus(str(cell.status)), why=cell.reason, how=RAN)
            if cell.status.certain
            else _unclear(one, cell.reason)
        )
    return results


def _unclear(checked: Checked, why: str) -> Checked:
    """The recorded status, with the reason why the run gave none."""
    return replace(checked, why=f"{checked.why}; the run gave no certain status: {why}")


def _pins(checked: Checked) -> dict[str, str]:
    """The releases of a file, of the packages that a scenario pins."""
    pins = catalog.scenario(checked.scenario).pins
    return {name: version for name, version in checked.releases.items() if name in pins}
