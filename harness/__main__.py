"""The command line: finds the command and returns its exit code."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import NoReturn

from harness.cli import IN_A_CHECKOUT, USERS, commands, module_of, summary
from harness.system.errors import ExitCode, HarnessError, UserError, unknown
from harness.system.files import ROOT
from harness.system.installation import (
    as_typed,
    install,
    is_checkout,
    refuse_without_checkout,
    repository,
)
from harness.system.text import SCRIPT, complaint, open_streams, print_errors, short, silence, warn

NO_NAME = (errno.ENAMETOOLONG, errno.ELOOP)
"""What the system says of a name that no file can have: somebody typed it."""

INTERRUPTED = 130
"""The exit code after Ctrl-C, as in shells."""

EXTRAS = {"site": ("altair", "vl-convert-python"), "run": ("torch", "numpy", "hydra-core")}
"""Packages that some commands need and that are not installed with the harness, by extra."""
EXTRA_OF = {"altair": "site", "vl_convert": "site", "hydra": "run", "omegaconf": "run"}
"""The extra that has a module."""

DEBUG, DEBUG_VARIABLE = "--debug", "HARNESS_DEBUG"

USAGE = """\
usage: python -m harness COMMAND ...     (COMMAND --help for more; --version)

    python -m harness run scenario=trainer_gas_twice

commands:
{users}

commands for maintainers:
{maintainers}

exit codes: 0 as expected, 1 not as expected, 2 a mistake in the command, 3 inconclusive,
4 unsupported on this machine

--debug or HARNESS_DEBUG=1 prints the traceback of an error
documentation: {address}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. An error is one line on stderr.

    An unexpected exception is inconclusive: it says nothing about a bug.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    # What follows guard is a command, whose own --debug stays.
    ours = arguments.index("guard") + 1 if "guard" in arguments[:2] else len(arguments)
    debug = DEBUG in arguments[:ours] or os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")
    arguments = [word for word in arguments[:ours] if word != DEBUG] + arguments[ours:]
    open_streams()
    signal.signal(signal.SIGTERM, _as_interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # under nohup the command goes on
        signal.signal(signal.SIGHUP, _as_interrupt)
    try:
        return _flushed(_dispatch(arguments))
    except KeyboardInterrupt:
        warn("interrupted; every process of the run was ended")
        return _flushed(INTERRUPTED)
    except SystemExit as exit_request:  # argparse raises it after --help
        return _flushed(ExitCode.INCONCLUSIVE if exit_request.code else ExitCode.AS_EXPECTED)
    except Exception as error:
        if debug:
            print_errors("".join(traceback.format_exception(error)).rstrip())
        if isinstance(error, HarnessError):
            warn(as_typed(str(error)))
            return _flushed(error.exit_code)
        if isinstance(error, OSError) and error.errno in NO_NAME:
            warn(f"{error.strerror}: {short(str(error.filename))}")
            return _flushed(ExitCode.USER_MISTAKE)
        if isinstance(error, FileNotFoundError) and not _has_working_folder():
            warn("the working folder was deleted: change to another one")
            return _flushed(ExitCode.USER_MISTAKE)
        warn(complaint(error) + ("" if debug else f"; {DEBUG} prints the traceback"))
        return _flushed(ExitCode.INCONCLUSIVE)


def _has_working_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _flushed(code: int) -> int:
    """Flush stdout and return the exit code, or 3 if stdout cannot be written."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (``| head``) has left
        silence(sys.stdout)
    except OSError as error:
        silence(sys.stdout)
        warn(f"cannot write to stdout: {complaint(error)}")
        return ExitCode.INCONCLUSIVE
    return code


def _as_interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        usage = USAGE.format(
            users=_listed(USERS), maintainers=_listed(commands(), USERS), address=repository()
        )
        print(as_typed(usage), end="")
        return ExitCode.AS_EXPECTED if arguments else ExitCode.USER_MISTAKE
    command, *words = arguments
    if command == "--version":
        from harness.system.machine import release_of, source

        at = f", commit {commit[:12]}" if (commit := source()["commit"]) else ""
        print(f"{SCRIPT} {release_of(SCRIPT)}{at}")
        return ExitCode.AS_EXPECTED
    if command not in commands():
        raise UserError(unknown("command", command, commands()))
    if command in IN_A_CHECKOUT:
        refuse_without_checkout(command)
    try:
        code: int = _imported(command).main(words)
    except ModuleNotFoundError as error:  # a module that a part of the command needs
        if _top(error) not in EXTRA_OF:
            raise
        raise _missing(command, error) from None
    return code


def _listed(names: Iterable[str], without: Sequence[str] = ()) -> str:
    """Commands with their summaries, one line each."""
    width = max(map(len, commands()))
    return "\n".join(f"  {n:<{width}}  {summary(n)}" for n in names if n not in without)


def _imported(command: str):  # type: ignore[no-untyped-def]
    try:
        return importlib.import_module(module_of(command))
    except ModuleNotFoundError as error:
        if _top(error) in ("harness", "scenarios"):
            raise
        raise _missing(command, error) from None


def _top(error: ModuleNotFoundError) -> str:
    """The missing module, or the package that it is in."""
    return (error.name or "").partition(".")[0]


def _missing(command: str, error: ModuleNotFoundError) -> HarnessError:
    name = _top(error)
    line = f"{command} needs the package {name}, which is not installed: {_way_out(name)}"
    return HarnessError(line)


def _way_out(module: str) -> str:
    """How to install a module that a command lacks."""
    if module in EXTRA_OF:
        return install(*EXTRAS[EXTRA_OF[module]])
    if is_checkout():
        return install("--editable", str(ROOT))
    return "install distributed-bugs again, with its dependencies"


def _leave(code: int) -> NoReturn:
    """End with the exit code, even if a signal arrives now: the verdict is written.

    While Python ends, it restores the default handling of signals, and a late signal would replace
    the exit code.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


if __name__ == "__main__":
    _leave(main())
