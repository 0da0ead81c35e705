"""Requirements files, the output of ``pip freeze``, and what projects declare, read without running
any code.

Nothing is built or installed: a source distribution would run its own code. A package from a path
or an address therefore has a version only if the name of a file contains it.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import Specifier, SpecifierSet
from packaging.utils import canonicalize_name

from harness.check import project_folders
from harness.check.contradictions import conditions, exact_versions
from harness.check.formats import Declaration, source_of
from harness.check.installed import (
    LEFT_OUT,
    WEB,
    Installed,
    Unknown,
    at_address,
    described,
    is_misnamed,
)
from harness.check.requirement_lines import (
    LINKS,
    MORE,
    NO_INDEX,
    WHERE,
    Address,
    Include,
    Item,
    Option,
    Purpose,
    Skipped,
    expanded,
    holds,
    why,
)
from harness.check.source import FROM_WEB, project_of, read_file
from harness.check.unread import SETUP
from harness.system.errors import UserError
from harness.system.text import short

MOST = 100
"""Conditions on the versions of one package; thousands would take minutes."""

DEEPEST = 50
"""How deeply files may include other files."""


@dataclass
class Named:
    """The packages that requirements, or constraints, name."""

    places: dict[str, dict[Specifier, str]] = field(default_factory=dict)
    """Of each package, by canonical name, its specifiers and where they are:
    ``requirements.txt, line 3``."""
    direct: dict[str, Installed] = field(default_factory=dict)
    """The packages that come from a path or an address."""
    extras: dict[str, frozenset[str]] = field(default_factory=dict)
    """The extras of packages: ``{"ray": {"default"}}``."""
    lines: dict[str, str] = field(default_factory=dict)
    """Of each package, where it is named first."""

    def add(self, name: str, specifiers: Iterable[Specifier], where: str) -> None:
        self.lines.setdefault(name, where)
        places = self.places.setdefault(name, {})
        places.update(dict.fromkeys(specifiers, where))
        if len(places) > MOST:
            raise ValueError(f"{name} has more than {MOST} conditions")

    def add_direct(self, name: str, package: Installed, where: str) -> None:
        """Add a package from an address. The line before an editable one may have its version."""
        self.add(name, SpecifierSet(f"=={package.version}" if package.version else ""), where)
        if not (name in self.direct and self.direct[name].origin == package.origin):
            self.direct[name] = package


def _versions(places: Mapping[str, Iterable[Specifier]]) -> dict[str, SpecifierSet]:
    return {name: SpecifierSet(those) for name, those in places.items()}


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
    overrides: dict[str, list[Requirement]] = field(default_factory=dict)
    """By package, the requirements that replace what other packages need of it; none if it is left
    out."""
    python: str = ""
    """The Pythons that a project is for, ``>=3.10``; empty if no file says."""
    day: str = ""
    unfollowed: str = ""
    """Both as ``sections.Content`` has them."""
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
    def places(self) -> Mapping[str, Mapping[Specifier, str]]:
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
        self, source: Declaration, chosen: tuple[str, ...] = (), *, constraint: bool = False
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
        lines = source.lines(chosen)
        self._note_project(source, chosen)
        for where, line in lines:
            try:
                if line.refusal:
                    raise ValueError(line.refusal)
                for item in line.items:
                    self._take(item, line.purpose, file, where, constraint=constraint)
            except (ValueError, OSError) as error:
                reason = f"'{short(line.text)}' is refused: {why(error)}"
                raise UserError(f"{where}: {reason}") from None
        self.depth -= 1

    def _note_project(self, source: Declaration, chosen: tuple[str, ...]) -> None:
        """Note what a project's file says of all of it."""
        content, declared = self.content, source.content
        content.frozen = content.frozen and declared.is_plain
        content.python = content.python or declared.python
        content.day = content.day or declared.day
        content.unfollowed = content.unfollowed or declared.unfollowed
        if choices := source.choices(chosen):
            content.choices[source.name] = choices
        content.notes += declared.notes

    def _take(
        self, item: Item, purpose: Purpose, file: Path, where: str, *, constraint: bool
    ) -> None:
        """Note what a line names or sets; ``constraint`` if it is in a file of constraints."""
        content = self.content
        constraint = constraint or purpose is Purpose.CONSTRAINT
        packages = content.constraints if constraint else content.required
        match item:
            case Requirement() if purpose in (Purpose.OVERRIDE, Purpose.LEFT_OUT):
                others = content.overrides.setdefault(canonicalize_name(item.name), [])
                if purpose is Purpose.OVERRIDE and (not item.marker or holds(item.marker)):
                    others.append(item)
            case Requirement():
                self._note(item, packages, where)
            case Address():
                self._note_address(item, file, where, packages)
            case Skipped():
                packages.add_direct(item.name, described(item.version, item.because), where)
            case Include():
                content.frozen = False
                inside = source_of(read_file(self._inside(file, item.file)))
                if not isinstance(inside, Declaration):
                    raise ValueError("it lists all packages: give it alone")
                self.read(inside, constraint=item.constraint or constraint)
            case Option():
                content.frozen = False
                if item.name in WHERE:
                    self._note_index(item)

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
            packages.add(name, requirement.specifier, where)

    def _note_address(self, item: Address, file: Path, where: str, packages: Named) -> None:
        """Note a path or an address; the folder of the file is the user's own project."""
        address, folder = item.text, None
        self.content.frozen = self.content.frozen and item.editable
        if item.marker and not holds(item.marker):
            return
        if re.match(r"file:(?!//)", address):
            address = address.partition(":")[2]
        if not re.match(r"[a-z+]+:", address):
            if not os.path.isabs(address):  # pip freeze writes no such
                self.content.frozen = False
            folder = self._folder(address, file)
            address = str(folder)
        name, package = at_address(address, editable=item.editable)
        is_own = folder in (file.parent, self.root)
        if name and not is_own:
            packages.add_direct(name, package, where)
        if packages is self.content.constraints:
            return
        if folder and (is_own or self._is_within(folder)):
            name = "" if is_own else name
            self.folders.append(_Project(folder, item.extras, where, name, package))
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
                reason = SETUP if code else "no file there declares them"
                self.content.notes.append(
                    f"{project.where}: its dependencies were not read, and are unknown: {reason}"
                )
        self.depth -= 1

    def _read_project(self, project: _Project, file: Declaration) -> None:
        extras = tuple(name for name in project.extras if file.declares([name]))
        for name in sorted(set(project.extras).difference(extras)):  # pip only warns
            self.content.notes.append(f"{project.where}: {file.name} declares nothing for [{name}]")
        if file.declares(extras, damaged=True):  # a damaged file is refused
            self.read(file, extras)
        if name := project.name or file.project():
            self.content.projects.add(name)
            self.content.required.add_direct(name, project.package, project.where)

    def _note_index(self, option: Option) -> None:
        """Note where to look up versions."""
        value = expanded(option.value)
        if option.name == NO_INDEX:
            self.content.no_index = True
        elif option.name in LINKS:
            self.content.links = True
        elif not re.match(r"https?://", value):
            raise ValueError("an index is read over https:// or http://")
        elif option.name == MORE:
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


def read(sources: Iterable[Declaration]) -> Requirements:
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
