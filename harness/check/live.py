"""Answers from runs, on the installed packages or on overlays of a file's releases."""

from __future__ import annotations

import io
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness import catalog
from harness.api.spec import RELEASED
from harness.check.bug_status import RAN, BugStatus, Checked
from harness.check.environment import Environment
from harness.config import command_line
from harness.config.run_config import SLURM, RunConfig
from harness.launch.server_pool import Pool
from harness.overlays import overlay
from harness.runs.run import run
from harness.sweep import suite
from harness.sweep.cell import STATUSES, Status
from harness.sweep.cells import find, make_overlay, room
from harness.system.errors import HarnessError, Unsupported, UserError
from harness.system.machine import cache_folder, release_of
from harness.system.terminal import Progress, terminal
from harness.system.text import warn
from harness.upstream.pins import Interpreter

LEAST_AT_ONCE = 2
"""Trials at once, also on two cores: ranks wait for each other, so one trial leaves cores idle."""


@dataclass(frozen=True)
class _Runs:
    """What the runs of a command share."""

    own: Interpreter | None
    """The interpreter whose packages are run; None for overlays of a file's releases."""
    pool: Pool
    stop: threading.Event


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
        return _side_by_side(found, configs, own, progress)


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


def _side_by_side(
    found: Sequence[Checked],
    configs: Sequence[RunConfig],
    own: Interpreter | None,
    progress: Progress,
) -> list[Checked]:
    """The statuses of all runs, as many at once as there is room for."""
    jobs = max(LEAST_AT_ONCE, min(map(room, configs), default=1))

    def ask(index: int, stop: threading.Event, pool: Pool) -> Checked:
        progress.say(f"checking {found[index].scenario}")
        return _asked(found[index], configs[index], _Runs(own, pool, stop))

    make = (lambda _: False) if own else make_overlay
    with suite.started_ahead(configs, ask, make, Pool(), jobs, ahead=1) as running:
        return [future.result() for future in running]


def _asked(checked: Checked, config: RunConfig, runs: _Runs) -> Checked:
    """The status of a run; the recorded one, with the reason, if the run is not certain."""
    try:
        status, reason = (
            _on_overlay(checked, config, runs)
            if runs.own is None
            else _here(config, runs.own, runs)
        )
    except HarnessError as error:
        status, reason = Status.INCONCLUSIVE, str(error)
    if status.certain:
        return replace(checked, status=BugStatus(str(status)), why=reason, how=RAN)
    return replace(checked, why=f"{checked.why}; the run gave no certain status: {reason}")


def _here(config: RunConfig, own: Interpreter, runs: _Runs) -> tuple[Status, str]:
    """The status of the installed packages, and why."""
    overlay.installed(own, catalog.scenario(config.scenario).pins)
    result, _ = run(config, terminal(io.StringIO()), runs.stop, runs.pool)
    (trial,) = result.trials
    return STATUSES[trial.outcome], trial.reason


def _on_overlay(checked: Checked, config: RunConfig, runs: _Runs) -> tuple[Status, str]:
    """The status of an overlay with the releases of a file, and why."""
    if unnamed := [name for name, version in config.pins.items() if not version]:
        raise UserError(f"no release of {unnamed[0]} is named")
    cell = find(config, cache_folder(), stop=runs.stop, pool=runs.pool)
    return cell.status, cell.reason


def _pins(checked: Checked) -> dict[str, str]:
    """The releases of a file, of the packages that a scenario pins."""
    pins = catalog.scenario(checked.scenario).pins
    return {name: version for name, version in checked.releases.items() if name in pins}
