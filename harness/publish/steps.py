"""A nightly, from the index to the changes: its steps in their order.

Each result goes into the history at once. So the next nightly continues one that was killed, and
the report of a nightly is read from the history.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import date, timedelta

from rich.console import Console

from harness.bugs import catalog
from harness.bugs.api.spec import Verdict
from harness.bugs.pins import TORCH
from harness.bugs.results import RunResult
from harness.publish import changes, confirmations, history, selection
from harness.publish.changes import Releases
from harness.publish.history import History
from harness.publish.history_rows import Change, Nightly, NightlyKind, ReleaseResult, ScenarioResult
from harness.publish.selection import ReleaseTest
from harness.releases import index, torches
from harness.releases.index import Release
from harness.releases.sources import Source
from harness.releases.torches import INDEX
from harness.run.cells import platform_here, room
from harness.run.executor import find_all, side_by_side
from harness.run.run_config import SLURM, RunConfig
from harness.run.suite import Done
from harness.system import machine
from harness.system.errors import ExitCode, Fault, Inconclusive
from harness.system.terminal import Progress, terminal

Index = Mapping[str, Sequence[Release] | Fault]
"""The releases of each package, or why they are not known."""


@dataclass
class NightlyState:
    """The state of a nightly; each step adds what the next ones need."""

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
    nightly: Nightly = field(init=False)
    tests: Sequence[ReleaseTest] = ()
    notes: list[str] = field(default_factory=list)
    """Problems with the index, one line each."""
    failed: list[str] = field(default_factory=list)
    """The tests that could not be run, one line each."""
    started: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Summary:
    """The results of a finished nightly."""

    nightly: Nightly
    results: Sequence[ReleaseResult]
    scenarios: Sequence[ScenarioResult]
    """The results of our own scenarios."""
    again: Sequence[ReleaseResult]
    """The results that are not certain, of releases that were tested before."""
    confirmed: int
    """How many recorded results were run again."""
    changes: Sequence[Change]
    notes: Sequence[str]
    releases: Releases
    seconds: float
    exit_code: int


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


def watch(watched: NightlyState) -> Summary:
    """Run one nightly and write it to the history.

    Raises Inconclusive for a day that contradicts the history or the index.
    """
    for step in STEPS:
        step(watched)
    return summary(watched)


def check_the_day(watched: NightlyState) -> None:
    """Refuse a day that contradicts the index, before anything is written."""
    latest = max((r.day for of in _lists(watched.index) for r in of), default="")
    ahead = (date.fromisoformat(watched.day) + timedelta(days=1)).isoformat()
    if latest > ahead:
        raise Inconclusive(
            f"the index has a release of {latest}, but the date of this machine is {watched.day}: "
            "is its clock right?"
        )


def start(watched: NightlyState) -> None:
    """Start the nightly, or continue one that was killed. Recorded results come first."""
    history.add_recorded(watched.history, utc_time())
    reached = bool(_lists(watched.index)) or not watched.index
    facts = {**machine.facts(), "source": machine.source(), "index": reached}
    kind = NightlyKind.NIGHTLY
    watched.nightly = watched.history.start(kind, watched.day, utc_time(), facts)


def add_index(watched: NightlyState) -> None:
    """Add the releases of the index, and report those that were yanked since."""
    releases = [r for of in _lists(watched.index) for r in of if r.day <= watched.day]
    history, nightly = watched.history, watched.nightly
    yanked = changes.of_yanked(releases, _releases(history), history.results())
    kinds = (changes.YANKED, changes.UNLIKE_ITS_RECORD)
    earlier = [change for _, change in history.changes(nightly.id) if change.kind in kinds]
    history.set_changes(nightly, [*earlier, *(c for c in yanked if c not in earlier)])
    history.add_releases(releases)
    watched.notes += list(
        dict.fromkeys(str(f) for f in watched.index.values() if isinstance(f, Fault))
    )
    if watched.notes:
        watched.notes.append("only releases in the history are tested")


def choose(watched: NightlyState) -> None:
    """Select the tests, ordered by release: tests of one release share overlays."""
    history = watched.history
    releases: dict[str, list[Release]] = {}
    for release in history.releases():
        releases.setdefault(release.package, []).append(release)
    nightlies = {nightly.id: nightly for nightly in history.nightlies()}
    tests = [
        test
        for config in _sound(watched.configs)
        for test in selection.tests_of(
            config.scenario,
            releases,
            history.results(scenario=config.scenario),
            nightlies,
            watched.day,
            platform_here(config),
        )
    ]
    watched.tests = sorted(tests, key=lambda t: (t.release.package, t.release.day, t.scenario))


def add_sources(watched: NightlyState) -> None:
    """Select the bugs of each source's package that this commit was not tested for."""
    names = [config.scenario for config in _sound(watched.configs)]
    tests = [t for source in watched.sources for t in selection.of_source(source, names)]
    watched.history.add_releases({test.release for test in tests})
    certain = {result.key for result in watched.history.results() if result.cell.status.certain}
    watched.tests = [
        *watched.tests,
        *(t for t in tests if (t.scenario, t.release.package, t.release.version) not in certain),
    ]


def run_tests(watched: NightlyState) -> None:
    """Run the tests; each result is written as soon as it is known."""
    if not watched.tests:
        return
    bases = {config.scenario: config for config in watched.configs}
    configs = [selection.config(bases[t.scenario], t) for t in watched.tests]
    jobs = configs[0].jobs or min(room(config) for config in configs)

    def failed(number: int, error: Exception) -> None:
        watched.failed.append(f"{_name(watched.tests[number])}: {error}")

    with ExitStack() as stack:
        say = None
        if configs[0].on.where == SLURM:
            say = stack.enter_context(Progress(watched.console)).tally
        cells = stack.enter_context(closing(find_all(configs, jobs=jobs, failed=failed, say=say)))
        for number, cell in cells:
            release, number_of_nightly = watched.tests[number].release, watched.nightly.id
            result = ReleaseResult(number_of_nightly, release.package, release.version, cell)
            watched.history.add_results([result])
            how = "stored" if cell.stored else f"{cell.seconds:.1f} s"
            watched.console.print(f"  {_name(watched.tests[number])}: {cell.status}  [{how}]")


def confirm_recorded(watched: NightlyState) -> None:
    """Run recorded results again, and write differences as changes."""
    history, nightly = watched.history, watched.nightly
    bases = {config.scenario: config for config in _sound(watched.configs)}
    days = {each.id: each.day for each in history.nightlies()}
    confirmed_days = {(name, pins): days[night] for night, name, pins in history.confirmations()}
    most = watched.most - sum(night == nightly.id for night, *_ in history.confirmations())
    cells = [
        cell
        for name, base in bases.items()
        for cell in confirmations.recorded([name], platform_here(base))
    ]
    due = confirmations.due(cells, nightly.day, max(most, 0), confirmed_days)
    if not due:
        return
    with Progress(watched.console) as progress:
        for confirmation in confirmations.confirm(bases, due, progress.tally):
            watched.console.print(f"  {confirmation}")
            if confirmation.found is None:
                watched.failed.append(str(confirmation))
                continue
            history.add_confirmation(nightly, *confirmations.key(confirmation.recorded))
            if confirmation.is_wrong:
                earlier_changes = [change for _, change in history.changes(nightly.id)]
                history.set_changes(nightly, [*earlier_changes, _unlike_its_record(confirmation)])


def _unlike_its_record(confirmation: confirmations.Confirmation) -> Change:
    subject = catalog.scenario(confirmation.recorded.scenario).subject
    return Change(
        changes.UNLIKE_ITS_RECORD,
        confirmation.recorded.scenario,
        subject,
        confirmation.recorded.pins[subject],
        str(confirmation.recorded.status),
        str(confirmation.found and confirmation.found.status),
        f"{confirmation}.",
    )


def run_ours(watched: NightlyState) -> None:
    """Run our own scenarios, buggy and fixed."""
    nightly = watched.nightly
    verdicts = watched.history.verdicts(nightly.id)
    reproduced = {own.scenario for own in verdicts if own.verdict == str(Verdict.REPRODUCED)}
    configs = [config for config in watched.configs if config.scenario not in reproduced]
    if not configs:
        return
    with closing(side_by_side(configs, terminal(io.StringIO()))) as ended_runs:
        for _, ended in ended_runs:
            watched.history.add_verdict(nightly, ended.result, ended.seconds, ended.folder)
            watched.console.print(_own_line(ended))


def find_changes(watched: NightlyState) -> None:
    """Compare the results with the earlier ones, and write the changes."""
    history, nightly = watched.history, watched.nightly
    kinds = (changes.YANKED, changes.UNLIKE_ITS_RECORD)
    written = [change for _, change in history.changes(nightly.id) if change.kind in kinds]
    before = [result for result in history.results() if result.nightly < nightly.id]
    of_releases = changes.of_releases(
        history.results(nightly.id), before, _releases(history), watched.day
    )
    earlier = [earlier for earlier in history.verdicts() if earlier.nightly < nightly.id]
    of_ours = changes.of_ours(history.verdicts(nightly.id), earlier, watched.day)
    history.set_changes(nightly, [*written, *of_releases, *of_ours])


def finish(watched: NightlyState) -> None:
    """Note that the nightly has finished."""
    watched.history.finish(watched.nightly, utc_time())


STEPS: tuple[Callable[[NightlyState], None], ...] = (
    check_the_day,
    start,
    add_index,
    choose,
    add_sources,
    run_tests,
    confirm_recorded,
    run_ours,
    find_changes,
    finish,
)
"""The steps of a nightly."""


def summary(watched: NightlyState) -> Summary:
    """The results of a finished nightly, as the history has them."""
    history, number = watched.history, watched.nightly.id
    (nightly,) = (nightly for nightly in history.nightlies() if nightly.id == number)
    nightly_changes = [change for _, change in history.changes(number)]
    verdicts, results = history.verdicts(number), history.results(number)
    before = {one.key for one in history.results() if one.nightly < number}
    again = [one for one in results if one.key in before and not one.cell.status.certain]
    return Summary(
        nightly,
        results,
        verdicts,
        again,
        sum(night == number for night, *_ in history.confirmations()),
        nightly_changes,
        [*watched.notes, *watched.failed],
        _releases(history),
        time.monotonic() - watched.started,
        _exit_code(watched, verdicts, nightly_changes),
    )


def _exit_code(
    watched: NightlyState, verdicts: Sequence[ScenarioResult], nightly_changes: Sequence[Change]
) -> int:
    """1 if something got worse or a scenario of ours is not as expected; 3 if a test could not run,
    or if no release is known."""
    codes = [verdict.result.exit_code for verdict in verdicts]
    codes = [code for code in codes if code != ExitCode.UNSUPPORTED]
    if changes.worse(nightly_changes):
        codes.append(ExitCode.NOT_AS_EXPECTED)
    no_releases = not watched.nightly.facts["index"] and not watched.history.releases()
    if watched.failed or no_releases:
        codes.append(ExitCode.INCONCLUSIVE)
    return ExitCode.worst(codes)


def _sound(configs: Iterable[RunConfig]) -> list[RunConfig]:
    """The configs of scenarios that can be loaded; the others fail in ``run_ours``."""
    broken = catalog.broken()
    return [config for config in configs if config.scenario not in broken]


def _lists(by_package: Index) -> list[Sequence[Release]]:
    return [of for of in by_package.values() if not isinstance(of, Fault)]


def _releases(history: History) -> dict[tuple[str, str], Release]:
    return {(release.package, release.version): release for release in history.releases()}


def _name(test: ReleaseTest) -> str:
    release = test.release
    return f"{release.package} {release.version} ({release.day}), {test.scenario}"


def _own_line(ended: Done) -> str:
    result: RunResult = ended.result
    why = "; ".join(reason.splitlines()[0] for reason in result.reasons if reason)
    line = f"  {result.scenario}: {result.verdict}  [{ended.seconds:.1f} s]"
    return f"{line}  {why}" if why else line
