"""Values of options, for argparse's ``type``: a wrong one is refused when the command line is read,
before anything is started. Each message names the choices."""

from __future__ import annotations

import json
import math
import os.path
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from harness.system.days import past_day
from harness.system.errors import UserError
from harness.system.files import refuse_unless_writable, refuse_without_folder, write_whole, writing
from harness.system.terminal import terminal
from harness.system.text import short

N = TypeVar("N", int, float)


def day(text: str) -> str:
    """A day (ISO) that is not in the future."""
    try:
        return past_day(text).isoformat()
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def _number(kind: type[N], form: str, least: float, most: float, text: str) -> N:
    with suppress(ValueError):
        if least <= (value := kind(text)) <= most:  # also refuses nan
            return value
    raise ArgumentTypeError(f"{short(text)}: write {form}")


def whole_number(least: int = 0, most: int = 1_000_000) -> Callable[[str], int]:
    """A whole number from ``least`` to ``most``."""
    return partial(_number, int, f"a whole number from {least} to {most}", least, most)


def number(least: float, most: float) -> Callable[[str], float]:
    """A number from ``least`` to ``most``."""
    return partial(_number, float, f"a number from {least:g} to {most:g}", least, most)


seconds = partial(_number, float, "seconds above 0", sys.float_info.min, math.inf)
"""A number of seconds above 0; ``inf`` is no limit."""


def some_of(choices: Iterable[str]) -> Callable[[str], str]:
    """A comma-separated part of some names; their user checks each."""

    def parse(text: str) -> str:
        if not text.strip(", "):
            raise ArgumentTypeError(f"name some of {','.join(choices)}, or leave it out")
        return text

    return parse


STANDARD_OUTPUT = "-"


def output(text: str) -> str:
    """The same as ``output_file``, or standard output, ``-``."""
    return text if text == STANDARD_OUTPUT else str(output_file(text))


def file_in_a_folder(text: str) -> Path:
    """A file in a folder that exists; a history that is only read may be read-only."""
    try:
        refuse_without_folder(Path(text))
    except UserError as error:
        raise ArgumentTypeError(str(error)) from None
    return Path(text)


def output_file(text: str) -> Path:
    """A file that can be written at the end of a long command."""
    try:
        refuse_unless_writable(Path(text))
    except UserError as error:
        raise ArgumentTypeError(str(error)) from None
    return Path(text)


def refuse_overwriting(
    outputs: Iterable[Path | str | None], inputs: Iterable[Path | str | None] = ()
) -> None:
    """Raise UserError for a file of output that is read, too, or that two options name. A device
    or a pipe may be named twice."""
    taken = {os.path.realpath(file): "is read" for file in inputs if file}
    for file in outputs:
        if file in (None, STANDARD_OUTPUT) or (os.path.exists(file) and not os.path.isfile(file)):
            continue
        path = os.path.realpath(file)
        if path in taken:
            raise UserError(f"{file} {taken[path]}: name another file to write")
        taken[path] = "is written for another option"


def write_json(file: Path | str | None, content: Any, lines: Iterable[str] = ()) -> None:
    """Print lines, and write JSON into the file of ``--json``, if it is given. Standard output gets
    the JSON alone."""
    text = json.dumps(content, indent=1) + "\n"
    if file == STANDARD_OUTPUT:
        terminal().print_format(text)
        return
    for line in lines:
        terminal().print(line)
    if file:
        with writing(Path(file), "--json"):
            write_whole(Path(file), text)
