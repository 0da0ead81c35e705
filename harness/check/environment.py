"""An environment: which releases of some packages it has, as an interpreter or files say."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from harness.check import conda, distributions, interpreter, lock_files, requirements, source
from harness.check.installed import EDITABLE, Installed, chosen, described, origin
from harness.check.source import STDIN, Source
from harness.system.errors import Fault, UserError
from harness.upstream.interpreter import Distribution, Interpreter

__all__ = ["Environment", "Installed", "of_files", "of_interpreter", "of_this_interpreter"]


@dataclass(frozen=True)
class Environment:
    """The releases of some packages, and of torch, in an environment."""

    packages: Mapping[str, Installed]
    """By canonical name; only those that were asked for, and torch."""
    where: str
    """For reports: ``requirements.txt``, ``.venv/bin/python (Python 3.11.7)``."""
    complete: bool
    """Whether a package that is not listed is certainly absent. A requirements file may leave out
    what its packages need."""
    interpreter: Interpreter | None = None
    """The interpreter; None for files."""


def of_this_interpreter(names: Iterable[str]) -> Environment:
    """The environment of this process, by its metadata; nothing is imported."""
    here = Path(sys.executable)
    return _of_python(here, here, distributions.described(_wanted(names)))


def of_interpreter(python: Path, names: Iterable[str]) -> Environment:
    """The environment of another interpreter, or of a virtual environment's folder.

    Raises UserError if there is none, and Inconclusive if it crashes or does not answer.
    """
    program = interpreter.executable(python)
    return _of_python(program, program.absolute(), interpreter.ask(program, _wanted(names)))


def _of_python(shown: Path, python: Path, answer: Mapping[str, Any]) -> Environment:
    if shown.is_relative_to(Path.cwd()):
        shown = shown.relative_to(Path.cwd())
    found, version = answer["packages"], answer["python"]
    packages = {name: _installed(name, **one) for name, one in found.items()}
    folders = {n: Distribution(one["versions"][0], one["folder"]) for n, one in found.items()}
    asked = Interpreter(str(python), version, answer["site"], folders)
    return Environment(packages, f"{shown} (Python {version})", True, asked)


def _installed(
    name: str, versions: Sequence[str], direct_url: str | None, source: bool, folder: str
) -> Installed:
    """A package from what ``distributions.found`` says about it."""
    if len(versions) > 1:
        return Installed(
            "", f"its folder has the metadata of {' and '.join(filter(None, versions))}"
        )
    why = origin(direct_url) if direct_url else EDITABLE if source else ""
    return described(name, versions[0], why)


def of_files(files: Sequence[str], names: Iterable[str]) -> Environment:
    """The environment that requirements files describe together, or that one file lists.

    ``-`` is standard input. A list is a lock file of uv or Poetry, pylock.toml, or the output of
    ``conda list --json`` or ``pip freeze``. A requirement without an exact version selects the
    newest release in the package index that it allows; if the index cannot be read, its version is
    unknown. Raises UserError for files that cannot be read or that contradict each other, and
    Inconclusive for a lock file of an unknown version.
    """
    wanted = _wanted(names)
    sources = [source.read(file) for file in dict.fromkeys(files)]
    where = " and ".join(one.name for one in sources)
    lists = [one for one in sources if one.is_json or one.is_toml]
    if lists and len(sources) > 1:
        raise UserError(f"{lists[0].name} lists all packages: give it alone")
    if lists:
        return Environment(_listed(lists[0], wanted), where, complete=True)
    content = requirements.read(sources)
    complete = content.frozen and where == STDIN
    return Environment(_required(content, wanted), where, complete)


def _wanted(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(map(canonicalize_name, [*names, "torch"])))


def _listed(file: Source, names: Sequence[str]) -> dict[str, Installed]:
    """The packages in a file that lists all of an environment."""
    entries = conda.entries(file) if file.is_json else lock_files.entries(file)
    found = {name: [one for one in entries if one.name == name] for name in names}
    where = file.name if file.name == STDIN else file.path.name
    return {name: chosen(where, name, those) for name, those in found.items() if those}


def _required(content: requirements.Requirements, names: Sequence[str]) -> dict[str, Installed]:
    """The packages in requirements files; without a version if the index does not list it."""
    found: dict[str, Installed | None] = {}
    for name in names:
        try:
            found[name] = requirements.selected(name, content)
        except Fault as fault:
            found[name] = Installed("", str(fault))
    return {name: package for name, package in found.items() if package}
