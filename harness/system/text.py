"""Text from elsewhere, made safe for a terminal. Standard library only.

Records, logs, run folders and exceptions can contain anything. An escape sequence in them could
clear the screen, rename the window or hide a verdict.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TextIO

SCRIPT = "distributed-bugs"
NAME = SCRIPT if Path(sys.argv[0]).name == SCRIPT else "harness"
"""What this program is called: messages begin with the name with which the user started it."""

CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but \t and \n, DEL, C1: ESC, CSI and OSC among them
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"  # the direction of text; unseen ones
    "\ud800-\udfff]"  # halves of a character, which no terminal's encoding has
)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""The errors of a full disk and of a full quota."""
LONGEST = 500
"""Characters of an exception's message that are printed."""


class StrEnum(str, Enum):
    """An enumeration whose members are printed as their values: ``enum.StrEnum`` of Python 3.11."""

    __str__ = str.__str__


def listed(words: Sequence[str]) -> str:
    """Words as a list in a sentence: ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


SHOWN = 3
"""Names that a message lists."""


def several(names: Iterable[str]) -> str:
    """The first names: ``a, b, c and 4 more``."""
    names = list(names)
    remainder = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + remainder


def plain(text: str) -> str:
    r"""The text with control characters, except ``\n`` and ``\t``, as escapes: ``\x1b[2J``."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def harmless(text: str) -> str:
    """The text without commands for a CI service, as names of files and packages are the user's.

    To GitHub, a line that begins with ``::`` and a ``##[`` anywhere are commands, to Azure
    Pipelines ``##vso[`` and ``##[`` anywhere, and to TeamCity ``##teamcity[``.
    """
    text = re.sub(r"(?m)^([^\S\n]*)::", r"\1\::", text)
    return re.sub(r"##(?=\w*\[)", "## ", text)


SECRET = re.compile(
    r"(?<=://)(?:[^\s/?#]*@"  # user:password@
    r"|[^\s/?#]*:(?!\d*(?:[/?#\s]|$))\S*@"  # the same, with a slash in the password
    r"|\S*@(?=[\w-]+(?:\.[\w-]+)+(?::\d+)?/))"  # and a number before it, which is no port
    r"|(?<=/t/)[^\s/]+(?=/)"  # the token of a channel of conda
    r"|(?<=[?&])\w*(?:token|key|password|secret|signature|sig)=[^\s&]+",
    re.IGNORECASE,
)
"""What an address may contain that only its user should know."""


def without_secrets(text: str) -> str:
    """The text without the passwords of addresses, also of those that nobody can parse."""
    return SECRET.sub(lambda match: "***@" if match[0].endswith("@") else "***", text)


def complaint(error: BaseException) -> str:
    """The message of an exception on one line; for an OSError, with its file or folder."""
    if isinstance(error, OSError) and error.strerror:
        paths = [str(p) for p in (error.filename, error.filename2) if p is not None]
        if error.errno in NO_ROOM:
            where = f" for {' -> '.join(paths)}" if paths else ""
            return one_line(f"no room on the disk{where}: free some")
        return one_line(f"{' -> '.join(paths) or type(error).__name__}: {error.strerror}")
    return one_line(f"{type(error).__name__}: {error}".removesuffix(": "))


QUOTED = "\n    | "
"""What begins a line of somebody else's output in a message."""


def unbroken(text: str) -> str:
    r"""A message on one line: control characters and line breaks are escapes, ``\n``.

    Names of files and packages are the user's, and a line that one of them began could be a command
    for a CI service. Only lines that are QUOTED stay, as they begin with a mark of ours.
    """
    parts = (part.replace("\n", "\\n").replace("\t", " ") for part in plain(text).split(QUOTED))
    return QUOTED.join(parts)


def one_line(text: str) -> str:
    """A text on one line without control characters and passwords, cut to LONGEST characters."""
    line = " ".join(plain(without_secrets(text)).split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]} ..."


def short(reason: str, most: int = 100) -> str:
    """The first line of a reason without passwords, cut to ``most`` characters."""
    line = without_secrets((reason.splitlines() or [""])[0])
    return line if len(line) <= most else line[: most - 4] + " ..."


def markdown(text: str) -> str:
    """A docstring's text in Markdown: code between double backticks gets single ones."""
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def markdown_escaped(text: str) -> str:
    """A text from elsewhere as one line of Markdown, without markup."""
    line = " ".join(plain(text).split())
    return re.sub(r"[\\`*<>\[\]]|\b_|_\b", lambda match: f"\\{match[0]}", line)


LINK = re.compile(r"https://[^\s)]+[^\s).,;]")
"""An address in a text, without the punctuation after it."""


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table. In its cells ``|`` is escaped, and a line break becomes a space."""
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    lines = [columns, ["---"] * len(columns), *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def warn(text: str) -> None:
    """Print a message on stderr, if anybody still reads it."""
    print_errors(f"{NAME}: {unbroken(text)}")


def print_errors(text: str) -> None:
    """Print lines on stderr, if anybody still reads them."""
    try:
        print(harmless(plain(text)), file=sys.stderr, flush=True)
    except OSError:
        silence(sys.stderr)


@cache
def warn_once(text: str) -> None:
    """Print a warning only once for each command."""
    warn(text)


def open_streams() -> None:
    """Connect stdin, stdout and stderr to the null device if a shell closed them (``>&-``).

    Otherwise the next file that is opened would get their number, and their output.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
        if number and isinstance(getattr(sys, name), io.TextIOWrapper):
            getattr(sys, name).reconfigure(errors="backslashreplace")


def silence(stream: TextIO) -> None:
    """Connect a stream to the null device, because its reader has left."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def count(number: int, noun: str) -> str:
    """``1 release``, ``2 releases``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
