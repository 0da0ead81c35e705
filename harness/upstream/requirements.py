"""Requirements files: the releases that they name, read without running any code.

Nothing is built or installed: a source distribution would run its own code. A line that is not the
name of a package with versions is refused.
"""

from __future__ import annotations

import codecs
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from harness.errors import Fault, UserError
from harness.text import warn_once
from harness.upstream import index

NESTED = {"-r": "-r", "--requirement": "-r", "-c": "-c", "--constraint": "-c"}
MORE, NO_INDEX, LINKS = "--extra-index-url", "--no-index", ("-f", "--find-links")
WHERE = ("-i", "--index-url", "--pypi-url", MORE, NO_INDEX, *LINKS)
"""Options that say where to look up versions."""
IDLE = (
    "--pre",
    "--prefer-binary",
    "--require-hashes",
    "--no-binary",
    "--only-binary",
    "--trusted-host",
    "--use-feature",
)
"""Options for installing, which have no effect here."""


MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
)
"""Byte order marks; UTF-32 comes first, as its mark may begin with that of UTF-16."""

DEEPEST = 50
"""How deeply files may include other files."""

ARCHIVES = re.compile(r"\.(whl|zip|tgz|tar\.\w+)$")
"""Endings of files to install; such a name is also a valid name of a package."""


@dataclass(frozen=True)
class Requirements:
    """The content of a requirements file."""

    versions: Mapping[str, SpecifierSet]
    """By the package's canonical name: ``megatron-core``."""
    indices: Sequence[str | None] = ()
    """The addresses of the indices that it names; None stands for the user's own."""
    no_index: bool = False
    """Whether it forbids the use of an index."""
    links: bool = False
    """Whether it names folders or pages of files, which are not read."""


@dataclass
class _Reading:
    """The state while a file and the files that it includes are read."""

    root: Path
    required: dict[str, set[str]] = field(default_factory=dict)
    """The specifiers of each package."""
    constraints: dict[str, set[str]] = field(default_factory=dict)
    main: str | None = None
    more: list[str] = field(default_factory=list)
    no_index: bool = False
    links: bool = False
    seen: set[tuple[Path, bool]] = field(default_factory=set)
    depth: int = 0

    def read(self, file: Path, *, constraint: bool = False) -> None:
        if (file, constraint) in self.seen:
            return
        self.seen.add((file, constraint))
        if self.depth == DEEPEST:
            raise UserError(f"{file}: more than {DEEPEST} files include each other")
        self.depth += 1
        found = self.constraints if constraint else self.required
        for number, line in _lines(file):
            try:
                self._take(line, file, found, constraint)
            except ValueError as why:
                raise UserError(f"{file}, line {number}: '{line}' is refused: {why}") from None
        self.depth -= 1

    def _take(self, line: str, file: Path, found: dict[str, set[str]], constraint: bool) -> None:
        if line.startswith("-"):
            self._option(line, file, constraint)
            return
        requirement = _requirement(line)
        if requirement.marker is None or requirement.marker.evaluate():
            specifiers = found.setdefault(canonicalize_name(requirement.name), set())
            specifiers.update(map(str, requirement.specifier))

    def _option(self, line: str, file: Path, constraint: bool) -> None:
        option, _, value = re.sub(r"^(-[a-z]|--[a-z-]+)[=\s]*", r"\1\0", line).partition("\0")
        if option in NESTED:
            self.read(self._inside(file, value), constraint=constraint or NESTED[option] == "-c")
        elif option in WHERE:
            self._note_index(option, shlex.split(value), file, constraint)
        elif option not in IDLE:
            raise ValueError(
                "nothing is built or installed here; name releases, such as transformers==4.36.2"
            )

    def _note_index(self, option: str, words: list[str], file: Path, constraint: bool) -> None:
        """Note where to look up versions; a line may contain several such options."""
        if option == NO_INDEX:
            self.no_index = True
        elif not words:
            raise ValueError("it names no address")
        elif option == MORE:
            self.more.append(words.pop(0))
        elif option in LINKS:
            words.pop(0)
            self.links = True
        else:
            self.main = words.pop(0)
        if words:
            self._option(shlex.join(words), file, constraint)

    def _inside(self, file: Path, name: str) -> Path:
        """An included file; it must be in the folder of the first file, or below."""
        named = (file.parent / name).resolve()
        if self.root not in named.parents:
            raise ValueError(f"it is outside of {self.root}")
        if not named.is_file():
            raise ValueError("there is no such file")
        return named


def required(file: Path, names: Iterable[str]) -> dict[str, str]:
    """The release of each of these packages that a requirements file selects today.

    Nothing is built, downloaded or run. Raises UserError for a file with lines that name no
    releases, and for a range without releases.
    """
    content = read(file)
    return {
        name: _selected(name, content.versions[name], content)
        for name in names
        if name in content.versions
    }


def _selected(name: str, versions: SpecifierSet, content: Requirements) -> str:
    """The one release that a requirement names, otherwise the newest that it allows."""
    exact = [s.version for s in versions if s.operator in ("==", "===")]
    if exact and not exact[0].endswith(".*") and versions.contains(exact[0], prereleases=True):
        return exact[0]
    if content.no_index:
        raise UserError(
            f"--no-index: no index can list the releases of {name}; name one, such as {name}==1.2.3"
        )
    if content.links:
        warn_once("--find-links is ignored: a range selects the index's newest release")
    known = [
        release.version
        for release in index.releases(name, content.indices)
        if release.final and release.installable and not release.yanked
    ]
    if not known:
        raise Fault(f"the package index has no release of {name} for this Python")
    found = list(versions.filter(known))
    if not found:
        raise UserError(f"no release is {name}{versions}: they go from {known[0]} to {known[-1]}")
    return found[-1]


def read(file: Path) -> Requirements:
    """The content of a file and of the files that it includes.

    Raises UserError, with the line, for a line that names no releases: a path, an address, ``-e``.
    """
    top = file.resolve()
    reading = _Reading(top.parent)
    reading.read(top)
    bounds = reading.constraints
    versions = {
        name: SpecifierSet(",".join(sorted(specifiers | bounds.get(name, set()))))
        for name, specifiers in reading.required.items()
    }
    indices = (reading.main, *reading.more) if reading.main or reading.more else ()
    return Requirements(versions, indices, reading.no_index, reading.links)


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """The logical lines of a file with their numbers, without comments and hashes."""
    try:
        text = _decoded(file.read_bytes())
    except (OSError, UnicodeError) as error:
        raise UserError(f"cannot read {file}: {error}") from None
    parts: list[str] = []
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        parts.append(re.sub(r"(^|\s)#.*", "", line))
        if parts[-1].endswith("\\"):
            parts[-1] = parts[-1][:-1]
            if number < len(lines):
                continue
        joined = "".join(parts)
        parts.clear()
        option = r"\s--(hash|config-settings?|global-option)[=\s]\S+"
        if text_ := re.sub(option, "", joined).strip():
            yield number, text_


def _decoded(content: bytes) -> str:
    """A text in the encoding of its byte order mark, as pip reads it; otherwise in UTF-8."""
    for mark, encoding in MARKS:
        if content.startswith(mark):
            return content[len(mark) :].decode(encoding)
    return content.decode("utf-8")


def _requirement(line: str) -> Requirement:
    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        requirement = None
    if requirement is None or requirement.url or ARCHIVES.search(requirement.name):
        raise ValueError("it does not name a package with versions, such as transformers==4.36.2")
    return requirement
