"""What uv is asked: which releases fit together, and what was changed since it refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, Specifier, SpecifierSet
from packaging.version import Version

from harness.bugs import pins
from harness.check import needs
from harness.check.contradictions import exact_versions
from harness.check.installed import public_build
from harness.check.requirements import Requirements
from harness.check.synonyms import NAMES
from harness.releases import index

OFTEN_SOURCE = frozenset(NAMES["often_source"])


@dataclass(frozen=True)
class Contradiction:
    """Requirements of a package that no release of it meets."""

    name: str
    needs: tuple[str, ...]
    """What others need of it: ``vllm==0.8.4 depends on torch==2.6.0``."""
    requirements: tuple[str, ...]
    """The names of the user's own requirements that take part."""


@dataclass(frozen=True)
class Problem:
    """The requirements as uv gets them."""

    content: Requirements
    required: Mapping[str, SpecifierSet]
    day: str = ""
    omissions: Mapping[str, str] = field(default_factory=dict)
    """The packages that are left out, each with what needs it; empty if nobody knows."""
    sources: frozenset[str] = frozenset()
    """The packages that uv may choose without a wheel, and never as one: it is told what they need,
    as far as ``NEEDS`` knows it, and builds nothing."""
    wheels: frozenset[str] = frozenset()
    """The packages that are no sources: they are not there as such."""
    developments: frozenset[str] = frozenset()
    """The packages of which no index has the development version: instead, their release."""
    elsewhere: frozenset[str] = frozenset()
    """The omissions to which a constraint gives an address, and that another package needs."""
    contradictions: Mapping[str, Contradiction] = field(default_factory=dict)
    """By the package whose requirements contradict each other: those of the files replace what
    others need of it, and without any its release is unknown."""
    python: str = ""
    """The Python to choose releases for, ``3.10``; empty for ours."""
    wanting: tuple[str, ...] = ()
    """The packages that have wheels for that Python and none for ours."""

    @property
    def minor(self) -> int:
        """The minor version of the Python to choose releases for: 10 for 3.10."""
        return Version(self.python or pins.here()[0]).minor

    @cached_property
    def limits(self) -> Mapping[str, SpecifierSet]:
        """The versions that the files allow, also those of constraints, as an index has them."""
        versions = {**self.content.bounds, **self.required}
        return {
            name: _published(specifiers, is_development=name in self.developments)
            for name, specifiers in versions.items()
        }

    def is_free(self, name: str) -> bool:
        """Whether what others need of a package counts."""
        replaced = (self.omissions, self.contradictions, self.content.overrides)
        return not any(name in names for names in replaced)

    def requirement(self, name: str) -> str:
        """The requirement of the files, with extras: ``ray[default]>=2``."""
        extras = ",".join(sorted(self.content.required.extras.get(name, ())))
        return f"{name}{f'[{extras}]' if extras else ''}{self.limits.get(name, '')}"

    def uv_input(self) -> tuple[list[str], str, dict[str, list[str]]]:
        """The words of the command, its standard input, and the lines of its files.

        What an omission needs, as far as ``NEEDS`` says, is required.
        """
        content, omissions = self.content, self.omissions
        required = [n for n in self.required if n not in omissions]
        others = {
            need
            for name in omissions.keys() & self.required.keys()
            for need in needs.NEEDS.get(name, ())
        }
        lines = [*map(self.requirement, required), *sorted(others - omissions.keys())]
        overrides = [
            *(
                _override(requirement)
                for name, those in content.overrides.items()
                for requirement in those
                if name not in omissions and not requirement.url
            ),
            *map(self.requirement, sorted(self.contradictions.keys() - omissions.keys())),
        ]
        left_out = {*omissions, *(n for n, those in content.overrides.items() if not those)}
        lists = {
            "--excludes": sorted(left_out),
            "--overrides": overrides,
            "--constraints": [f"{name}{self.limits[name]}" for name in content.bounds],
        }
        return self._command(), "".join(f"{line}\n" for line in lines), lists

    def _command(self) -> list[str]:
        content = self.content
        return [
            *("pip", "compile", "-", "--quiet", "--no-header", "--color=never"),
            *("--annotation-style=line", "--only-binary", ":all:"),
            *((f"--exclude-newer={self.day}",) if self.day else ()),
            *((f"--default-index={content.indices[0]}",) if any(content.indices[:1]) else ()),
            *(("--python-version", self.python) if self.python else ()),
        ]


def _published(specifiers: SpecifierSet, *, is_development: bool) -> SpecifierSet:
    """Specifiers that allow every build of a release, ``==0.16.0`` for ``==0.16.0+cu121``: the
    index of the builds need not respond, and all need the same. Instead of a development version,
    the release that it became."""
    parts = []
    exact = [one for one in specifiers if one.version in exact_versions(SpecifierSet(str(one)))]
    for specifier in exact or specifiers:  # uv takes what was yanked only if nothing else is said
        version = public_build(specifier.version)
        if is_development and is_development_version(specifier):
            version = Version(version).base_version
        parts.append(f"{specifier.operator}{version}")
    return SpecifierSet(",".join(parts))


def _override(requirement: Requirement) -> str:
    """What replaces a requirement, as uv gets it: it holds here, so it needs no marker."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{_published(requirement.specifier, is_development=False)}"


def is_development_version(specifier: Specifier) -> bool:
    """Whether a specifier requires one development version."""
    if specifier.operator not in ("==", "===") or specifier.version.endswith(".*"):
        return False
    return Version(specifier.version).is_devrelease


def other_python(constraint: str) -> str:
    """The oldest Python that a project is for, if it is not for ours; empty if it is for ours, or
    if the constraint is invalid."""
    try:
        specifiers = SpecifierSet(constraint)
    except InvalidSpecifier:
        return ""
    our_python, _ = pins.here()
    if specifiers.contains(f"{our_python}.99") or specifiers.contains(our_python):
        return ""
    return next((f"3.{n}" for n in range(*index.PYTHONS) if specifiers.contains(f"3.{n}.99")), "")
