"""The package index: every release of a package, the day it appeared, and whether it was yanked.

It is read over the simple API, from the index that the user's pip or uv is configured for, once in
a command for each package. What needs a release's files goes through uv: see ``pins``."""

from __future__ import annotations

import logging
import os
import platform
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from harness.errors import Fault
from harness.text import warn

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage, PyPISimple

PATIENCE = (5.0, 30.0)
"""Seconds to wait for a connection, and for the index to begin an answer."""

TRIES = 3
"""How often to connect anew before there is no network; to ask anew, once."""

SILENCE = 1.0
"""Seconds after which the user is told what the command waits for."""


@dataclass(frozen=True)
class Release:
    """A release of upstream, as the package index has it."""

    package: str
    version: str
    day: str
    """The day (ISO, UTC) it was uploaded; empty where the index does not say."""
    yanked: bool = False
    python: str = field(default="", compare=False)
    """The Pythons that it can be installed for, such as ``>=3.10``; empty for any."""

    @property
    def final(self) -> bool:
        """Whether it is no pre-release."""
        return not Version(self.version).is_prerelease

    @property
    def installable(self) -> bool:
        """Whether it can be installed for the Python that this runs on, as far as it says."""
        try:
            return SpecifierSet(self.python).contains(platform.python_version(), prereleases=True)
        except InvalidSpecifier:  # of a time when nobody checked them
            return True


class NoNetwork(Fault):
    """The index does not answer at all."""


class _NoPackage(Fault):
    """The index answers, and has no such package."""


def releases(package: str, indices: Sequence[str | None] = ()) -> list[Release]:
    """Every release of a package, the oldest version first; pre-releases and yanked ones, too.

    ``indices`` are the addresses of the indices to ask, each of which may have some releases; None
    is the user's own, which is asked where none is named. Raises Fault where one of them cannot be
    asked, or none has the package.
    """
    found: dict[Version, Release] = {}
    missing: Fault | None = None
    for address in indices or [None]:
        try:
            for release in _index(address or _usual()).releases(package):
                found.setdefault(Version(release.version), release)
        except _NoPackage as fault:
            missing = fault
    if missing and not found:
        raise missing
    return [found[version] for version in sorted(found)]


def ask(packages: Iterable[str]) -> Iterator[tuple[str, list[Release] | Fault]]:
    """Ask for each package: its releases whose day the index knows, or why there are none."""
    for package in packages:
        try:
            found = [release for release in releases(package) if release.day]
            if not found:
                raise Fault(f"the index says of no release of {package} when it was uploaded")
            yield package, found
        except Fault as fault:
            yield package, fault


def forget() -> None:
    """Ask anew from here on, of an index that may be another."""
    _usual.cache_clear()
    _index.cache_clear()


class _Index:
    """An index, which is asked once for each package.

    One that did not answer is not asked for the others: a network that swallows what it is sent
    would cost minutes for each.
    """

    def __init__(self, address: str | None) -> None:
        self.address = address
        self.lock = threading.Lock()
        self.known: dict[str, list[Release] | Fault] = {}
        self.gone: NoNetwork | None = None

    def releases(self, package: str) -> list[Release]:
        if os.environ.get("UV_OFFLINE", "").lower() in ("1", "true", "yes", "on", "y", "t"):
            raise NoNetwork(f"UV_OFFLINE is set, so no index is asked about {package}")
        with self.lock:
            if package not in self.known:
                self.known[package] = self.gone or self._ask(package)
        found = self.known[package]
        if isinstance(found, Fault):
            raise found
        return found

    def _ask(self, package: str) -> list[Release] | Fault:
        try:
            with waiting(f"the package index to say which releases of {package} there are"):
                return _releases(self.address, package)
        except NoNetwork as fault:
            self.gone = fault
            return fault
        except Fault as fault:
            return fault


_index = cache(_Index)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Tell the user what the command waits for, where that takes a while."""
    late = threading.Timer(SILENCE, warn, [f"waiting for {what}"])
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()


def _releases(address: str | None, package: str) -> list[Release]:
    with _told(package), _client(address) as client:
        page = client.get_project_page(package, timeout=PATIENCE)
    files: dict[Version, list[DistributionPackage]] = {}
    for file in page.packages:
        if version := _version(file.version):
            files.setdefault(version, []).append(file)
    if not files:
        raise Fault(f"the index names no release of {package}")
    return [_release(package, version, files[version]) for version in sorted(files)]


def _release(package: str, version: Version, files: Sequence[DistributionPackage]) -> Release:
    """A release is as old as its first file, and yanked where every file is."""
    days = [file.upload_time.date().isoformat() for file in files if file.upload_time]
    pythons = [file.requires_python for file in files if file.requires_python]
    yanked = all(file.is_yanked for file in files)
    return Release(package, str(version), min(days, default=""), yanked, (pythons or [""])[0])


def _version(named: str | None) -> Version | None:
    """A version; None for what is none, in the name of an old file."""
    try:
        return Version(named or "")
    except InvalidVersion:
        return None


@contextmanager
def _client(address: str | None) -> Iterator[PyPISimple]:
    """A session with an index. The library knows the public one, and how it answers."""
    from pypi_simple import PyPISimple
    from requests.adapters import HTTPAdapter
    from urllib3.util import Retry

    logging.getLogger("urllib3").setLevel(logging.ERROR)  # it would tell of each try, host and all
    with PyPISimple(address) if address else PyPISimple() as client:
        for scheme in ("https://", "http://"):
            client.s.mount(scheme, HTTPAdapter(max_retries=Retry(TRIES, read=1)))
        if authority := _authority():
            client.s.verify = authority
        yield client


def _authority() -> str | None:
    """The file of certificates that uv goes by, or pip; requests' own variables go before it."""
    if os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE"):
        return None
    return os.environ.get("SSL_CERT_FILE") or os.environ.get("PIP_CERT")


def configured() -> str | None:
    """The address of the index that the user's uv or pip is told to ask; None for the usual."""
    for variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        if named := os.environ.get(variable):
            return re.sub(r"^[\w.-]+=(?=\w+:)", "", named)  # uv lets an index have a name
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    found = re.search(r"^global\.index-url='(.+)'$", done.stdout, flags=re.MULTILINE)
    return found[1] if found else None


_usual = cache(configured)


@contextmanager
def _told(package: str) -> Iterator[None]:
    """Tell in one line why the index could not be asked: of its address no word, as a password may
    stand in it."""
    from pypi_simple import NoSuchProjectError, UnsupportedRepoVersionError
    from requests import exceptions

    try:
        yield
    except NoSuchProjectError:
        raise _NoPackage(f"the index has no package {package}") from None
    except exceptions.SSLError:
        raise Fault(
            "the index's certificate was refused: where a proxy signs for it, name the file of its "
            "authority in SSL_CERT_FILE"
        ) from None
    except exceptions.HTTPError as error:
        raise Fault(f"the index answers {_status(error)} when asked for {package}") from None
    except (exceptions.InvalidSchema, exceptions.InvalidURL, exceptions.MissingSchema):
        raise Fault(
            "the index is asked over HTTP, and pip or uv is configured for another kind of address"
        ) from None
    except (UnsupportedRepoVersionError, ValueError) as error:  # what is no answer of an index
        raise Fault(
            f"what the index says of {package} cannot be read ({type(error).__name__})"
        ) from None
    except (exceptions.RequestException, OSError) as error:
        raise NoNetwork(
            f"the package index does not answer ({type(error).__name__}): is there a network?"
        ) from None


def _status(error: Any) -> str:
    return str(error.response.status_code) if error.response is not None else "with a mistake"
