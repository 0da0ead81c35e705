"""The package index: every release of a package, its day, and whether it was yanked.

The index is the one that the user's pip or uv is configured for. It is read over the simple API,
once for each package in a command. uv downloads the files of releases, see ``resolution``.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from harness.releases.index_pages import File, NoNetwork, NoPackage, files_of, session, version_in
from harness.releases.wheel_metadata import needs_of
from harness.system.documents import toml_of
from harness.system.errors import Fault, Inconclusive
from harness.system.text import warn

SILENCE = 1.0
"""Seconds after which a message says what the command waits for."""


@dataclass(frozen=True)
class Release:
    """A release in the package index."""

    package: str
    version: str
    day: str
    """The day (ISO, UTC) it was uploaded; empty if the index does not name it."""
    yanked: bool = False
    python: str = field(default="", compare=False)
    """The Pythons that it supports, such as ``>=3.10``; empty for any."""
    wheels: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """The names of its wheels, with their addresses."""
    has_source: bool = field(default=False, compare=False, repr=False)
    """Whether the index has it as source, too."""

    @property
    def final(self) -> bool:
        """Whether it is not a pre-release."""
        return not Version(self.version).is_prerelease

    @property
    def installable(self) -> bool:
        """Whether its metadata allow this Python."""
        return allows_here(self.python)

    def fits(self, minor: int) -> bool:
        """Whether a Python, 8 for 3.8, may install it: a wheel or, if it has none, its source."""
        return allows(self.python, minor) and (not self.wheels or minor in self.minors)

    @property
    def minors(self) -> frozenset[int]:
        """The Pythons that have a wheel for this machine, by their minor version: 11 for 3.11."""
        return frozenset(
            minor
            for minor in range(*PYTHONS)
            if any(_is_for(wheel, minor) for wheel in self.wheels)
        )

    def has_wheel(self, minor: int) -> bool:
        """Whether a Python, 8 for 3.8, can use one of its wheels on this machine."""
        return allows(self.python, minor) and any(_is_for(wheel, minor) for wheel in self.wheels)


PYTHONS = (7, 20)
"""The minor versions of Python 3 that packages may have wheels for, and the first one above."""


@cache
def _tags(wheel: str) -> frozenset[Tag]:
    """What a wheel is for; nothing if its name is invalid."""
    with suppress(InvalidWheelFilename, InvalidVersion):
        return parse_wheel_filename(wheel)[3]
    return frozenset()


@cache
def _tags_of(minor: int) -> frozenset[Tag]:
    """What a Python can use on this machine."""
    return frozenset([*cpython_tags((3, minor)), *compatible_tags((3, minor), f"cp3{minor}")])


def _is_for(wheel: str, minor: int) -> bool:
    """Whether a Python can use a wheel on this machine."""
    return not _tags_of(minor).isdisjoint(_tags(wheel))


def allows_here(pythons: str) -> bool:
    """Whether a specifier of Pythons, such as ``>=3.10``, allows this one."""
    return _allows(pythons, platform.python_version())


def allows(pythons: str, minor: int) -> bool:
    """The same of another Python, 8 for 3.8, in its last patch release."""
    return _allows(pythons, f"3.{minor}.99")


@cache
def _allows(pythons: str, python: str) -> bool:
    """An invalid specifier allows any: old releases were not checked, and Poetry has its own
    syntax."""
    try:
        return SpecifierSet(pythons).contains(python, prereleases=True)
    except InvalidSpecifier:
        return True


def releases(package: str, indices: Sequence[str | None] = ()) -> list[Release]:
    """Every release of a package, lowest version first, with pre-releases and yanked releases.

    ``indices`` are the addresses of the indices to read; None stands for the user's own index,
    which is the default. Raises Fault if an index cannot be read, or if none has the package.
    """
    by_version: dict[Version, Release] = {}
    missing: Fault | None = None
    for address in indices or [None]:
        try:
            for release in _index(address or _usual()).releases(package):
                by_version.setdefault(Version(release.version), release)
        except NoPackage as fault:
            missing = fault
    if missing and not by_version:
        raise missing
    return [by_version[version] for version in sorted(by_version)]


def installable(package: str, day: str = "", indices: Sequence[str | None] = ()) -> list[Release]:
    """The releases that this Python can install, lowest version first, without pre-releases and
    yanked releases; with a ``day`` (ISO), those uploaded by then."""
    return [
        release
        for release in releases(package, indices)
        if release.final and release.installable and not release.yanked
        if not day or (release.day and release.day <= day)
    ]


def newest(package: str, day: str) -> str:
    """The version of the newest release on a day (ISO) that this Python can install. Raises
    Inconclusive if there is none."""
    candidates = installable(package, day)
    if not candidates:
        raise Inconclusive(f"{package} had no release on {day}: pin one")
    return candidates[-1].version


def releases_of(packages: Iterable[str]) -> Iterator[tuple[str, list[Release] | Fault]]:
    """Each package with its releases that have a day, or with the reason why there are none."""
    for package in packages:
        try:
            dated_releases = [release for release in releases(package) if release.day]
            if not dated_releases:
                raise Fault(f"the index names no upload day for any release of {package}")
            yield package, dated_releases
        except Fault as fault:
            yield package, fault


def needs(release: Release, minor: int) -> tuple[Requirement, ...] | None:
    """What a release needs, by the metadata of a wheel, one for this Python if it has any; None if
    that cannot be found out."""
    names = sorted(release.wheels, key=lambda name: not _is_for(name, minor))
    return needs_of(release.wheels[names[0]]) if names else None


def forget() -> None:
    """Read the index again from now on; it may be another one."""
    _usual.cache_clear()
    _index.cache_clear()
    needs_of.cache_clear()
    session.cache_clear()


def no_release(name: str, version: str) -> str:
    """One line that says a release was never published or was yanked, with its neighbours."""
    target, published = Version(version), list[Release]()
    with suppress(Fault):
        published = [release for release in releases(name) if release.final]
    versions = [Version(release.version) for release in published if not release.yanked]
    near = [*[v for v in versions if v < target][-1:], *[v for v in versions if v > target][:1]]
    span = f"; releases go from {versions[0]} to {versions[-1]}" if versions else ""
    yanked = any(release.yanked and Version(release.version) == target for release in published)
    gone = f"{name}=={version} was yanked" if yanked else f"no release {name}=={version}"
    return f"{gone}: the nearest are {' and '.join(map(str, near)) or 'unknown'}{span}"


class _Index:
    """An index, which is read once for each package.

    An index that did not respond is not tried for other packages: each could take minutes.
    """

    def __init__(self, address: str | None) -> None:
        self.address = address
        self.lock = threading.Lock()
        self.reading: dict[str, threading.Lock] = {}
        """The lock of each package: others can be read at the same time."""
        self.known: dict[str, list[Release] | Fault] = {}
        self.failure: NoNetwork | None = None
        self.wait = threading.Lock()
        """Of the wait that is reported: of several at once, it is the first."""

    def releases(self, package: str) -> list[Release]:
        if os.environ.get("UV_OFFLINE", "").lower() in ("1", "true", "yes", "on", "y", "t"):
            raise NoNetwork(f"UV_OFFLINE is set: the index is not read for {package}")
        with self.lock:
            reading = self.reading.setdefault(package, threading.Lock())
        with reading:
            if package not in self.known:
                self.known[package] = self.failure or self._read(package)
        answer = self.known[package]
        if isinstance(answer, Fault):
            raise answer
        return answer

    def _read(self, package: str) -> list[Release] | Fault:
        is_first = self.wait.acquire(blocking=False)
        event = f"the package index to list the releases of {package}"
        try:
            with waiting(event, silent=not is_first):
                return _releases(self.address, package)
        except NoNetwork as fault:
            self.failure = fault
            return fault
        except Fault as fault:
            return fault
        finally:
            if is_first:
                self.wait.release()


_index = cache(_Index)


@contextmanager
def waiting(event: str, *, silent: bool = False) -> Iterator[None]:
    """Print what the command waits for, if that takes long."""
    if silent:
        yield
        return
    late = threading.Timer(SILENCE, warn, [f"waiting for {event}"])
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()


def _releases(address: str | None, package: str) -> list[Release]:
    files: dict[str, list[File]] = {}
    for file in files_of(address, package):
        files.setdefault(version_in(file.name, package), []).append(file)
    by_version: dict[Version, list[File]] = {}
    for text, those in files.items():
        with suppress(InvalidVersion):  # an old file's name may have none
            by_version.setdefault(Version(text), []).extend(those)
    if not by_version:
        raise Fault(f"the index has no release of {package}")
    return [_release(package, version, by_version[version]) for version in sorted(by_version)]


def _release(package: str, version: Version, files: Sequence[File]) -> Release:
    """A release is as old as its first file, and yanked if every file is."""
    days = [file.day for file in files if file.day]
    pythons = [file.python for file in files if file.python]
    yanked = all(file.yanked for file in files)
    wheels = {file.name: file.address for file in files if file.name.endswith(".whl")}
    return Release(
        package,
        str(version),
        min(days, default=""),
        yanked,
        (pythons or [""])[0],
        wheels,
        len(wheels) < len(files),
    )


def configured() -> str | None:
    """The address of the index in the configuration of uv or pip; None for the default.

    Their files are read here, as an environment of uv has no pip that could be asked.
    """
    for variable in OF_UV:
        if address := os.environ.get(variable):
            return re.sub(r"^[\w.-]+=(?=\w+:)", "", address)  # uv allows NAME=ADDRESS
    return os.environ.get("PIP_INDEX_URL") or _of_uv() or _of_pip()


def public() -> str:
    """The address of the public index, which is the default."""
    from pypi_simple import PYPI_SIMPLE_ENDPOINT

    return str(PYPI_SIMPLE_ENDPOINT)


OF_UV = ("UV_DEFAULT_INDEX", "UV_INDEX_URL")


def for_uv() -> dict[str, str]:
    """The variable that gives uv the index of pip's configuration, if its own names none.

    uv does not read pip's files. Without this, the names in a file of a user whose company has an
    index would go to the public one.
    """
    address = None
    if not any(map(os.environ.get, OF_UV)) and not _of_uv():
        address = os.environ.get("PIP_INDEX_URL") or _of_pip()
    return {OF_UV[0]: address} if address else {}


def _of_uv() -> str | None:
    """The default index of uv's own configuration."""
    file = uv_configuration()
    try:
        content = toml_of(file.read_text(encoding="utf-8")) if file else {}
    except (OSError, ValueError):
        return None  # uv reports it
    indices = content.get("index", [])
    defaults = [entry.get("url") for entry in indices if entry.get("default")]
    return next(iter([*defaults, content.get("index-url")]), None)


def uv_configuration() -> Path | None:
    """The user's configuration file of uv, otherwise the machine's; never that of a folder."""
    if path := os.environ.get("UV_CONFIG_FILE"):
        return Path(path).absolute()
    folders = [_configuration(), *_machines(), Path("/etc")]
    files = (folder / "uv" / "uv.toml" for folder in folders if folder.is_absolute())
    return next((file for file in files if file.is_file()), None)


def _of_pip() -> str | None:
    """The index in pip's configuration files; later files override earlier ones."""
    path = os.environ.get("PIP_CONFIG_FILE")
    if path == os.devnull:
        return None
    files = [folder / "pip" / "pip.conf" for folder in reversed(_machines())]
    files += [Path("/etc/pip.conf"), Path.home() / ".pip" / "pip.conf"]
    files += [_configuration() / "pip" / "pip.conf", Path(sys.prefix) / "pip.conf"]
    config = ConfigParser(interpolation=None, strict=False)
    for file in [*files, *([Path(path)] if path else [])]:
        with suppress(OSError, UnicodeError, ConfigParserError):
            config.read_string(file.read_text(encoding="utf-8"))
    return config.get("global", "index-url", fallback=None)


def _configuration() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")


def _machines() -> list[Path]:
    return [Path(p) for p in (os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)]


_usual = cache(configured)
