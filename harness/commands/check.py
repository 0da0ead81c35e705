"""test whether the installed packages, or those of a requirements file, have the bugs

    python -m harness check
    python -m harness check -r requirements.txt

Each scenario runs on the installed packages, or on the releases of a requirements file. If it
cannot run, the status comes from recorded results, see ``affected``.
"""

from __future__ import annotations

import io
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version
from rich.console import Console

from harness import catalog, config, machine
from harness.commands import Arguments
from harness.errors import ExitCode, HarnessError, UserError
from harness.installation import as_typed
from harness.machine import cache_folder
from harness.report import Progress, table, terminal
from harness.run_config import RunConfig
from harness.spec import RELEASED, Scenario
from harness.sweep import affected
from harness.sweep.cell import STATUSES, Cell, Status
from harness.sweep.cells import find, room
from harness.text import short
from harness.trial.run import run
from harness.trial.server_pool import Pool
from harness.upstream import overlay, pins, requirements, uv

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Checked:
    """The status for one scenario."""

    scenario: str
    status: str
    """``affected``, ``not affected`` or ``unknown``."""
    how: str
    """``ran``, ``recorded``, or empty if there was nothing to test."""
    why: str


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as to run")
    parser.add_argument(
        "-r", "--requirements", type=Path, metavar="FILE", help="test these requirements instead"
    )
    parser.add_argument("--strict", action="store_true", help="exit with 3 if one is unknown")
    options = parser.parse_intermixed_args(arguments)
    return check(options.overrides, options.requirements, strict=options.strict)


def check(words: Sequence[str], requirements: Path | None = None, *, strict: bool = False) -> int:
    """Check every scenario, or the one that ``words`` name; 1 if the environment is affected.

    With ``strict``, a status that is unknown counts as inconclusive.
    """
    console = terminal()
    with _with_run_folder(words) as complete:
        return _checked(complete, requirements, console, strict=strict)


@contextmanager
def _with_run_folder(words: Sequence[str]) -> Iterator[Sequence[str]]:
    """The words, with a temporary folder for the runs unless they name one."""
    if any(word.startswith("runs=") for word in words):
        yield words
        return
    with tempfile.TemporaryDirectory() as folder:
        yield [*words, f"runs={folder}"]


def _checked(
    words: Sequence[str], requirements: Path | None, console: Console, *, strict: bool
) -> int:
    configs = _configs(words)
    if requirements is None:
        _refuse_without_packages()
    wanted = _required(requirements, console) if requirements else None
    with Progress(console) as progress:
        found = _side_by_side(configs, wanted, progress)
    broken = {} if _named(words) else catalog.broken()
    _print(console, [*found, *(Checked(name, UNKNOWN, "", why) for name, why in broken.items())])
    statuses = {one.status for one in found}
    if str(Status.AFFECTED) in statuses:
        return ExitCode.NOT_AS_EXPECTED
    unclear = broken or (strict and UNKNOWN in statuses)
    return ExitCode.INCONCLUSIVE if unclear else ExitCode.AS_EXPECTED


def _side_by_side(
    configs: Sequence[RunConfig], wanted: Mapping[str, str] | None, progress: Progress
) -> list[Checked]:
    """The statuses of all scenarios, as many tested at once as there is room for."""
    stop = threading.Event()

    def check_one(each: RunConfig) -> Checked:
        progress.say(f"checking {each.scenario}")
        return checked(each, wanted, stop, pool)

    with Pool() as pool, ThreadPoolExecutor(min(map(room, configs)), "check") as workers:
        try:
            return list(workers.map(check_one, configs))
        except BaseException:
            stop.set()
            uv.give_up()
            workers.shutdown(cancel_futures=True)
            raise


def _configs(words: Sequence[str]) -> list[RunConfig]:
    """A config for each scenario: all, unless one is named."""
    for word in words:
        if word.startswith(("variant=", "pins.")):
            raise UserError(f"check tests what is installed, or -r FILE: leave {word} out")
    named = _named(words)
    others = [word for word in words if not word.startswith("scenario=")]
    names = [word.partition("=")[2] for word in named] or catalog.sound()
    return config.compose_each(names, [f"variant={RELEASED}", *others])


def _named(words: Sequence[str]) -> list[str]:
    return [word for word in words if word.startswith("scenario=") and word != "scenario=all"]


def checked(
    config: RunConfig,
    wanted: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
    pool: Pool | None = None,
) -> Checked:
    """The status for one scenario, of the installed packages or of those ``wanted``."""
    scenario, name = catalog.scenario(config.scenario), config.scenario
    if wanted is None:
        have = _versions(scenario)
    else:
        have = {package: wanted[package] for package in scenario.pins if package in wanted}
    subject = scenario.subject if scenario.pins else ""
    if scenario.pins and subject not in have:
        where = "installed" if wanted is None else "required"
        why = f"{subject} is not {where}"
        return Checked(name, str(Status.NOT_AFFECTED), "", why)
    if not pins.covers(scenario, have):
        why = f"{subject} {have[subject]}: this is about {scenario.releases}"
        return Checked(name, str(Status.NOT_AFFECTED), "", why)
    run_it = _run_installed if wanted is None else _run_overlay
    status, why = run_it(config, have, stop, pool)
    releases = ", ".join(f"{name} {version}" for name, version in have.items()) or "torch"
    if status.certain:
        return Checked(name, str(status), "ran", f"{releases}: {why}")
    return _recorded(name, have, releases, why)


def _versions(scenario: Scenario) -> dict[str, str]:
    """The versions of a scenario's packages that are installed here."""
    found = {name: machine.release_of(name) for name in scenario.pins}
    return {name: version for name, version in found.items() if version}


def _run_installed(
    config: RunConfig, have: Mapping[str, str], stop: threading.Event | None, pool: Pool | None
) -> tuple[Status, str]:
    """The status from a run on the installed packages, and why."""
    scenario = catalog.scenario(config.scenario)
    missing = [name for name in scenario.pins if name not in have]
    if missing:
        return Status.UNSUPPORTED, f"the run needs {', '.join(missing)}, which is not installed"
    try:
        overlay.installed(scenario.pins)
        result, _ = run(replace(config, installed=True), terminal(io.StringIO()), stop, pool)
    except HarnessError as error:
        return Status.INCONCLUSIVE, str(error)
    (trial,) = result.trials
    return STATUSES[trial.outcome], trial.reason


def _run_overlay(
    config: RunConfig, have: Mapping[str, str], stop: threading.Event | None, pool: Pool | None
) -> tuple[Status, str]:
    """The status from a run on an overlay of these releases, and why."""
    try:
        cell: Cell = find(replace(config, pins=dict(have)), cache_folder(), stop=stop, pool=pool)
    except UserError as error:  # a release that does not exist
        return Status.INCONCLUSIVE, str(error)
    return cell.status, cell.reason


def _recorded(scenario: str, have: Mapping[str, str], releases: str, why: str) -> Checked:
    """The recorded status, if the run gave none; ``why`` is the reason of that."""
    subject = next(iter(have), None)
    known = affected.known(scenario, subject, have[subject]) if subject else None
    if known is None:
        return Checked(scenario, UNKNOWN, "", f"{releases}: {why}")
    status, source = known
    return Checked(scenario, str(status), "recorded", f"{releases}: {source}; not run here: {why}")


def _refuse_without_packages() -> None:
    """Raise UserError if this Python has none of the packages: a tool's own environment."""
    names = [*catalog.upstreams(), "torch"]
    if not any(map(machine.release_of, names)):
        raise UserError(
            f"none of {', '.join(names)} is installed in {sys.prefix}, where this command is: "
            "name the requirements of your environment, -r FILE"
        )


def _required(file: Path, console: Console) -> dict[str, str]:
    """The releases of the scenarios' packages in a requirements file."""
    if not file.is_file():
        raise UserError(f"no requirements file {file}")
    names = catalog.upstreams()
    required = requirements.required(file, [*names, "torch"])
    found = {name: version for name, version in required.items() if name in names}
    if not found:
        raise UserError(f"{file} names none of {', '.join(names)}")
    here = machine.release_of("torch")
    if here and "torch" in required and Version(required["torch"]).public != Version(here).public:
        console.print(f"{file} selects torch {required['torch']}, but this runs on torch {here}")
    return found


def _print(console: Console, found: Sequence[Checked]) -> None:
    console.print()
    rows = [[one.scenario, one.status, one.how, short(one.why)] for one in found]
    console.print(table("", ["scenario", "status", "how", "why"], rows))
    for one in found:
        if one.status == str(Status.AFFECTED):
            scenario = catalog.scenario(one.scenario)
            console.print(f"\n{one.scenario}: {scenario.title}", style="bold red")
            remedy = as_typed(scenario.remedy)
            console.print(f"  only with {scenario.trigger}\n  remedy: {remedy}")
