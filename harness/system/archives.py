"""Unpacks tar archives: nothing is written outside of the folder, on every Python that we support.

Standard library only. A bundle contains a copy of this file, which unpacks the rest of it:

    python3 archives.py ARCHIVE FOLDER

Python 3.10.12 and 3.11.4 are the first that check the members of an archive (PEP 706). Debian 12
has 3.11.2, so for older ones the same rules are here.
"""

from __future__ import annotations

import os
import sys
import tarfile
from pathlib import Path
from typing import IO


def unpack(archive: Path | IO[bytes], folder: Path) -> None:
    """Unpack an archive, compressed or not, into a folder, which is created.

    Raises tarfile.TarError for a member that would be outside of the folder, links to something
    there, or is no file, folder or link; the folder then has the members before it.
    """
    path, file = (archive, None) if isinstance(archive, Path) else (None, archive)
    with tarfile.open(path, fileobj=file) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(folder, filter="data")
            return
        for member in tar:
            _check(member, folder)
            tar.extract(_as_ours(member), folder)


def _check(member: tarfile.TarInfo, folder: Path) -> None:
    """Raise tarfile.TarError unless a member is data within the folder. Links are followed as they
    are now, so a member behind an earlier link counts where it would be written."""
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        raise tarfile.ExtractError(f"{member.name!r} is no file, folder or link")
    _check_inside(member.name, folder, member.name)
    if member.issym():
        _check_inside(
            os.path.join(os.path.dirname(member.name), member.linkname), folder, member.name
        )
    elif member.islnk():
        _check_inside(member.linkname, folder, member.name)
    if member.issym() and os.path.isabs(member.linkname):
        raise tarfile.ExtractError(f"{member.name!r} links to an absolute path")


def _check_inside(path: str, folder: Path, name: str) -> None:
    top = os.path.realpath(folder)
    if (
        os.path.isabs(path)
        or os.path.commonpath([os.path.realpath(os.path.join(top, path)), top]) != top
    ):
        raise tarfile.ExtractError(f"{name!r} is outside of the folder")


def _as_ours(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """A member that belongs to this user, who may read and write it; others may not write it."""
    member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
    if member.isdir():
        member.mode = 0o755
    else:  # a hard link has the mode of its file
        member.mode = member.mode & (0o755 if member.mode & 0o100 else 0o644) | 0o600
    return member


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
