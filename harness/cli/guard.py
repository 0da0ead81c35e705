"""watch a real training on its real ranks, for about one percent of its time

    python -m harness guard torchrun --nproc-per-node 8 train.py
    python -m harness guard --out report --on-alarm stop accelerate launch train.py
    python -m harness guard --check-only torchrun --nproc-per-node 8 train.py

The command runs unchanged. In a few of its steps each rank takes samples of weights and gradients,
and rank 0 compares them. A silent fault, such as a gradient that is not the mean of the ranks', is
one line on stderr. Options before the command are ours, those after it belong to the command.

The same from within a script, without the known bugs: import distributed_bugs;
distributed_bugs.guard()

exit codes: the command's own; 1 if that is 0 and --fail or --on-alarm stop asks for it; 2 a mistake
in the command; 3 if it is 0, --fail was given, and no training was seen. docs/guard.md explains the
alarms.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.cli import Arguments
from harness.cli._values import number, whole_number
from harness.rank.guard import check_table
from harness.rank.guard.reporting.report_files import ALARMS, SUMMARY
from harness.rank.guard.settings import VARIABLE, Settings
from harness.system.errors import ExitCode, Inconclusive, UserError, unknown
from harness.system.files import refuse_unless_creatable, write_whole, writing
from harness.system.text import one_line, print_errors
from harness.training.guard import child, injection
from harness.training.guard.report import DAMAGES, unended

STOP = "stop"
ACTIONS = ("warn", STOP, "command:WORDS")
IN_SCRIPT = "import distributed_bugs; distributed_bugs.guard()"


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    _refuse(words)
    settings = _settings(options)
    if settings.out:
        with writing(Path(settings.out), "--out"):
            Path(settings.out).mkdir(parents=True, exist_ok=True)
    code = injection.code_folder()
    with injection.run_folder(settings) as folder:
        findings = Findings(folder, Path(settings.out or folder))
        ending = child.run(
            words,
            injection.environment(folder, code),
            VARIABLE,
            is_to_stop=lambda: options.on_alarm == STOP and findings.has_alarm(),
        )
        if ending.stopped:
            print_errors("guard: ended the command after this alarm, as --on-alarm stop says")
        if not options.quiet and (last := findings.last_summary()):
            print_errors(f"guard: {last}")
        is_watched = (folder / injection.TRAINING).exists()
        if is_watched and ending.code:
            findings.note_code(ending.code)
            if not (options.quiet or ending.signal):
                print_errors(f"guard: the command ended with code {ending.code}")
        if not is_watched and not ending.signal:
            _say_what_was_not_reached(folder, ending.code)
        is_asked = options.on_alarm == STOP or options.fail
        is_fault = is_asked and (findings.has_alarm() or (options.fail and findings.has_bug()))
    if ending.stopped or (is_fault and not ending.code):
        return ExitCode.NOT_AS_EXPECTED
    if options.fail and not (is_watched or ending.code):
        return ExitCode.INCONCLUSIVE
    return ending.code


def _parser() -> argparse.ArgumentParser:
    parser = Arguments(__name__)
    parser.usage = f"{parser.prog} [options] COMMAND ..."
    add = parser.add_argument
    add(
        "--budget",
        metavar="PERCENT",
        type=number(0.01, 100),
        default=1.0,
        help="the time that all checks together may take (default: 1)",
    )
    add("--every", metavar="N", type=whole_number(1), help="check each N-th step instead")
    add("--checks", metavar="NAMES", type=_checks, default=[], help=", ".join(check_table.NAMES))
    add(
        "--on-alarm",
        metavar="ACTION",
        type=_action,
        default="warn",
        help=f"{', '.join(ACTIONS)} (default: warn)",
    )
    add(
        "--fail",
        action="store_true",
        help="exit code 1 after an alarm or a known bug, and 3 if no training was seen",
    )
    add("--out", metavar="FOLDER", type=_folder, help="for the report")
    add("--quiet", action="store_true", help="print no progress and no summary")
    add("--check-only", action="store_true", help="end the training after one step")
    add("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="what starts the training")
    return parser


def _checks(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in check_table.NAMES:
            raise argparse.ArgumentTypeError(unknown("check", one_line(name), check_table.NAMES))
    return names


def _action(text: str) -> str:
    kind, _, argument = text.partition(":")
    if not (text in ACTIONS[:2] or (kind == "command" and argument.strip())):
        raise argparse.ArgumentTypeError(unknown("action", one_line(text), ACTIONS))
    return text


def _folder(text: str) -> str:
    folder = Path(text).absolute()
    if folder.exists() and not folder.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is not a folder: name a new one, or a folder")
    return str(folder)


def _refuse(words: list[str]) -> None:
    """Raise UserError for what is no command, before anything is started or written."""
    example = "write one like torchrun --nproc-per-node 8 train.py"
    if not words:
        raise UserError(f"the command of the training is missing: {example}")
    name = words[0]
    if shutil.which(name) is None:
        instead = example
        if Path(name).is_file() and os.sep in name:
            instead = "it is a file, but not executable"
        if name.endswith(".py") and Path(name).is_file():
            instead = f"write python {one_line(name)}"
        raise UserError(f"no command '{one_line(name)}': {instead}")


def _settings(options: argparse.Namespace) -> Settings:
    if options.out:
        refuse_unless_creatable(Path(options.out) / ".guard")
    # Ranks that stop alone would make the others wait: the command ends all of them, see child.
    action = "warn" if options.on_alarm == STOP else options.on_alarm
    return Settings(
        budget=options.budget,
        every=options.every or 0,
        checks=options.checks,
        on_alarm=action,
        out=options.out or "",
        quiet=options.quiet,
        check_only=options.check_only,
    )


class Findings:
    """What the ranks of this command tell: files in the folder of the report, which may vanish or
    be full, and one beside the settings."""

    def __init__(self, run: Path, out: Path) -> None:
        self._alarm = run / injection.ALARM
        self._alarms, self._summary = out / ALARMS, out / SUMMARY
        self._before = _version(self._alarms), _version(self._summary)

    def has_alarm(self) -> bool:
        """Whether an alarm came; those of an earlier training may be in the folder."""
        return _version(self._alarm) is not None or _version(self._alarms) not in (
            None,
            self._before[0],
        )

    def last_summary(self) -> str:
        """What rank 0 wrote last, in one line, if it could not write it at the end."""
        is_new = _version(self._summary) not in (None, self._before[1])
        try:
            return unended(self._summary.parent) if is_new else ""
        except Inconclusive as error:
            return str(error)

    def note_code(self, code: int) -> None:
        """Add the command's exit code to the summary: rank 0 may have ended as it should, while
        another rank failed."""
        with suppress(*DAMAGES):  # also if the folder is gone or full
            write_whole(self._summary, json.dumps({**self._new_summary(), "exit_code": code}))

    def has_bug(self) -> bool:
        """Whether the training sets off a known bug for certain."""
        with suppress(*DAMAGES):
            return any(bug["certain"] for bug in self._new_summary().get("known_bugs", []))
        return False

    def _new_summary(self) -> Any:
        """The summary that rank 0 wrote. Raises one of DAMAGES without one that can be read."""
        if _version(self._summary) == self._before[1]:
            raise FileNotFoundError(self._summary)
        return json.loads(self._summary.read_text(encoding="utf-8"))


def _version(file: Path) -> tuple[int, ...] | None:
    """What changes when a file is written; None if there is none."""
    try:
        state = file.stat()
    except OSError:
        return None
    return state.st_ino, state.st_size, state.st_mtime_ns


def _say_what_was_not_reached(folder: Path, code: int) -> None:
    if not (folder / injection.PYTHON).exists():
        print_errors(
            "guard: no training was seen: no Python of this command was reached: python -I, -S and "
            "-E, and commands that set PYTHONPATH, leave guard out. A container needs PYTHONPATH, "
            f"{VARIABLE}, and {folder.parent}, where its user may write. One line in the script "
            f"does the same: {IN_SCRIPT}"
        )
    elif code:
        print_errors(
            f"guard: no training was seen: the command ended with code {code} before an optimizer "
            "of torch took a step"
        )
    else:
        print_errors(
            "guard: no training was seen: no optimizer of torch took a step. If one did, it was in "
            "a Python with -I, -S or -E, or with another PYTHONPATH: there one line in the script "
            f"starts guard: {IN_SCRIPT}"
        )
