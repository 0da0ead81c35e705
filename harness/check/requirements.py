"""Requirements files, the output of ``pip freeze``, and what projects declare, read without running
any code.

Nothing is built or installed: a source distribution would run its own code. A package from a path
or an address therefore has a version only if the name of a file contains it.
"""

from __future__ import annotations

import os.path
import re
import shlex
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from harness.check import project_folders
from harness.check import requirement_lines as lines
from harness.check.contradictions import conditions, exact_versions
from harness.check.formats import ProjectFile, parsed
from harness.check.installed import (
    EDITABLE,
    LEFT_OUT,
    WEB,
    Installed,
    Unknown,
    at_address,
    described,
    is_misnamed,
)
from harness.check.markers import holds
from harness.check.sections import Constraint, Override
from harness.check.source import FROM_WEB, PackageFile, project_of, read_file
from harness.check.unread import SETUP
from harness.system.documents import DIGITS
from harness.system.errors import UserError
from harness.system.text import plain, short

LONGEST = 4_000
"""Characters of a line without its hashes; a longer one could take minutes."""
MOST = 100
"""Conditions on the versions of one package; thousands would take minutes."""

DEEPEST = 50
"""How deeply files may include other files."""


@dataclass
class Named:
    """The packages that requirements, or constraints, name."""

    places: dict[str, dict[str, str]] = field(default_factory=dict)
    """Of each package, by canonical name, its specifiers and where they are:
    ``requirements.txt, line 3``."""
    direct: dict[str, Installed] = field(default_factory=dict)
    """The packages that come from a path or an address."""
    extras: dict[str, frozenset[str]] = field(default_factory=dict)
    """The extras of packages: ``{"ray": {"default"}}``."""
    lines: dict[str, str] = field(default_factory=dict)
    """Of each package, where it is named first."""

    def add(self, name: str, specifiers: Iterable[str], where: str) -> None:
        self.lines.setdefault(name, where)
        places = self.places.setdefault(name, {})
        places.update(dict.fromkeys(specifiers, where))
        if len(places) > MOST:
            raise ValueError(f"{name} has more than {MOST} conditions")

    def add_direct(self, name: str, package: Installed, where: str) -> None:
        """Add a package from an address. The line before an editable one may have its version."""
        self.add(name, [f"=={package.version}"] if package.version else [], where)
        if not (name in self.direct and self.direct[name].origin == package.origin):
            self.direct[name] = package


def _versions(places: Mapping[str, Iterable[str]]) -> dict[str, SpecifierSet]:
    return {name: SpecifierSet(",".join(sorted(those))) for name, those in places.items()}


@dataclass
class Requirements:
    """The content of one or several requirements files."""

    required: Named = field(default_factory=Named)
    constraints: Named = field(default_factory=Named)
    main_index: str | None = None
    more_indices: list[str] = field(default_factory=list)
    no_index: bool = False
    """Whether it forbids the use of an index."""
    links: bool = False
    """Whether it names folders or pages of files, which are not read."""
    frozen: bool = True
    """Whether every line has the form that ``pip freeze`` writes."""
    overrides: dict[str, list[str]] = field(default_factory=dict)
    """By package, the requirements that replace what other packages need of it; none if it is left
    out."""
    python: str = ""
    """The Pythons that a project is for, ``>=3.10``; empty if no file says."""
    choices: dict[str, Sequence[str]] = field(default_factory=dict)
    """By file, the extras and groups that were not chosen."""
    unnamed: list[str] = field(default_factory=list)
    """Where files name a path or an address that does not show which package is there."""
    notes: list[str] = field(default_factory=list)
    """What projects' files left out or left open, a line each."""
    files: set[Path] = field(default_factory=set)
    """The files that were read."""
    projects: set[str] = field(default_factory=set)
    """The user's own projects, whose dependencies were read; no index is asked for them."""

    @cached_property
    def places(self) -> Mapping[str, Mapping[str, str]]:
        """Of each required package, its specifiers and those of constraints, with their places."""
        bounds = self.constraints.places
        return {n: {**those, **bounds.get(n, {})} for n, those in self.required.places.items()}

    @cached_property
    def versions(self) -> Mapping[str, SpecifierSet]:
        """By the package's canonical name: ``megatron-core``."""
        return _versions(self.places)

    @cached_property
    def bounds(self) -> Mapping[str, SpecifierSet]:
        """The versions that constraints allow, also of packages that no requirement names."""
        return _versions(self.constraints.places)

    @cached_property
    def direct(self) -> Mapping[str, Installed]:
        """The packages that come from a path or an address."""
        return {**self.constraints.direct, **self.required.direct}

    @property
    def indices(self) -> Sequence[str | None]:
        """The addresses of the indices that it names; None stands for the user's own."""
        has_any = self.main_index or self.more_indices
        return (self.main_index, *self.more_indices) if has_any else ()


@dataclass(frozen=True)
class _Project:
    """A folder of the user's project that a line installs: ``-e .[train]``."""

    folder: Path
    extras: tuple[str, ...]
    where: str
    name: str
    """Of the package that the line counts as; empty for the folder of the file itself."""
    package: Installed


@dataclass
class _Reader:
    """Reads files, and the files that they include."""

    content: Requirements = field(default_factory=Requirements)
    root: Path = Path()
    inclusions: set[tuple[Path, tuple[str, ...], bool]] = field(default_factory=set)
    depth: int = 0
    folders: list[_Project] = field(default_factory=list)

    def read(
        self, source: PackageFile, chosen: tuple[str, ...] = (), *, constraint: bool = False
    ) -> None:
        file = Path(os.path.realpath(source.path))
        key = (file, chosen, constraint)
        if key in self.inclusions:
            return
        self.inclusions.add(key)
        self.content.files.add(file)
        if self.depth == DEEPEST:
            raise UserError(f"{source.name}: more than {DEEPEST} files include each other")
        if not self.depth:
            self.root = project_of(file)
        self.depth += 1
        for where, line in self._placed(source, chosen):
            try:
                self._take(line, file, where, constraint or isinstance(line, Constraint))
            except (ValueError, OSError, RecursionError) as error:
                raise UserError(f"{where}: '{short(line)}' is refused: {_why(error)}") from None
        self.depth -= 1

    def _placed(self, source: PackageFile, chosen: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        """The lines of a file, and where they are."""
        if not isinstance(source, ProjectFile):
            for number, line in lines.statements(source.text):
                yield f"{source.name}, line {number}", line
            return
        lines_and_places = source.lines(chosen)
        content, declared = self.content, source.content
        content.frozen, content.python = False, content.python or declared.python
        if choices := source.choices(chosen):
            content.choices[source.name] = choices
        content.notes += declared.notes
        for name, why in declared.unknown.items():
            content.required.add_direct(name, Unknown(why), source.name)
        yield from lines_and_places

    def _take(self, line: str, file: Path, where: str, constraint: bool) -> None:
        if len(line) > LONGEST:
            raise ValueError(f"it has more than {LONGEST:,} characters")
        if line != plain(line):
            raise ValueError("it contains a control character")
        if re.search(rf"\d{{{DIGITS}}}", line):
            raise ValueError(f"it contains a number of {DIGITS} digits or more")
        packages = self.content.constraints if constraint else self.content.required
        if isinstance(line, Override):
            self._note_override(Requirement(line))
        elif comment := lines.FROZEN_EDITABLE.match(line):
            name, version = canonicalize_name(comment[1], validate=True), comment[2]
            packages.add_direct(name, described(version, EDITABLE), where)
        elif line.startswith("-"):
            self._option(line, file, where, constraint)
        elif requirement := lines.requirement_in(line):
            self._note(requirement, packages, where)
        else:
            self.content.frozen = False
            self._note_address(line, file, where, packages)

    def _note(self, requirement: Requirement, packages: Named, where: str) -> None:
        """Note a requirement with a name."""
        if requirement.marker or not (requirement.url or exact_versions(requirement.specifier)):
            self.content.frozen = False
        if requirement.marker and not holds(requirement.marker):
            return
        name = canonicalize_name(requirement.name)
        packages.extras[name] = packages.extras.get(name, frozenset()) | requirement.extras
        if requirement.url:
            address_name, package = at_address(requirement.url)
            if is_misnamed(name, address_name, requirement.url):
                name = canonicalize_name(address_name)
            if address_name != name:  # the file is of another package, or named after a tag
                package = Unknown(package.origin or WEB)
            packages.add_direct(name, package, where)
        else:
            packages.add(name, map(str, requirement.specifier), where)

    def _note_override(self, requirement: Requirement) -> None:
        """Note an override if it holds here, or that there is one that does not."""
        requirements = self.content.overrides.setdefault(canonicalize_name(requirement.name), [])
        if not requirement.marker or holds(requirement.marker):
            requirement.marker = None
            requirements.append(str(requirement))

    def _note_address(
        self, line: str, file: Path, where: str, packages: Named, *, editable: bool = False
    ) -> None:
        """Note a path or an address; the folder of the file is the user's own project."""
        address, extras, marker = lines.address_in(line)
        if marker and not holds(marker):
            return
        if re.match(r"file:(?!//)", address):
            address = address.partition(":")[2]
        folder = None
        if not re.match(r"[a-z+]+:", address):
            self.content.frozen = self.content.frozen and os.path.isabs(
                address
            )  # pip freeze writes no other
            folder = self._folder(address, file)
            address = str(folder)
        name, package = at_address(address, editable=editable)
        is_own = folder in (file.parent, self.root)
        if name and not is_own:
            packages.add_direct(name, package, where)
        if packages is self.content.constraints:
            return
        if folder and (is_own or self._is_within(folder)):
            self.folders.append(_Project(folder, extras, where, "" if is_own else name, package))
        elif not name:
            self.content.unnamed.append(where)

    def _is_within(self, folder: Path) -> bool:
        """Whether a folder is a project within the user's own."""
        return self.root in Path(os.path.realpath(folder)).parents and bool(
            project_folders.declaring(folder)
        )

    def _folder(self, address: str, file: Path) -> Path:
        """The folder at a path: relative to the file, or to the project, where pip usually runs."""
        folders = [Path(os.path.normpath(base / address)) for base in (file.parent, self.root)]
        return next((folder for folder in folders if project_folders.declaring(folder)), folders[0])

    def read_projects(self) -> None:
        """Read what the user's own projects need; the output of pip freeze already lists it."""
        self.depth += 1  # an included file must be in the same project as before
        while self.folders and not self.content.frozen:
            project = self.folders.pop()
            file = project_folders.of_folder(project.folder)
            if file:
                self._read_project(project, file)
            elif not project.name:
                code = os.path.isfile(project.folder / "setup.py")
                why = SETUP if code else "no file there declares them"
                self.content.notes.append(
                    f"{project.where}: its dependencies were not read, and are unknown: {why}"
                )
        self.depth -= 1

    def _read_project(self, project: _Project, file: ProjectFile) -> None:
        extras = tuple(name for name in project.extras if file.declares([name]))
        for name in sorted(set(project.extras).difference(extras)):  # pip only warns
            self.content.notes.append(f"{project.where}: {file.name} declares nothing for [{name}]")
        if file.declares(extras, damaged=True):  # a damaged file is refused
            self.read(file, extras)
        if name := project.name or file.project():
            self.content.projects.add(name)
            self.content.required.add_direct(name, project.package, project.where)

    def _option(self, line: str, file: Path, where: str, constraint: bool) -> None:
        """Note what the options of a line say. A marker is no part of them, and has quotes."""
        if ";" in line and (edited := re.match(r"(?:-e|--editable)[=\s]*", line)):
            self._note_editable(line[edited.end() :], file, where, constraint)
            return
        words = deque(shlex.split(line))
        while words:
            option, value = lines.first_option(words)
            if option in lines.EDIT:
                self._note_editable(value, file, where, constraint)
                continue
            self.content.frozen = False
            if option in lines.NESTED:
                inside = parsed(read_file(self._inside(file, value)))
                self.read(inside, constraint=constraint or lines.NESTED[option] == "-c")
            elif option in lines.WHERE:
                self._note_index(option, value)

    def _note_editable(self, address: str, file: Path, where: str, constraint: bool) -> None:
        packages = self.content.constraints if constraint else self.content.required
        self._note_address(address, file, where, packages, editable=True)

    def _note_index(self, option: str, value: str) -> None:
        """Note where to look up versions."""
        value = lines.expanded(value)
        if option == lines.NO_INDEX:
            self.content.no_index = True
        elif option in lines.LINKS:
            self.content.links = True
        elif not re.match(r"https?://", value):
            raise ValueError("an index is read over https:// or http://")
        elif option == lines.MORE:
            self.content.more_indices.append(value)
        else:
            self.content.main_index = value

    def _inside(self, file: Path, name: str) -> Path:
        """An included file; it must be in the project of the first file."""
        path = Path(os.path.realpath(file.parent / name))
        if re.match(r"https?://", name):
            raise ValueError(f"addresses are not read: save it, and name it with -r. {FROM_WEB}")
        if self.root not in path.parents:
            raise ValueError(
                f"it is outside of {self.root}: remove the line, and give both files with -r"
            )
        if not path.is_file():
            exists = os.path.lexists(file.parent / name)
            raise ValueError("it is no file" if exists else "there is no such file")
        return path


def _why(error: BaseException) -> str:
    """Explain in a short line why a line is refused; packaging's own message is a drawing."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return short(getattr(error, "strerror", None) or str(error), 200)


def exact(name: str, content: Requirements) -> Installed | None:
    """The one release of a package that requirements name; None if they name no single one.

    Raises UserError for requirements that no release can meet.
    """
    if name not in content.versions:
        return None
    versions = content.versions[name]
    equal = exact_versions(versions)
    fits = [version for version in equal if versions.contains(version, prereleases=True)]
    if equal and not fits:
        raise UserError(f"{conditions(name, content.places[name])} contradict each other")
    if name in content.direct:
        return content.direct[name]
    return described(min(fits)) if equal else None


def read(sources: Iterable[PackageFile]) -> Requirements:
    """Read files, and the files that they include, together as pip does.

    Raises UserError, with the line, for a line that names neither a package nor where one is.
    """
    reader = _Reader()
    for source in sources:
        reader.read(source, source.chosen)
        reader.read_projects()
    content = reader.content
    for name, replacements in content.overrides.items():
        if not replacements:
            where = content.required.lines.get(name, "")
            content.required.add_direct(name, Unknown(LEFT_OUT), where)
    return content
