"""What is known of the packages with bugs: ``upstream.toml`` in the folder of their scenarios."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import scenarios
from harness.bugs.bug_file import built, toml_in
from harness.system.errors import Inconclusive

FILE = "upstream.toml"


@dataclass(frozen=True)
class Undeclared:
    """A dependency that releases should have declared: a bound, as a later release breaks it, or a
    package that they need."""

    needs: str
    releases: str = ""
    why: str = ""


@dataclass(frozen=True)
class Wheels:
    """Releases without sources, and the only Pythons that they have wheels for.

    Another Python gets the wheel of the last of these, for the plain Python in it. It cannot import
    the compiled part: of megatron-core a helper of the data sets, which nothing here imports.
    """

    releases: str
    pythons: tuple[str, ...]


@dataclass(frozen=True)
class NotImported:
    """Releases that some patch releases of Python cannot import, and where that is reported."""

    releases: str
    pythons: str
    report: str


@dataclass(frozen=True)
class Upstream:
    """A package with bugs."""

    repository: str = ""
    """On GitHub: ``OWNER/NAME``."""
    former_repositories: tuple[str, ...] = ()
    """Where it was before: GitHub redirects."""
    module: str = ""
    """What it is imported as, if that is not its name with underscores."""
    other_names: tuple[str, ...] = ()
    """What conda and repositories call it. The index may have something else of that name, such as
    ignite, so a requirement means what the index has."""
    needs: tuple[str, ...] = ()
    """Packages of this project that any release of the last two years needs: for an omission, and
    where nothing can be resolved."""
    source_only: tuple[str, ...] = ()
    """Packages that are published without wheels: itself, or one that it needs. They are built
    here, and are plain Python."""
    unused: tuple[str, ...] = ()
    """What it requires and imports only when it is used, such as the clients of object stores:
    overlays leave it out. One of these has no wheel, and together they are larger than the rest. Or
    what Python has itself: dataclasses is Python 3.7's module for Python 3.6, and hides the newer
    one, so that no process starts."""
    summaries: tuple[str, ...] = ()
    """Other names under which the index has its summary, or one that says so."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """The packages that publish it again, release by release, and the evidence."""
    forks: Mapping[str, str] = field(default_factory=dict)
    """Forks and nightly builds, and the version whose wheel installs its module."""
    undeclared: tuple[Undeclared, ...] = ()
    wheels: tuple[Wheels, ...] = ()
    not_imported: tuple[NotImported, ...] = ()


@cache
def upstreams() -> Mapping[str, Upstream]:
    """Every package with bugs, by its name, sorted. Raises Inconclusive for a broken file."""
    packages = {}
    for root in scenarios.__path__:
        for file in Path(root).glob(f"*/{FILE}"):
            try:
                upstream = built(Upstream, toml_in(file), "the file")
            except ValueError as error:
                raise Inconclusive(f"{file}: {error}") from None
            packages[file.parent.name.replace("_", "-")] = upstream
    return dict(sorted(packages.items()))


def import_name(package: str) -> str:
    """The module that a pinned package is imported as."""
    upstream = upstreams().get(package)
    return (upstream and upstream.module) or package.replace("-", "_")
