"""Tar archives, compressed with xz. Standard library only."""

from __future__ import annotations

import lzma
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

COMPRESSION = (
    {"id": lzma.FILTER_X86},
    {"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 27},
)
"""Releases of one package have similar files. A window of 128 MB halves their archive. Unpacking
needs that much memory."""


def pack(archive: Path, files: Mapping[str, Path]) -> None:
    """Archive files under these names; paths of something else are left out.

    Files of the same name are side by side, and compress better. A second hard link to a file is
    stored as a link.
    """
    with (
        lzma.open(archive, "wb", filters=COMPRESSION) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for name in sorted(files, key=lambda name: (Path(name).suffix, name.split("/")[::-1])):
            if files[name].is_file():
                tar.add(files[name], name)


def unpack(archive: Path | IO[bytes], folder: Path) -> None:
    """Unpack an archive, compressed or not, into a folder, which is created.

    Raises tarfile.TarError for a member that is outside of the folder, links to something there, or
    is no file, folder or link.
    """
    path, file = (archive, None) if isinstance(archive, Path) else (None, archive)
    with tarfile.open(path, fileobj=file) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(folder, filter="data")
            return
        # Pythons before 3.10.12 and 3.11.4, such as Debian's 3.11.2, do not check it (PEP 706).
        top = os.path.realpath(folder)
        for member in tar:
            _refuse_outside(member, top)
            tar.extract(member, top)


def _refuse_outside(member: tarfile.TarInfo, top: str) -> None:
    """Links are followed as they are now: a member counts where it would be written."""
    places = [member.name]
    if member.issym():
        places.append(os.path.join(os.path.dirname(member.name), member.linkname))
    elif member.islnk():
        places.append(member.linkname)
    elif not (member.isreg() or member.isdir()):
        raise tarfile.ExtractError(f"{member.name!r} is no file, folder or link")
    for place in places:
        if os.path.commonpath([os.path.realpath(os.path.join(top, place)), top]) != top:
            raise tarfile.ExtractError(f"{member.name!r} is outside of the folder")
