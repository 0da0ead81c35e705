"""test many releases for a bug, each as it was published

    python -m harness matrix scenario=rope_zero_init pins.transformers=4.34:5.23:minor

Releases: 4.34:5.23 (a range, both ends included), all, minor (the last patch of each minor one),
4.34:5.23:minor, or a list of these; two packages make a grid.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness.bugs import catalog
from harness.bugs.api.spec import RELEASED, Verdict
from harness.bugs.pins import TORCH
from harness.bugs.results import Result, Status
from harness.cli import Arguments
from harness.cli._values import output_file, write_json
from harness.releases import releases
from harness.run import command_line
from harness.run.cells import exit_code
from harness.run.executor import find_all
from harness.run.run_config import ALL, RunConfig
from harness.run.verdict_text import COLOURS
from harness.system.errors import UserError, unknown
from harness.system.installation import refuse_without_checkout, refuse_without_torch
from harness.system.terminal import Progress, table, terminal
from harness.system.text import count, short

STYLES = {
    Status.AFFECTED: "red",
    Status.NOT_AFFECTED: "green",
    Status.INCONCLUSIVE: COLOURS[Verdict.INCONCLUSIVE],
    Status.UNSUPPORTED: COLOURS[Verdict.UNSUPPORTED],
}


@dataclass(frozen=True)
class Sweep:
    """The cells to find: every combination of the releases on the axes."""

    base: RunConfig
    axes: Mapping[str, Sequence[str]]
    """The releases, oldest first, of each package that has several."""
    pins: Sequence[Mapping[str, str]]
    """Those of each combination; the last axis changes fastest."""

    @property
    def scenario(self) -> str:
        return self.base.scenario

    def config(self, index: int) -> RunConfig:
        """The config of one cell; its command finds this cell alone."""
        words = [f"pins.{name}={version}" for name, version in self.pins[index].items()]
        command = " ".join([self.base.command, *words])
        return replace(self.base, pins=self.pins[index], command=command)


def sweep_of(command: str, words: Sequence[str]) -> Sweep:
    """The sweep of a command's overrides, with the releases to test in ``pins.NAME=...``.

    Raises UserError for overrides that are not valid.
    """
    ranges, others = {}, []
    for word in words:
        key, sign, value = word.partition("=")
        if (key.startswith("pins.") or key == TORCH) and sign:
            ranges[key.removeprefix("pins.")] = value
        elif key == "variant":
            raise UserError(f"{command} tests releases as published: leave {word} out")
        else:
            others.append(word)
    names = [word.partition("=")[2] for word in others if word.startswith("scenario=")]
    if len(names) != 1 or names[0] == ALL:
        choices = ", ".join(catalog.names())
        raise UserError(f"{command} tests one scenario: scenario=NAME. Choices: {choices}.")
    scenario = catalog.scenario(names[0])
    for name in ranges:
        if name not in scenario.pins:
            raise UserError(unknown("pin of this scenario", name, scenario.pins))
    refuse_without_torch(command)
    base = command_line.compose([*others, f"variant={RELEASED}"])
    axes = {name: releases.chosen(name, value) for name, value in ranges.items()}
    if not axes:
        example = next(iter(scenario.pins), None)
        hint = f", such as pins.{example}=minor" if example else ": this scenario pins none"
        raise UserError(f"{command} needs the releases to test{hint}")
    pins = [dict(zip(axes, each, strict=True)) for each in itertools.product(*axes.values())]
    several = {name: versions for name, versions in axes.items() if len(versions) > 1}
    return Sweep(base, several or axes, pins)


def parser_of(module: str) -> Arguments:
    """The arguments that a sweep and a search have in common."""
    parser = Arguments(module)
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="as to run")
    parser.add_argument("--again", action="store_true", help="test stored releases again")
    parser.add_argument(
        "--record", action="store_true", help="keep the results in the scenario's results.jsonl"
    )
    return parser


def main(arguments: list[str]) -> int:
    parser = parser_of(__name__)
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the cells as JSON")
    options = parser.parse_intermixed_args(arguments)
    if options.record:
        refuse_without_checkout("--record")
    sweep, console = sweep_of("matrix", options.overrides), terminal()
    cells = swept(sweep, console, again=options.again)
    console.print()
    console.print(grid(sweep, cells) if len(sweep.axes) == 2 else rows(sweep, cells))
    console.print(counted(cells))
    write_json(options.json, [cell.of_releases() for cell in cells])
    if options.record:
        from harness.cli import pages

        pages.record(cells)
    return exit_code(cells)


def swept(sweep: Sweep, console: Console, *, again: bool = False) -> list[Result]:
    """The cells of a sweep in its order, each printed as soon as it is known."""
    by_index: dict[int, Result] = {}
    configs = [sweep.config(index) for index in range(len(sweep.pins))]
    cells = count(len(configs), "cell")
    console.print(f"{sweep.scenario}: {cells}, as released", style="bold")
    with Progress(console) as progress:
        if console.is_interactive:
            progress.say("testing")
        for index, cell in find_all(configs, again=again):
            by_index[index] = cell
            pinned = ", ".join(f"{name} {cell.pins[name]}" for name in sweep.axes)
            line = f"  {pinned}: {describe(cell)}  [{len(by_index)}/{len(configs)}]"
            console.print(line, style=STYLES[cell.status])
            if not cell.status.certain and cell.folder and Path(cell.folder).is_dir():
                console.print(f"    {cell.folder}")
    return [by_index[index] for index in sorted(by_index)]


def describe(cell: Result) -> str:
    """The status of a cell, how it was found, and the reason if it is not certain."""
    how = "stored" if cell.stored else f"{cell.seconds:.1f} s" if cell.started else "not run"
    return f"{cell.status}  [{how}]" + ("" if cell.status.certain else f"  {why(cell)}")


def why(cell: Result) -> str:
    """The reason of a cell, without the releases, which its row names."""
    return short(re.sub(r"^(\S+==\S+ )+(?=could not be installed)", "", cell.reason))


def rows(sweep: Sweep, cells: Sequence[Result]) -> Table:
    """A row for each cell."""
    columns = [*sweep.axes, "status", "step", "seconds", "why"]
    lines = [
        [
            *(cell.pins[name] for name in sweep.axes),
            str(cell.status),
            "" if cell.step is None else str(cell.step),
            "stored" if cell.stored else f"{cell.seconds:.1f}" if cell.started else "not run",
            why(cell),
        ]
        for cell in cells
    ]
    return table("", columns, lines)


def grid(sweep: Sweep, cells: Sequence[Result]) -> Table:
    """One package's releases are the rows, the other's are the columns."""
    (down, rows_), (across, columns) = sweep.axes.items()
    status = {(cell.pins[down], cell.pins[across]): str(cell.status) for cell in cells}
    lines = [[row, *(status[row, column] for column in columns)] for row in rows_]
    return table("", [f"{down} \\ {across}", *columns], lines)


def counted(cells: Sequence[Result]) -> str:
    """One line with the number of cells of each status."""
    counts = {status: sum(cell.status is status for cell in cells) for status in Status}
    parts = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
    stored = sum(cell.stored for cell in cells)
    return f"{count(len(cells), 'cell')}: {parts}" + (f" ({stored} stored)" if stored else "")
