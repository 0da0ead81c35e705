"""The versions that Poetry and conda write, as pip's specifiers.

Both have alternatives, ``^1.2 || ^2.0``. pip has none, so one range covers them all, from the
lowest version to the highest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from packaging.specifiers import InvalidSpecifier, Specifier
from packaging.version import Version

from harness.system.text import short

OPERATOR = r"===?|[<>!~]=|[<>=~^]"


def of_poetry(constraint: str) -> tuple[str, bool]:
    """A specifier, and whether alternatives were left open: ``^1.2`` is ``>=1.2,<2``.

    Raises ValueError for a text that is not a constraint.
    """
    return _of_alternatives(
        [_parts(alternative) for alternative in re.split(r"\|\|?", constraint)], _poetry
    )


def python_marker(constraint: str) -> str:
    """Poetry's constraint on Python as a marker; empty if every Python meets it."""
    markers = []
    for alternative in re.split(r"\|\|?", constraint):
        bounds = [bound for part in _parts(alternative) for bound in _poetry(part)]
        markers.append(" and ".join(_marker(Specifier(bound)) for bound in bounds))
    return _any_of(markers)


def _marker(specifier: Specifier) -> str:
    version = specifier.version.removesuffix(".*")
    full = len(Version(version).release) > 2
    return f"python_{'full_' if full else ''}version {specifier.operator} '{specifier.version}'"


def platform_marker(constraint: str) -> str:
    """Poetry's ``platform``, such as ``linux || darwin`` or ``!=win32``, as a marker."""
    markers = []
    for alternative in re.split(r"\|\|?", constraint):
        parts = [re.fullmatch(r"(==|!=)?([\w-]+)", part) for part in _parts(alternative)]
        if not all(parts):
            raise ValueError(f"'{short(constraint)}' names no platforms")
        markers.append(
            " and ".join(f"sys_platform {part[1] or '=='} '{part[2]}'" for part in parts if part)
        )
    return _any_of(markers)


def _any_of(markers: Sequence[str]) -> str:
    if "" in markers:
        return ""
    return markers[0] if len(markers) == 1 else " or ".join(f"({marker})" for marker in markers)


def all_of(markers: Sequence[str]) -> str:
    """A marker that holds where all of these do; an empty one holds everywhere."""
    parts = [marker for marker in markers if marker]
    return parts[0] if len(parts) == 1 else " and ".join(f"({marker})" for marker in parts)


def _parts(text: str) -> list[str]:
    """The bounds that must hold together; spaces or commas are between them."""
    joined = re.sub(rf"({OPERATOR})\s+", r"\1", text.strip())
    return [part for part in re.split(r"[,\s]+", joined) if part]


def _poetry(part: str) -> list[str]:
    """The specifiers of a bound. ``^`` allows any version up to the next change of the first number
    that is not 0, and ``~`` up to that of the second number."""
    operator, text = _split(part)
    if text == "*" and operator in ("", "==", "="):
        return []
    if operator not in ("^", "~"):
        return [_specifier("==" if operator in ("", "=") else operator, text)]
    lowest = _version(text)
    numbers = list(lowest.release)
    position = min(1, len(numbers) - 1)
    if operator == "^":
        position = next((n for n, number in enumerate(numbers) if number), len(numbers) - 1)
    above = [*numbers[:position], numbers[position] + 1]
    return [f">={lowest.public}", f"<{'.'.join(map(str, above))}"]


def of_conda(version: str, *, fuzzy: bool = False) -> tuple[str, bool]:
    """A specifier, and whether alternatives were left open; ``fuzzy`` if ``=`` came before it.

    Raises ValueError for a text that is not a version.
    """
    alternatives = [alternative.split(",") for alternative in version.split("|")]
    return _of_alternatives(alternatives, lambda part: _conda(part, "=" if fuzzy else ""))


def _conda(part: str, default: str) -> list[str]:
    """``=2.1`` and ``2.1.*`` allow every version that begins so; ``2.1`` allows only 2.1."""
    operator, text = _split(part)
    operator = operator or default
    prefix = text.rstrip("*").rstrip(". ")
    if not prefix:
        return []
    if operator not in ("", "=", "==", "!="):
        return [_specifier(operator, prefix)]
    base = _version(prefix)
    is_prefix = text != prefix or (operator == "=" and len(base.release) < 3)
    is_range = is_prefix and not (base.is_prerelease or base.is_postrelease or base.local)
    return [_specifier("!=" if operator == "!=" else "==", f"{prefix}{'.*' if is_range else ''}")]


LONGEST = 200
"""Characters of a bound; no version has so many."""


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


def _of_alternatives(
    alternatives: Sequence[Sequence[str]], read: Callable[[str], list[str]]
) -> tuple[str, bool]:
    choices = [[text for part in parts for text in read(part)] for parts in alternatives]
    if len(choices) == 1:
        return ",".join(choices[0]), False
    ranges = [[text for bound in bounds for text in _range(Specifier(bound))] for bounds in choices]
    lowest = _outermost(ranges, ">", max, min)
    return ",".join([*lowest, *_outermost(ranges, "<", min, max)]), True


def _outermost(
    ranges: Sequence[Sequence[str]], sign: str, inner: Callable[..., str], outer: Callable[..., str]
) -> list[str]:
    """The bound on one side that contains all ranges; empty if a range has no bound there."""

    def place(bound: str) -> Version:
        return Version(bound.lstrip("<>="))

    bounds = [[each for each in span if each.startswith(sign)] for span in ranges]
    return [outer((inner(each, key=place) for each in bounds), key=place)] if all(bounds) else []


def _range(specifier: Specifier) -> list[str]:
    """The lower and the upper bound of a specifier."""
    version = specifier.version.removesuffix(".*")
    if specifier.operator == "!=":
        return []
    if specifier.operator in ("==", "===", "~="):
        if version == specifier.version and specifier.operator != "~=":
            return [f">={version}", f"<={version}"]
        numbers = Version(version).release
        prefix = numbers[:-1] if specifier.operator == "~=" else numbers
        return [f">={version}", f"<{'.'.join(map(str, [*prefix[:-1], prefix[-1] + 1]))}"]
    return [str(specifier)]
