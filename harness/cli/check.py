"""list the bugs that the installed packages have, or those of a file

    python -m harness check
    python -m harness check --python .venv/bin/python
    python -m harness check -r requirements.txt          # or uv.lock, poetry.lock, pylock.toml
    pip freeze | python -m harness check -r -
    python -m harness check --deepspeed ds_config.json   # only what these settings can set off
    python -m harness check -r uv.lock --format sarif:check.sarif --format github
    python -m harness check --run                        # runs each scenario instead

The statuses come from recorded runs; a release that was not tested has the status of its neighbours
if they agree. docs/check.md explains the answer, docs/formats.md the JSON.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.bugs import catalog
from harness.check import accepted as accepted_bugs
from harness.check import check_report, settings_files
from harness.check import environment as stacks
from harness.check.bug_status import (
    BugStatus,
    Checked,
    by_severity,
    outdated,
    recorded,
    with_accepted,
)
from harness.check.check_report import Report
from harness.check.environment import Environment
from harness.check.github import as_markdown, github_annotations
from harness.check.sarif import as_sarif
from harness.check.source import read_file
from harness.cli import Arguments, scenarios_in
from harness.cli._values import day, output_file, refuse_overwriting
from harness.python.commands import OPTIONS
from harness.python.results import Model
from harness.rank.models.heads import SUBJECT, parsed
from harness.system.documents import as_text, json_of
from harness.system.errors import ExitCode, UserError, unknown
from harness.system.files import write_whole, writing
from harness.system.installation import as_typed
from harness.system.terminal import Progress, terminal
from harness.system.text import harmless, listed, short
from harness.training.models.recorded import all_recorded as recorded_models
from harness.training.models.recorded import nearest, up_to

FORMATS: dict[str, Callable[[Report], str]] = {
    "json": lambda report: check_report.as_json(report) + "\n",
    "github": lambda report: as_typed("".join(f"{line}\n" for line in github_annotations(report))),
    "sarif": lambda report: as_typed(as_sarif(report)) + "\n",
    "markdown": lambda report: harmless(as_typed(as_markdown(report))),
}
"""The formats besides text."""
TEXT = "text"
ANY, CERTAIN = "any", "certain"
"""Which bugs make the exit code 1."""
MOST, USUAL = 5, ("torch", "transformers", "accelerate", "deepspeed")
"""Packages that an error lists; of more, it names these."""
LONGEST = 400
"""Characters of the notes in an error."""


def main(arguments: list[str]) -> int:
    options = _parser().parse_intermixed_args(arguments)
    if options.default_requirements and not (options.requirements or options.python):
        options.requirements = [options.default_requirements]
    selection, overrides = _selection(options.overrides)
    if overrides and not options.run:
        raise UserError(f"{overrides[0]} has an effect only with --run")
    if options.unknown and not options.run:
        raise UserError("--unknown has an effect only with --run")
    if options.as_of and not options.requirements:
        raise UserError("--as-of has an effect only with -r")
    _printed_format(options.format)  # refuses two
    models = [_model(word) for word in options.model]
    files = (options.deepspeed, options.training_args, options.accelerate)
    settings = settings_files.read(*files) if any(files) else None
    accepted = accepted_bugs.read(options.accepted)
    names = selection or list(catalog.sound())
    packages = sorted({pin for name in names for pin in catalog.scenario(name).pins})
    environment = _environment(options, sorted({*packages, "torch"}))
    _refuse_nothing(environment, packages)
    inputs = [*(options.requirements or ()), *options.model, environment.file, *environment.files]
    inputs += [*files, *accepted_bugs.files(options.accepted)]
    refuse_overwriting((output.file for output in options.format), inputs)
    bugs = recorded(names, environment, settings)
    if options.run:
        bugs = _with_runs(bugs, environment, overrides, options)
    today = time.strftime("%Y-%m-%d", time.gmtime())
    bugs = with_accepted(bugs, accepted, today)
    notes = list(outdated(bugs, accepted, today))
    broken = {} if selection else catalog.broken()
    report = Report(environment, bugs, broken, settings, notes, _features(models, environment))
    _write(report, options.format, long=options.long or bool(selection))
    failing = [c for c in bugs if options.fail_on == ANY or not report.needs_settings(c)]
    return exit_code(failing, strict=options.strict or bool(broken))


def _parser() -> Arguments:
    parser = Arguments(__name__)
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="scenario=A,B or a package; with --run as to run",
    )
    source = parser.add_mutually_exclusive_group()
    _add(source, "python", type=Path)
    source.add_argument(
        "-r",
        "--requirements",
        action="append",
        metavar="FILE",
        help="a requirements file, pyproject.toml[EXTRA], setup.cfg, environment.yml, a lock file, "
        "the output of conda list --json, a folder, or - for pip freeze; repeatable",
    )
    parser.add_argument(
        "--default-requirements",
        metavar="FILE",
        help="what -r reads if neither -r nor --python is given, for a hook",
    )
    _add(parser, "as_of", type=day)
    _add(parser, "models", dest="model", action="append", default=[])
    for name in ("deepspeed", "training_args", "accelerate", "accepted"):
        _add(parser, name, type=Path)
    parser.add_argument("--run", action="store_true", help="run the scenarios")
    parser.add_argument(
        "--unknown", action="store_true", help="with --run: only where it is unknown"
    )
    parser.add_argument("--long", action="store_true", help="print all that is known of each bug")
    parser.add_argument(
        "--fail-on",
        choices=(ANY, CERTAIN),
        default=ANY,
        help="which bugs make the exit code 1; certain: not those that depend on settings that are "
        "not known (default: %(default)s)",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 3 if a status is unknown")
    parser.add_argument(
        "--format",
        action="append",
        type=_report_output,
        default=[],
        metavar="FORMAT[:FILE]",
        help=f"{', '.join([TEXT, *FORMATS])} (default: text); with :FILE, write the file and print "
        "the text as well; repeatable",
    )
    parser.add_argument(
        "--json",
        action="append_const",
        const=ReportOutput("json"),
        dest="format",
        help="the same as --format json",
    )
    return parser


def _add(parser: argparse._ActionsContainer, argument: str, **details: Any) -> None:
    """Add an option that is also an argument of the Python function ``check``."""
    option, metavar, text = OPTIONS[argument]
    parser.add_argument(option, metavar=metavar, help=text, **details)


@dataclass(frozen=True)
class ReportOutput:
    """A format, and the file to write; without a file it is printed."""

    format: str
    file: Path | None = None


def _report_output(text: str) -> ReportOutput:
    name, colon, file = text.partition(":")
    if name not in (TEXT, *FORMATS):
        raise ArgumentTypeError(unknown("format", short(name), [TEXT, *FORMATS]))
    if not colon:
        return ReportOutput(name)
    if name == TEXT:
        raise ArgumentTypeError("text is printed: leave the file out")
    return ReportOutput(name, output_file(file))


def _printed_format(outputs: Iterable[ReportOutput]) -> str:
    """The format that is printed."""
    names = list(dict.fromkeys(output.format for output in outputs if output.file is None))
    if len(names) > 1:
        other = names[0] if names[1] == TEXT else names[1]
        raise UserError(f"{names[0]} and {names[1]} are both printed: write {other}:FILE")
    return names[0] if names else TEXT


def _selection(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The scenarios that the command names, and the other overrides."""
    for word in words:
        if "=" not in word and (os.path.exists(word) or re.search(r"[./]", word)):
            raise UserError(f"check reads the file or folder of -r: write -r {short(word)}")
        if word.startswith(("variant=", "pins.")) or "=" not in word:
            raise UserError(f"check tests what is installed, or -r FILE: leave {word} out")
    return scenarios_in(words)


def _model(word: str) -> str:
    """The type of a model: the word itself, or the type in a config.json."""
    if not word.endswith(".json"):
        words = {model for one in recorded_models() for model in one.answers}
        models = sorted(words | {parsed(one).model for one in words})
        if word not in models:
            raise UserError(unknown("model", word, models))
        return word
    text = read_file(Path(word)).text
    try:
        return as_text(json_of(text)["model_type"], "model_type")
    except (ValueError, LookupError, TypeError):
        raise UserError(
            f"{short(word)} is no config.json of transformers: it has no model_type"
        ) from None


def _features(models: Sequence[str], environment: Environment) -> list[Model]:
    """The records of these models and their heads for the installed release of transformers, or
    for the newest recorded one before it."""
    if not models:
        return []
    installed = environment.packages.get(SUBJECT)
    older = up_to(installed.public) if installed and installed.public else []
    if not older:
        have = f"{SUBJECT} {installed.public}" if installed and installed.public else SUBJECT
        raise UserError(f"--model: nothing was recorded for {have} or an older release")
    return [
        Model(
            word,
            record.release,
            {r: record.answers[word][r].reason for r in record.wrong_relations(word)},
            word in record.answers,
            tuple(record.untested(word)),
        )
        for model in models
        for word, record in (nearest(older[-1].release, model) or {model: older[-1]}).items()
    ]


def _environment(options: argparse.Namespace, packages: Sequence[str]) -> Environment:
    if options.python:
        return stacks.of_interpreter(options.python, packages)
    if options.requirements:
        return stacks.of_files(options.requirements, packages, options.as_of or "")
    return stacks.of_this_interpreter(packages)


def _refuse_nothing(environment: Environment, names: Sequence[str]) -> None:
    """Refuse an environment without any of the packages that can have one of these bugs: that would
    look like an all-clear. Often it is this tool's own environment."""
    if not environment.packages.keys() - catalog.only_vehicles():
        missing = ", ".join(names)
        if len(names) > MOST:
            usual = [name for name in USUAL if name in names] or names[:MOST]
            missing = f"the {len(names)} packages with known bugs, such as {listed(usual)}"
        notes = short("; ".join(environment.notes), LONGEST)
        raise UserError(
            f"{notes}{'; ' if notes else ''}{environment.where} has none of {missing}: name "
            "another environment with --python, or its requirements with -r"
        )


def _with_runs(
    bugs: Sequence[Checked],
    environment: Environment,
    overrides: Sequence[str],
    options: argparse.Namespace,
) -> list[Checked]:
    """Replace the statuses by those of runs; with ``--unknown``, only the unknown ones."""
    from harness.check import live  # imports what runs need

    statuses = (BugStatus.UNKNOWN,) if options.unknown else RUN_AGAIN
    selection = [checked for checked in bugs if checked.status in statuses]
    if not selection:
        return list(bugs)
    console = terminal(None if _printed_format(options.format) == TEXT else sys.stderr)
    with Progress(console) as progress:
        fresh = live.statuses(selection, environment, overrides, progress)
    return by_severity(fresh.get(checked.scenario, checked) for checked in bugs)


RUN_AGAIN = (BugStatus.AFFECTED, BugStatus.POSSIBLY, BugStatus.UNKNOWN, BugStatus.NOT_AFFECTED)
"""The statuses that ``--run`` finds out again by a run."""


def _write(report: Report, outputs: Sequence[ReportOutput], *, long: bool) -> None:
    """Write the files, and print the format without a file."""
    for output in outputs:
        if output.file is not None:
            with writing(output.file, f"--format {output.format}:FILE"):
                write_whole(output.file, FORMATS[output.format](report))
    console, printed = terminal(), _printed_format(outputs)
    if printed == TEXT:
        for line, style in check_report.text_lines(report, long=long):
            console.print(line, style=style)
    else:
        console.print_format(FORMATS[printed](report))


def exit_code(bugs: Sequence[Checked], *, strict: bool) -> int:
    """1 if the environment has a bug or may have it; with ``strict``, 3 if a status is unknown.
    Accepted bugs do not count."""
    statuses = {checked.status for checked in bugs if checked.counts}
    if statuses & {BugStatus.AFFECTED, BugStatus.POSSIBLY}:
        return ExitCode.NOT_AS_EXPECTED
    unclear = strict and BugStatus.UNKNOWN in statuses
    return ExitCode.INCONCLUSIVE if unclear else ExitCode.AS_EXPECTED
