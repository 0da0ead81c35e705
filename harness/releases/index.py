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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.parser import HeaderParser
from functools import cache
from io import SEEK_CUR, SEEK_END, SEEK_SET, BufferedReader, RawIOBase
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urljoin
from zipfile import BadZipFile, ZipFile

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, platform_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from harness.system.documents import toml_of
from harness.system.errors import Fault, Inconclusive
from harness.system.text import warn

if TYPE_CHECKING:
    from pypi_simple import PyPISimple
    from requests import Response

PATIENCE = (5.0, 30.0)
"""Seconds to wait for a connection, and for the first byte of a response."""

LIMIT = 90.0
"""Seconds for a whole answer: a server may send a byte now and then."""

TRIES = 3
"""How often to retry a connection; a request without a response is retried once."""

PARTIAL, PART = 206, 131_072
"""The status of a response with a part of a file, and the bytes of a part that is read at once."""

AT_ONCE = 16
"""Packages whose pages are read at the same time."""

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
    """What a wheel is for on this machine; nothing if its name is invalid."""
    with suppress(InvalidWheelFilename, InvalidVersion):
        tags = parse_wheel_filename(wheel)[3]
        return frozenset(tag for tag in tags if tag.platform in _platforms())
    return frozenset()


@cache
def _platforms() -> frozenset[str]:
    return frozenset({"any", *platform_tags()})


def _is_for(wheel: str, minor: int) -> bool:
    """Whether a Python can use a wheel on this machine."""
    return any(_fits(tag, minor) for tag in _tags(wheel))


def _fits(tag: Tag, minor: int) -> bool:
    """Whether a Python can use a wheel: one for it, or one for its stable interface."""
    version = re.fullmatch(r"(?:cp|py)3(\d*)", tag.interpreter)
    if not version:
        return False
    lowest = int(version[1] or 0)
    is_exact = tag.interpreter.startswith("cp") and tag.abi != "abi3"
    return (
        minor == lowest and tag.abi in (f"cp3{minor}", f"cp3{minor}m", "none")
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


@cache
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


def needs(release: Release, minor: int) -> tuple[Requirement, ...] | None:
    """What a release needs, by the metadata of a wheel, one for this Python if it has any; None if
    that cannot be found out."""
    names = sorted(release.wheels, key=lambda name: not _is_for(name, minor))
    return _needs(release.wheels[names[0]]) if names else None


def forget() -> None:
    """Read the index again from now on; it may be another one."""
    _usual.cache_clear()
    _index.cache_clear()
    _needs.cache_clear()
    _client.cache_clear()


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
        self.waiters = 0
        """The packages that are read now: only the first wait is reported."""

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
            with self._reported(package):
                return _releases(self.address, package)
        except NoNetwork as fault:
            self.failure = fault
            return fault
        except Fault as fault:
            return fault

    @contextmanager
    def _reported(self, package: str) -> Iterator[None]:
        """Report a wait for a package, unless others are read at the same time."""
        with self.lock:
            self.waiters += 1
            is_first = self.waiters == 1
        try:
            with waiting(
                f"the package index to list the releases of {package}", silent=not is_first
            ):
                yield
        finally:
            with self.lock:
                self.waiters -= 1


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


class _File(NamedTuple):
    """A file of a release, as the index's page has it."""

    name: str
    address: str
    day: str
    python: str
    yanked: bool


def _releases(address: str | None, package: str) -> list[Release]:
    files: dict[str, list[_File]] = {}
    for file in _in_time(package, lambda: _page(address, package)):
        files.setdefault(_version_in(file.name, package), []).append(file)
    by_version: dict[Version, list[_File]] = {}
    for text, those in files.items():
        if version := _version(text):
            by_version.setdefault(version, []).extend(those)
    if not by_version:
        raise Fault(f"the index has no release of {package}")
    return [_release(package, version, by_version[version]) for version in sorted(by_version)]


def _page(address: str | None, package: str) -> list[_File]:
    """The files of a package. JSON is read here: pypi_simple examines each file, which takes
    seconds for a package with thousands, and most of them are of no interest."""
    from pypi_simple import NoSuchProjectError, ProjectPage

    with _one_line_errors(package):
        client = _client(address)
        url = client.get_project_url(package)
        response = client.s.get(url, timeout=PATIENCE, headers={"Accept": client.accept})
        if response.status_code == 404:
            raise NoSuchProjectError(package, url)
        response.raise_for_status()
        if "json" not in response.headers.get("Content-Type", ""):
            page = ProjectPage.from_response(response, package)
            days = [
                f.upload_time.date().isoformat() if f.upload_time else "" for f in page.packages
            ]
            return [
                _File(f.filename, f.url, day, f.requires_python or "", f.is_yanked)
                for f, day in zip(page.packages, days, strict=True)
            ]
        try:
            return list(_of_json(response.json(), response.url))
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(str(error)) from None


def _of_json(page: Mapping[str, Any], address: str) -> Iterator[_File]:
    if not page["meta"]["api-version"].startswith("1."):
        raise ValueError("its version is unknown")
    for file in page["files"]:
        day, python = file.get("upload-time") or "", file.get("requires-python") or ""
        yanked = file.get("yanked", False) is not False
        place = file["url"]
        place = place if "://" in place else urljoin(address, place)
        yield _File(file["filename"], place, day[:10], python, yanked)


def _version_in(file: str, package: str) -> str:
    """The version in the name of a wheel or of a source distribution; empty for another file."""
    if file.endswith(".whl"):
        return file.split("-")[1] if "-" in file else ""
    stem = re.sub(r"\.(tar\.(gz|bz2|xz|Z)|tgz|zip)$", "", file)
    name, end = stem[: len(package)], stem[len(package) :]
    is_named = end.startswith("-") and canonicalize_name(name) == package
    return "" if stem == file else end[1:] if is_named else stem.rpartition("-")[2]


def _in_time(package: str, read: Callable[[], list[_File]]) -> list[_File]:
    """What ``read`` returns or raises. After LIMIT its thread is left alone, and ends with the
    process."""
    answers: Queue[list[_File] | Exception] = Queue()

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


def _release(package: str, version: Version, files: Sequence[_File]) -> Release:
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


@cache
def _needs(wheel: str) -> tuple[Requirement, ...] | None:
    """What the wheel at an address needs; None if that cannot be read without all of the wheel."""
    from requests.exceptions import RequestException

    try:
        response = _client(None).s.get(f"{wheel}.metadata", timeout=PATIENCE)
        text = response.text if response.ok else _metadata_inside(wheel)
        lines = HeaderParser().parsestr(text).get_all("Requires-Dist", [])
    except (RequestException, OSError, ValueError, BadZipFile):
        return None
    requirements = tuple(filter(None, map(_requirement, lines)))
    for requirement in requirements:
        requirement.name = canonicalize_name(requirement.name)
    return requirements


def _requirement(line: str) -> Requirement | None:
    """A requirement of a release; None for one that no installer understands. Those of old releases
    were not checked: ``>=1.7.*`` counts as ``>=1.7``."""
    for text in (line, re.sub(r"([<>]=?\s*[\w.]+?)\.\*", r"\1", line)):
        with suppress(InvalidRequirement):
            return Requirement(text)
    return None


def _metadata_inside(wheel: str) -> str:
    """The metadata in a wheel, of which only the parts with them are read: an index may not have
    them beside it."""
    with BufferedReader(_RemoteFile(wheel), PART) as file, ZipFile(file) as archive:
        pattern = re.compile(r"[^/]+\.dist-info/METADATA")  # and not of a copy inside
        names = filter(pattern.fullmatch, archive.namelist())
        return archive.read(next(names, "")).decode(errors="replace")


class _RemoteFile(RawIOBase):
    """A file at an address, of which parts are read; its end, where a wheel has its metadata, at
    once. Raises OSError if the server has only all of it."""

    def __init__(self, address: str) -> None:
        self.address = address
        response = self._part(f"-{PART}")
        self.size = self.position = int(response.headers["Content-Range"].rpartition("/")[2])
        self.end = response.content

    def _part(self, span: str) -> Response:
        headers = {"Range": f"bytes={span}", "Accept-Encoding": "identity"}
        response = _client(None).s.get(self.address, headers=headers, timeout=PATIENCE, stream=True)
        if response.status_code != PARTIAL:
            response.close()
            raise OSError(f"the response is {response.status_code}")
        return response

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        start = {SEEK_SET: 0, SEEK_CUR: self.position, SEEK_END: self.size}[whence]
        self.position = max(0, start + offset)
        return self.position

    def tell(self) -> int:
        return self.position

    def readinto(self, buffer: Any) -> int:
        first, last = self.position, min(self.position + len(buffer), self.size)
        if first == last:
            return 0
        before = self.size - len(self.end)
        is_at_end = first >= before
        content = (
            self.end[first - before :] if is_at_end else self._part(f"{first}-{last - 1}").content
        )
        count = min(len(content), len(buffer))
        buffer[:count] = content[:count]
        self.position += count
        return count


def _version(text: str | None) -> Version | None:
    """A version; None if an old file's name contains no valid one."""
    try:
        return Version(text or "")
    except InvalidVersion:
        return None


@cache
def _client(address: str | None) -> PyPISimple:
    """A session with an index; without an address, with the public one."""
    from pypi_simple import PyPISimple
    from requests.adapters import HTTPAdapter
    from urllib3.util import Retry

    logging.getLogger("urllib3").setLevel(logging.ERROR)  # it logs each retry with the host
    client = PyPISimple(address) if address else PyPISimple()
    for scheme in ("https://", "http://"):
        adapter = HTTPAdapter(pool_maxsize=AT_ONCE, max_retries=Retry(TRIES, read=1))
        client.s.mount(scheme, adapter)
    if authority := _authority():
        client.s.verify = authority
    return client


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
