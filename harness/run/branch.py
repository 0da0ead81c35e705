"""What a checkout or a patch does to the bugs of its package: which remain, return or are fixed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from rich.console import Console

from harness.bugs import catalog, periods, pins
from harness.bugs.api.spec import BUGGY
from harness.bugs.results import Result, Status
from harness.releases import sources
from harness.run.command_line import compose
from harness.run.executor import find_all
from harness.run.run_config import RunConfig
from harness.system.errors import ExitCode, UserError
from harness.system.installation import refuse_without_torch
from harness.system.machine import cache_folder
from harness.system.terminal import terminal
from harness.system.text import count, short


@dataclass(frozen=True)
class Judged:
    """One bug on a branch, compared with the newest tested release."""

    cell: Result
    release: str
    """The package and that release."""
    released: Status | None
    """Its status; None if no release was tested with a certain result."""

    @property
    def back(self) -> bool:
        """Whether the branch has a bug that the newest release does not have."""
        return self.cell.status is Status.AFFECTED and self.released is Status.NOT_AFFECTED

    @property
    def exit_code(self) -> int:
        if not self.cell.status.certain:
            return ExitCode.INCONCLUSIVE
        return ExitCode.NOT_AS_EXPECTED if self.back else ExitCode.AS_EXPECTED

    def __str__(self) -> str:
        status, before = self.cell.status, self.released
        if self.back:
            return f"AFFECTED, and {self.release} is not"
        if status is Status.NOT_AFFECTED and before is Status.AFFECTED:
            return f"not affected, and {self.release} is: fixed"
        like = f", like {self.release}" if status is before else ""
        return f"{status}{like}"

    @property
    def style(self) -> str:
        return "red" if self.back else "" if self.cell.status.certain else "yellow"


def judge(configs: Sequence[RunConfig], words: Sequence[str]) -> int:
    """Run scenarios as ``released`` on a source or with a patch, and print what is found. ``words``
    are the overrides. Returns the exit code."""
    refuse_without_torch("a run")
    console = terminal()
    if configs[0].patches:
        return _patched(configs, words, console)
    for source in sources.among(configs[0].pins, cache_folder()):
        console.print(str(source), style="bold")
    bugs = sorted(_judged(configs, console), key=lambda bug: bug.cell.scenario)
    return _summed(bugs, console)


def _judged(configs: Sequence[RunConfig], console: Console) -> Iterator[Judged]:
    """Compare each bug's status with that of the newest tested release, and print it at once."""
    for _, cell in find_all(configs):
        subject = catalog.scenario(cell.scenario).subject
        certain = {v: s for v, s in periods.tested(cell.scenario).items() if s.certain}
        newest = next(reversed(certain), "")
        judged = Judged(cell, f"{subject} {newest}", certain.get(newest))
        why = f": {short(cell.reason)}" if judged.back or not cell.status.certain else ""
        console.print(f"  {cell.scenario}: {judged}{why}", style=judged.style)
        yield judged


def _summed(bugs: Sequence[Judged], console: Console) -> int:
    """Print how many bugs are new, unchanged or absent; returns the exit code."""
    back = sum(bug.back for bug in bugs)
    as_before = sum(bug.cell.status is Status.AFFECTED for bug in bugs) - back
    absent = sum(bug.cell.status is Status.NOT_AFFECTED for bug in bugs)
    unclear = len(bugs) - back - as_before - absent
    counts = {
        "not in the newest release": back,
        "as in the newest release": as_before,
        "absent": absent,
        "without an answer": unclear,
    }
    parts = ", ".join(f"{number} {phrase}" for phrase, number in counts.items() if number)
    console.print(f"{count(len(bugs), 'bug')}: {parts}")
    return ExitCode.worst(bug.exit_code for bug in bugs)


def _patched(configs: Sequence[RunConfig], words: Sequence[str], console: Console) -> int:
    """Whether a patch fixes a bug, and what it does to the other bugs of its package."""
    target = configs[0] if len(configs) == 1 else None
    if target:
        _refuse_unpatchable(target)
        configs = [target, *(sibling(target, name, words) for name in siblings(target))]
    configs = [config for config in configs if is_covered(config)]
    before = {c.scenario: c for _, c in find_all([replace(x, patches=()) for x in configs])}
    after = {c.scenario: c for _, c in find_all(configs)}
    for bug, cell in after.items():
        console.print(
            f"  {bug}: {before[bug].status}; with the patch {cell.status}: {short(cell.reason)}"
        )
    broken = [  # there only with the patch, or it can no longer be tested with it
        bug
        for bug, cell in after.items()
        if before[bug].status is Status.NOT_AFFECTED and cell.status is not Status.NOT_AFFECTED
    ]
    if target:
        name = target.scenario
        return _verdict(name, before[name], after[name], [b for b in broken if b != name], console)
    text = f"breaks {', '.join(broken)}" if broken else "breaks nothing"
    console.print(f"the patch {text}")
    return ExitCode.NOT_AS_EXPECTED if broken else ExitCode.AS_EXPECTED


def _refuse_unpatchable(config: RunConfig) -> None:
    """Refuse a bug that no release has, as the variant ``released`` would be right without a patch,
    one of which no release is pinned, and a release that it does not test."""
    name, scenario = config.scenario, catalog.scenario(config.scenario)
    if not scenario.pins:
        raise UserError(
            f"{name} runs what is installed, and patch= changes only a copy of a release that a "
            "scenario pins: install what you have patched, and run it without patch="
        )
    if scenario.variant(BUGGY).defects:
        raise UserError(
            f"no release has {name}, an edit puts it into one: run it with variant={BUGGY}"
        )
    if not is_covered(config):
        raise UserError(f"{name} tests only {scenario.releases}")


def siblings(config: RunConfig) -> list[str]:
    """The other scenarios that pin the package of a scenario: those that do not run what is
    installed, which no patch changes."""
    subject = catalog.scenario(config.scenario).subject
    names = [name for name in catalog.of_package(subject) if name != config.scenario]
    return [name for name in names if subject in catalog.scenario(name).pins]


def sibling(target: RunConfig, name: str, words: Iterable[str]) -> RunConfig:
    """The config of another scenario on the same release of the package."""
    subject = catalog.scenario(target.scenario).subject
    release = {**catalog.scenario(target.scenario).pins, **target.pins}[subject]
    others = [w for w in words if not w.startswith(("pins.", "scenario.", "scenario="))]
    return replace(compose([f"scenario={name}", *others]), pins={subject: release})


def is_covered(config: RunConfig) -> bool:
    """Whether a scenario tests the releases of a config."""
    scenario = catalog.scenario(config.scenario)
    return pins.covers(scenario, pins.complete(scenario, config.pins))


def _verdict(
    name: str, before: Result, after: Result, broken: Sequence[str], console: Console
) -> int:
    """Print whether the patch fixes the bug; returns the exit code."""
    also = f", and breaks {', '.join(broken)}" if broken else ""
    if before.status is not Status.AFFECTED:
        console.print(f"{name}: nothing to fix: without the patch it is {before.status}{also}")
        return ExitCode.USER_MISTAKE if before.status.certain else ExitCode.INCONCLUSIVE
    if not after.status.certain:
        console.print(f"{name}: no answer with the patch: {after.reason}", style="yellow")
        return ExitCode.INCONCLUSIVE
    fixed = after.status is Status.NOT_AFFECTED
    text = "the patch fixes it" if fixed else "the patch does not fix it"
    console.print(f"{name}: {text}{also}", style="green" if fixed and not broken else "red")
    return ExitCode.AS_EXPECTED if fixed and not broken else ExitCode.NOT_AS_EXPECTED
