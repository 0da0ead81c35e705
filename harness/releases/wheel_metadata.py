"""What a wheel needs, by its metadata: the whole wheel is not downloaded."""

from __future__ import annotations

import re
from contextlib import suppress
from email.parser import HeaderParser
from functools import cache
from io import SEEK_CUR, SEEK_END, SEEK_SET, BufferedReader, RawIOBase
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile, ZipFile

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from harness.releases.index_pages import PATIENCE, session

if TYPE_CHECKING:
    from requests import Response

PARTIAL, PART = 206, 131_072
"""The status of a response with a part of a file, and the bytes of a part that is read at once."""


@cache
def needs_of(wheel: str) -> tuple[Requirement, ...] | None:
    """What the wheel at an address needs; None if that cannot be read without all of the wheel."""
    from requests.exceptions import RequestException

    try:
        response = session(None).s.get(f"{wheel}.metadata", timeout=PATIENCE)
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
        response = session(None).s.get(self.address, headers=headers, timeout=PATIENCE, stream=True)
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
