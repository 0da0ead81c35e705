"""Values of options, for argparse's ``type``: a wrong one is refused when the command line is read,
before anything is started. Each message names the choices."""

from __future__ import annotations

import math
import os.path
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable
from pathlib import Path

from harness.system.days import past_day
from harness.system.errors import UserError
from harness.system.files import refuse_unless_writable, refuse_without_folder
from harness.system.text import short


def day(text: str) -> str:
    """A day (ISO) that is not in the future."""
    try:
        return past_day(text).isoformat()
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def whole_number(least: int = 0, most: int = 1_000_000) -> Callable[[str], int]:
    """A whole number from ``least`` to ``most``."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise ArgumentTypeError(f"{short(text)}: write a whole number from {least} to {most}")
        return value

    return parse


def number(least: float, most: float) -> Callable[[str], float]:
    """A number from ``least`` to ``most``."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:  # also refuses nan
            raise ArgumentTypeError(f"{short(text)}: write a number from {least:g} to {most:g}")
        return value

    return parse


def seconds(text: str) -> float:
    """A number of seconds above 0; ``inf`` is no limit."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0:  # also refuses nan
        raise ArgumentTypeError(f"{short(text)}: write seconds above 0")
    return value


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
