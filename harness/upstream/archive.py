"""An archive of overlays, for a machine that cannot make them: each content once, by its hash.

    contents/SHA256             what files of overlays hold
    overlays/KEY/overlay.json   which file of an overlay has which content
    releases/NAME.json          the day of a release, as the cache keeps it

It may come from a stranger: only plain files with names that are known are unpacked, each content
is compared with its name, and the folders of overlays are made here.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path, PurePosixPath

from harness.errors import Inconclusive
from harness.files import link, locked, new_folder_beside, sha256, write_whole
from harness.upstream import bytecode, overlay, pins, release_days
from harness.upstream.overlay import DamagedOverlay, Made, Overlay

COMPRESSION = (
    {"id": lzma.FILTER_X86},
    {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 27},
)
"""Releases of one package are alike: a window of 128 MB, and files of one name side by side, halve
the archive. The box needs that much memory to unpack it."""
STREAMS = 4
"""How many streams an archive is at most cut into, which as many cores compress side by side; a
reader of xz takes them as one. Each costs the likeness of what was cut apart."""
MEMBER = re.compile(
    r"contents/[0-9a-f]{64}|overlays/[0-9a-f]{20}/overlay\.json|"
    r"releases/[A-Za-z0-9][A-Za-z0-9._+!-]*\.json"
)
"""The names in an archive of overlays; none leads out of the folder that it is unpacked to."""


class Refused(Inconclusive):
    """An archive is not what it says that it is."""


def write(archive: Path, lent: Mapping[str, tuple[pins.Stack, Overlay]], cache: Path) -> None:
    """Archive overlays that were borrowed, by their keys, with the days of their releases."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as manifests:
        pack(archive, _members(lent, cache, Path(manifests)))


def _members(
    lent: Mapping[str, tuple[pins.Stack, Overlay]], cache: Path, manifests: Path
) -> Iterator[tuple[str, Path]]:
    """What an archive of overlays holds, by its name there, alike files side by side.

    ``manifests`` is a folder for the manifests less the bytecode: the other machine compiles.
    """
    files: dict[tuple[str, str], Overlay] = {}
    released: dict[str, Path] = {}
    for key, (stack, found) in lent.items():
        manifest = overlay.read_manifest(found.folder)
        manifest["files"] = sources = _packed(found)
        write_whole(manifests / key, json.dumps(manifest))
        yield f"overlays/{key}/{overlay.MANIFEST}", manifests / key
        files.update({(path, made.sha256): found for path, made in sources.items()})
        days = (
            release_days.release_file(cache, name, version) for name, version in stack.pins.items()
        )
        released.update({day.name: day for day in days if day.is_file()})
    yield from ((f"releases/{name}", day) for name, day in released.items())
    stored: set[str] = set()
    for path, content in sorted(files, key=_kind):
        if content not in stored:
            stored.add(content)
            yield f"contents/{content}", _holding(content, files[path, content], path)


def _packed(lent: Overlay) -> dict[str, Made]:
    """The files of an overlay that are packed: code as it was made, data as it is now; bytecode is
    left out."""
    packed = {}
    for name, made in (lent.files or {}).items():
        if overlay.CODE.search(name):
            if "__pycache__" not in name.split("/"):
                packed[name] = made
        elif (lent.site / name).is_file():
            packed[name] = overlay.sealed_file(lent.site / name)
    return packed


def _holding(content: str, lent: Overlay, path: str) -> Path:
    """A file of an overlay that has this hash; raises DamagedOverlay where it has another."""
    if sha256(lent.site / path) != content:
        raise overlay.damaged(lent, path)
    return lent.site / path


def _kind(file: tuple[str, str]) -> tuple[str, ...]:
    """What archived files are ordered by: their ending, their path within an overlay, the rest."""
    path, content = file
    return path.rpartition(".")[2], path, content


def pack(archive: Path, files: Iterable[tuple[str, Path]]) -> None:
    """Write an archive of plain files, under their names and in the order given."""
    with tempfile.TemporaryFile(dir=archive.parent) as plain:
        with tarfile.open(fileobj=plain, mode="w") as tar:
            for name, path in files:
                _add(tar, path, name)
        plain.flush()  # what is read below is the file, past Python's buffer
        with archive.open("wb") as packed:
            packed.writelines(_streams(plain.fileno()))


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    member = tarfile.TarInfo(name)  # nothing of this machine: no owner, no time
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        member.size, member.mode = found.st_size, 0o755 if found.st_mode & 0o100 else 0o644
        tar.addfile(member, file)


def _streams(file: int) -> Iterator[bytes]:
    """A file's content in xz, as several streams that are compressed side by side."""
    size, count = os.fstat(file).st_size, min(STREAMS, os.cpu_count() or 1)
    edges = [size * n // count for n in range(count + 1)]
    with ThreadPoolExecutor(count) as pool:  # lzma lets other threads run
        yield from pool.map(partial(_stream, file), edges, edges[1:])


def _stream(file: int, start: int, end: int) -> bytes:
    compressor = lzma.LZMACompressor(filters=list(COMPRESSION))
    at, packed = start, []
    while at < end:
        read = os.pread(file, min(end - at, 1 << 22), at)
        packed.append(compressor.compress(read))
        at += len(read)
    return b"".join([*packed, compressor.flush()])


def unpack(archive: Path, keys: Sequence[str], cache: Path) -> None:
    """Bring these overlays of an archive into a cache, compiled; those that it has are left.

    Raises Refused for an archive that is not what it says, and OSError where the cache cannot be
    written to.
    """
    with locked(cache / "unpacking.lock"):
        missing = [key for key in keys if not (cache / "overlays" / key).exists()]
        if not missing:
            return  # whoever had the lock has brought them
        aside = new_folder_beside(cache / "unpacked")
        try:
            _extract(archive, aside)
            _put_together(aside, missing)
            _keep(aside, missing, cache)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _extract(archive: Path, folder: Path) -> None:
    """Unpack plain files alone, each with a name that is known, each content as it is named."""
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if not (member.isreg() and MEMBER.fullmatch(member.name)):
                    raise Refused(f"{member.name!r} is nothing that an archive of overlays holds")
                _write(tar, member, folder / member.name)
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise Refused(f"it cannot be read: {error}") from None


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    content, hashed = tar.extractfile(member), hashlib.sha256()
    if content is None or path.exists():
        raise Refused(f"{member.name} is there twice, or is no file")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        while block := content.read(1 << 20):
            hashed.update(block)
            file.write(block)
    if path.parent.name == "contents" and hashed.hexdigest() != path.name:
        raise Refused(f"{member.name} is not what it is named by")
    if member.mode & 0o100:
        mode = path.stat().st_mode
        path.chmod(mode | (mode & 0o444) >> 2)


def _put_together(aside: Path, keys: Sequence[str]) -> None:
    """Make the folders of overlays of the contents beside them, and compile them for here."""
    compiled: dict[tuple[str, str], Path] = {}
    for key in keys:
        folder = aside / "overlays" / key
        manifest, sources = _read(folder)
        for path, made in sources.items():
            _place(folder / overlay.SITE, path, made, aside / "contents")
        _compile(folder / overlay.SITE, sources, compiled)
        manifest["files"] = overlay.sealed(folder / overlay.SITE)
        write_whole(folder / overlay.MANIFEST, json.dumps(manifest) + "\n")


def _read(folder: Path) -> tuple[dict[str, object], overlay.Files]:
    """What the manifest of an overlay in an archive says, and the files that it is made of."""
    try:
        manifest = overlay.read_manifest(folder)
        sources = overlay.files_of(folder, manifest)
    except DamagedOverlay:
        raise Refused(f"it has no manifest of overlay {folder.name}") from None
    if (manifest["key"], manifest["format"]) != (folder.name, overlay.FORMAT):
        raise Refused(f"what it names {folder.name} is another overlay")
    return manifest, sources


def _place(site: Path, path: str, made: Made, contents: Path) -> None:
    """Link a content that was unpacked to where an overlay has it."""
    plain = PurePosixPath(path)
    if str(plain) != path or plain.is_absolute() or ".." in plain.parts or path == ".":
        raise Refused(f"{path!r} would lie outside of its overlay")
    content = contents / made.sha256
    if content.parent != contents or not content.is_file() or content.stat().st_size != made.size:
        raise Refused(f"it does not hold {path} as that was made")
    target = site / path
    target.parent.mkdir(parents=True, exist_ok=True)
    link(content, target)


def _compile(site: Path, sources: overlay.Files, compiled: dict[tuple[str, str], Path]) -> None:
    """Compile an overlay, but for what one before it has the bytecode of: that is linked to.

    ``compiled`` says where the bytecode of a path with a content is; what is new is added.
    """
    waiting = []
    for path, made in sources.items():
        if not path.endswith(".py"):
            continue
        ours = bytecode.of(site / path)
        ready = compiled.setdefault((path, made.sha256), ours)
        if ready is ours:
            waiting.append(site / path)
        elif ready.is_file():
            ours.parent.mkdir(exist_ok=True)
            link(ready, ours)
    bytecode.compile_all(waiting)


def sweep(cache: Path) -> None:
    """Remove what was left half-unpacked by whom was killed."""
    for aside in cache.glob(".unpacked.*"):
        with locked(cache / "unpacking.lock", wait=False) as held:
            if held:
                shutil.rmtree(aside, ignore_errors=True)


def _keep(aside: Path, keys: Sequence[str], cache: Path) -> None:
    for key in keys:
        with locked(overlay.lock_file(cache, key)):
            if not (cache / "overlays" / key).exists():
                (aside / "overlays" / key).rename(cache / "overlays" / key)
    (cache / "releases").mkdir(exist_ok=True)
    for file in aside.glob("releases/*.json"):
        os.replace(file, cache / "releases" / file.name)
