"""Starts ``check`` and ``probe`` in a process of their own, and reads their JSON."""

from __future__ import annotations

import datetime
import json
import numbers
import os
import re
import reprlib
import subprocess
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
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

OPTIONS = {
    "python": ("--python", "PATH", "another Python or its folder"),
    "as_of": ("--as-of", "DAY", "with -r: what it installs on a day, 2025-03-31"),
    "deepspeed": ("--deepspeed", "FILE", "DeepSpeed's configuration"),
    "training_args": ("--training-args", "FILE", "the Trainer's arguments, as JSON"),
    "accelerate": ("--accelerate", "FILE", "accelerate's YAML"),
    "accepted": (
        "--accepted",
        "FILE",
        "the bugs that you accept (default: distributed-bugs.toml or pyproject.toml here)",
    ),
    "models": (
        "--model",
        "TYPE",
        "a model of transformers, such as llama or bert:masked_lm, or its config.json: says "
        "which of its features are wrong",
    ),
}
"""By the argument of ``check``, the option of the command, its metavar and its help."""
LISTS = ("models", "scenarios")
"""The arguments with several values."""
ARGUMENTS = {
    **dict.fromkeys(("-r/--requirements", "--requirements", "-r"), "packages_or_file"),
    **{option: argument for argument, (option, *_) in OPTIONS.items()},
}
"""By the option of the command, the argument of ``check``: messages name the argument."""
COMMAND = r"'[^']*'|distributed-bugs check .*"
"""What messages say of the command line."""

PathLike = str | os.PathLike[str]


class Error(Exception):
    """A command ended without a result. The message is the command's, in one line."""

    def __init__(self, message: str, exit_code: int = MISTAKE, log: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        """2: a mistake in the arguments; 3: no answer; 4: this machine cannot do it."""
        self.log = tuple(log)
        """The last lines of your script, if it failed."""


def check(packages_or_file: Any = None, **arguments: Any) -> CheckResult:
    """See ``distributed_bugs.check``, which has the same arguments."""
    source, text = _source(packages_or_file)
    words = []
    for name, value in arguments.items():
        option = OPTIONS[name][0] if name in OPTIONS else "scenario"
        values = _listed(name, value) if name in LISTS else [] if value is None else [value]
        words += [f"{option}={_text(name, each)}" for each in values]
    content, code = _run(["check", "--json", *source, *words], text, ARGUMENTS)
    return of_json(CheckResult, {**content, "exit_code": code})


def probe(*words: PathLike) -> ProbeResult:
    """See ``distributed_bugs.probe``. Raises Error if there is no result."""
    texts = [_text("probe", word) for word in words]
    if len(texts) == 1 and len(parts := texts[0].split()) > 1 and not os.path.isfile(texts[0]):
        raise Error(f"write each word by itself: probe({', '.join(map(repr, parts))})")
    for text in takewhile(lambda text: not os.path.isfile(text), texts):  # before the script
        if text.partition("=")[0] == "--json":
            raise Error(NO_JSON)
    content, _ = _run(["probe", "--json", "-", *texts])
    return of_json(ProbeResult, content)


def _source(packages_or_file: Any) -> tuple[list[str], str]:
    """The options of ``check`` for what it reads, and its standard input."""
    name = "packages_or_file"
    if packages_or_file is None:
        return [], ""
    if isinstance(packages_or_file, (str, os.PathLike)):
        file = _text(name, packages_or_file)
        if re.search("[=<>~]", file) and not os.path.exists(file):
            raise Error(f"no file {file}: write packages as a list, [{file!r}], or as a dict")
        return [f"--requirements={file}"], ""
    if isinstance(packages_or_file, Mapping):
        option = "--requirements=-mapping"
        lines = [_pin(*pair) for pair in packages_or_file.items()]
    elif isinstance(packages_or_file, Iterable) and not isinstance(packages_or_file, bytes):
        option = "--requirements=-list"
        lines = [_text(name, line) for line in packages_or_file]
    else:
        raise Error(
            f"{name} is {reprlib.repr(packages_or_file)}: write the path of a file or a folder, a "
            "dict {'transformers': '5.2.0'}, or a list ['transformers==5.2.0']"
        )
    if not lines:
        raise Error(f"{name} is empty: name packages, such as ['transformers==5.2.0']")
    return [option], "\n".join(lines)


def _pin(name: Any, version: Any) -> str:
    """A requirement from an entry of a dict."""
    package = _text("packages_or_file", name)
    if not isinstance(version, str) or not version.strip():
        example = str(version) if isinstance(version, numbers.Number) else "5.2.0"
        raise Error(
            f"packages_or_file: the version of {package} is {reprlib.repr(version)}: write a text, "
            f"such as {example!r} or '>={example}'"
        )
    return f"{package}{version if version[:1] in tuple('=<>~!') else f'=={version}'}"


def _listed(name: str, words: Sequence[str]) -> Sequence[str]:
    if isinstance(words, str):
        raise Error(f"{name}={words!r}: write a list, [{words!r}]")
    if not isinstance(words, Iterable):
        raise Error(f"{name} is {reprlib.repr(words)}: write a list of texts")
    return words


def _text(name: str, word: Any) -> str:
    """A word of a command; raises Error for what is no text, path or day."""
    if isinstance(word, datetime.date):
        return f"{word:%Y-%m-%d}"
    if isinstance(word, numbers.Number):
        raise Error(f"{name}: {word!r} is no text: write {str(word)!r}")
    if not isinstance(word, (str, os.PathLike)):
        raise Error(f"{name}: {reprlib.repr(word)} is no text: write a text or a path")
    text = os.fsdecode(word)
    if "\0" in text:
        raise Error(f"{name}: {text!r} has a null byte: leave it out")
    return text


def _run(
    words: Sequence[str], text: str = "", arguments: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], int]:
    """The JSON of a command and its exit code; raises Error if it prints none. Messages name the
    ``arguments`` of a function instead of the options of the command."""
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
    lines = [_for_python(line, arguments or {}) for line in lines]
    if not out.strip():
        raise _error(lines, process.returncode)
    for line in lines:
        warnings.warn(line.removeprefix(PREFIX), stacklevel=4)
    try:
        return json.loads(out), process.returncode
    except ValueError:
        raise Error(NO_JSON) from None


def _for_python(line: str, arguments: Mapping[str, str]) -> str:
    """A message about options as one about arguments; a command line in it stays."""
    options = "|".join(map(re.escape, arguments))
    if not options or not line.startswith(PREFIX):
        return line
    pattern = rf"{COMMAND}|(?<![\w-])(?:{options})(?![\w-])"
    text = line.removeprefix(PREFIX)
    return PREFIX + re.sub(pattern, lambda match: arguments.get(match[0], match[0]), text)


def _error(lines: Sequence[str], code: int) -> Error:
    """The last message of a command that ended without a result, and the lines below it."""
    begins = [number for number, line in enumerate(lines) if line.startswith(PREFIX)]
    if not begins:
        return Error(f"exit code {code}", code, lines)
    message, *log = lines[begins[-1] :]
    return Error(message.removeprefix(PREFIX), code, [line.strip() for line in log])
