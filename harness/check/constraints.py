"""The versions that Poetry and conda write, as pip's specifiers.

Both have alternatives, ``^1.2 || ^2.0``. pip has none, so the newest one counts. It is never
written as an exact version, ``==2.0``: the project may have another one.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Sequence

from packaging.specifiers import InvalidSpecifier, Specifier, SpecifierSet
from packaging.version import Version

from harness.system.text import short

OPERATOR = r"===?|[<>!~]=|[<>=~^]"
LONGEST = 200
"""Characters of a bound; no version has so many."""


def of_poetry(constraint: str) -> str:
    """A specifier: ``^1.2`` is ``>=1.2,<2``. Raises ValueError for a text that is no constraint."""
    return _newest([_of_poetry(alternative) for alternative in _alternatives(constraint)])


def _newest(specifiers: Sequence[str]) -> str:
    """The specifier that names the newest version, or any; of several ones, as a range."""

    def newest(specifiers: str) -> Version:
        versions = [one.version.removesuffix(".*") for one in SpecifierSet(specifiers)]
        return max(map(Version, versions), default=Version("1!0"))

    if len(specifiers) == 1:
        return specifiers[0]
    return re.sub(r"(?<!=)==([^=,*]+)(?=,|$)", r">=\1,<=\1", max(specifiers, key=newest))


def python_of_poetry(constraint: str) -> str:
    """The Pythons of a project as a specifier: of alternatives, the one that this Python meets."""
    choices = [_of_poetry(alternative) for alternative in _alternatives(constraint)]
    here = platform.python_version()
    return next((c for c in choices if SpecifierSet(c).contains(here)), choices[-1])


def allows_python(constraint: str) -> bool:
    """Whether Poetry's constraint on Python allows this one. ``<=3.12`` is about minor versions."""
    full = platform.python_version()
    minor = ".".join(full.split(".")[:2])
    return any(
        all(
            bound.contains(full if bound.version.count(".") > 1 else minor, prereleases=True)
            for bound in SpecifierSet(_of_poetry(alternative))
        )
        for alternative in _alternatives(constraint)
    )


def allows_platform(constraint: str) -> bool:
    """Whether Poetry's ``platform``, such as ``linux || darwin`` or ``!=win32``, allows this."""
    matches = [
        [re.fullmatch(r"(==|!=)?([\w-]+)", part) for part in _parts(alternative)]
        for alternative in _alternatives(constraint)
    ]
    if not all(match for parts in matches for match in parts):
        raise ValueError(f"'{short(constraint)}' names no platforms")
    return any(
        all((sys.platform == match[2]) != (match[1] == "!=") for match in parts if match)
        for parts in matches
    )


def _alternatives(constraint: str) -> list[str]:
    return re.split(r"\|\|?", constraint)


def _parts(text: str) -> list[str]:
    """The bounds that must hold together; spaces or commas are between them."""
    joined = re.sub(rf"({OPERATOR})\s+", r"\1", text.strip())
    return [part for part in re.split(r"[,\s]+", joined) if part]


def _of_poetry(alternative: str) -> str:
    """The specifiers of some bounds. ``^`` allows any version up to the next change of the first
    number that is not 0, and ``~`` up to that of the second number."""
    specifiers = []
    for part in _parts(alternative):
        operator, text = _split(part)
        if text == "*" and operator in ("", "==", "="):
            continue
        if operator not in ("^", "~"):
            specifiers.append(_specifier("==" if operator in ("", "=") else operator, text))
            continue
        lowest = _version(text)
        numbers = list(lowest.release)
        position = min(1, len(numbers) - 1)
        if operator == "^":
            position = next((n for n, number in enumerate(numbers) if number), len(numbers) - 1)
        above = [*numbers[:position], numbers[position] + 1]
        specifiers += [f">={lowest.public}", f"<{'.'.join(map(str, above))}"]
    return ",".join(specifiers)


def of_conda(version: str, *, fuzzy: bool = False) -> str:
    """A specifier; ``fuzzy`` if ``=`` came before it. Raises ValueError for a text that is not a
    version."""
    alternatives = [
        [_conda(part, "=" if fuzzy else "") for part in alternative.split(",")]
        for alternative in version.split("|")
    ]
    return _newest([",".join(filter(None, bounds)) for bounds in alternatives])


def _conda(part: str, default: str) -> str:
    """``=2.1`` and ``2.1.*`` allow every version that begins so; ``2.1`` allows only 2.1."""
    operator, text = _split(part)
    operator = operator or default
    prefix = text.rstrip("*").rstrip(". ")
    if not prefix:
        return ""
    if operator not in ("", "=", "==", "!="):
        return _specifier(operator, prefix)
    base = _version(prefix)
    is_prefix = text != prefix or (operator == "=" and len(base.release) < 3)
    is_range = is_prefix and not (base.is_prerelease or base.is_postrelease or base.local)
    return _specifier("!=" if operator == "!=" else "==", f"{prefix}{'.*' if is_range else ''}")


def _split(part: str) -> tuple[str, str]:
    """The operator of a bound, and its version."""
    if len(part) > LONGEST:
        raise ValueError(f"'{short(part, 40)}' is not a version")
    match = re.match(rf"({OPERATOR})?(.*)", part.strip())
    return (match[1] or "", match[2].strip()) if match else ("", part)


def _specifier(operator: str, version: str) -> str:
    _version(version.removesuffix(".*"))
    try:
        return str(Specifier(f"{operator}{version}"))
    except InvalidSpecifier:
        raise ValueError(f"'{short(version, 40)}' is not a version") from None


def _version(text: str) -> Version:
    try:
        return Version(text)
    except ValueError:  # InvalidVersion, or more digits than Python reads
        raise ValueError(f"'{short(text, 40)}' is not a version") from None
