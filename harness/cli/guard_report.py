"""print what guard found in a training, again

    python -m harness guard-report report

The folder is that of guard --out.

exit codes: 0; 2 a mistake in the command; 3 the report is damaged.
"""

from __future__ import annotations

from pathlib import Path

from harness.cli import Arguments
from harness.system.errors import ExitCode, UserError
from harness.system.terminal import terminal
from harness.training.guard import report as reports


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="of guard --out")
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        raise UserError(f"no folder {options.folder}: name the folder of guard --out")
    report = reports.read(options.folder)
    for line in reports.lines(report):
        terminal().print(line, markup=False, highlight=False, soft_wrap=True)
    return ExitCode.AS_EXPECTED
