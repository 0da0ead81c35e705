"""What uv's errors say: which packages it cannot use, and which requirements contradict each other.

uv explains in sentences why no releases fit together: ``Because vllm==0.8.4 depends on torch==2.6.0
and you require torch==2.5.1, we can conclude that your requirements are unsatisfiable.``
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidName, canonicalize_name

NO_RELEASE = re.compile(
    r"no versions? of (?:all of: )?([\w.-]+)|"
    r"only (?:the following versions of )?([\w.-]+)\S* (?:is|are) available"
)
UNUSABLE = re.compile(
    r"Wheels are required for `([\w.-]+)`|"
    r"(?<![^\s`(])([\w.-]+)(?:[=<>!~]=?\S+)? (?:has|have) no (?:usable )?wheels|"
    r"(?<!\S)(\S+) was not found in the package registry"
)
"""What uv says of a package without wheels that this Python and this machine can use. A search
begins only where a word does, as some words are long."""
NO_SOURCE = re.compile(
    r"(?<![^\s`(])([\w.-]+)(?:[=<>!~]=?\S+)? (?:has|have) no source distribution"
)
"""What uv says of a package that it may choose as source alone."""
OTHER_PYTHON = re.compile(r"(?<!\S)([\w.-]+)[=<>!~]\S+ depends on (?:one of: )?Python[<>=!]")
NOT_STORED = re.compile(r"(?<!\S)(\S+) (?:was not found in the cache|needs to be downloaded from)")
"""Without a network."""
SILENT_INDEX = re.compile(r"error sending request|dns error|network was disabled|Request failed")

LOGGED = re.compile(r"(TRACE|DEBUG| ?INFO|WARN) ")

NEED = re.compile(
    r"(?<!\S)(all versions of )?([\w.-]+(?:[=<>!~][^\s,]*(?:,[^\s,]+)*)?),? depends? on (.*?)"
    r"(?= and you require | and there (?:is|are) no | and only | and (?:all versions of )?\S+ "
    r"depends? on |,? we can conclude | cannot be used|[.,] And |$)"
)
"""What needs what."""
REQUIREMENT = re.compile(r"([\w.-]+)((?:[=<>!~]=?[^\s,]+,?)*)")
"""A package with its versions in a sentence."""
DETAILS = re.compile(r"\{[^{}]*\}|(?<=[\w.])\[[\w.,-]*\]")
"""Conditions and extras after the name of a package."""


@dataclass(frozen=True)
class Contradiction:
    """A contradiction between requirements."""

    names: tuple[str, ...]
    """The packages of which no release meets all that is required."""
    needs: tuple[str, ...]
    """What requires them: ``vllm==0.8.4 depends on torch==2.6.0``."""
    requirements: tuple[str, ...]
    """The names of the user's own requirements that take part."""


def without_source(errors: str) -> set[str]:
    """The packages that have no release as source."""
    return {canonicalize_name(name) for name in NO_SOURCE.findall(errors)}


def without_log(output: str) -> tuple[str, str]:
    """The lines that uv logged, and its errors on one line."""
    lines = output.splitlines()
    log = [line for line in lines if LOGGED.match(line)]
    return "\n".join(log), " ".join(" ".join(x for x in lines if not LOGGED.match(x)).split())


def unusable(errors: str) -> set[str]:
    """The packages that the index does not have, or not for this Python and this machine."""
    text = DETAILS.sub("", errors)
    return {name for pattern in (UNUSABLE, OTHER_PYTHON) for name in _named(pattern, text)}


def without_release(errors: str, required: Collection[str]) -> set[str]:
    """The packages that have no such release.

    A package that is required, too, has others. If only what another package needs is missing, the
    requirements contradict each other: ``there is no version of down==7 and up==3 depends on it``.
    """
    text = DETAILS.sub("", errors)
    return {
        name
        for name in _named(NO_RELEASE, text)
        if name not in required or re.search(rf"you require {re.escape(name)}(?![\w.-])", text)
    }


def not_stored(errors: str) -> set[str]:
    """The packages that uv, which ran without a network, does not have in its cache."""
    return set(_named(NOT_STORED, DETAILS.sub("", errors)))


def contradiction(errors: str, limits: Mapping[str, SpecifierSet]) -> Contradiction | None:
    """The contradiction that uv describes; None if the errors are about something else. ``limits``
    are the versions that the user's files allow."""
    text, reasons = _sentences(errors), _needs(errors, limits)
    limited = [name for name in reasons if str(limits.get(name, ""))]
    stated = [name for name in limited if re.search(rf"you require {re.escape(name)}[=<>!~]", text)]
    several = [name for name, those in reasons.items() if len(those) > 1]
    names = stated or limited or several or list(reasons)[-1:]
    if not names:
        return None
    parts = {name for name, _ in _requirements(text)} & limits.keys()
    causes = dict.fromkeys(reason for name in names for reason in reasons[name])
    return Contradiction(tuple(names), tuple(causes), tuple(sorted(parts)))


def needs(errors: str, limits: Mapping[str, SpecifierSet]) -> dict[str, str]:
    """What needs a package, by the package: ``vllm==0.8.4 depends on torch==2.6.0``."""
    return {name: reasons[0] for name, reasons in _needs(errors, limits).items()}


def _needs(errors: str, limits: Mapping[str, SpecifierSet]) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for match in NEED.finditer(_sentences(errors)):
        who, words = match[2], match[3].rstrip(" ,.")
        with suppress(InvalidName):
            dependent = canonicalize_name(re.split(r"[=<>!~]", who)[0], validate=True)
            limit = str(limits.get(dependent, ""))
            who = f"{dependent}{limit}" if limit else f"{match[1] or ''}{who}"
        verb = "depend" if who.startswith("all versions") else "depends"
        for name in dict.fromkeys(name for name, _ in _requirements(words)):
            reasons.setdefault(name, []).append(f"{who} {verb} on {words}")
    return reasons


def _sentences(errors: str) -> str:
    """uv's explanation on one line, without conditions, extras and hints."""
    return re.sub(r"\s+", " ", DETAILS.sub("", errors.partition(" hint: ")[0]))


def _requirements(text: str) -> Iterator[tuple[str, str]]:
    """The packages in a sentence; each word that has a version or may be a name."""
    for word in text.split():
        if (match := REQUIREMENT.fullmatch(word.rstrip(",."))) and word not in (
            "and",
            "one",
            "of:",
        ):
            with suppress(InvalidName):
                yield canonicalize_name(match[1], validate=True), match[2]


def _named(pattern: re.Pattern[str], errors: str) -> Iterator[str]:
    """The packages that a pattern finds in uv's errors."""
    for match in pattern.finditer(errors):
        with suppress(InvalidName):
            name = "".join(filter(None, match.groups()))
            yield canonicalize_name(name.strip("`.,"), validate=True)
