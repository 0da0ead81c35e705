"""Expressions for releases: ``4.34:5.23``, ``minor``, ``0.9.5,0.10.3``.

    A:B           every release from A to B, both included; B may be the beginning of several
                  (``5.23`` takes 5.23.1 as well); either may be left out
    all           every release
    minor         the last patch of each minor release; also of a range: ``4.34:5.23:minor``
    A,B,...       these, and any of the above

No range contains yanked releases or pre-releases. ``pins.torch=installed`` is the installed torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from packaging.version import InvalidVersion, Version

from harness.system.errors import Fault, Inconclusive, UserError
from harness.system.machine import cache_folder
from harness.upstream import index, pins, sources, torches

MINOR = "minor"
ALL = "all"


def is_one(expression: str) -> bool:
    """Whether an expression names a single release."""
    return not any(sign in expression for sign in ",:") and expression not in (ALL, MINOR)


def chosen(name: str, expression: str) -> list[str]:
    """The releases of a package that an expression selects, oldest first.

    Raises UserError for a range without releases, and for a release that does not exist or was
    yanked. Without a network a single release is not checked: a bundle may contain it.
    """
    if (name, expression) == (pins.TORCH, torches.INSTALLED) and (own := torches.installed()):
        return [own]
    if sources.is_one(expression):
        return [sources.pinned(name, expression, cache_folder())]
    terms = [term.strip() for term in expression.split(",")]
    try:
        known = published(name)
    except Inconclusive:
        if not all(is_one(term) for term in terms):
            raise
        return [pins.spelt(version) for version in sorted({_version(name, t) for t in terms})]
    picked = {version for term in terms for version in _term(name, term, known)}
    return sorted(picked, key=Version)


def published(name: str) -> list[str]:
    """Every release of a package for any Python, oldest first; no yanked or pre-releases."""
    found = [r.version for r in index.releases(name) if r.final and not r.yanked]
    if not found:
        raise Fault(f"the package index has no release of {name} that is final and not yanked")
    return found


def _term(name: str, term: str, known: Sequence[str]) -> list[str]:
    bounds, _, step = term.rpartition(":") if term.endswith(f":{MINOR}") else (term, "", "")
    if bounds in (ALL, MINOR):
        bounds, step = ":", MINOR if bounds == MINOR else step
    if ":" not in bounds:
        return [_one(name, bounds, known)]
    first, _, last = bounds.partition(":")
    picked = [v for v in known if _between(name, v, first.strip(), last.strip())]
    if not picked:
        span = f"releases go from {known[0]} to {known[-1]}"
        raise UserError(f"pins.{name}={term}: no release of {name} is in this range: {span}")
    return last_patches(picked) if step else picked


def _one(name: str, word: str, known: Sequence[str]) -> str:
    version = _version(name, word)
    for release in known:
        if Version(release) == version:
            return release
    raise UserError(index.no_release(name, word))


def _between(name: str, release: str, first: str, last: str) -> bool:
    version = Version(release)
    if first and version < _version(name, first):
        return False
    if not last:
        return True
    end = _version(name, last)
    return version <= end or version.release[: len(end.release)] == end.release


def _version(name: str, word: str) -> Version:
    try:
        return Version(word)
    except InvalidVersion:
        raise UserError(
            f"pins.{name}: '{word}' is not a version. Choices: a version (0.15.4), a range "
            f"(0.15:0.19), a list of these, {ALL}, {MINOR} (also 0.15:0.19:{MINOR})"
        ) from None


def last_patches(releases: Sequence[str]) -> list[str]:
    """The last of each minor release, from releases in their order."""
    return list({Version(v).release[:2]: v for v in releases}.values())
