"""print what guard found in a training, again

    python -m harness guard-report report
    python -m harness guard-report report --html report.html
    python -m harness guard-report report --judge

The folder is that of guard --out. --judge needs the posts that guard keeps with --keep-posts: it
judges them again and compares the faults with those of the report.

exit codes: 0; 1 with --judge if the faults are not the same; 2 a mistake in the command; 3 the
report is damaged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from harness.cli import Arguments
from harness.cli._values import output_file
from harness.rank.guard.settings import CHECKS
from harness.system.errors import ExitCode, UserError
from harness.system.files import write_whole, writing
from harness.system.installation import refuse_without_torch
from harness.system.terminal import terminal
from harness.training.guard import html_report
from harness.training.guard import report as reports
from harness.training.guard.injection import SETTINGS


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="of guard --out")
    parser.add_argument("--html", type=output_file, metavar="FILE", help="write a page, too")
    parser.add_argument("--judge", action="store_true", help="judge the stored posts again")
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        raise UserError(f"no folder {options.folder}: name the folder of guard --out")
    report = reports.read(options.folder)
    _print(reports.lines(report))
    if options.html:
        with writing(options.html, "--html"):
            write_whole(options.html, html_report.page(report))
    return _judge(report) if options.judge else ExitCode.AS_EXPECTED


def _judge(report: reports.Report) -> int:
    refuse_without_torch("guard-report --judge")
    from harness.training.guard.judging import judged  # imports torch

    judging = judged(report, _checks(report.folder))
    _print(judging.lines())
    return ExitCode.AS_EXPECTED if judging.is_same else ExitCode.NOT_AS_EXPECTED


def _checks(folder: Path) -> Iterable[str]:
    """The checks that the training had."""
    try:
        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        return settings["checks"] or CHECKS
    except reports.DAMAGES:
        return CHECKS


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        terminal().print(line, markup=False, highlight=False, soft_wrap=True)
