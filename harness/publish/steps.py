"""A nightly, from the index to the changes: its steps in their order.

Each result goes into the history at once. So the next nightly continues one that was killed, and
the report of a nightly is read from the history.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import date, timedelta

from rich.console import Console

from harness.bugs import catalog
from harness.bugs.api.spec import Verdict
from harness.bugs.pins import TORCH
from harness.publish import changes, confirmations, history, selection
from harness.publish.history import Change, History, Nightly, ReleaseResult
from harness.publish.selection import ReleaseTest
from harness.releases import index, torches
from harness.releases.index import Release
from harness.releases.sources import Source
from harness.releases.torches import INDEX
from harness.run.cells import platform_here, room
from harness.run.executor import find_all, side_by_side
from harness.run.run_config import RunConfig
from harness.system import machine
from harness.system.errors import ExitCode, Fault, Inconclusive
from harness.system.terminal import Progress, terminal
from harness.system.text import count

Index = Mapping[str, Sequence[Release] | Fault]
"""The releases of each package, or why they are not known."""


@dataclass
class Watch:
    """The state of a nightly that runs, and its results; each step adds what the next ones need."""

    history: History
    day: str
    """The day (ISO), in UTC."""
    configs: Sequence[RunConfig]
    """The config of each scenario: its own pins, the variants buggy and fixed."""
    index: Index
    console: Console
    most: int = 0
    """How many recorded results are run again."""
    sources: Sequence[Source] = ()
    """Checkouts that are tested beside the releases."""
    tests: Sequence[ReleaseTest] = ()
    problems: list[str] = field(default_factory=list)
    """Problems with the index, one line each."""
    failed: list[str] = field(default_factory=list)
    """The tests that could not be run, one line each."""
    before: Sequence[ReleaseResult] = ()
    """The recorded results, and those of earlier nightlies."""
    seconds: float = 0.0

    @property
    def nightly(self) -> Nightly:
        return self.history.newest

    @property
    def again(self) -> list[ReleaseResult]:
        """The results that are not certain, of releases that were tested before."""
        keys = {result.key for result in self.before}
        return [r for r in self.nightly.results if r.key in keys and not r.cell.status.certain]

    @property
    def notes(self) -> list[str]:
        """The notes, and one line for all releases that are still not certain."""
        names = dict.fromkeys(result.cell.scenario for result in self.again)
        releases = count(len(self.again), "release")
        line = f"{releases} tested again, still without a certain status: {', '.join(names)}"
        return [*self.problems, *self.failed, *([line] if names else [])]

    @property
    def exit_code(self) -> int:
        """1 if something got worse or a scenario of ours is not as expected; 3 if a test could not
        run, or if no release is known."""
        codes = [done.result.exit_code for done in self.nightly.ours.values()]
        codes = [code for code in codes if code != ExitCode.UNSUPPORTED]
        if any(change.is_worse for change in self.nightly.changes):
            codes.append(ExitCode.NOT_AS_EXPECTED)
        no_releases = not self.nightly.facts["index"] and not self.history.releases
        if self.failed or no_releases:
            codes.append(ExitCode.INCONCLUSIVE)
        return ExitCode.worst(codes)


def utc_time() -> str:
    """The time, ISO, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def today() -> str:
    """The day, ISO, in UTC, as in the index."""
    return utc_time()[:10]


def read_index(configs: Iterable[RunConfig], console: Console) -> dict[str, list[Release] | Fault]:
    """The releases of every package that the scenarios pin. Torch has only its installed release,
    unless ``TORCH_INDEX`` offers others."""
    broken = catalog.broken()
    names = sorted(
        {
            pin
            for c in configs
            if c.scenario not in broken
            for pin in catalog.scenario(c.scenario).pins
        }
    )
    with Progress(console) as progress:
        progress.say(f"reading the index for {', '.join(names) or 'nothing'}")
        releases = dict(index.releases_of(names))
    if isinstance(of_torch := releases.get(TORCH), list) and INDEX not in os.environ:
        releases[TORCH] = [one for one in of_torch if one.version == torches.installed()]
    return releases


def watch(watched: Watch) -> None:
    """Run one nightly and write it to the history.

    Raises Inconclusive for a day that contradicts the history or the index.
    """
    start_time = time.monotonic()
    for step in STEPS:
        step(watched)
    watched.seconds = time.monotonic() - start_time


def check_the_day(watched: Watch) -> None:
    """Refuse a day that contradicts the index, before anything is written."""
    latest = max((r.day for of in _lists(watched.index) for r in of), default="")
    ahead = (date.fromisoformat(watched.day) + timedelta(days=1)).isoformat()
    if latest > ahead:
        raise Inconclusive(
            f"the index has a release of {latest}, but the date of this machine is {watched.day}: "
            "is its clock right?"
        )


def start(watched: Watch) -> None:
    """Start the nightly, or continue one that was killed."""
    reached = bool(_lists(watched.index)) or not watched.index
    facts = {**machine.facts(), "source": machine.source(), "index": reached}
    watched.history.start(watched.day, utc_time(), facts)
    earlier = [r for nightly in watched.history.nightlies[:-1] for r in nightly.results]
    watched.before = [*history.recorded_results(), *earlier]


def add_index(watched: Watch) -> None:
    """Add the releases of the index, and report those that were yanked since."""
    releases = [r for of in _lists(watched.index) for r in of if r.day <= watched.day]
    history, results = watched.history, [*watched.before, *watched.nightly.results]
    yanked = changes.of_yanked(releases, history.releases, results)
    earlier = _noted(watched)
    history.set_changes([*earlier, *(change for change in yanked if change not in earlier)])
    history.add_releases(releases)
    faults = (str(fault) for fault in watched.index.values() if isinstance(fault, Fault))
    watched.problems += dict.fromkeys(faults)
    if watched.problems:
        watched.problems.append("only releases in the history are tested")


def _noted(watched: Watch) -> list[Change]:
    """The changes that were seen when something was read or run, and are not compared anew."""
    kinds = (changes.YANKED, changes.UNLIKE_ITS_RECORD)
    return [change for change in watched.nightly.changes if change.kind in kinds]


def choose(watched: Watch) -> None:
    """Select the tests, ordered by release, since tests of one release share overlays; then the
    bugs of each source's package that this commit was not tested for."""
    releases: dict[str, list[Release]] = {}
    for release in watched.history.releases.values():
        releases.setdefault(release.package, []).append(release)
    recorded, configs = list(history.recorded_results()), _sound(watched.configs)
    tests = [
        test
        for config in configs
        for test in selection.tests_of(
            config.scenario,
            releases,
            recorded,
            watched.history.nightlies,
            watched.day,
            platform_here(config),
        )
    ]
    tests.sort(key=lambda t: (t.release.package, t.release.day, t.scenario))
    names = [config.scenario for config in configs]
    of_sources = [t for source in watched.sources for t in selection.of_source(source, names)]
    watched.history.add_releases({test.release for test in of_sources})
    certain = {result.key for result in watched.history.results() if result.cell.status.certain}
    for test in of_sources:
        if (test.scenario, test.release.package, test.release.version) not in certain:
            tests.append(test)
    watched.tests = tests


def run_tests(watched: Watch) -> None:
    """Run the tests; each result is written as soon as it is known."""
    if not watched.tests:
        return
    bases = {config.scenario: config for config in watched.configs}
    configs = [selection.config(bases[t.scenario], t) for t in watched.tests]
    jobs = configs[0].jobs or min(room(config) for config in configs)

    def failed(number: int, error: Exception) -> None:
        watched.failed.append(f"{watched.tests[number]}: {error}")

    with closing(find_all(configs, jobs=jobs, failed=failed)) as cells:
        for number, cell in cells:
            package = watched.tests[number].release.package
            watched.history.add_result(ReleaseResult(package, cell))
            how = "stored" if cell.stored else f"{cell.seconds:.1f} s"
            watched.console.print(f"  {watched.tests[number]}: {cell.status}  [{how}]")


def confirm_recorded(watched: Watch) -> None:
    """Run recorded results again, and write differences as changes."""
    history, nightly = watched.history, watched.nightly
    bases = {config.scenario: config for config in _sound(watched.configs)}
    days = {key: each.day for each in history.nightlies for key in each.confirmed}
    cells = [
        cell
        for name, base in bases.items()
        for cell in confirmations.recorded([name], platform_here(base))
    ]
    most = max(watched.most - len(nightly.confirmed), 0)
    due = confirmations.due(cells, nightly.day, most, days)
    if not due:
        return
    for confirmation in confirmations.confirm(bases, due):
        watched.console.print(f"  {confirmation}")
        if confirmation.found is None:
            watched.failed.append(str(confirmation))
            continue
        history.add_confirmation(*confirmations.key(confirmation.recorded))
        if confirmation.is_wrong:
            history.set_changes([*nightly.changes, _unlike_its_record(confirmation)])


def _unlike_its_record(confirmation: confirmations.Confirmation) -> Change:
    recorded = confirmation.recorded
    subject = catalog.scenario(recorded.scenario).subject
    return Change(
        changes.UNLIKE_ITS_RECORD,
        recorded.scenario,
        subject,
        recorded.pins[subject],
        str(recorded.status),
        str(confirmation.found and confirmation.found.status),
        f"{confirmation}.",
    )


def run_ours(watched: Watch) -> None:
    """Run our own scenarios, buggy and fixed, but those that this nightly has reproduced."""
    ours = watched.nightly.ours
    configs = [
        config
        for config in watched.configs
        if config.scenario not in ours
        or ours[config.scenario].result.verdict is not Verdict.REPRODUCED
    ]
    if not configs:
        return
    with closing(side_by_side(configs, terminal(io.StringIO()))) as ended_runs:
        for _, ended in ended_runs:
            watched.history.add_verdict(ended)
            line = f"  {ended.result.scenario}: {ended.result.verdict}  [{ended.seconds:.1f} s]"
            watched.console.print(f"{line}  {history.why(ended.result)}".rstrip())


def finish(watched: Watch) -> None:
    """Compare the results with the earlier ones, write the changes, and end the nightly."""
    nightly, releases = watched.nightly, watched.history.releases
    of_releases = changes.of_releases(nightly.results, watched.before, releases, watched.day)
    earlier = [done for each in watched.history.nightlies[:-1] for done in each.ours.values()]
    of_ours = changes.of_ours(nightly.ours.values(), earlier, watched.day)
    watched.history.set_changes([*_noted(watched), *of_releases, *of_ours])
    watched.history.finish(utc_time())


STEPS: tuple[Callable[[Watch], None], ...] = (
    check_the_day,
    start,
    add_index,
    choose,
    run_tests,
    confirm_recorded,
    run_ours,
    finish,
)
"""The steps of a nightly."""


def _sound(configs: Iterable[RunConfig]) -> list[RunConfig]:
    """The configs of scenarios that can be loaded; the others fail in ``run_ours``."""
    broken = catalog.broken()
    return [config for config in configs if config.scenario not in broken]


def _lists(by_package: Index) -> list[Sequence[Release]]:
    return [of for of in by_package.values() if not isinstance(of, Fault)]
