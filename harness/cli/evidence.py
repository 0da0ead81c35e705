"""keep runs as evidence, in the files of their scenarios' results

    python -m harness evidence RUN... h200x2                      # lines of results.jsonl
    python -m harness evidence RUN... h200x2 --out evidence.jsonl # one file, in a bundle
    python -m harness evidence --import evidence.jsonl            # its lines, into this checkout

A line for each trial has the releases, the outcome and the finding, with the day, the machine, the
versions, the commit and the command; paths of the machine are left out. So are the trials that the
machine could not run.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from harness.bugs import catalog, result_file
from harness.bugs.api.spec import Outcome
from harness.bugs.results import Result
from harness.cli import Arguments
from harness.rank.run_folder import RUN_FILE
from harness.run.grade import grade, judge
from harness.system import lines
from harness.system.errors import ExitCode, Inconclusive, UserError
from harness.system.files import read_json, refuse_unless_creatable, writing
from harness.system.terminal import terminal
from harness.system.text import count

NEEDED = ("command", "machine", "source", "started")
"""What pages show of a run."""


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="run folders, then a name for them")
    parser.add_argument("--out", type=Path, help="write the lines into this new file instead")
    parser.add_argument(
        "--import", dest="files", nargs="+", default=[], type=Path, metavar="FILE", help="of --out"
    )
    options = parser.parse_args(arguments)
    if options.files:
        if options.runs or options.out:
            raise UserError("--import reads files of --out: leave the runs and --out out")
        return _import(options.files)
    if len(options.runs) < 2:
        raise UserError("name at least one run folder, and then the runs, such as h200x2")
    if options.out and options.out.exists():
        raise UserError(f"{options.out} exists: name a new file")
    if options.out:
        refuse_unless_creatable(options.out)
    *folders, name = options.runs
    if not any(os.path.lexists(Path(folder, RUN_FILE)) for folder in folders):
        raise UserError(f"{folders[0]} is not a run folder: it has no {RUN_FILE}")
    return _keep_all([Path(folder) for folder in folders], name, options.out)


def _keep_all(folders: list[Path], name: str, out: Path | None) -> int:
    """Keep each run that can be kept, and name the others."""
    refusals: list[Inconclusive] = []
    trials: list[Result] = []
    for folder in folders:
        try:
            trials += kept_trials(folder, name)
        except Inconclusive as refusal:
            refusals.append(refusal)
    if out is None:
        result_file.append(trials)
    else:
        with writing(out, "--out"):
            lines.append(out, [trial.to_json() for trial in trials])
    scenarios = list(dict.fromkeys(trial.scenario for trial in trials))
    if trials:
        whose = scenarios[0] if len(scenarios) == 1 else count(len(scenarios), "bug")
        file = out or result_file.FILE
        terminal().print(f"{count(len(trials), 'trial')} of {whose}, kept as {name} in {file}")
    if len(folders) > 1:
        terminal().print(f"{len(folders) - len(refusals)} of {len(folders)} runs are kept")
    if refusals:
        raise Inconclusive("; ".join(map(str, refusals)))
    return ExitCode.AS_EXPECTED


def kept_trials(run_folder: Path, name: str) -> list[Result]:
    """The trials of a run as they are kept, under a name.

    The run is graded again. Raises Inconclusive for a folder that is not the record of a run, for a
    run of which nothing ran, and for trials that contradict each other, which no trial says by
    itself.
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
    trials = [trial for trial in result.trials if trial.outcome is not Outcome.UNSUPPORTED]
    if not trials:
        raise Inconclusive(f"{run_folder} is {result.verdict}: {result.reasons[0]}")
    return [replace(trial, label=name, command=" ".join(words)) for trial in trials]


def _import(files: Iterable[Path]) -> int:
    """Append the trials of these files that the checkout does not have yet."""
    trials = [trial for file in files for trial in _read(file)]
    kept = {
        (k.scenario, k.run, k.variant, k.label)
        for scenario in {trial.scenario for trial in trials}
        for k in result_file.read(scenario)
    }
    news = [t for t in trials if (t.scenario, t.run, t.variant, t.label) not in kept]
    result_file.append(news)
    scenarios = len({trial.scenario for trial in news})
    terminal().print(
        f"{len(news)} trials of {scenarios} scenarios are new; {len(trials) - len(news)} were there"
    )
    return ExitCode.AS_EXPECTED


def _read(file: Path) -> list[Result]:
    """The trials of a file of ``--out``. Raises UserError for another file."""
    if not file.is_file():
        raise UserError(f"{file} is not a file")
    try:
        whole_lines, _ = lines.read_from(file, 0)
        trials = [Result.from_json(line) for line in (lines.read(file) if whole_lines else ())]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"{file} is not a file of evidence --out") from None
    if not trials:
        raise UserError(f"{file} is not a file of evidence --out: it has no results")
    for trial in trials:
        if not (trial.label and trial.run):
            raise UserError(f"{file} is not a file of evidence --out: it has a result without name")
        catalog.load(trial.scenario)
    return trials
