"""An environment: which releases of some packages it has, as an interpreter or files say."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from harness.bugs.packages import import_name
from harness.bugs.pins import Distribution, Interpreter
from harness.check import distributions, interpreter, project_folders, requirements, source
from harness.check.formats import Declaration, Listing
from harness.check.installed import (
    EDITABLE,
    LEFT_OUT,
    Installed,
    Unknown,
    chosen,
    described,
    merged,
    recorded,
)
from harness.check.project_folders import Selection
from harness.check.resolution_store import Resolution
from harness.check.resolver import resolve
from harness.check.source import INPUTS, MAPPING, STDIN
from harness.check.synonyms import PUBLISHED, Published, forked, named_in, unrecorded_libraries
from harness.releases import index
from harness.system.errors import Fault, UserError
from harness.system.text import count, listed

SHOWN = 5
"""Notes of one kind that are printed."""


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
    notes: tuple[str, ...] = ()
    """What the user should know of how files were read, a line each."""
    file: str = ""
    """The first file that was read, if it is one."""
    lines: Mapping[str, str] = field(default_factory=dict)
    """Where files name packages: ``requirements.txt, line 3``."""
    files: frozenset[Path] = frozenset()
    """All files that were read."""
    python: str = ""
    """The Python for which releases were chosen, ``3.8``; empty for ours, or if it is not known."""

    def fits(self, package: str, release: str) -> bool:
        """Whether a release may be installed with that Python, as far as the index says."""
        if not self.python:
            return True
        try:
            releases = index.releases(package)
        except Fault:
            return True
        minor = int(self.python.partition(".")[2])
        return any(one.fits(minor) for one in releases if Version(one.version) == Version(release))


def of_this_interpreter(names: Iterable[str]) -> Environment:
    """The environment of this process, by its metadata; nothing is imported."""
    python = Path(sys.executable)
    packages, modules = _question(names)
    return _of_python(python, python, distributions.described(packages, modules), modules)


def of_interpreter(python: Path, names: Iterable[str]) -> Environment:
    """The environment of another interpreter, or of a virtual environment's folder.

    Raises UserError if there is none, and Inconclusive if it crashes or does not answer.
    """
    program = interpreter.executable(python)
    packages, modules = _question(names)
    answer = interpreter.ask(program, packages, list(modules))
    try:
        return _of_python(program, program.absolute(), answer, modules)
    except (AttributeError, LookupError, TypeError, ValueError):
        raise interpreter.other_form(program) from None


def _of_python(
    program: Path, python: Path, answer: Mapping[str, Any], modules: Mapping[str, str]
) -> Environment:
    """``modules`` are those that the interpreter was asked about, each with its package."""
    if program.is_relative_to(Path.cwd()):
        program = program.relative_to(Path.cwd())
    libraries = answer["packages"].keys() & unrecorded_libraries()
    records = {name: one for name, one in answer["packages"].items() if name not in libraries}
    installed = {name: _installed(name, **record) for name, record in records.items()}
    forks = {
        name: (described(release), Published(modules[module], f"it installs {module}"))
        for module, owners in answer["owners"].items()
        for name, release in owners.items()
        if name not in (modules[module], *PUBLISHED)
    }
    installed.update((name, package) for name, (package, _) in forks.items())
    packages = merged(installed, {name: copy for name, (_, copy) in forks.items()})
    folders = {
        n: Distribution(record["versions"][0], record["folder"]) for n, record in records.items()
    }
    where = f"{program} (Python {answer['python']})"
    interpreter = Interpreter(str(python), answer["python"], answer["site"], folders)
    notes = (*_of_unknown_origin(packages), *_unrecorded(libraries))
    return Environment(packages, where, True, interpreter, notes)


def _question(names: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """The packages that an interpreter is asked about, and the modules, each with its package."""
    packages = _all_names(names)
    modules = {import_name(name): name for name in packages if name not in PUBLISHED}
    return [*packages, *unrecorded_libraries()], modules


def _installed(
    name: str, versions: Sequence[str], direct_url: str | None, source: bool, folder: str
) -> Installed:
    """A package from what ``distributions.packages`` says about it."""
    if len(versions) > 1:
        return Unknown(f"its folder has the metadata of {' and '.join(filter(None, versions))}")
    if direct_url:
        return recorded(name, versions[0], direct_url)
    return described(versions[0], EDITABLE if source else "")


FEWEST = 8
"""An environment with one of our packages has more packages than that."""
FEW = {
    STDIN: "standard input counts as all that is installed, as pip freeze prints it: what it does "
    "not name is not there. For requirements, give a file",
    MAPPING: "the mapping counts as all that is installed: what it does not name is not there. For "
    "requirements, give a list, ['transformers==5.2.0'], or a file",
}
"""Of what may list all that is installed."""


def of_files(files: Sequence[str], names: Iterable[str], day: str = "") -> Environment:
    """The environment that requirements files describe together, or that one file lists.

    ``-`` is standard input; in a folder, the file that says most is read. A list is a lock file,
    or the output of ``conda list --json`` or ``pip freeze``. For other files, a resolver chooses
    the releases of today, or of the end of ``day`` (ISO). Raises UserError for files that cannot
    be read or that contradict each other, and Inconclusive for a lock file of an unknown version.
    """
    all_names, files = _all_names(names), list(dict.fromkeys(files))
    opened = list(map(_opened, files))
    sources = [one.source for one in opened]
    where = " and ".join(source.name for source in sources)
    day_notes = [f"--as-of has no effect: {where} lists every release"] if day else []
    below = [note for note in map(project_folders.locks_below, files) if note]
    first_file = next((one.name for one in sources if one.name not in INPUTS.values()), "")
    stack = Environment({}, where, complete=True, file=first_file)
    for listing in (one for one in sources if isinstance(one, Listing)):
        if len(sources) > 1:
            raise UserError(f"{listing.name} lists all packages: give it alone")
        entries = listing.packages()
        packages = merged(_listed(listing, entries, all_names))
        libraries = _unrecorded(name for name, _ in entries)
        notes = [*_of_unknown_origin(packages), *libraries, opened[0].note(), *below, *day_notes]
        return replace(stack, packages=packages, notes=tuple(filter(None, notes)))
    content = requirements.read(one for one in sources if isinstance(one, Declaration))
    complete = content.frozen and bool(content.places) and where in FEW
    exact = {n: package for n in all_names if (package := requirements.exact(n, content))}
    resolution = Resolution() if complete else resolve(content, all_names, day or content.day)
    ranges: Mapping[str, Installed] = resolution.packages
    if content.unfollowed:
        ranges = dict.fromkeys(ranges, Unknown(content.unfollowed))
    packages = merged({**ranges, **exact})
    others = content.direct.keys() | forked({*resolution.packages, *exact})
    names_read = {file.name for file in content.files}
    notes = [
        *_of_unknown_origin({n: package for n, package in packages.items() if n in others}),
        *_unrecorded([*content.versions, *content.direct]),
        FEW[where] if complete and len({*content.versions, *content.direct}) < FEWEST else "",
        *resolution.notes,
        *(day_notes if complete else []),
        *(f"{place}: it does not show which package is there" for place in content.unnamed[:SHOWN]),
        f"{count(len(content.unnamed) - SHOWN, 'more line')} of this kind"
        if len(content.unnamed) > SHOWN
        else "",
        *(one.note(names_read) for one in opened),
        *below,
        *(
            f"{file} also has {', '.join(choices)}: {file}[NAME] reads it"
            for file, choices in content.choices.items()
        ),
        *content.notes,
    ]
    return replace(
        stack,
        packages=packages,
        complete=complete,
        notes=tuple(filter(None, notes)),
        lines=content.required.lines,
        files=frozenset(content.files),
        python=resolution.python,
    )


def _of_unknown_origin(packages: Mapping[str, Installed]) -> list[str]:
    """A line for each package of which nobody knows the release, as it is not from an index."""
    return [
        f"not known: which release of {name} this is: {package.because}"
        for name, package in packages.items()
        if isinstance(package, Unknown) and package.because != LEFT_OUT
    ]


def _unrecorded(names: Iterable[str]) -> list[str]:
    """A line about the training libraries among these packages that the catalogue does not have."""
    libraries = sorted(unrecorded_libraries().intersection(names))
    if not libraries:
        return []
    have = "they have" if len(libraries) > 1 else "it has"
    return [f"no bug of {listed(libraries)} is recorded here, which does not mean that {have} none"]


def _opened(name: str) -> Selection:
    """The file, or the file to read in the folder, with this name."""
    if not name:
        raise UserError("-r names no file: name one, or . for this folder")
    try:
        opened = project_folders.opened(name)
    except OSError as error:  # the name is too long, or a folder may not be read
        raise source.unreadable(name, error) from None
    if opened.source.chosen and isinstance(opened.source, Listing):
        names = ",".join(opened.source.chosen)
        raise UserError(f"{opened.source.name} has no extras or groups: leave [{names}] out")
    return opened


def _all_names(names: Iterable[str]) -> list[str]:
    return named_in(map(canonicalize_name, [*names, "torch"]))


def _listed(
    file: Listing, entries: Iterable[tuple[str, Installed]], names: Iterable[str]
) -> dict[str, Installed]:
    """The packages in a file that lists a whole environment, by its entries."""
    candidates: dict[str, list[Installed]] = {name: [] for name in names}
    for name, package in entries:
        if name in candidates:
            candidates[name].append(package)
    where = file.name if file.name in INPUTS.values() else file.path.name
    return {name: chosen(where, those) for name, those in candidates.items() if those}
