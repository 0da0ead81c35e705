"""The commands, a module each; ``main(arguments)`` returns the exit code.

A module's docstring is the command's help, and its first line stands in the list of all commands.
Modules that take long to import are imported by the commands that need them.
"""

from __future__ import annotations

import argparse
import ast
import pkgutil
import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NoReturn

from harness.system.errors import UserError
from harness.system.installation import PROGRAM, as_typed

USERS = (
    "run",
    "list",
    "show",
    "check",
    "probe",
    "models",
    "guard",
    "guard-report",
    "score",
    "matrix",
    "bisect",
    "watch",
    "site",
    "advisories",
    "grade",
)
"""The commands for people who only want to know about bugs; the others are for maintainers."""

IN_A_CHECKOUT = ("admit", "evidence", "lock", "new", "pages")
"""The commands that write into the checkout, or need what only a checkout has."""


@cache
def commands() -> tuple[str, ...]:
    """Every command."""
    modules = (m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
    return tuple(module.replace("_", "-") for module in modules)


def module_of(command: str) -> str:
    """The full name of a command's module."""
    return f"{__name__}.{command.replace('-', '_')}"


def summary(command: str) -> str:
    """What a command does, in one line. Reads its file, and does not import it."""
    file = Path(__path__[0], f"{command.replace('-', '_')}.py")
    source = file.read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
"""The name of a package."""
VERSIONS = re.compile(r"[\w.+!,:-]+")
"""What may be versions. uv would take other words, such as ``1 ./folder``, as more than that."""


class Arguments(argparse.ArgumentParser):
    """A command's arguments, described by its module's docstring; an error is one line."""

    def __init__(self, module: str) -> None:
        super().__init__(
            prog=f"{PROGRAM} {module.rpartition('.')[2].replace('_', '-')}",
            description=as_typed(sys.modules[module].__doc__ or ""),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def scenarios_in(words: Iterable[str]) -> tuple[list[str], list[str]]:
    """The scenarios that ``scenario=A,B`` selects, also by their package; none for all. And the
    other words."""
    from harness.bugs import catalog

    selection: dict[str, None] = {}
    others = []  # not list[str](): a command of this package is called list
    for word in words:
        key, _, value = word.partition("=")
        if key != "scenario":
            others.append(word)
        for name in map(str.strip, value.split(",")) if key == "scenario" else ():
            if name != catalog.ALL:
                selection.update(dict.fromkeys(catalog.selected(name)))
    return [*selection], others


def patches(words: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """The words that are not ``patch=FILE``, and the texts of the patches that are named."""
    from harness.releases.patches import read as read_patch

    others = [word for word in words if not word.startswith("patch=")]
    files = [word.partition("=")[2] for word in words if word.startswith("patch=")]
    return others, tuple(map(read_patch, files))


def pin(word: str, sign: str = "=", like: str = "pins.deepspeed=0.15.4") -> tuple[str, str]:
    """A package and its version from one word; raises UserError if it is not a pin."""
    name, _, version = word.removeprefix("pins.").partition(sign)
    if not (NAME.fullmatch(name) and VERSIONS.fullmatch(version)):
        raise UserError(f"'{word}' is no pin: write one like {like}")
    return name, version


def pins_of(words: Sequence[str], sign: str, like: str) -> dict[str, str]:
    """The version of each package that words pin; raises UserError for a package that is pinned
    twice, as only one of the two versions could count."""
    chosen = dict[str, str]()
    word_of = dict[str, str]()
    for word in words:
        name, version = pin(word, sign, like)
        refuse_twice(word_of, name, word)
        chosen[name] = version
    return chosen


def refuse_twice(word_of: dict[str, str], name: str, word: str) -> None:
    """Note the word that pins a package; raises UserError if another word pins it already."""
    from packaging.utils import canonicalize_name

    before = word_of.setdefault(package := canonicalize_name(name), word)
    if before is not word:
        raise UserError(f"{package} is pinned twice, {before} and {word}: leave one out")
