"""Another interpreter, asked for the distributions that it finds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import psutil

from harness.check import distributions
from harness.system.errors import Inconclusive, UserError
from harness.system.text import complaint, short

LIMIT = 10.0
"""Seconds within which an interpreter must answer."""

MARK = "distributions: "
"""The beginning of the line with the answer."""

START = """\
import sys
sys.exit("it is older than Python 3.8") if sys.version_info < (3, 8) else None
sys.path[:] = filter(None, sys.path)
exec(sys.argv.pop(1))
"""
"""Removes the working directory from the path, as its files could hide modules; only newer Pythons
have the option ``-P``."""


def executable(given: Path) -> Path:
    """The interpreter at a path, which may be the folder of a virtual environment."""
    try:
        if given.is_dir():
            python = given / "bin" / "python"
            if not python.exists():
                raise UserError(f"{given} is no environment: it has no bin/python")
            return python
        if given.exists():
            return given
    except OSError as error:
        raise UserError(f"no interpreter {complaint(error)}") from None
    raise UserError(f"no interpreter {given}")


def ask(python: Path, names: Sequence[str]) -> dict[str, Any]:
    """What ``distributions.described`` returns in another interpreter.

    Starts it, so that its ``sitecustomize`` and ``.pth`` files run; it imports none of its
    packages. ``-E`` ignores PYTHONPATH, which is about this process. Raises Inconclusive if it
    crashes, or does not answer within LIMIT; all its processes are then killed.
    """
    program = Path(distributions.__file__).read_text(encoding="utf-8")
    command = [str(python.absolute()), "-E", "-B", "-c", START, program, MARK, *names]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        code = _finished(python, command, output, errors)
        answer = _answer(output)
        if answer is None:
            raise Inconclusive(f"{python} gives no answer: {_why(code, errors)}")
    return answer


def _finished(python: Path, command: list[str], output: IO[bytes], errors: IO[bytes]) -> int:
    """The exit code of the interpreter. It writes to files: what it starts could keep a pipe
    open."""
    with _started(python, command, output, errors) as process:
        try:
            return process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise Inconclusive(
                f"{python} does not answer within {LIMIT:g} s: see its sitecustomize and .pth files"
            ) from None


@contextmanager
def _started(
    python: Path, command: list[str], output: IO[bytes], errors: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own; all of the group has ended afterwards."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True
        )
    except OSError as error:
        raise UserError(f"cannot start {python}: {error.strerror}") from None
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, its group, and its descendants in other groups."""
    descendants = []
    if process.poll() is None:
        with suppress(psutil.Error):
            descendants = psutil.Process(process.pid).children(recursive=True)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for one in descendants:
        with suppress(psutil.Error):
            one.kill()
    process.wait()


def _answer(output: IO[bytes]) -> dict[str, Any] | None:
    """The content of the line with the mark; None if there is none."""
    output.seek(0)
    for line in output.read().decode(errors="replace").splitlines():
        if line.startswith(MARK):
            with suppress(ValueError):
                content: dict[str, Any] = json.loads(line[len(MARK) :])
                return content
    return None


def _why(code: int, errors: IO[bytes]) -> str:
    """Why there is no answer: the exit code, and the last line on stderr."""
    errors.seek(0)
    lines = errors.read().decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no message")
    end = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"{end}, {short(last, 200)}"
