"""compute the verdict of a stored run again, without a launch"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.cli import Arguments
from harness.rank.run_folder import RUN_FILE
from harness.run.grade import grade
from harness.run.verdict_text import print_header, print_trial
from harness.system.errors import Inconclusive, UserError
from harness.system.files import read_json
from harness.system.terminal import terminal


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    options = parser.parse_args(arguments)
    folder, console = options.run, terminal()
    run = _run(folder)
    result = grade(folder)
    if options.json:
        console.print_format(json.dumps(result.to_json(), indent=2) + "\n")
        return result.exit_code
    print_header(console, run)
    for trial in result.trials:
        print_trial(console, trial)
    console.print(f"{result.scenario}: {result.verdict}")
    for reason in result.reasons:
        console.print(f"  {reason.splitlines()[0]}")
    return result.exit_code


def _run(folder: Path) -> dict[str, Any]:
    """The content of run.json. Raises UserError, with the newest run folders near this one, if
    there is none, and if it is no record of a run: then the command names the wrong folder."""
    file = folder / RUN_FILE
    if not file.is_file():
        near = folder if folder.is_dir() else folder.parent
        runs = [str(run.parent) for run in sorted(near.glob(f"*/{RUN_FILE}"), reverse=True)[:5]]
        choices = f". Choices: {', '.join(runs)}." if runs else ""
        raise UserError(f"{folder} is not a run folder: it has no {RUN_FILE}{choices}")
    try:
        run = read_json(file)
    except Inconclusive as error:
        raise UserError(str(error)) from None
    if not isinstance(run, dict):
        raise UserError(f"{file} is not the record of a run")
    return run
