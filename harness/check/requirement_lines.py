"""The lines of a requirements file: what is one line, and what it names or sets.

Each line is parsed once, here: what it names stays an object until uv gets its input.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from harness.check.installed import ARCHIVES, EDITABLE
from harness.check.source import names_in
from harness.system.documents import DIGITS
from harness.system.text import plain, short

NESTED = {"-r": False, "--requirement": False, "-c": True, "--constraint": True}
"""The options that name another file, and whether its lines are constraints."""
MORE, NO_INDEX, LINKS = "--extra-index-url", "--no-index", ("-f", "--find-links")
WHERE = ("-i", "--index-url", "--pypi-url", MORE, NO_INDEX, *LINKS)
"""Options that say where to look up versions."""
EDIT = ("-e", "--editable")
FLAGS = ("--pre", "--prefer-binary", "--require-hashes", NO_INDEX)
"""Options without a value."""
OF_ONE = ("--hash", "--config-setting", "--config-settings", "--global-option", "-C")
"""Options of one requirement."""
VALUES = ("--no-binary", "--only-binary", "--trusted-host", "--use-feature", *OF_ONE)
IDLE = (*FLAGS, *VALUES)
"""Options for installing, which have no effect here."""

LONGEST = 4_000
"""Characters of a line without its hashes; a longer one could take minutes."""

HASH = re.compile(r"\s--hash[=\s]\w+:\w+(?=\s|$)")
"""A lock file has thousands; to split them as a shell does would take seconds."""

MALFORMED = re.compile(r"[\w.-]+\s*(?:\[[^\]]*\]\s*)?[=<>!~]")
"""The beginning of a requirement. What follows may have a slash, and is no path:
``torch==2.4.0 --from https://host``."""

FROZEN_EDITABLE = re.compile(r"# Editable .*\(([\w.-]+)===?([^\s()]+)\)")
"""The comment in which ``pip freeze`` names an editable install that has no address."""


@dataclass(frozen=True)
class Address:
    """A package from a path or an address, without a name."""

    text: str
    extras: tuple[str, ...] = ()
    marker: Marker | None = None
    editable: bool = False


@dataclass(frozen=True)
class Include:
    """Another file: its lines count, too."""

    file: str
    constraint: bool = False
    """Whether they are constraints."""


@dataclass(frozen=True)
class Option:
    """An option of pip with its value, which may be empty."""

    name: str
    value: str


@dataclass(frozen=True)
class Skipped:
    """A package of which nobody knows which release it is."""

    name: str
    because: str
    version: str = ""
    """What it calls itself; empty if the file does not say."""


Item = Requirement | Address | Include | Option | Skipped


class Purpose(Enum):
    """What a line is for."""

    REQUIRED = auto()
    CONSTRAINT = auto()
    """It only says which version a package has if something needs it."""
    OVERRIDE = auto()
    """It replaces what every package needs of a package."""
    LEFT_OUT = auto()
    """The package is left out, whatever needs it: something else than this file installs it."""


@dataclass(frozen=True)
class Line:
    """A line of a requirements file, or an entry of a project's file, as parsed."""

    text: str
    items: tuple[Item, ...] = ()
    """None for a requirement of a project that does not hold here."""
    purpose: Purpose = Purpose.REQUIRED
    refusal: str = ""
    """Why it is refused, if it counts; otherwise empty."""

    @property
    def requirement(self) -> Requirement | None:
        """The package that it names; None for any other line."""
        item = self.items[0] if self.items else None
        return item if isinstance(item, Requirement) else None


def parse_line(text: str, purpose: Purpose = Purpose.REQUIRED) -> Line:
    """A line of a requirements file."""
    try:
        return Line(text, tuple(_items(text)), purpose)
    except (ValueError, RecursionError) as error:
        return Line(text, (), purpose, why(error))


def parse_entry(text: str) -> Line:
    """An entry of a project's file, which has no options."""
    if text.startswith("-"):
        return Line(text, refusal="a requirement begins with a name")
    return parse_line(text)


def requirement_line(requirement: Requirement, purpose: Purpose = Purpose.REQUIRED) -> Line:
    return Line(str(requirement), (requirement,), purpose)


def holds(marker: Marker | str) -> bool:
    """Whether a marker holds for this Python and this platform.

    Raises ValueError for what is no marker, and for one that compares nothing: ``'a' == 'b'``.
    """
    try:
        return (Marker(marker) if isinstance(marker, str) else marker).evaluate()
    except (ValueError, LookupError, RecursionError):  # packaging's exceptions: one is a KeyError
        raise ValueError(f"'{short(str(marker))}' is no marker") from None


def why(error: BaseException) -> str:
    """Explain in a short line why a line is refused."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return short(getattr(error, "strerror", None) or str(error), 200)


def statements(text: str) -> Iterator[tuple[int, str]]:
    """The logical lines of a text with their numbers, without comments and hashes.

    Only the comments in which ``pip freeze`` names editable installs are kept.
    """
    parts: list[str] = []
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        if not parts and FROZEN_EDITABLE.match(line):
            yield number, line
            continue
        is_comment = line.lstrip().startswith("#")
        parts.append(f" {line}" if is_comment else line.removesuffix("\\"))
        if line.endswith("\\") and not is_comment and number < len(lines):
            continue  # pip joins lines before it removes comments
        joined = re.sub(r"(^|\s)#.*", "", "".join(parts))
        parts.clear()
        if statement := _without_options(HASH.sub("", joined).strip()):
            yield number, statement


def _without_options(line: str) -> str:
    """A requirement without the options after it: pip ignores them, and reads those that are not of
    one requirement in lines of their own. Other lines are returned as they are."""
    begin = re.search(r"\s-", line)
    if line.startswith("-") or begin is None:
        return line
    try:
        if any(name not in (*IDLE, *WHERE) for name, _ in _options(line[begin.start() :])):
            return line
    except ValueError:
        return line
    return line[: begin.start()].strip()


def _items(line: str) -> Iterator[Item]:
    """What a line names and sets. Raises ValueError for one that pip would refuse."""
    if len(line) > LONGEST:
        raise ValueError(f"it has more than {LONGEST:,} characters")
    if line != plain(line):
        raise ValueError("it contains a control character")
    if re.search(rf"\d{{{DIGITS}}}", line):
        raise ValueError(f"it contains a number of {DIGITS} digits or more")
    if comment := FROZEN_EDITABLE.match(line):
        yield Skipped(canonicalize_name(comment[1], validate=True), EDITABLE, comment[2])
    elif not line.startswith("-"):
        yield _package(line)
    elif ";" in line and (edited := re.match(r"(?:-e|--editable)[=\s]*", line)):
        yield _address(line[edited.end() :], editable=True)  # a marker has quotes
    else:
        for name, value in _options(line):
            if name in EDIT:
                yield _address(value, editable=True)
            elif name in NESTED:
                yield Include(value, NESTED[name])
            else:
                yield Option(name, value)


def _package(line: str) -> Requirement | Address:
    """A requirement with a name, otherwise a path or an address."""
    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        requirement = None
    if requirement and (requirement.url or not ARCHIVES.search(requirement.name)):
        for specifier in requirement.specifier:
            if specifier.operator == "===":
                Version(specifier.version)  # or raise: any text may stand there
        return requirement
    is_place = "/" in line or line.startswith((".", "file:"))
    if not requirement and (not is_place or MALFORMED.match(line)):
        raise ValueError("it does not name a package with versions, such as transformers==4.36.2")
    return _address(line, editable=False)


def _address(line: str, *, editable: bool) -> Address:
    """A path or an address, the extras to install, and the marker after it."""
    address, _, marker = line.partition(";")
    address, extras = address.strip(), ""
    if address.endswith("]") and "[" in address:
        address, _, extras = address[:-1].rpartition("[")
    return Address(address, names_in(extras), Marker(marker) if marker.strip() else None, editable)


def expanded(text: str) -> str:
    """A text with the values of the variables in it, ``${NAME}``, as pip has it. Raises ValueError
    for a variable that is not set."""

    def value(match: re.Match[str]) -> str:
        if not os.environ.get(match[1]):
            raise ValueError(f"the environment has no variable {match[1]}")
        return os.environ[match[1]]

    return re.sub(r"\$\{([A-Z0-9_]+)\}", value, text)


def _options(line: str) -> Iterator[tuple[str, str]]:
    """The options of a line with their values."""
    words = deque(shlex.split(line))
    while words:
        word = words.popleft()
        long = word.startswith("--")
        option, inline, value = word.partition("=") if long else (word[:2], word[2:], word[2:])
        if option not in (*NESTED, *WHERE, *EDIT, *IDLE):
            raise ValueError(
                "nothing is built or installed here; name releases, such as transformers==4.36.2"
            )
        if option in FLAGS:
            yield option, ""
        elif not (value if inline else words and words[0]):
            raise ValueError(f"{option} has no value")
        else:
            yield option, value.removeprefix("=") if inline else words.popleft()
