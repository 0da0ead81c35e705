"""find the releases between which a bug appeared or disappeared, with few tests

    python -m harness bisect scenario=rope_zero_init pins.transformers=4.31:5.23

First every n-th release is tested, so that a bug that was fixed and came back is found. Then each
interval whose ends differ is halved until its ends are neighbours. If the status of a release is
not certain, its neighbours are tested instead.

    python -m harness bisect scenario=sampler_shards pins.accelerate=../accelerate@v0.24.1..v0.25.0

finds the commit instead: of those between two, first both ends are tested, then the middle.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import Console

from harness.bugs import catalog
from harness.bugs import commits as fixes
from harness.bugs.api.spec import RELEASED
from harness.bugs.commits import BugCommit
from harness.bugs.pins import here
from harness.bugs.results import Result, Status
from harness.cli.matrix import STYLES, Sweep, describe, parser_of, sweep_of
from harness.releases import releases, sources
from harness.run import command_line
from harness.run.cells import not_run
from harness.run.executor import find_all
from harness.run.run_config import RunConfig
from harness.system.errors import ExitCode, Inconclusive, UserError, unknown
from harness.system.installation import refuse_without_checkout, refuse_without_torch
from harness.system.machine import cache_folder
from harness.system.terminal import Progress, terminal
from harness.system.text import count

StatusOf = Callable[[int], Status]
"""The status of the release with this index."""


@dataclass(frozen=True)
class Flip:
    """Two releases, by index, whose statuses differ; no release between them has a certain one."""

    before: int
    after: int


@dataclass(frozen=True)
class SearchResult:
    """The result of a search."""

    flips: tuple[Flip, ...]
    gap: int
    """The longest row of untested releases between two with the same status: a bug that came and
    went within it is not found."""


class Search:
    """Finds the flips among ``count`` releases, which have indices from 0."""

    def __init__(self, count: int, status_of: StatusOf, apart: int) -> None:
        self.count, self.apart = count, apart
        self.status_of = status_of
        self.statuses: dict[int, Status] = {}

    @property
    def initial(self) -> list[int]:
        """The releases that are always tested: every ``apart``-th one, and the last."""
        return [*range(0, self.count - 1, self.apart), self.count - 1]

    def run(self) -> SearchResult:
        """Test every ``apart``-th release and the last, then halve between those that differ."""
        for index in self.initial:
            self._certain_near(index, -1, self.count)
        flips = []
        for before, after in self._pairs():
            if self.statuses[before] is not self.statuses[after]:
                flips += self._narrowed(before, after)
        gaps = [
            sum(index not in self.statuses for index in range(before + 1, after))
            for before, after in self._pairs()
            if self.statuses[before] is self.statuses[after]
        ]
        return SearchResult(tuple(flips), max(gaps, default=0))

    def _narrowed(self, before: int, after: int) -> list[Flip]:
        """The flip between two releases that differ."""
        middle = self._certain_near((before + after) // 2, before, after)
        if middle is None:
            return [Flip(before, after)]
        if self.statuses[middle] is self.statuses[before]:
            return self._narrowed(middle, after)
        return self._narrowed(before, middle)

    def _certain_near(self, index: int, low: int, high: int) -> int | None:
        """The release nearest to ``index``, between ``low`` and ``high``, with a certain status."""
        between = sorted(range(low + 1, high), key=lambda other: abs(other - index))
        for other in between:
            if other not in self.statuses:
                self.statuses[other] = self.status_of(other)
            if self.statuses[other].certain:
                return other
        return None

    def _pairs(self) -> list[tuple[int, int]]:
        """Neighbours among the releases with a certain status."""
        certain = sorted(index for index, status in self.statuses.items() if status.certain)
        return list(itertools.pairwise(certain))


def main(arguments: list[str]) -> int:
    parser = parser_of(__name__)
    parser.add_argument(
        "--apart",
        type=int,
        metavar="N",
        help="first test every N-th release (default: about the square root of their number)",
    )
    options = parser.parse_intermixed_args(arguments)
    if options.record:
        refuse_without_checkout("--record")
    words, console = options.overrides, terminal()
    sweep = _commits(words) or sweep_of("bisect", words)
    if len(sweep.axes) != 1 or len(next(iter(sweep.axes.values()))) < 2:
        raise UserError("bisect needs one package with a range of releases, pins.NAME=A:B")
    ((name, releases),) = sweep.axes.items()
    commits = sweep if isinstance(sweep, Commits) else None
    usual = len(releases) if commits else math.isqrt(len(releases) - 1) + 1
    apart = usual if options.apart is None else options.apart
    if apart < 1:
        raise UserError("--apart must be at least 1")
    sample = f"every {apart}th is" if apart < len(releases) else "both ends are"
    console.print(
        f"{sweep.scenario}: {name} {releases[0]} to {releases[-1]}, {len(releases)} "
        f"{'commits' if commits else 'releases'}; {'all are' if apart == 1 else f'first {sample}'} "
        "tested",
        style="bold",
    )
    cells: dict[int, Result] = {}
    with Progress(console) as progress:
        tester = _Tester(sweep, cells, console, progress, options.again)
        search = Search(len(releases), tester.status_of, apart)
        tester.find(search.initial)
        for end in (0, len(releases) - 1) if commits else ():
            if not cells[end].status.certain:
                why = "has no certain status: name another end"
                raise Inconclusive(f"{name} {releases[end]} {why}")
        outcome = search.run()
    _report(console, sweep, cells, outcome)
    changes = _changes(commits, cells, outcome) if commits else []
    for change in changes:
        console.print(str(change), style=STYLES[change.status])
        for line in (change.pull or change.link, *(f"changes {file}" for file in change.files)):
            console.print(f"  {line}")
        if change.skipped:
            commits_before = count(len(change.skipped), "commit")
            console.print(f"  or one of {commits_before} before it, not certain")
    if options.record:
        from harness.cli import pages

        if commits:
            fixes.record(sweep.scenario, changes)
            pages.write([sweep.scenario])
        else:
            pages.record(cells.values())
    certain = any(cell.status.certain for cell in cells.values())
    return ExitCode.AS_EXPECTED if certain else ExitCode.INCONCLUSIVE


def _commits(words: Sequence[str]) -> Commits | None:
    """The sweep over the commits that a pin names; None if no pin does."""
    pins = [word.removeprefix("pins.").partition("=") for word in words if word.startswith("pins.")]
    commit_pins = [(name, value) for name, _, value in pins if sources.is_history(value)]
    if not commit_pins:
        return None
    if len(commit_pins) > 1:
        raise UserError("bisect goes through the commits of one package")
    refuse_without_torch("bisect")
    ((name, value),) = commit_pins
    others = [word for word in words if word != f"pins.{name}={value}"]
    base = command_line.compose([*others, f"variant={RELEASED}"])
    if name not in (pins_of_scenario := catalog.scenario(base.scenario).pins):
        raise UserError(unknown("pin of this scenario", name, pins_of_scenario))
    history = sources.history(name, value, cache_folder())
    short = [commit[: sources.SHORT] for commit in history.commits]
    return Commits(base, {name: short}, (), history)


def _changes(
    commits: Commits, cells: Mapping[int, Result], outcome: SearchResult
) -> list[BugCommit]:
    """The commits of the flips, with what they changed in the files with the bug."""
    history, watched = commits.history, catalog.scenario(commits.scenario).watched
    (package,), changes = commits.axes, []
    for flip in outcome.flips:
        commit = history.commits[flip.after]
        files = [f for f in history.changed(commit) if any(f.endswith(w) for w in watched)]
        skipped = history.commits[flip.before + 1 : flip.after]
        title, day = history.title(commit), history.day(commit)
        status = cells[flip.after].status
        changes.append(BugCommit(package, commit, status, title, day, tuple(files), tuple(skipped)))
    return changes


@dataclass
class _Tester:
    """Finds and prints the cells that a search asks for."""

    sweep: Sweep
    cells: dict[int, Result]
    console: Console
    progress: Progress
    again: bool

    def find(self, indices: Sequence[int]) -> None:
        """Find and print the cells of some releases, as many at once as there is room for."""
        ((name, releases),) = self.sweep.axes.items()
        if self.console.is_interactive:
            label = releases[indices[0]] if len(indices) == 1 else f"{len(indices)} releases"
            self.progress.say(f"testing {name} {label}")
        for index, cell in self._cells_of(indices):
            self.cells[index] = cell
            line = f"  {name} {releases[index]}: {describe(cell)}"
            self.console.print(line, style=STYLES[cell.status])

    def _cells_of(self, indices: Sequence[int]) -> Iterator[tuple[int, Result]]:
        """The cells of some releases; a commit that does not build has an inconclusive one."""
        configs = {}
        for index in indices:
            try:
                configs[index] = self.sweep.config(index)
            except Inconclusive as error:
                yield index, not_run(self.sweep.base, error)
        chosen = list(configs)
        if chosen:
            for at, cell in find_all(list(configs.values()), again=self.again):
                yield chosen[at], cell

    def status_of(self, index: int) -> Status:
        if index not in self.cells:
            self.find([index])
        return self.cells[index].status


def _report(
    console: Console, sweep: Sweep, cells: dict[int, Result], outcome: SearchResult
) -> None:
    ((name, releases),) = sweep.axes.items()
    unit = "commit" if isinstance(sweep, Commits) else "release"
    console.print()
    certain = sorted(index for index, cell in cells.items() if cell.status.certain)
    if not certain:
        console.print(f"no {unit} has a certain status")
    starts = [certain[0], *(flip.after for flip in outcome.flips)] if certain else []
    ends = [*(flip.before for flip in outcome.flips), certain[-1]] if certain else []
    for start, end in zip(starts, ends, strict=True):
        status = cells[start].status
        others = sorted(n for n in cells if start < n < end and not cells[n].status.certain)
        names = ", ".join(releases[n] for n in others)
        note = f" (not certain: {names})" if others else ""
        console.print(
            f"{name} {releases[start]} to {releases[end]}: {status}{note}", style=STYLES[status]
        )
    for flip in outcome.flips:
        between = ", ".join(releases[flip.before + 1 : flip.after])
        where = f"not certain between: {between}" if between else "neighbours"
        console.print(
            f"flips from {cells[flip.before].status} to {cells[flip.after].status} between "
            f"{releases[flip.before]} and {releases[flip.after]} ({where})"
        )
    stored = sum(cell.stored for cell in cells.values())
    ran = sum(cell.started for cell in cells.values()) - stored
    counts = {"ran": ran, "stored": stored, "did not start": len(cells) - ran - stored}
    how = ", ".join(f"{number} {verb}" for verb, number in counts.items() if number)
    console.print(f"tried {len(cells)} of {count(len(releases), unit)}: {how}")
    if outcome.gap:
        console.print(
            f"up to {count(outcome.gap, unit)} in a row between equal ones "
            f"{'was' if outcome.gap == 1 else 'were'} not tested: "
            "a bug that came and went there is not found (--apart 1 tests all)"
        )


@dataclass(frozen=True)
class Commits(Sweep):
    """The commits of a history. All have the dependencies of the last commit's day, so a step
    installs one package."""

    history: sources.CommitRange

    def config(self, index: int) -> RunConfig:
        """The config of a commit. Raises Inconclusive if the commit does not build."""
        (package,), cache = self.axes, cache_folder()
        source = f"{self.history.repository}@{self.history.commits[index]}"
        version = sources.pinned(package, source, cache)
        last = self.history.day(self.history.commits[-1])
        day = self.base.date or releases.settled(last, here()[0])
        return replace(self.base, pins={**self.base.pins, package: version}, date=day)
