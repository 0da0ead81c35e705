"""find the releases between which a bug came or went, and test few of them

    python -m harness bisect scenario=rope_zero_init pins.transformers=4.31:5.23

First every n-th release is asked, so that a bug that was fixed and came back is met; then each
stretch whose two ends differ is halved until its ends are neighbours. A release that gives no
answer is stepped round.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from rich.console import Console

from harness.commands import Arguments, pages
from harness.commands.matrix import STYLES, Sweep, asked, said
from harness.errors import ExitCode, Fault, UserError
from harness.machine import cache_folder
from harness.report import Progress, count, terminal
from harness.run_config import RunConfig
from harness.sweep import affected
from harness.sweep.cells import FAULTS, Cell, Status, Streak, ask, overlays_made

Ask = Callable[[int], Status]


@dataclass(frozen=True)
class Flip:
    """Two releases, by their places, that answer differently; all between gave no answer."""

    before: int
    after: int

    @property
    def adjacent(self) -> bool:
        return self.after == self.before + 1


@dataclass(frozen=True)
class Found:
    """What a search came to."""

    flips: tuple[Flip, ...]
    gap: int
    """The most neighbours, between two that agree, that were not asked: a flip and its way back
    would not be seen there."""


class Search:
    """Looks for flips among ``count`` releases, which ``ask`` answers by their place, from 0."""

    def __init__(self, count: int, ask: Ask, apart: int) -> None:
        self.count, self.apart = count, apart
        self.ask = ask
        self.answers: dict[int, Status] = {}

    @property
    def first(self) -> list[int]:
        """The places that are asked in any case: every ``apart``-th one, and the last."""
        return [*range(0, self.count - 1, self.apart), self.count - 1]

    def run(self) -> Found:
        """Ask every ``apart``-th release and the last, then halve between those that differ."""
        for place in self.first:
            self._certain_near(place, -1, self.count)
        flips = []
        for before, after in self._pairs():
            if self.answers[before] is not self.answers[after]:
                flips += self._narrowed(before, after)
        return Found(tuple(flips), max((self._unasked(*pair) for pair in self._pairs()), default=0))

    def _narrowed(self, before: int, after: int) -> list[Flip]:
        """The flip between two releases that differ."""
        middle = self._certain_near((before + after) // 2, before, after)
        if middle is None:
            return [Flip(before, after)]
        if self.answers[middle] is self.answers[before]:
            return self._narrowed(middle, after)
        return self._narrowed(before, middle)

    def _certain_near(self, place: int, low: int, high: int) -> int | None:
        """The release next to ``place``, between ``low`` and ``high``, that has a clear answer."""
        between = sorted(range(low + 1, high), key=lambda other: abs(other - place))
        return next((other for other in between if self._answer(other).certain), None)

    def _answer(self, place: int) -> Status:
        if place not in self.answers:
            self.answers[place] = self.ask(place)
        return self.answers[place]

    def _pairs(self) -> list[tuple[int, int]]:
        """Neighbours among the releases that have a clear answer."""
        clear = sorted(place for place, answer in self.answers.items() if answer.certain)
        return list(itertools.pairwise(clear))

    def _unasked(self, before: int, after: int) -> int:
        if self.answers[before] is not self.answers[after]:
            return 0
        return sum(place not in self.answers for place in range(before + 1, after))


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="as to run")
    parser.add_argument("--again", action="store_true", help="ask anew what is stored")
    parser.add_argument(
        "--record", action="store_true", help="keep the results in the scenario's affected.json"
    )
    parser.add_argument(
        "--apart",
        type=int,
        metavar="N",
        help="first ask every N-th release (default: about the square root of their number)",
    )
    options = parser.parse_intermixed_args(arguments)
    return bisect(
        options.overrides, again=options.again, apart=options.apart, record=options.record
    )


def bisect(
    words: Sequence[str], *, again: bool = False, apart: int | None = None, record: bool = False
) -> int:
    """Find where a scenario's answer flips along one range of releases; the exit code.

    With ``record`` the answers are kept in the repository, see ``affected``.
    """
    sweep, console = asked("bisect", words), terminal()
    if len(sweep.axes) != 1 or len(sweep.configs) < 2:
        raise UserError("bisect needs one package with a range of releases, pins.NAME=A:B")
    ((name, releases),) = sweep.axes.items()
    apart = math.isqrt(len(releases) - 1) + 1 if apart is None else apart
    if apart < 1:
        raise UserError("--apart must be at least 1")
    console.print(
        f"{sweep.scenario}: {name} {releases[0]} to {releases[-1]}, {len(releases)} releases, of "
        f"which first every {apart}.",
        style="bold",
    )
    cells: dict[int, Cell] = {}
    with Progress(console) as progress:
        search = Search(len(releases), _asker(sweep, cells, console, progress, again), apart)
        with overlays_made([sweep.configs[place] for place in search.first], again=again):
            found = search.run()
    _tell(console, name, releases, cells, found)
    if record:
        affected.record(cells.values())
        pages.write([sweep.scenario])
    return (
        ExitCode.AS_EXPECTED
        if any(c.status.certain for c in cells.values())
        else (ExitCode.INCONCLUSIVE)
    )


def _asker(
    sweep: Sweep, cells: dict[int, Cell], console: Console, progress: Progress, again: bool
) -> Ask:
    (name,) = sweep.axes
    streak = Streak()

    def answer(place: int) -> Status:
        config: RunConfig = sweep.configs[place]
        release = sweep.axes[name][place]
        if console.is_terminal:
            progress.say(f"asking {name} {release}")
        cell = ask(config, cache_folder(), again=again)
        cells[place] = cell
        console.print(f"  {name} {release}: {said(cell)}", style=STYLES[cell.status])
        if hint := streak.hint(cell):
            if FAULTS.search(cell.reason):
                raise Fault(hint)
            console.print(f"  {hint}")
        return cell.status

    return answer


def _tell(
    console: Console, name: str, releases: Sequence[str], cells: dict[int, Cell], found: Found
) -> None:
    console.print()
    clear = sorted(place for place, cell in cells.items() if cell.status.certain)
    if not clear:
        console.print("no release gave an answer")
    starts = [clear[0], *(flip.after for flip in found.flips)] if clear else []
    ends = [*(flip.before for flip in found.flips), clear[-1]] if clear else []
    for start, end in zip(starts, ends, strict=True):
        answer = cells[start].status
        mute = [n for n in cells if start < n < end and not cells[n].status.certain]
        but = f", but for {', '.join(releases[n] for n in sorted(mute))}: no answer" if mute else ""
        console.print(
            f"{name} {releases[start]} to {releases[end]}: {answer}{but}", style=STYLES[answer]
        )
    for flip in found.flips:
        between = releases[flip.before + 1 : flip.after]
        doubt = (
            "neighbours: certain"
            if flip.adjacent
            else (f"somewhere between, for {', '.join(between)} gave no answer")
        )
        console.print(
            f"flips from {cells[flip.before].status} to {cells[flip.after].status} between "
            f"{releases[flip.before]} and {releases[flip.after]} ({doubt})"
        )
    console.print(
        f"asked {len(cells)} of {count(len(releases), 'release')}: {_how(cells.values())}"
    )
    if found.gap:
        console.print(
            f"between those that agree up to {count(found.gap, 'neighbour')} went unasked: a "
            "change that was taken back there would not be seen (--apart 1 asks all)"
        )


def _how(cells: Collection[Cell]) -> str:
    """How the cells came by their answers: ``7 by a run, 28 did not start``."""
    stored = sum(cell.stored for cell in cells)
    run = sum(cell.started for cell in cells) - stored
    counts = {"by a run": run, "stored": stored, "did not start": len(cells) - run - stored}
    return ", ".join(f"{number} {how}" for how, number in counts.items() if number)
