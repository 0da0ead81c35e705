"""Tar archives, compressed with xz. Standard library only."""

from __future__ import annotations

import lzma
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
    """Unpack an archive, compressed or not, into a folder, which is created."""
    path, file = (archive, None) if isinstance(archive, Path) else (None, archive)
    with tarfile.open(path, fileobj=file) as tar:
        if hasattr(tarfile, "data_filter"):  # not in Debian's 3.11.2
            tar.extraction_filter = tarfile.data_filter
        tar.extractall(folder)
