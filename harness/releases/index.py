"""The package index: every release of a package, its day, and whether it was yanked.

The index is the one that the user's pip or uv is configured for. It is read over the simple API,
once for each package in a command. uv downloads the files of releases, see ``resolution``.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, platform_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from harness.system.documents import toml_of
from harness.system.errors import Fault, Inconclusive
from harness.system.text import warn

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage, ProjectPage, PyPISimple

PATIENCE = (5.0, 30.0)
"""Seconds to wait for a connection, and for the first byte of a response."""

LIMIT = 90.0
"""Seconds for a whole answer: a server may send a byte now and then."""

TRIES = 3
"""How often to retry a connection; a request without a response is retried once."""

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
    wheels: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """The names of its wheels."""

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
        tags = {tag for wheel in self.wheels for tag in _tags(wheel)}
        platforms = {"any", *platform_tags()}
        return frozenset(
            minor
            for tag in tags
            if tag.platform in platforms
            for minor in range(*PYTHONS)
            if _fits(tag, minor)
        )


PYTHONS = (7, 20)
"""The minor versions of Python 3 that packages may have wheels for, and the first one above."""


def _tags(wheel: str) -> frozenset[Tag]:
    """What a wheel is for; nothing if its name is invalid."""
    with suppress(InvalidWheelFilename, InvalidVersion):
        return parse_wheel_filename(wheel)[3]
    return frozenset()


def _fits(tag: Tag, minor: int) -> bool:
    """Whether a Python can use a wheel: one for it, or one for its stable interface."""
    version = re.fullmatch(r"(?:cp|py)3(\d*)", tag.interpreter)
    if not version:
        return False
    lowest = int(version[1] or 0)
    is_exact = tag.interpreter.startswith("cp") and tag.abi not in ("abi3", "none")
    return (
        minor == lowest and tag.abi in (f"cp3{minor}", f"cp3{minor}m")
        if is_exact
        else minor >= lowest
    )


def allows_here(pythons: str) -> bool:
    """Whether a specifier of Pythons, such as ``>=3.10``, allows this one.

    An invalid one allows any: old releases were not checked, and Poetry has its own syntax.
    """
    try:
        return SpecifierSet(pythons).contains(platform.python_version(), prereleases=True)
    except InvalidSpecifier:
        return True


def allows(pythons: str, minor: int) -> bool:
    """The same of another Python, 8 for 3.8, in its last patch release."""
    try:
        return SpecifierSet(pythons).contains(f"3.{minor}.99", prereleases=True)
    except InvalidSpecifier:
        return True


class NoNetwork(Fault):
    """The index does not respond at all."""


class NoPackage(Fault):
    """The index responds, and does not have the package."""


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


def forget() -> None:
    """Read the index again from now on; it may be another one."""
    _usual.cache_clear()
    _index.cache_clear()


def no_release(name: str, version: str) -> str:
    """One line that says a release was never published or was yanked, with its neighbours."""
    target, published = Version(version), _final_releases(name)
    versions = [Version(release.version) for release in published if not release.yanked]
    near = [*[v for v in versions if v < target][-1:], *[v for v in versions if v > target][:1]]
    span = f"; releases go from {versions[0]} to {versions[-1]}" if versions else ""
    yanked = any(release.yanked and Version(release.version) == target for release in published)
    gone = f"{name}=={version} was yanked" if yanked else f"no release {name}=={version}"
    return f"{gone}: the nearest are {' and '.join(map(str, near)) or 'unknown'}{span}"


def _final_releases(name: str) -> list[Release]:
    """The releases of a package without pre-releases; empty if the index cannot be read."""
    try:
        return [release for release in releases(name) if release.final]
    except Fault:
        return []


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
        try:
            with waiting(f"the package index to list the releases of {package}"):
                return _releases(self.address, package)
        except NoNetwork as fault:
            self.failure = fault
            return fault
        except Fault as fault:
            return fault


_index = cache(_Index)


@contextmanager
def waiting(event: str) -> Iterator[None]:
    """Print what the command waits for, if that takes long."""
    late = threading.Timer(SILENCE, warn, [f"waiting for {event}"])
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()


def _releases(address: str | None, package: str) -> list[Release]:
    page = _in_time(package, lambda: _page(address, package))
    files: dict[Version, list[DistributionPackage]] = {}
    for file in page.packages:
        if version := _version(file.version):
            files.setdefault(version, []).append(file)
    if not files:
        raise Fault(f"the index has no release of {package}")
    return [_release(package, version, files[version]) for version in sorted(files)]


def _page(address: str | None, package: str) -> ProjectPage:
    with _one_line_errors(package), _client(address) as client:
        return client.get_project_page(package, timeout=PATIENCE)


def _in_time(package: str, read: Callable[[], ProjectPage]) -> ProjectPage:
    """What ``read`` returns or raises. After LIMIT its thread is left alone, and ends with the
    process."""
    answers: Queue[ProjectPage | Exception] = Queue()

    def ask() -> None:
        try:
            answers.put(read())
        except Exception as error:  # raised again in the thread that waits
            answers.put(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=LIMIT)
    except Empty:
        raise NoNetwork(
            f"the index did not send its list of {package} within {LIMIT:.0f} s"
        ) from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _release(package: str, version: Version, files: Sequence[DistributionPackage]) -> Release:
    """A release is as old as its first file, and yanked if every file is."""
    days = [file.upload_time.date().isoformat() for file in files if file.upload_time]
    pythons = [file.requires_python for file in files if file.requires_python]
    yanked = all(file.is_yanked for file in files)
    wheels = tuple(file.filename for file in files if file.filename.endswith(".whl"))
    python = (pythons or [""])[0]
    return Release(package, str(version), min(days, default=""), yanked, python, wheels)


def _version(text: str | None) -> Version | None:
    """A version; None if an old file's name contains no valid one."""
    try:
        return Version(text or "")
    except InvalidVersion:
        return None


@contextmanager
def _client(address: str | None) -> Iterator[PyPISimple]:
    """A session with an index; without an address, with the public one."""
    from pypi_simple import PyPISimple
    from requests.adapters import HTTPAdapter
    from urllib3.util import Retry

    logging.getLogger("urllib3").setLevel(logging.ERROR)  # it logs each retry with the host
    with PyPISimple(address) if address else PyPISimple() as client:
        for scheme in ("https://", "http://"):
            client.s.mount(scheme, HTTPAdapter(max_retries=Retry(TRIES, read=1)))
        if authority := _authority():
            client.s.verify = authority
        yield client


def _authority() -> str | None:
    """The certificate file of uv or pip; None if requests' own variables are set."""
    if os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE"):
        return None
    return os.environ.get("SSL_CERT_FILE") or os.environ.get("PIP_CERT")


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


@contextmanager
def _one_line_errors(package: str) -> Iterator[None]:
    """Raise a one-line error if the index cannot be read. It leaves out the address, which may
    contain a password."""
    from pypi_simple import NoSuchProjectError, UnsupportedRepoVersionError
    from requests import exceptions

    try:
        yield
    except NoSuchProjectError:
        raise NoPackage(f"the index has no package {package}") from None
    except exceptions.SSLError:
        raise Fault(
            "the index's certificate was refused: if a proxy signs for it, name the file of the "
            "proxy's authority in SSL_CERT_FILE"
        ) from None
    except exceptions.HTTPError as error:
        raise Fault(f"the index responds {_status(error)} to a request for {package}") from None
    except (exceptions.InvalidSchema, exceptions.InvalidURL, exceptions.MissingSchema):
        raise Fault(
            "the address of the index in the configuration of pip or uv is not an HTTP address"
        ) from None
    except (UnsupportedRepoVersionError, ValueError) as error:
        raise Fault(
            f"the index's response for {package} cannot be read ({type(error).__name__})"
        ) from None
    except (exceptions.RequestException, OSError) as error:
        raise NoNetwork(
            f"the package index does not respond ({type(error).__name__}): is there a network?"
        ) from None


def _status(error: Any) -> str:
    return str(error.response.status_code) if error.response is not None else "with an error"
