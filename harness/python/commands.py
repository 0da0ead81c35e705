"""Starts ``check`` and ``probe`` in a process of their own, and reads their JSON."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from .results import CheckResult, ProbeResult, of_json

HOME = Path(__file__).parents[2]
"""The folder of the package ``harness``."""
START = (
    "import runpy, sys; sys.path[:] = [{home!r}, *filter(None, sys.path)]; "
    "sys.argv[0] = 'distributed-bugs'; runpy.run_module('harness', run_name='__main__')"
)
"""The command, without the working folder on its path."""
MISTAKE = 2
NO_JSON = "leave --json out: the result has its keys"
PROGRESS, PREFIX = "... ", "distributed-bugs: "

PathLike = str | os.PathLike[str]


class Error(Exception):
    """A command ended without a result. The message is the command's, in one line."""

    def __init__(self, message: str, exit_code: int = MISTAKE, log: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        """2: a mistake in the arguments; 3: no answer; 4: this machine cannot do it."""
        self.log = tuple(log)
        """The last lines of your script, if it failed."""


def check(
    packages_or_file: PathLike | Mapping[str, str] | Sequence[str] | None = None,
    *,
    python: PathLike | None = None,
    as_of: str | None = None,
    deepspeed: PathLike | None = None,
    training_args: PathLike | None = None,
    accelerate: PathLike | None = None,
    accepted: PathLike | None = None,
    models: Sequence[str] = (),
    scenarios: Sequence[str] = (),
) -> CheckResult:
    """See ``distributed_bugs.check``."""
    source, text = _source(packages_or_file)
    options = {
        "--python": python,
        "--as-of": as_of,
        "--deepspeed": deepspeed,
        "--training-args": training_args,
        "--accelerate": accelerate,
        "--accepted": accepted,
    }
    words = [f"{name}={os.fspath(value)}" for name, value in options.items() if value is not None]
    words += [f"--model={_text('models', name)}" for name in _listed("models", models)]
    words += [f"scenario={_text('scenarios', name)}" for name in _listed("scenarios", scenarios)]
    content, code = _run(["check", "--json", *source, *words], text)
    return of_json(CheckResult, {**content, "exit_code": code})


def probe(*words: PathLike) -> ProbeResult:
    """See ``distributed_bugs.probe``."""
    return of_json(ProbeResult, content_of_probe(words))


def content_of_probe(words: Sequence[PathLike]) -> dict[str, Any]:
    """The JSON of a probe; raises Error if there is none."""
    texts = [_text("probe", word) for word in words]
    for text in takewhile(lambda text: not os.path.isfile(text), texts):  # before the script
        if text.partition("=")[0] == "--json":
            raise Error(NO_JSON)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page.html")
        content, _ = _run(["probe", "--json", "-", "--html", str(page), *texts])
        html = page.read_text(encoding="utf-8") if page.is_file() else ""  # another file is named
    return {**content, "html": html}


def _source(
    packages_or_file: PathLike | Mapping[str, str] | Sequence[str] | None,
) -> tuple[list[str], str]:
    """The options of ``check`` for what it reads, and its standard input."""
    if packages_or_file is None:
        return [], ""
    if isinstance(packages_or_file, (str, os.PathLike)):
        name = os.fspath(packages_or_file)
        if re.search("[=<>~]", name) and not os.path.exists(name):
            raise Error(f"no file {name}: write packages as a list, [{name!r}], or as a dict")
        return ["-r", name], ""
    if isinstance(packages_or_file, Mapping):
        pairs = packages_or_file.items()
        lines = [f"{name}{v if v[:1] in tuple('=<>~!') else f'=={v}'}" for name, v in pairs]
    else:
        lines = [_text("packages_or_file", line) for line in packages_or_file]
    if not lines:
        raise Error("packages_or_file is empty: name packages, such as ['transformers==5.2.0']")
    return ["-r", "-"], "\n".join(lines)


def _listed(name: str, words: Sequence[str]) -> Sequence[str]:
    if isinstance(words, str):
        raise Error(f"{name}={words!r}: write a list, [{words!r}]")
    return words


def _text(name: str, word: Any) -> str:
    """A word of a command; raises Error for what is neither text nor a path."""
    if not isinstance(word, (str, os.PathLike)):
        raise Error(f"{name}: {word!r} is no text: write {str(word)!r}")
    return os.fspath(word)


def _run(words: Sequence[str], text: str = "") -> tuple[dict[str, Any], int]:
    """The JSON of a command and its exit code; raises Error if it prints none."""
    process = subprocess.Popen(
        [sys.executable, "-c", START.format(home=str(HOME)), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "FORCE_COLOR": ""},  # a notebook's kernel sets it
    )
    try:
        out, err = process.communicate(text)
    except BaseException:  # the command ends its ranks
        process.terminate()
        process.communicate()
        raise
    lines = [line for line in err.splitlines() if not line.startswith(PROGRESS)]
    if not out.strip():
        raise _error(lines, process.returncode)
    for line in lines:
        warnings.warn(line.removeprefix(PREFIX), stacklevel=4)
    try:
        return json.loads(out), process.returncode
    except ValueError:
        raise Error(NO_JSON) from None


def _error(lines: Sequence[str], code: int) -> Error:
    """The last message of a command that ended without a result, and the lines below it."""
    begins = [number for number, line in enumerate(lines) if line.startswith(PREFIX)]
    if not begins:
        return Error(f"exit code {code}", code, lines)
    message, *log = lines[begins[-1] :]
    return Error(message.removeprefix(PREFIX), code, [line.strip() for line in log])
