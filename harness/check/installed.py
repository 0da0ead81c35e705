"""What a source says about a package: its version, and whether that is the published release."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.direct_url import DirectUrl, DirectUrlValidationError
from packaging.utils import (
    InvalidName,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from harness.bugs.result_file import tested_releases
from harness.check.synonyms import ELSEWHERE, FORKS, PUBLISHED, UPSTREAM, Published
from harness.system.documents import as_text, as_texts
from harness.system.text import short

EDITABLE = "an editable install"
FILE = "a local file"
FOLDER = "a local folder"
GIT = "installed from git"
WEB = "a file from the web"
LEFT_OUT = "the overrides of the file leave it out, so something else installs it"

LONGEST = 100
"""Characters of a version; a commit's has about 60."""

ARCHIVES = re.compile(r"\.(whl|zip|tgz|tar\.\w+)$")
"""Endings of files to install; such a name is also a valid name of a package."""

HOSTED = re.compile(
    r"((?:/[^/]+)+?/[^/]+)/(?:(?:-/)?archive|zipball|tarball|get|(?:legacy\.)?(?:zip|tar\.gz))/.+"
)
"""The path of an archive that a repository's host makes of a commit; the first part is that of the
repository. Its file is named after a tag: ``v4.49.0-Gemma-3.zip``."""

CONDA = re.compile(r"/(feedstock_root|croot|conda-bld|tmp/build/80754af9)/")
"""Folders in which conda's packages are built. Their metadata name these folders."""


BUILD = re.compile(r"(cpu|xpu|cu\d+|rocm[\d.]*\d)(\.(cxx11\.abi|with\.pypi\.cudnn))?")
"""The labels with which torch and packages that need it publish builds of a release for devices:
``2.13.0+cu130``."""


class _Package:
    """What the states of a package share."""

    version: str

    @property
    def public(self) -> str:
        """The version without the label of a build: ``2.13.0`` of ``2.13.0+cu130``."""
        return self.version.partition("+")[0]

    @property
    def origin(self) -> str:
        """Why it may differ from a published release, or why nobody knows which one it is; empty
        for a release."""
        return str(getattr(self, "because", ""))


@dataclass(frozen=True)
class Exact(_Package):
    """A release, or a development version, which is between two releases."""

    version: str
    """As written: ``0.19.8``."""


@dataclass(frozen=True)
class NewestOf(_Package):
    """The newest release that a requirement allows."""

    version: str
    requirement: str
    """``accelerate>=1``, or DEPENDENCY."""


@dataclass(frozen=True)
class OneOf(_Package):
    """One of several releases; a file has them for different users of it."""

    versions: tuple[str, ...]
    because: str
    version: str = field(default="", init=False)


@dataclass(frozen=True)
class Unknown(_Package):
    """A package of which nobody knows which release it is."""

    because: str
    version: str = ""
    """What it calls itself, ``0.19.8``, though it may differ from the release of this version;
    empty if the source does not say."""


Installed = Exact | NewestOf | OneOf | Unknown
"""A package as a source describes it."""


def is_development(package: Installed) -> bool:
    """Whether it is a development version, and no vendor's build of one."""
    return isinstance(package, Exact | NewestOf) and Version(package.version).is_devrelease


def as_fields(package: Installed) -> dict[str, Any]:
    """The fields of a package in JSON; docs/check.md explains them."""
    return {
        "version": package.version,
        "origin": package.origin,
        "candidates": list(package.versions if isinstance(package, OneOf) else ()),
        "newest_of": package.requirement if isinstance(package, NewestOf) else "",
    }


def of_fields(content: Mapping[str, Any]) -> Installed:
    """The package with these fields. Raises ValueError or LookupError for other fields."""
    version, origin, newest_of = (
        as_text(content[name], name) for name in ("version", "origin", "newest_of")
    )
    if candidates := as_texts(content["candidates"], "candidates"):
        return OneOf(tuple(candidates), origin)
    if newest_of:
        return NewestOf(version, newest_of)
    return Unknown(origin, version) if origin or not version else Exact(version)


def described(version: str, origin: str = "") -> Installed:
    """A package with this version; finds out whether it can be a release."""
    try:
        if len(version) > LONGEST:
            raise ValueError("it is too long to print")
        parsed = Version(version) if version else None
    except ValueError:  # InvalidVersion, or more digits than Python reads
        return Unknown(origin or f"'{short(version, 40)}' is not a version")
    if parsed is None:
        return Unknown(origin or "its version is not recorded")
    if _is_build(parsed):
        return Unknown(origin, parsed.public) if origin else Exact(parsed.public)
    label = short(version.partition("+")[2], 40)
    if not origin and label and parsed.is_devrelease:
        origin = f"a development version with the label +{label}"
    if not origin and label:  # DeepSpeed's: the commit it is built from
        origin = f"a build with the label +{label}"
    return Unknown(origin, version) if origin else Exact(version)


def public_build(version: str) -> str:
    """Remove the label of a published build from a version: ``2.13.0`` of ``2.13.0+cu130``."""
    try:
        parsed = Version(version)
    except ValueError:
        return version
    return parsed.public if _is_build(parsed) else version


def _is_build(version: Version) -> bool:
    """Whether this is one of the builds of a version that are published for devices.

    Vendors build another commit: ``2.9.0a0+50eac811a6.nv25.09``.
    """
    return bool(version.local and BUILD.fullmatch(version.local))


def chosen(where: str, packages: Iterable[Installed]) -> Installed:
    """The package that several entries of a file describe; it has no version if theirs differ."""
    by_version: dict[str, Installed] = {}
    for package in packages:
        if isinstance(by_version.setdefault(package.version, package), Exact):
            by_version[package.version] = package
    if len(by_version) == 1:
        return next(iter(by_version.values()))
    if len(by_version) > MOST:
        return Unknown(f"{where} has {len(by_version):,} versions of it")
    because = f"{where} has {' and '.join(v or 'one without a version' for v in by_version)}"
    if any(isinstance(package, Unknown) for package in by_version.values()):
        return Unknown(because)
    return OneOf(_distinct(by_version), because)


MOST = 20
"""Releases of a package that are looked up. No right lock has so many, and of two packages each
pair is looked up."""


def _distinct(versions: Iterable[str]) -> tuple[str, ...]:
    """These versions, each once: 2.9 is 2.9.0."""
    return tuple({Version(version): version for version in versions}.values())


def at_address(address: str, *, editable: bool = False) -> tuple[str, Installed]:
    """The name and the version of the package at a path or an address, as far as they show.

    The name is that of an archive, a folder or a repository. It is empty if no package can have
    it, such as ``-e evil``. Nothing is read from the path or the address.
    """
    scheme, host, place, _, fragment = urlsplit(address)
    repository, plus, _ = scheme.partition("+")
    place, remote = unquote(place).rstrip("/"), scheme not in ("", "file")
    file = place.rpartition("/")[2]
    hosted = remote and not file.endswith(".whl") and HOSTED.fullmatch(place)
    folder = hosted[1] if hosted else place.partition("@")[0] if plus else place
    upstream = _upstream(f"{host}{folder}") if remote else ""
    repository_name = folder.rpartition("/")[2].removesuffix(".git")
    name = upstream or _elsewhere(_canonical(repository_name))
    egg = re.search(r"(?:^|&)egg=([\w.-]+)", fragment)
    if egg and not upstream:
        name = _elsewhere(_canonical(egg[1]))
    if editable:
        return name, Unknown(EDITABLE)
    if plus and repository != "git":
        return name, Unknown(f"installed from {repository}")
    if plus:
        return name, from_git(name, address)
    stem = re.sub(r"\.(zip|tgz|tar\.\w+)$", "", file)
    if hosted and (release := _tagged(name, f"{host}{hosted[1]}", stem)):
        return name, described(release)
    if ARCHIVES.search(file):
        archive_name, version = _archive(file)
        if hosted or egg:
            version = version if archive_name == name else ""
        else:
            name = archive_name
        return name, described(version, WEB if remote else FILE)
    if CONDA.search(place):
        return name, Unknown("built by conda: only 'conda list --json' names its version")
    return name, Unknown(WEB if remote else FOLDER)


def is_misnamed(name: str, package: str, address: str) -> bool:
    """Whether a requirement calls a package as its repository, or its module, is called:
    ``open_clip @ git+https://github.com/mlfoundations/open_clip``. A subfolder may have another
    package."""
    packages = {*UPSTREAM.values()}
    is_ours = name in packages or name in PUBLISHED
    return package in packages and not is_ours and "subdirectory=" not in address


TAG = re.compile(r"(?:refs/tags/)?(?:core_)?v?(\d+(?:\.\d+)+(?:\.?(?:rc|post)\d+)?)")
"""The tags of releases: ``v4.45.0``, ``2.1.0``, and ``core_v0.12.0`` of Megatron."""


def from_git(name: str, address: str, reference: str = "", version: str = "") -> Installed:
    """A package from a repository, at a tag, a branch or a commit; ``version`` if that is known.

    A tag of upstream's repository is the release. A development version of upstream's is between
    two releases. Of anything else nobody knows which release it is.
    """
    address, _, query = address.partition("#")[0].partition("?")
    names = dict(re.findall(r"(tag|rev)=([^&]+)", query))
    path, at, revision = address.rpartition("@")
    if at and "/" in path.partition("://")[2]:  # not the user in git@host
        address, reference = path, reference or revision
    reference = unquote(reference or names.get("tag", "") or names.get("rev", ""))
    if release := _tagged(name, address, reference):
        return described(release)
    if version and _upstream(address) == name and is_development(dev := described(version)):
        return dev
    return described(version, GIT)


def _tagged(name: str, repository: str, reference: str) -> str:
    """The release of upstream's repository with this tag; empty for anything else."""
    tag = TAG.fullmatch(reference)
    if not tag or _upstream(repository) != name:
        return ""
    return tag[1] if tag[1].count(".") > 1 or tag[1] in tested_releases(name) else ""


GITHUB = re.compile(
    r"(?:(?:git\+)?(?:https?|ssh|git)://)?(?:[^/@]+@)?github\.com(?::\d+)?[:/]/*"
    r"([^/]+/[^/]+?)(?:\.git)?/*"
)
"""A repository on GitHub itself: another host may have a folder of this name."""


def _upstream(address: str) -> str:
    """The package whose own repository on GitHub an address is; empty for any other address."""
    place = GITHUB.fullmatch(address)
    return UPSTREAM.get(place[1].lower(), "") if place else ""


def _elsewhere(name: str) -> str:
    """The package of the index that a repository or a folder of this name has."""
    return ELSEWHERE.get(name) or FORKS.get(name, name)


def _canonical(text: str) -> str:
    """The canonical form of a package's name; empty if it is invalid and must not reach uv."""
    try:
        return canonicalize_name(text, validate=True)
    except InvalidName:
        return ""


def _archive(file: str) -> tuple[str, str]:
    """The name and the version in the name of an archive; both empty if it has none."""
    try:
        if file.endswith(".whl"):
            name, version, *_ = parse_wheel_filename(file)
        else:
            name, version = parse_sdist_filename(file)
        if re.match(r"v?\d+\.\d", file):  # named after a tag
            return "", ""
        return name, str(version)
    except ValueError:  # each of packaging's exceptions is one
        return "", ""


def recorded(name: str, version: str, direct_url: str) -> Installed:
    """An installed package with a ``direct_url.json``; releases of an index have none."""
    try:
        content = DirectUrl.from_dict(json.loads(direct_url))
    except (DirectUrlValidationError, ValueError, AttributeError, RecursionError):
        return described(version, "its direct_url.json cannot be read")
    if vcs := content.vcs_info:
        if vcs.vcs == "git":
            return from_git(name, content.url, vcs.requested_revision or "", version)
        return described(version, f"installed from {vcs.vcs}")
    if content.dir_info and content.dir_info.editable:
        return described(version, EDITABLE)
    if CONDA.search(content.url):
        return described(version)
    if not content.url.startswith("file:"):
        return described(version, WEB)
    return described(version, FILE if content.archive_info else FOLDER)


DEPENDENCY = "the other packages"
"""What ``newest_of`` says of a package that no file names."""


def merged(
    packages: Mapping[str, Installed], forks: Mapping[str, Published] = MappingProxyType({})
) -> dict[str, Installed]:
    """Name packages as scenarios pin them; a package and its synonym become one entry.

    A package that is installed only because another one needs it gives way to its synonym:
    ``lightning`` needs pytorch-lightning, and imports its own copy. ``forks`` are synonyms that
    PUBLISHED does not have.
    """
    synonyms = {**forks, **PUBLISHED}
    entries = {name: package for name, package in packages.items() if name not in synonyms}
    for name, copy in synonyms.items():
        if synonym := packages.get(name):
            if not copy.same:
                version = " ".join(filter(None, (name, synonym.version)))
                synonym = Unknown(f"{version} is installed in its place", synonym.version)
            entries[copy.package] = _both(entries.get(copy.package), synonym, name, copy)
    return entries


def _both(package: Installed | None, synonym: Installed, name: str, copy: Published) -> Installed:
    """The entry for a package and its synonym: nobody knows which of two the user imports."""
    is_needed = isinstance(package, NewestOf) and package.requirement == DEPENDENCY
    if package is None or is_needed or package == synonym:
        return synonym
    versions = [*_releases(package), *_releases(synonym)]
    if copy.same and all(versions):
        candidates = _distinct(versions)
        if len(candidates) == 1:
            return package
        return OneOf(candidates, f"it and {name} are installed")
    reasons = [one.because for one in (package, synonym) if isinstance(one, OneOf | Unknown)]
    why = f", and {reasons[0]}" if copy.same and reasons else ""
    return Unknown(f"{name} is installed beside it{why}")


def _releases(package: Installed) -> tuple[str, ...]:
    """The releases of which one is installed; an empty text for anything but a release."""
    if isinstance(package, OneOf):
        return package.versions
    return ("" if isinstance(package, Unknown) else package.version,)
