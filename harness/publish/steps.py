"""A nightly, from the index to the changes: its steps in their order.

The last step writes the nightly into the history. Cells are in the cache before, so after a nightly
that was killed the next one runs no release again.
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
from harness.bugs.pins import TORCH
from harness.publish import changes, history, selection
from harness.publish.history import History, Nightly, ReleaseResult
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
    nightly: Nightly = field(init=False)

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
    names = sorted({pin for c in configs for pin in catalog.scenario(c.scenario).pins})
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
    """Refuse a day that contradicts the history or the index, before anything is run."""
    past = watched.history.nightlies
    if past and watched.day < past[-1].day:
        raise Inconclusive(
            f"{watched.history.file.name} has a nightly of {past[-1].day}, which is later than "
            f"{watched.day}: is this machine's clock right?"
        )
    latest = max((r.day for of in _lists(watched.index) for r in of), default="")
    ahead = (date.fromisoformat(watched.day) + timedelta(days=1)).isoformat()
    if latest > ahead:
        raise Inconclusive(
            f"the index has a release of {latest}, but the date of this machine is {watched.day}: "
            "is its clock right?"
        )


def start(watched: Watch) -> None:
    """Start the nightly."""
    reached = bool(_lists(watched.index)) or not watched.index
    facts = {**machine.facts(), "source": machine.source(), "index": reached}
    watched.nightly = Nightly(watched.day, utc_time(), facts)
    watched.before = [*history.recorded_results(), *watched.history.results()]


def add_index(watched: Watch) -> None:
    """Add the releases of the index."""
    releases = [r for of in _lists(watched.index) for r in of if r.day <= watched.day]
    watched.nightly.releases += watched.history.news(releases)
    faults = (str(fault) for fault in watched.index.values() if isinstance(fault, Fault))
    watched.problems += dict.fromkeys(faults)
    if watched.problems:
        watched.problems.append("only releases in the history are tested")


def choose(watched: Watch) -> None:
    """Select the tests, ordered by release, since tests of one release share overlays; then the
    bugs of each source's package that this commit was not tested for."""
    releases: dict[str, list[Release]] = {}
    for release in watched.history.releases.values():
        releases.setdefault(release.package, []).append(release)
    recorded = list(history.recorded_results())
    tests = [
        test
        for config in watched.configs
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
    names = [config.scenario for config in watched.configs]
    of_sources = [t for source in watched.sources for t in selection.of_source(source, names)]
    watched.nightly.releases += watched.history.news({test.release for test in of_sources})
    certain = {result.key for result in watched.history.results() if result.cell.status.certain}
    for test in of_sources:
        if (test.scenario, test.release.package, test.release.version) not in certain:
            tests.append(test)
    watched.tests = tests


def run_tests(watched: Watch) -> None:
    """Run the tests."""
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
            watched.nightly.add_result(ReleaseResult(package, cell))
            how = "stored" if cell.stored else f"{cell.seconds:.1f} s"
            watched.console.print(f"  {watched.tests[number]}: {cell.status}  [{how}]")


def run_ours(watched: Watch) -> None:
    """Run our own scenarios, buggy and fixed."""
    with closing(side_by_side(watched.configs, terminal(io.StringIO()))) as ended_runs:
        for _, ended in ended_runs:
            watched.nightly.ours[ended.result.scenario] = ended
            line = f"  {ended.result.scenario}: {ended.result.verdict}  [{ended.seconds:.1f} s]"
            watched.console.print(f"{line}  {history.why(ended.result)}".rstrip())


def finish(watched: Watch) -> None:
    """Compare the results with the earlier ones, and write the nightly."""
    nightly, past = watched.nightly, watched.history
    nightly.changes += changes.of_releases(
        nightly.results, watched.before, past.releases, watched.day
    )
    earlier = [done for each in past.nightlies for done in each.ours.values()]
    nightly.changes += changes.of_ours(nightly.ours.values(), earlier, watched.day)
    nightly.ended = utc_time()
    past.append(nightly)


STEPS: tuple[Callable[[Watch], None], ...] = (
    check_the_day,
    start,
    add_index,
    choose,
    run_tests,
    run_ours,
    finish,
)
"""The steps of a nightly."""


def _lists(by_package: Index) -> list[Sequence[Release]]:
    return [of for of in by_package.values() if not isinstance(of, Fault)]
