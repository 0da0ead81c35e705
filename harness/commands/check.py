"""say whether the installed packages, or those of a requirements file, have the bugs

    python -m harness check
    python -m harness check -r requirements.txt

Each scenario is run on what is installed here, or on what a requirements file asks for. Where that
is not possible the ranges that were found before answer, see ``affected``.
"""

from __future__ import annotations

import io
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from packaging.version import Version
from rich.console import Console

from harness import catalog, config
from harness.commands import Arguments
from harness.commands.matrix import short
from harness.config import RunConfig
from harness.machine import cache_folder
from harness.report import Progress, table, terminal
from harness.spec import RELEASED, ExitCode, HarnessError, Scenario, UserError
from harness.sweep import affected
from harness.sweep.cells import STATUSES, Cell, Status, ask, room
from harness.trial.run import run
from harness.trial.server_pool import Pool
from harness.upstream import overlay, pins, requirements, uv

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Checked:
    """The answer for one scenario."""

    scenario: str
    status: str
    """``affected``, ``not affected`` or ``unknown``."""
    how: str
    """``ran``, ``recorded``, or nothing where there was nothing to ask."""
    why: str


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as to run")
    parser.add_argument(
        "-r", "--requirements", type=Path, metavar="FILE", help="ask of these requirements instead"
    )
    parser.add_argument("--strict", action="store_true", help="exit with 3 if one is unknown")
    options = parser.parse_intermixed_args(arguments)
    return check(options.overrides, options.requirements, strict=options.strict)


def check(words: Sequence[str], requirements: Path | None = None, *, strict: bool = False) -> int:
    """Check every scenario, or the one that ``words`` name; 1 if the environment is affected.

    With ``strict``, what is unknown counts as inconclusive.
    """
    console = terminal()
    with _own_runs(words) as asked:
        return _checked(asked, requirements, console, strict=strict)


@contextmanager
def _own_runs(words: Sequence[str]) -> Iterator[Sequence[str]]:
    """The words, with a folder for the runs that is gone afterwards where they name none."""
    if any(word.startswith("runs=") for word in words):
        yield words
        return
    with tempfile.TemporaryDirectory() as folder:
        yield [*words, f"runs={folder}"]


def _checked(
    words: Sequence[str], requirements: Path | None, console: Console, *, strict: bool
) -> int:
    configs = _configs(words)
    wanted = _required(requirements, console) if requirements else None
    with Progress(console) as progress:
        found = _side_by_side(configs, wanted, progress)
    lost = {} if _named(words) else catalog.broken()
    _tell(console, [*found, *(Checked(name, UNKNOWN, "", why) for name, why in lost.items())])
    statuses = {one.status for one in found}
    if str(Status.AFFECTED) in statuses:
        return ExitCode.NOT_AS_EXPECTED
    unclear = lost or (strict and UNKNOWN in statuses)
    return ExitCode.INCONCLUSIVE if unclear else ExitCode.AS_EXPECTED


def _side_by_side(
    configs: Sequence[RunConfig], wanted: Mapping[str, str] | None, progress: Progress
) -> list[Checked]:
    """The answers of all scenarios, as many asked at once as there is room for."""
    stop = threading.Event()

    def answer(each: RunConfig) -> Checked:
        progress.say(f"checking {each.scenario}")
        return checked(each, wanted, stop, pool)

    with Pool() as pool, ThreadPoolExecutor(min(map(room, configs)), "check") as workers:
        try:
            return list(workers.map(answer, configs))
        except BaseException:
            stop.set()
            uv.give_up()
            workers.shutdown(cancel_futures=True)
            raise


def _configs(words: Sequence[str]) -> list[RunConfig]:
    """A config for each scenario that is asked about: all, unless one is named."""
    for word in words:
        if word.startswith(("variant=", "pins.")):
            raise UserError(f"check asks of what is installed, or of -r FILE: leave {word} out")
    named = _named(words)
    others = [word for word in words if not word.startswith("scenario=")]
    names = [word.partition("=")[2] for word in named] or catalog.sound()
    return config.compose_each(names, [f"variant={RELEASED}", *others])


def _named(words: Sequence[str]) -> list[str]:
    return [word for word in words if word.startswith("scenario=") and word != "scenario=all"]


def checked(
    asked: RunConfig,
    wanted: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
    pool: Pool | None = None,
) -> Checked:
    """The answer for one scenario, of the installed packages or of those ``wanted``."""
    told = catalog.scenario(asked.scenario)
    have = _versions(told) if wanted is None else {n: wanted[n] for n in told.pins if n in wanted}
    if told.pins and told.subject not in have:
        where = "installed" if wanted is None else "required"
        why = f"{told.subject} is not {where}"
        return Checked(asked.scenario, str(Status.NOT_AFFECTED), "", why)
    if not pins.covers(told, have):
        why = f"{told.subject} {have[told.subject]}: this is about {told.releases}"
        return Checked(asked.scenario, str(Status.NOT_AFFECTED), "", why)
    how = _ran if wanted is None else _ran_on
    status, why = how(asked, have, stop, pool)
    releases = ", ".join(f"{name} {version}" for name, version in have.items()) or "torch"
    if status.certain:
        return Checked(asked.scenario, str(status), "ran", f"{releases}: {why}")
    return _recorded(asked.scenario, have, releases, why)


def _versions(told: Scenario) -> dict[str, str]:
    """The versions of a scenario's packages that are installed here."""
    found = {}
    for name in told.pins:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _ran(
    asked: RunConfig, have: Mapping[str, str], stop: threading.Event | None, pool: Pool | None
) -> tuple[Status, str]:
    """What a run on the installed packages says."""
    told = catalog.scenario(asked.scenario)
    missing = [name for name in told.pins if name not in have]
    if missing:
        return Status.UNSUPPORTED, f"{', '.join(missing)} is not installed, which the run needs"
    try:
        overlay.installed(told.pins)
        result, _ = run(replace(asked, installed=True), terminal(io.StringIO()), stop, pool)
    except HarnessError as error:
        return Status.INCONCLUSIVE, str(error)
    (trial,) = result.trials
    return STATUSES[trial.outcome], trial.reason


def _ran_on(
    asked: RunConfig, have: Mapping[str, str], stop: threading.Event | None, pool: Pool | None
) -> tuple[Status, str]:
    """What a run on an overlay of these releases says."""
    try:
        cell: Cell = ask(replace(asked, pins=dict(have)), cache_folder(), stop=stop, pool=pool)
    except UserError as error:  # a release that does not exist
        return Status.INCONCLUSIVE, str(error)
    return cell.status, cell.reason


def _recorded(scenario: str, have: Mapping[str, str], releases: str, why: str) -> Checked:
    """What the ranges say that were found before, where a run could not."""
    subject = next(iter(have), None)
    known = affected.known(scenario, subject, have[subject]) if subject else None
    if known is None:
        return Checked(scenario, UNKNOWN, "", f"{releases}: {why}")
    status, source = known
    return Checked(scenario, str(status), "recorded", f"{releases}: {source}; not run here: {why}")


def _required(file: Path, console: Console) -> dict[str, str]:
    """The releases that a requirements file names, of the packages that scenarios are about."""
    if not file.is_file():
        raise UserError(f"no requirements file {file}")
    names = catalog.upstreams()
    required = requirements.required(file, [*names, "torch"])
    found = {name: version for name, version in required.items() if name in names}
    if not found:
        raise UserError(f"{file} names none of {', '.join(names)}")
    here = metadata.version("torch")
    if "torch" in required and Version(required["torch"]).public != Version(here).public:
        console.print(f"{file} means torch {required['torch']}; this runs on torch {here}")
    return found


def _tell(console: Console, found: Sequence[Checked]) -> None:
    console.print()
    rows = [[one.scenario, one.status, one.how, short(one.why)] for one in found]
    console.print(table("", ["scenario", "status", "how", "why"], rows))
    for one in found:
        if one.status == str(Status.AFFECTED):
            told = catalog.scenario(one.scenario)
            console.print(f"\n{one.scenario}: {told.title}", style="bold red")
            console.print(f"  only with {told.trigger}\n  remedy: {told.remedy}")
