"""An archive of overlays, for a machine that cannot build them.

overlays/KEY/overlay.json   the manifest of an overlay
overlays/KEY/site/...       its files without bytecode; one that overlays share is stored once
releases/NAME.json          the day of a release, as in the cache
"""

from __future__ import annotations

import json
import lzma
import os
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from harness.bugs import pins
from harness.rank import bytecode
from harness.rank.manifest import MANIFEST, DamagedOverlay, read_manifest
from harness.releases import contents, overlay, releases
from harness.releases.overlay import Overlay
from harness.system import archives
from harness.system.errors import Inconclusive
from harness.system.files import link, locked, new_folder_beside, sha256, write_whole
from harness.system.machine import cores

COMPRESSION = (
    {"id": lzma.FILTER_X86},
    {"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 27},
)
"""Releases of one package have similar files. A window of 128 MB, with files of the same name side
by side, halves the archive. Unpacking needs that much memory."""
STREAMS = 4
"""The most streams of an archive, which cores compress in parallel. An xz reader joins them. Fewer
streams compress better."""


class InvalidArchive(Inconclusive):
    """An archive is not valid."""


def write(archive: Path, borrowed: Mapping[str, tuple[pins.Stack, Overlay]], cache: Path) -> None:
    """Archive borrowed overlays, by key, with the days of their releases."""
    pack(archive, _members(borrowed, cache))


def _members(
    borrowed: Mapping[str, tuple[pins.Stack, Overlay]], cache: Path
) -> Iterator[tuple[str, Path]]:
    """The names and files of an archive, with similar files side by side."""
    files: list[tuple[str, Overlay]] = []
    days: dict[str, Path] = {}
    for key, (stack, source) in borrowed.items():
        yield f"overlays/{key}/{MANIFEST}", source.folder / MANIFEST
        files += ((path, source) for path in _packed(source))
        for name, version in stack.pins.items():
            day = releases.release_file(cache, name, version)
            days[day.name] = day
    yield from ((f"releases/{name}", day) for name, day in days.items() if day.is_file())
    for path, source in sorted(files, key=lambda file: (file[0].rpartition(".")[2], file[0])):
        yield f"overlays/{source.key}/{overlay.SITE}/{path}", source.site / path


def _packed(source: Overlay) -> Iterator[str]:
    """The files of an overlay to pack: code, which must be as it was built; data as it is now."""
    for path, entry in (source.files or {}).items():
        if is_bytecode(path):
            continue
        if not overlay.CODE.search(path):
            if (source.site / path).is_file():
                yield path
        elif sha256(source.site / path) == entry.sha256:
            yield path
        else:
            raise overlay.damaged(source, path)


def is_bytecode(path: str) -> bool:
    """Whether a file is bytecode, which the other machine compiles itself."""
    return "__pycache__" in path.split("/")


def pack(archive: Path, files: Iterable[tuple[str, Path]]) -> None:
    """Write an archive of plain files, under their names and in the order given."""
    with tempfile.TemporaryFile(dir=archive.parent) as plain:
        with tarfile.open(fileobj=plain, mode="w") as tar:
            for name, path in files:
                _add(tar, path, name)
        plain.flush()  # the file is read below, without Python's buffer
        with archive.open("wb") as packed:
            packed.writelines(_streams(plain.fileno()))


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    with path.open("rb") as file:
        member = tar.gettarinfo(fileobj=file, arcname=name)  # a link, if it was added before
        member.mode = 0o755 if member.mode & 0o100 else 0o644
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        tar.addfile(member, file)


def _streams(file: int) -> Iterator[bytes]:
    """A file's content in xz, as several streams that are compressed in parallel."""
    size, count = os.fstat(file).st_size, min(STREAMS, os.cpu_count() or 1)
    edges, ended = [size * n // count for n in range(count + 1)], threading.Event()
    with ThreadPoolExecutor(count) as pool:  # lzma releases the GIL
        try:
            yield from pool.map(partial(_stream, file, ended), edges, edges[1:])
        finally:
            ended.set()  # an interrupt need not wait for minutes


def _stream(file: int, ended: threading.Event, start: int, end: int) -> bytes:
    compressor = lzma.LZMACompressor(filters=list(COMPRESSION))
    at, packed = start, []
    while at < end and not ended.is_set():
        read = os.pread(file, min(end - at, 1 << 22), at)
        packed.append(compressor.compress(read))
        at += len(read)
    return b"".join([*packed, compressor.flush()])


def unpack(archive: Path, keys: Sequence[str], cache: Path) -> None:
    """Add these overlays of an archive to a cache, and compile them; existing ones stay.

    Raises InvalidArchive for one that is not valid, and OSError if the cache cannot be written.
    """
    with locked(cache / "unpacking.lock"):
        missing = [key for key in keys if not (cache / "overlays" / key).exists()]
        if not missing:
            return  # another process has added them meanwhile
        aside = new_folder_beside(cache / "unpacked")
        try:
            _extract(archive, aside)
            _assemble(aside, missing, cache)
            _move_into(cache, aside, missing)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
            contents.sweep(cache)  # where it failed, they belong to no overlay


def _extract(archive: Path, folder: Path) -> None:
    try:
        archives.unpack(archive, folder)
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise InvalidArchive(f"it cannot be read: {error}") from None


def _assemble(aside: Path, keys: Sequence[str], cache: Path) -> None:
    """Compile the overlays for this Python, and write their manifests anew."""
    folders = [aside / "overlays" / key for key in keys]
    manifests, sites = [_read(folder) for folder in folders], [f / overlay.SITE for f in folders]
    for site in sites:
        site.mkdir(exist_ok=True)  # an overlay without releases has no file
    with ThreadPoolExecutor(cores()) as pool:
        _compile(sites, pool)
        sealed = list(pool.map(overlay.seal, sites))
    for folder, site, manifest, files in zip(folders, sites, manifests, sealed, strict=True):
        contents.share(site, files, cache)
        write_whole(folder / MANIFEST, json.dumps({**manifest, "files": files}) + "\n")


def _read(folder: Path) -> dict[str, Any]:
    """The manifest of an unpacked overlay that has all its code."""
    try:
        manifest = read_manifest(folder)
    except DamagedOverlay:
        raise InvalidArchive(f"it has no valid manifest of overlay {folder.name}") from None
    if (manifest["key"], manifest["format"]) != (folder.name, overlay.FORMAT):
        raise InvalidArchive(f"its overlay {folder.name} is another one, or has another format")
    files = manifest["files"]
    code = (path for path in files if overlay.CODE.search(path) and not is_bytecode(path))
    if missing := [path for path in code if not (folder / overlay.SITE / path).is_file()]:
        raise InvalidArchive(f"it lacks {missing[0]} of overlay {folder.name}")
    return manifest


def _compile(sites: Sequence[Path], pool: ThreadPoolExecutor) -> None:
    """Compile all overlays at the same time, each path and content once; the others get a link."""
    first: dict[tuple[str, int], Path] = {}
    waiting: dict[Path, list[Path]] = {site: [] for site in sites}
    links = list[tuple[Path, Path]]()
    for site in sites:
        for source in sorted(site.rglob("*.py")):
            equal = first.setdefault((str(source.relative_to(site)), source.stat().st_ino), source)
            if equal is source:
                waiting[site].append(source)
            else:
                links.append((bytecode.of(equal), bytecode.of(source)))
    list(pool.map(bytecode.compile_all, waiting.values(), waiting))
    for ready, ours in links:
        if ready.is_file():
            ours.parent.mkdir(exist_ok=True)
            link(ready, ours)


def sweep(cache: Path) -> None:
    """Delete the unfinished folders of processes that were killed."""
    for aside in cache.glob(".unpacked.*"):
        with locked(cache / "unpacking.lock", wait=False) as has_lock:
            if has_lock:
                shutil.rmtree(aside, ignore_errors=True)


def _move_into(cache: Path, aside: Path, keys: Sequence[str]) -> None:
    for key in keys:
        with locked(overlay.lock_file(cache, key)):
            if not (cache / "overlays" / key).exists():
                (aside / "overlays" / key).rename(cache / "overlays" / key)
    (cache / "releases").mkdir(exist_ok=True)
    for file in aside.glob("releases/*.json"):
        os.replace(file, cache / "releases" / file.name)
