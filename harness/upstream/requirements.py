"""Requirements files: which releases they ask for, read without running anything of theirs.

Nothing is built or installed to find out: a source distribution that a file names would run its own
code. What is no name of a package with versions is refused.
"""

from __future__ import annotations

import codecs
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from harness.errors import UserError

NESTED = {"-r": "-r", "--requirement": "-r", "-c": "-c", "--constraint": "-c"}
MORE, NO_INDEX, LINKS = "--extra-index-url", "--no-index", ("-f", "--find-links")
WHERE = ("-i", "--index-url", "--pypi-url", MORE, NO_INDEX, *LINKS)
"""Options that say where versions are looked up."""
IDLE = (
    "--pre",
    "--prefer-binary",
    "--require-hashes",
    "--no-binary",
    "--only-binary",
    "--trusted-host",
    "--use-feature",
)
"""Options of an installer, of which there is none here."""


MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
)
"""What a text may begin with to say its encoding; UTF-16's is the beginning of one of UTF-32's."""

DEEPEST = 50
"""How deep files may name each other."""

ARCHIVES = re.compile(r"\.(whl|zip|tgz|tar\.\w+)$")
"""How files end that would be installed; each is a name that a package could have."""


@dataclass(frozen=True)
class Requirements:
    """What a requirements file asks for."""

    versions: Mapping[str, SpecifierSet]
    """By the package's name as indices have it: ``megatron-core``."""
    indices: Sequence[str | None] = ()
    """The addresses of the indices that it names; None among them for the user's own."""
    no_index: bool = False
    """Whether it forbids to ask any."""
    links: bool = False
    """Whether it names folders or pages of files, which are not looked at."""


@dataclass
class _Reading:
    """A file on its way to an answer, with those that it names."""

    root: Path
    required: dict[str, set[str]] = field(default_factory=dict)
    """What is asked of each package, each specifier once."""
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
            raise UserError(f"{file}: files that name files more than {DEEPEST} deep are not read")
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
        asked = _requirement(line)
        if asked.marker is None or asked.marker.evaluate():
            specifiers = found.setdefault(canonicalize_name(asked.name), set())
            specifiers.update(map(str, asked.specifier))

    def _option(self, line: str, file: Path, constraint: bool) -> None:
        option, _, value = re.sub(r"^(-[a-z]|--[a-z-]+)[=\s]*", r"\1\0", line).partition("\0")
        if option in NESTED:
            self.read(self._inside(file, value), constraint=constraint or NESTED[option] == "-c")
        elif option in WHERE:
            self._look(option, shlex.split(value), file, constraint)
        elif option not in IDLE:
            raise ValueError(
                "nothing is built or installed to check it; name releases, as transformers==4.36.2"
            )

    def _look(self, option: str, words: list[str], file: Path, constraint: bool) -> None:
        """Note where to look; a line may hold several such options."""
        if option == NO_INDEX:
            self.no_index = True
        elif not words:
            raise ValueError("it names no place")
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
        """A file that another one names, which must lie with the first, or below."""
        named = (file.parent / name).resolve()
        if self.root not in named.parents:
            raise ValueError(f"it lies outside of {self.root}")
        if not named.is_file():
            raise ValueError("there is no such file")
        return named


def read(file: Path) -> Requirements:
    """What a file asks for, and the files that it names.

    Raises UserError, with the line, for what does not name releases: a path, an address, ``-e``.
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
    """The logical lines of a file with their numbers, less comments and hashes."""
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
        whole = "".join(parts)
        parts.clear()
        told = re.sub(r"\s--(hash|config-settings?|global-option)[=\s]\S+", "", whole).strip()
        if told:
            yield number, told


def _decoded(content: bytes) -> str:
    """A text in the encoding that its first bytes name, as pip reads it; else in UTF-8."""
    for mark, encoding in MARKS:
        if content.startswith(mark):
            return content[len(mark) :].decode(encoding)
    return content.decode("utf-8")


def _requirement(line: str) -> Requirement:
    try:
        asked = Requirement(line)
    except InvalidRequirement:
        asked = None
    if asked is None or asked.url or ARCHIVES.search(asked.name):
        raise ValueError("it is no name of a package with versions, as transformers==4.36.2")
    return asked
