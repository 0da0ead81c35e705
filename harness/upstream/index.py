"""The package index: every release of a package, the day it appeared, and whether it was yanked.

Asked over the simple API, at the index that the user's pip or uv is configured for. Other commands
need a release's files, and go through uv and pip: see ``pins``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version

from harness.spec import Fault

if TYPE_CHECKING:
    from pypi_simple import PyPISimple

PATIENCE = (5.0, 30.0)
"""Seconds to wait for a connection, and for the index to begin an answer."""

TRIES = 3
"""How often to connect anew before there is no network."""


@dataclass(frozen=True)
class Release:
    """A release of upstream, as the package index has it."""

    package: str
    version: str
    day: str
    """The day (ISO, UTC) it was uploaded."""
    yanked: bool = False

    @property
    def final(self) -> bool:
        """Whether it is no pre-release."""
        return not Version(self.version).is_prerelease


class NoNetwork(Fault):
    """The index cannot be reached at all."""


def ask(packages: Iterable[str]) -> Iterator[tuple[str, list[Release] | Fault]]:
    """Ask the index once for each package: its releases, the oldest version first, or why not.

    Pre-releases and yanked ones are among them. A release is as old as its first file, and yanked
    where every file is. Where there is no network for one, the others are not tried: a network that
    swallows what it is sent would cost minutes for each.
    """
    gone: Fault | None = None
    with _client() as client:
        for package in packages:
            try:
                if gone:
                    raise gone
                yield package, _releases(client, package)
            except Fault as fault:
                gone = fault if isinstance(fault, NoNetwork) else None
                yield package, fault


def _releases(client: PyPISimple, package: str) -> list[Release]:
    with _told(package):
        page = client.get_project_page(package, timeout=PATIENCE)
    files: dict[str, list[tuple[str, bool]]] = {}
    for file in page.packages:
        version = _version(file.version)
        if version and file.upload_time:
            day = file.upload_time.date().isoformat()
            files.setdefault(version, []).append((day, file.is_yanked))
    if not files:
        raise Fault(f"the index says of no release of {package} when it was uploaded")
    return [
        Release(package, version, min(day for day, _ in files[version]),
                all(yanked for _, yanked in files[version]))
        for version in sorted(files, key=Version)
    ]  # fmt: skip


def _version(named: str | None) -> str | None:
    """A version as everybody writes it; None for what is none, in the name of an old file."""
    try:
        return str(Version(named or ""))
    except InvalidVersion:
        return None


@contextmanager
def _client() -> Iterator[PyPISimple]:
    """A session with the user's index. The library knows the public one, and how it answers."""
    from pypi_simple import PyPISimple
    from requests.adapters import HTTPAdapter

    address = configured()
    with PyPISimple(address) if address else PyPISimple() as client:
        for scheme in ("https://", "http://"):
            client.s.mount(scheme, HTTPAdapter(max_retries=TRIES))
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
        [sys.executable, "-m", "pip", "config", "list"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = re.search(r"^global\.index-url='(.+)'$", done.stdout, flags=re.MULTILINE)
    return found[1] if found else None


@contextmanager
def _told(package: str) -> Iterator[None]:
    """Tell in one line why the index could not be asked: of its address no word, as a password may
    stand in it."""
    from pypi_simple import NoSuchProjectError, UnsupportedRepoVersionError
    from requests import exceptions

    try:
        yield
    except NoSuchProjectError:
        raise Fault(f"the index has no package {package}") from None
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
        raise NoNetwork(f"no network: the index cannot be asked ({type(error).__name__})") from None


def _status(error: Any) -> str:
    return str(error.response.status_code) if error.response is not None else "with a mistake"
