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

import json
from collections.abc import Sequence
from pathlib import Path

from harness.bugs import result_file
from harness.bugs.results import Result
from harness.cli import Arguments
from harness.cli._values import day, output_file, whole_number
from harness.cli.watch import configs_of
from harness.publish import confirmations, report_scripts
from harness.publish.confirmations import Confirmation, confirm
from harness.publish.report_scripts import Reproduction
from harness.publish.steps import today
from harness.run.cells import platform_here
from harness.run.run_config import RunConfig
from harness.system.errors import ExitCode, Unsupported, UserError
from harness.system.files import write_whole, writing
from harness.system.installation import refuse_without_checkout, refuse_without_torch
from harness.system.terminal import Progress, terminal
from harness.system.text import count

COUNT = 20


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as to watch")
    parser.add_argument(
        "--count", type=whole_number(1), default=COUNT, help="how many (default: %(default)s)"
    )
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("--reports", action="store_true", help="run report.py, of --count bugs")
    parser.add_argument(
        "--day",
        type=day,
        default=today(),
        help="choose those that are due on this day (default: today)",
    )
    parser.add_argument("--record", action="store_true", help="keep the day in results.jsonl")
    parser.add_argument(
        "--json", type=output_file, metavar="FILE", help="write the results as JSON"
    )
    options = parser.parse_intermixed_args(arguments)
    if options.record:
        refuse_without_checkout("--record")
    if options.reports and options.record:
        raise UserError("--reports has no --record")
    configs = configs_of(options.overrides)
    refuse_without_torch("confirm")
    most = None if options.all else options.count
    if options.reports:
        reproductions = _reproduced(configs, options.day, most)
        _write(options.json, reproductions)
        return ExitCode.worst(report_scripts.EXIT_CODES[each.answer] for each in reproductions)
    reruns = _confirmed(configs, options.day, most)
    _write(options.json, reruns)
    if options.record:
        from harness.cli import pages

        result_file.record(rerun.found for rerun in reruns if rerun.found and not rerun.difference)
        pages.write(sorted({rerun.recorded.scenario for rerun in reruns}))
    return ExitCode.worst(rerun.exit_code for rerun in reruns)


def _write(file: Path | None, results: Sequence[Confirmation | Reproduction]) -> None:
    if file:
        with writing(file, "file"):
            write_whole(file, json.dumps([each.to_json() for each in results], indent=1) + "\n")


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


def _reproduced(configs: Sequence[RunConfig], day: str, most: int | None) -> list[Reproduction]:
    """Run the scripts of the bugs that are drawn, and print what each says."""
    console, reproductions = terminal(), list[Reproduction]()
    recorded = report_scripts.of_scenarios_choice(_recorded(configs))
    cells = report_scripts.drawn(recorded, day, most)
    console.print(f"report.py of {count(len(cells), 'bug')}", style="bold")
    with Progress(console) as progress:
        for reproduction in report_scripts.reproduced(cells):
            reproductions.append(reproduction)
            style = "" if reproduction.answer == report_scripts.AGREES else "red"
            console.print(f"  [{len(reproductions)}/{len(cells)}] {reproduction}", style=style)
            progress.tally(f"{len(reproductions)} of {len(cells)}")
    answers = [each.answer for each in reproductions]
    totals = ", ".join(f"{answers.count(name)} {name}" for name in report_scripts.EXIT_CODES)
    seconds = sum(each.seconds for each in reproductions)
    took = f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{seconds:.0f} s"
    console.print(f"{totals}; the scripts ran for {took}", style="bold")
    return reproductions


def _confirmed(configs: Sequence[RunConfig], day: str, most: int | None) -> list[Confirmation]:
    """Run the results that are due, and print each as it ends."""
    console, cells = terminal(), _recorded(configs)
    due = confirmations.due(cells, day, most or len(cells))
    console.print(f"{len(due)} of {count(len(cells), 'recorded result')}", style="bold")
    reruns = []
    with Progress(console) as progress:
        for rerun in confirm({config.scenario: config for config in configs}, due, progress.tally):
            reruns.append(rerun)
            style = "red" if rerun.exit_code else ""
            console.print(f"  [{len(reruns)}/{len(due)}] {rerun}", style=style)
    differing = sum(bool(rerun.difference) for rerun in reruns)
    failed = sum(rerun.found is None for rerun in reruns)
    confirmed_count = len(reruns) - differing - failed
    tail = f", {failed} could not be run" if failed else ""
    console.print(f"{confirmed_count} as recorded, {differing} differ{tail}", style="bold")
    return reruns
