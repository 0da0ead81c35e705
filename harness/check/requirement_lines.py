"""The lines of a requirements file: what is one line, its options, and what it names."""

from __future__ import annotations

import os
import re
import shlex
from collections import deque
from collections.abc import Iterator

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement

from harness.check.installed import ARCHIVES
from harness.check.source import names_in

NESTED = {"-r": "-r", "--requirement": "-r", "-c": "-c", "--constraint": "-c"}
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

HASH = re.compile(r"\s--hash[=\s]\w+:\w+(?=\s|$)")
"""A lock file has thousands; to split them as a shell does would take seconds."""

MALFORMED = re.compile(r"[\w.-]+\s*(?:\[[^\]]*\]\s*)?[=<>!~]")
"""The beginning of a requirement. What follows may have a slash, and is no path:
``torch==2.4.0 --from https://host``."""

FROZEN_EDITABLE = re.compile(r"# Editable .*\(([\w.-]+)===?([^\s()]+)\)")
"""The comment in which ``pip freeze`` names an editable install that has no address."""


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
        parts.append(re.sub(r"(^|\s)#.*", "", line))
        if parts[-1].endswith("\\"):
            parts[-1] = parts[-1][:-1]
            if number < len(lines):
                continue
        joined = "".join(parts)
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
        words = deque(shlex.split(line[begin.start() :]))
        while words:
            if first_option(words)[0] not in (*IDLE, *WHERE):
                return line
    except ValueError:
        return line
    return line[: begin.start()].strip()


def requirement_in(line: str) -> Requirement | None:
    """A requirement with a name; None for a path or an address."""
    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        requirement = None
    if requirement and (requirement.url or not ARCHIVES.search(requirement.name)):
        return requirement
    is_place = "/" in line or line.startswith((".", "file:"))
    if not requirement and (not is_place or MALFORMED.match(line)):
        raise ValueError("it does not name a package with versions, such as transformers==4.36.2")
    return None


def address_in(line: str) -> tuple[str, tuple[str, ...], Marker | None]:
    """A path or an address, the extras to install, and the marker after it."""
    address, _, marker = line.partition(";")
    address, extras = address.strip(), ""
    if address.endswith("]") and "[" in address:
        address, _, extras = address[:-1].rpartition("[")
    return address, names_in(extras), Marker(marker) if marker.strip() else None


def expanded(text: str) -> str:
    """A text with the values of the variables in it, ``${NAME}``, as pip has it. Raises ValueError
    for a variable that is not set."""

    def value(match: re.Match[str]) -> str:
        if not os.environ.get(match[1]):
            raise ValueError(f"the environment has no variable {match[1]}")
        return os.environ[match[1]]

    return re.sub(r"\$\{([A-Z0-9_]+)\}", value, text)


def first_option(words: deque[str]) -> tuple[str, str]:
    """Take the first option of a line, and its value if it has one, from these words."""
    word = words.popleft()
    long = word.startswith("--")
    option, inline, value = word.partition("=") if long else (word[:2], word[2:], word[2:])
    if option not in (*NESTED, *WHERE, *EDIT, *IDLE):
        raise ValueError(
            "nothing is built or installed here; name releases, such as transformers==4.36.2"
        )
    if option in FLAGS:
        return option, ""
    if not (value if inline else words and words[0]):
        raise ValueError(f"{option} has no value")
    return option, value.removeprefix("=") if inline else words.popleft()
