"""Another interpreter, which is asked for the distributions that it finds."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from harness.check import distributions
from harness.system.errors import Inconclusive, UserError
from harness.system.launch_token import TOKEN, new_token
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

MISSING = """\
import importlib.util, json
absent = [name for name in json.loads(sys.argv[2]) if importlib.util.find_spec(name) is None]
print("\\n" + sys.argv[1] + json.dumps(absent))
"""


def executable(path: Path) -> Path:
    """The interpreter at a path, which may be the folder of a virtual environment."""
    try:
        if path.is_dir():
            python = path / "bin" / "python"
            if not python.exists():
                raise UserError(f"{path} is no environment: it has no bin/python")
            return python
        if path.exists():
            return path
    except OSError as error:
        raise UserError(f"no interpreter {complaint(error)}") from None
    raise UserError(f"no interpreter {path}")


def ask(python: Path, names: Sequence[str], modules: Sequence[str]) -> dict[str, Any]:
    """What ``distributions.described`` returns in another interpreter.

    Starts it, so that its ``sitecustomize`` and ``.pth`` files run; it imports none of its
    packages. ``-E`` ignores PYTHONPATH, which is about this process. Raises Inconclusive if it
    crashes, or does not answer within LIMIT; all its processes are then killed.
    """
    program = Path(distributions.__file__).read_text(encoding="utf-8")
    answer: dict[str, Any] = _asked(python, program, {"names": names, "modules": modules}, "-E")
    return answer


def other_form(python: Path) -> Inconclusive:
    """The error for the answer of a program that is no Python, or that its owner changed."""
    return Inconclusive(f"{python} gives an answer in another form: name a Python with --python")


def missing(python: Path, modules: Sequence[str]) -> list[str]:
    """The modules that another interpreter lacks, with the PYTHONPATH of this process. Imports
    none of them, and raises what ``ask`` raises."""
    answer = _asked(python, MISSING, modules)
    if not isinstance(answer, list):
        raise other_form(python)
    return [str(module) for module in answer]


def _asked(python: Path, program: str, question: object, *options: str) -> Any:
    """The answer of a program in another interpreter: the line with the mark."""
    command = [str(python.absolute()), *options, "-B", "-c", START, program, MARK]
    command.append(json.dumps(question))
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        code = _finished(python, command, output, errors)
        for line in _lines(output):
            if line.startswith(MARK):
                with suppress(ValueError, RecursionError):
                    return json.loads(line[len(MARK) :])
        message = next((line.strip() for line in reversed(_lines(errors)) if line.strip()), "")
    end = f"signal {-code}" if code < 0 else f"exit code {code}"
    why = f"{end}, {short(message or 'no message', 200)}"
    raise Inconclusive(f"{python} gives no answer: {why}")


def _lines(file: IO[bytes]) -> list[str]:
    file.seek(0)
    return file.read().decode(errors="replace").split("\n")


def _finished(python: Path, command: list[str], output: IO[bytes], errors: IO[bytes]) -> int:
    """Wait for the interpreter, end all its processes and return its exit code. It writes to
    files, as a process that it starts could keep a pipe open."""
    from harness.system.processes import end_all  # takes a twentieth of a second

    token = new_token()
    try:
        process = subprocess.Popen(
            command,
            env={**os.environ, TOKEN: token},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
    except OSError as error:
        raise UserError(f"cannot start {python}: {error.strerror}") from None
    try:
        return process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        raise Inconclusive(
            f"{python} does not answer within {LIMIT:g} s: see its sitecustomize and .pth files"
        ) from None
    finally:
        end_all(token)
        process.wait()
