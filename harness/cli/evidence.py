"""keep a run as evidence, in the file of its scenario's results

    python -m harness evidence RUN h200x2      # lines of results.jsonl

A line for each trial has the releases, the outcome and the finding, with the day, the machine, the
versions, the commit and the command; paths of the machine are left out.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.bugs import result_file
from harness.cli import Arguments
from harness.rank.run_folder import RUN_FILE
from harness.run.grade import grade, judge
from harness.system.errors import ExitCode, Inconclusive
from harness.system.files import read_json

NEEDED = ("command", "machine", "source", "started")
"""What pages show of a run."""


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("name", help="of the run, such as h200x2")
    options = parser.parse_args(arguments)
    keep(options.run, options.name)
    return ExitCode.AS_EXPECTED


def keep(run_folder: Path, name: str) -> None:
    """Append the trials of a run, under a name, to the results of its scenario.

    The run is graded again. Raises Inconclusive for a folder that is not the record of a run, and
    for trials that contradict each other, which no trial says by itself.
    """
    try:
        content = read_json(run_folder / RUN_FILE)
        command, *_ = [content[part] for part in NEEDED]
        words = [word for word in command.split() if not word.startswith("runs=")]
        result = grade(run_folder)
    except (KeyError, TypeError, AttributeError, IndexError, StopIteration) as error:
        raise Inconclusive(f"{run_folder} is not the record of a run: {error!r}") from None
    if judge(result.trials, list)[0] is not result.verdict:
        raise Inconclusive(f"{run_folder} is {result.verdict}: {result.reasons[0]}")
    result_file.append(
        replace(trial, label=name, command=" ".join(words)) for trial in result.trials
    )
