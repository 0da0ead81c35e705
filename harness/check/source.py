"""A file that names packages, as text; its format is not known yet."""

from __future__ import annotations

import codecs
import os
import re
import sys
from collections.abc import Callable, Mapping
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from harness.system.documents import LARGEST, json_of, toml_of, yaml_of
from harness.system.errors import UserError
from harness.system.text import short

STDIN, MAPPING, LIST = "standard input", "the mapping", "the list"
INPUTS = {"-": STDIN, "-mapping": MAPPING, "-list": LIST}
"""What messages call standard input; ``distributed_bugs.check`` writes a dict or a list there."""
LONGEST_NAME = 200
"""Characters of a file's name in a message."""

MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
)
"""Byte order marks; UTF-32 comes first, as its mark may begin with that of UTF-16."""


@dataclass(frozen=True)
class PackageFile:
    """A file, or standard input, with its text."""

    name: str
    """For messages: as the user wrote it."""
    path: Path
    """Absolute; relative paths in the text start at its folder."""
    text: str
    chosen: tuple[str, ...] = ()
    """The extras and groups that the user named: ``pyproject.toml[train]``."""


FROM_WEB = "For example: curl -L ADDRESS | distributed-bugs check -r -"


def read(name: str) -> PackageFile:
    """The file with this name; ``-`` is standard input. Raises UserError if it cannot be read."""
    if what := INPUTS.get(name):
        text = _text(what, lambda: nullcontext(sys.stdin.buffer))
        if not text.strip():
            raise UserError(f"{what} is empty")
        return PackageFile(what, Path.cwd() / "-", text)
    if re.match(r"(git|hg|svn|bzr)\+|(ssh|git)://|git@", name):
        raise UserError(
            f"{short(name, LONGEST_NAME)} is a repository, and -r reads a file or a folder: clone "
            "it, and name its folder"
        )
    if re.match(r"[a-z+]+://", name):
        raise UserError(
            f"{short(name, LONGEST_NAME)} is an address, and -r reads a file. {FROM_WEB}"
        )
    if (parts := re.fullmatch(r"(.+)\[([\w.\s,-]*)\]", name)) and not Path(name).exists():
        return replace(read_file(Path(parts[1])), chosen=names_in(parts[2]))
    return read_file(Path(name))


def names_in(text: str) -> tuple[str, ...]:
    """The names in a list of extras: ``train, gpu``."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def read_file(path: Path) -> PackageFile:
    return PackageFile(str(path), path.absolute(), _text(str(path), lambda: path.open("rb")))


PROJECT = (".git", ".hg", "pyproject.toml", "setup.py", "setup.cfg")
"""What only the top folder of a project has."""


def project_of(file: Path) -> Path:
    """The folder in which a file may include others: its project's, otherwise its own."""
    for folder in file.parents:
        if any(os.path.exists(folder / name) for name in PROJECT):
            return folder
    return file.parent


def read_inside(file: Path) -> PackageFile:
    """A file that its folder offers, and nobody named. Raises UserError if it is a link that leads
    out of its project: the author of a repository must not choose which of your files are read."""
    path, root = Path(os.path.realpath(file)), project_of(Path(os.path.abspath(file)))
    if Path(os.path.realpath(root)) not in path.parents:
        raise UserError(f"{file} is a link to {path}, outside of its project: name that with -r")
    return read_file(file)


def content_of(name: str, text: str, kind: str) -> Any:
    """The content of a text in ``JSON``, ``YAML`` or ``TOML``. Raises UserError, with the file's
    name, if it is not valid."""
    try:
        return READERS[kind](text)
    except (ValueError, ConfigParserError) as error:
        why = str(error).partition("\n")[0] if kind == "INI" else error
        raise UserError(f"{name} is not valid {kind}: {why}") from None


def ini_of(text: str) -> ConfigParser:
    """The content of setup.cfg, with one blank between words: ConfigParser takes minutes for
    thousands of them."""
    lines = ((line, " ".join(line.split())) for line in text.split("\n"))
    config = ConfigParser(interpolation=None)
    config.read_string(
        "\n".join(line[: len(line) - len(line.lstrip())] + words for line, words in lines)
    )
    return config


READERS: Mapping[str, Callable[[str], Any]] = {
    **{"JSON": json_of, "YAML": yaml_of, "TOML": toml_of, "INI": ini_of}
}


def _text(name: str, open_file: Callable[[], AbstractContextManager[IO[bytes]]]) -> str:
    """A text in the encoding of its byte order mark, as pip reads it; otherwise in UTF-8."""
    try:
        with open_file() as file:
            content = file.read(LARGEST + 1)  # never all of it: a link may lead to /dev/zero
        if len(content) > LARGEST:
            raise ValueError(f"it has more than {LARGEST:,} bytes")
        mark, encoding = next((m for m in MARKS if content.startswith(m[0])), (b"", "utf-8"))
        return content[len(mark) :].decode(encoding)
    except FileNotFoundError:
        raise UserError(f"no file {short(name, LONGEST_NAME)}") from None
    except OSError as error:
        raise unreadable(name, error) from None
    except ValueError as error:  # not in this encoding, or a null byte in the name
        instead = "; save it as UTF-8" if isinstance(error, UnicodeError) else ""
        raise UserError(f"cannot read {short(name, LONGEST_NAME)}: {error}{instead}") from None


def unreadable(name: str, error: OSError) -> UserError:
    """The error for a file that the system does not open, or whose name it does not take."""
    return UserError(f"cannot read {short(name, LONGEST_NAME)}: {error.strerror}")
