"""run recorded results again, and report those that differ

    python -m harness confirm                        # the 20 that were confirmed longest ago
    python -m harness confirm scenario=bf16_clip,sampler_shards --count 100
    python -m harness confirm --all --record         # hours; keeps the day in results.jsonl
    python -m harness confirm --reports              # report.py of 20 bugs, each on one release

Overrides are as for watch. The exit code is 1 if a result differs, and not only in its numbers.

With --reports each bug's report.py, which shares no code with its scenario, is run on the releases
of one recorded result, drawn by lot. The exit code is 1 if a script contradicts the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console

from harness.bugs.results import Result
from harness.cli import Arguments
from harness.cli._values import whole_number
from harness.cli.watch import configs_of
from harness.publish import confirmations, report_scripts
from harness.publish.confirmations import Confirmation, confirm
from harness.publish.report_scripts import ANSWERS, Reproduction
from harness.publish.steps import today
from harness.run.cells import platform_here
from harness.run.run_config import RunConfig
from harness.system.errors import ExitCode, Unsupported, UserError
from harness.system.installation import refuse_without_checkout, refuse_without_torch
from harness.system.terminal import terminal
from harness.system.text import count

COUNT = 20

R = TypeVar("R", Confirmation, Reproduction)


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as to watch")
    parser.add_argument(
        "--count", type=whole_number(1), default=COUNT, help="how many (default: %(default)s)"
    )
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("--reports", action="store_true", help="run report.py, of --count bugs")
    parser.add_argument("--record", action="store_true", help="keep the day in results.jsonl")
    options = parser.parse_intermixed_args(arguments)
    if options.record:
        refuse_without_checkout("--record")
    if options.reports and options.record:
        raise UserError("--reports has no --record")
    configs = configs_of(options.overrides)
    refuse_without_torch("confirm")
    cells, most = _recorded(configs), None if options.all else options.count
    if options.reports:
        drawn = report_scripts.drawn(report_scripts.of_scenarios_choice(cells), today(), most)
        return _run_scripts(drawn)
    due = confirmations.due(cells, today(), most or len(cells))
    terminal().print(f"{len(due)} of {count(len(cells), 'recorded result')}", style="bold")
    reruns = _confirmed(configs, due)
    if options.record:
        from harness.cli import pages

        pages.record([rerun.found for rerun in reruns if rerun.found and not rerun.difference])
    return ExitCode.worst(rerun.exit_code for rerun in reruns)


def _recorded(configs: Sequence[RunConfig]) -> list[Result]:
    """The recorded results of this platform."""
    surroundings = platform_here(configs[0])
    cells = confirmations.recorded([config.scenario for config in configs], surroundings)
    if not cells:
        lane, python, torch = surroundings
        raise Unsupported(
            f"no result was recorded on {lane} with Python {python} and torch {torch}"
        )
    return cells


def _run_scripts(cells: Sequence[Result]) -> int:
    """Run the scripts of the bugs that were drawn, print what each says, and return the exit
    code."""
    console = terminal()
    console.print(f"report.py of {count(len(cells), 'bug')}", style="bold")
    scripts = _printed(console, len(cells), report_scripts.reproduced(cells))
    answers = [each.answer for each in scripts]
    totals = ", ".join(f"{answers.count(name)} {name}" for name in ANSWERS)
    seconds = sum(each.seconds for each in scripts)
    took = f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{seconds:.0f} s"
    console.print(f"{totals}; the scripts ran for {took}", style="bold")
    return ExitCode.worst(each.exit_code for each in scripts)


def _confirmed(configs: Sequence[RunConfig], due: Sequence[Result]) -> list[Confirmation]:
    """Run the results that are due, and print each as it ends."""
    console, bases = terminal(), {config.scenario: config for config in configs}
    reruns = _printed(console, len(due), confirm(bases, due))
    differing = sum(bool(rerun.difference) for rerun in reruns)
    failed = sum(rerun.found is None for rerun in reruns)
    confirmed_count = len(reruns) - differing - failed
    tail = f", {failed} could not be run" if failed else ""
    console.print(f"{confirmed_count} as recorded, {differing} differ{tail}", style="bold")
    return reruns


def _printed(console: Console, total: int, results: Iterator[R]) -> list[R]:
    """Print each result as it comes; returns all."""
    ended = []
    for result in results:
        ended.append(result)
        style = "red" if result.exit_code else ""
        console.print(f"  [{len(ended)}/{total}] {result}", style=style)
    return ended
