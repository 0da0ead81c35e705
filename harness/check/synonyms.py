"""The other names of a package: in conda, in repositories, and of packages that contain its code.

The entries of PUBLISHED were looked up in the index on 2026-11-26 and 2026-11-28. Of a file we only
have the names. An interpreter is asked which packages install a module, so a name that is not here
is noticed there, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.utils import canonicalize_name

from harness.bugs import catalog
from harness.bugs.bug_file import built
from harness.bugs.packages import Upstream, upstreams
from harness.system.documents import toml_of

NAMES = toml_of(Path(__file__).with_name("packages.toml").read_text(encoding="utf-8"))
"""What is known of packages without bugs here; the file explains each table."""
PACKAGES: Mapping[str, Upstream] = {
    **upstreams(),
    **{name: built(Upstream, table, name) for name, table in NAMES["others"].items()},
}
ELSEWHERE = {name: package for package, known in PACKAGES.items() for name in known.other_names}

UPSTREAM = {
    repository.lower(): package
    for package, known in PACKAGES.items()
    for repository in (known.repository, *known.former_repositories)
    if repository
}
"""The package in a repository on GitHub."""
AMBIGUOUS = ("ao", "composer", "data", "metrics", "streaming")
"""Names of repositories that say which package is there only together with their owners."""
FORKS: dict[str, str] = {
    name: package
    for repository, package in UPSTREAM.items()
    if (name := canonicalize_name(repository.partition("/")[2])) not in AMBIGUOUS
}
"""The package in anybody's repository or folder of this name."""


@dataclass(frozen=True)
class Published:
    """A package of the index that contains the code of another one."""

    package: str
    evidence: str
    """Why we know: what a wheel installs, or what the index says of the package."""
    same: bool = False
    """Whether its releases have the code of the releases with the same number."""


def _published(package: str, known: Upstream) -> Iterator[tuple[str, Published]]:
    for name, evidence in known.copies.items():
        yield name, Published(package, evidence, same=True)
    for name, version in known.forks.items():
        yield name, Published(package, f"its wheel of {version} installs the module of {package}")
    for name in known.summaries:
        yield name, Published(package, f"its summary is that of {package}")


PUBLISHED = dict(copy for entry in PACKAGES.items() for copy in _published(*entry))
"""By canonical name. Not here, as they contain other code: deepspeed-mii, deepspeed-kernels,
deepspeed-vacc, diffusers-npu (an empty wheel), lightning-fabric, megatron-fsdp (it installs
megatron_fsdp), peft-ex, pytorch-ignite-nightly and timm-ctp (modules of their own), tf-keras, and
``apex``, which is not NVIDIA's."""


def named_in(packages: Iterable[str]) -> list[str]:
    """These packages and the names under which their code is published as well."""
    names = list(dict.fromkeys(packages))
    return names + [name for name, copy in PUBLISHED.items() if copy.package in names]


@cache
def unrecorded_libraries() -> frozenset[str]:
    """The well-known training libraries of which the catalogue has no bug."""
    return frozenset(NAMES["training_libraries"]).difference(named_in(catalog.upstreams()))


def forked(names: Iterable[str]) -> set[str]:
    """The packages that forks or nightly builds among these names replace."""
    return {PUBLISHED[n].package for n in names if n in PUBLISHED and not PUBLISHED[n].same}
