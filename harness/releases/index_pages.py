"""The pages of an index: the files of a package, with their days."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urljoin

from packaging.utils import canonicalize_name

from harness.system.errors import Fault

if TYPE_CHECKING:
    from pypi_simple import PyPISimple

PATIENCE = (5.0, 30.0)
"""Seconds to wait for a connection, and for the first byte of a response."""

LIMIT = 90.0
"""Seconds for a whole answer: a server may send a byte now and then."""

TRIES = 3
"""How often to retry a connection; a request without a response is retried once."""

AT_ONCE = 16
"""Packages whose pages are read at the same time."""


class NoNetwork(Fault):
    """The index does not respond at all."""


class NoPackage(Fault):
    """The index responds, and does not have the package."""


class File(NamedTuple):
    """A file of a release, as the index's page has it."""

    name: str
    address: str
    day: str
    python: str
    yanked: bool


def _read(address: str | None, package: str) -> list[File]:
    """The files of a package. JSON is read here: pypi_simple examines each file, which takes
    seconds for a package with thousands, and most of them are of no interest."""
    from pypi_simple import NoSuchProjectError, ProjectPage

    with _one_line_errors(package):
        client = session(address)
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
                File(f.filename, f.url, day, f.requires_python or "", f.is_yanked)
                for f, day in zip(page.packages, days, strict=True)
            ]
        try:
            return list(_of_json(response.json(), response.url))
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(str(error)) from None


def _of_json(page: Mapping[str, Any], address: str) -> Iterator[File]:
    if not page["meta"]["api-version"].startswith("1."):
        raise ValueError("its version is unknown")
    for file in page["files"]:
        day, python = file.get("upload-time") or "", file.get("requires-python") or ""
        yanked = file.get("yanked", False) is not False
        place = file["url"]
        place = place if "://" in place else urljoin(address, place)
        yield File(file["filename"], place, day[:10], python, yanked)


def version_in(file: str, package: str) -> str:
    """The version in the name of a wheel or of a source distribution; empty for another file."""
    if file.endswith(".whl"):
        return file.split("-")[1] if "-" in file else ""
    stem = re.sub(r"\.(tar\.(gz|bz2|xz|Z)|tgz|zip)$", "", file)
    name, end = stem[: len(package)], stem[len(package) :]
    is_named = end.startswith("-") and canonicalize_name(name) == package
    return "" if stem == file else end[1:] if is_named else stem.rpartition("-")[2]


def files_of(address: str | None, package: str) -> list[File]:
    """The files of a package. After LIMIT the thread that reads is left alone, and ends with the
    process."""
    answers: Queue[list[File] | Exception] = Queue()

    def ask() -> None:
        try:
            answers.put(_read(address, package))
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


@cache
def session(address: str | None) -> PyPISimple:
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
