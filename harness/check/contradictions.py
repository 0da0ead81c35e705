"""Requirements of one package that no release can meet: ``pip==23.3.1`` and ``pip==24.0``."""

from __future__ import annotations

from collections.abc import Mapping

from packaging.specifiers import Specifier, SpecifierSet
from packaging.version import Version

from harness.system.text import short

BOUNDS = {">": ">", ">=": ">", "<": "<", "<=": "<", "~=": ">", "==": ">"}
"""Operators, and on which side they bound a version: ``==2.7.*`` allows none below 2.7."""


def contradictions(
    versions: Mapping[str, SpecifierSet], places: Mapping[str, Mapping[Specifier, str]]
) -> dict[str, str]:
    """The packages whose requirements no release can meet, with the requirements and their places.

    Two versions that are required exactly are one kind; the other is a bound above the other.
    """
    return {
        name: conditions(name, places[name])
        for name, specifiers in versions.items()
        if is_impossible(specifiers)
    }


def is_impossible(versions: SpecifierSet) -> bool:
    if equal := exact_versions(versions):
        return not any(versions.contains(version, prereleases=True) for version in equal)
    bounds = [
        (BOUNDS[one.operator], Version(one.version.removesuffix(".*")))
        for one in versions
        if one.operator in BOUNDS
    ]
    lowest = max((version for operator, version in bounds if operator == ">"), default=None)
    highest = min((version for operator, version in bounds if operator == "<"), default=None)
    return lowest is not None and highest is not None and lowest > highest


def exact_versions(versions: SpecifierSet) -> list[str]:
    """The versions that are required exactly, such as ``==1.0`` and not ``==1.*``."""
    equal = [specifier.version for specifier in versions if specifier.operator in ("==", "===")]
    return [version for version in equal if not version.endswith(".*")]


def conditions(name: str, places: Mapping[Specifier, str]) -> str:
    """The requirements of a package, with their places."""
    parts = [f"{name}{specifier} ({where})" for specifier, where in places.items()]
    return short(" and ".join(parts), 400)
