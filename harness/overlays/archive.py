"""An archive of overlays, for a machine that cannot build them. Each content is stored once.

    contents/SHA256             the content of files, named by its hash
    overlays/KEY/overlay.json   the manifest: the files of an overlay, with their hashes
    releases/NAME.json          the day of a release, as in the cache

An archive may come from a stranger. So only plain files with expected names are unpacked, each
content is compared with its hash, and the folders of overlays are created here.
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

from harness.overlays import bytecode, contents, overlay
from harness.overlays.contents import Made
from harness.overlays.overlay import DamagedOverlay, Overlay
from harness.system.errors import Inconclusive
from harness.system.files import link, locked, new_folder_beside, sha256, write_whole
from harness.upstream import pins, release_days

COMPRESSION = (
    {"id": lzma.FILTER_X86},
    {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 27},
)
"""Releases of one package have similar files. A window of 128 MB, with files of the same name side
by side, halves the archive. Unpacking needs that much memory."""
STREAMS = 4
"""The most streams of an archive, which cores compress in parallel. An xz reader joins them. Fewer
streams compress better."""
MEMBER = re.compile(
    r"contents/[0-9a-f]{64}|overlays/[0-9a-f]{20}/overlay\.json|"
    r"releases/[A-Za-z0-9][A-Za-z0-9._+!-]*\.json"
)
"""The valid names in an archive; none points outside of the folder that it is unpacked to."""


class Refused(Inconclusive):
    """An archive is not valid."""


def write(archive: Path, borrowed: Mapping[str, tuple[pins.Stack, Overlay]], cache: Path) -> None:
    """Archive borrowed overlays, by key, with the days of their releases."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as manifests:
        pack(archive, _members(borrowed, cache, Path(manifests)))


def _members(
    borrowed: Mapping[str, tuple[pins.Stack, Overlay]], cache: Path, manifests: Path
) -> Iterator[tuple[str, Path]]:
    """The names and files of an archive, with similar files side by side.

    ``manifests`` is a folder for manifests without bytecode: the other machine compiles.
    """
    files: dict[tuple[str, str], Overlay] = {}
    released: dict[str, Path] = {}
    for key, (stack, found) in borrowed.items():
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
            yield f"contents/{content}", _file_with(content, files[path, content], path)


def _packed(source: Overlay) -> dict[str, Made]:
    """The files of an overlay to pack: code as it was built, data as it is now, no bytecode."""
    packed = {}
    for name, made in (source.files or {}).items():
        if overlay.CODE.search(name):
            if "__pycache__" not in name.split("/"):
                packed[name] = made
        elif (source.site / name).is_file():
            packed[name] = overlay.sealed_file(source.site / name)
    return packed


def _file_with(content: str, source: Overlay, path: str) -> Path:
    """A file of an overlay with this hash; raises DamagedOverlay if it has another."""
    if sha256(source.site / path) != content:
        raise overlay.damaged(source, path)
    return source.site / path


def _kind(file: tuple[str, str]) -> tuple[str, ...]:
    """The sort key of archived files: their ending, then their path."""
    path, content = file
    return path.rpartition(".")[2], path, content


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
    member = tarfile.TarInfo(name)  # no owner and no time of this machine
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        member.size, member.mode = found.st_size, 0o755 if found.st_mode & 0o100 else 0o644
        tar.addfile(member, file)


def _streams(file: int) -> Iterator[bytes]:
    """A file's content in xz, as several streams that are compressed in parallel."""
    size, count = os.fstat(file).st_size, min(STREAMS, os.cpu_count() or 1)
    edges = [size * n // count for n in range(count + 1)]
    with ThreadPoolExecutor(count) as pool:  # lzma releases the GIL
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
    """Add these overlays of an archive to a cache, and compile them; existing ones stay.

    Raises Refused for an archive that is not valid, and OSError if the cache cannot be written.
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
    """Unpack only plain files with valid names, and compare each content with its hash."""
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if not (member.isreg() and MEMBER.fullmatch(member.name)):
                    raise Refused(f"{member.name!r} does not belong in an archive of overlays")
                _write(tar, member, folder / member.name)
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise Refused(f"it cannot be read: {error}") from None


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    content, hashed = tar.extractfile(member), hashlib.sha256()
    if content is None or path.exists():
        raise Refused(f"{member.name} occurs twice, or is not a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        while block := content.read(1 << 20):
            hashed.update(block)
            file.write(block)
    if path.parent.name == "contents" and hashed.hexdigest() != path.name:
        raise Refused(f"the content of {member.name} does not have this hash")
    if member.mode & 0o100:
        mode = path.stat().st_mode
        path.chmod(mode | (mode & 0o444) >> 2)


def _assemble(aside: Path, keys: Sequence[str], cache: Path) -> None:
    """Create the folders of overlays from the contents, and compile them for this Python."""
    compiled: dict[tuple[str, str], Path] = {}
    for key in keys:
        folder = aside / "overlays" / key
        manifest, sources = _read(folder)
        for path, made in sources.items():
            _link_content(folder / overlay.SITE, path, made, aside / "contents")
        _compile(folder / overlay.SITE, sources, compiled)
        manifest["files"] = files = overlay.sealed(folder / overlay.SITE)
        contents.share(folder / overlay.SITE, files, cache)
        write_whole(folder / overlay.MANIFEST, json.dumps(manifest) + "\n")


def _read(folder: Path) -> tuple[dict[str, object], overlay.Files]:
    """The manifest of an overlay in an archive, and its files."""
    try:
        manifest = overlay.read_manifest(folder)
        sources = overlay.files_of(folder, manifest)
    except DamagedOverlay:
        raise Refused(f"it has no valid manifest of overlay {folder.name}") from None
    if (manifest["key"], manifest["format"]) != (folder.name, overlay.FORMAT):
        raise Refused(f"its overlay {folder.name} is another one, or has another format")
    return manifest, sources


def _link_content(site: Path, path: str, made: Made, contents: Path) -> None:
    """Link an unpacked content to its path in an overlay."""
    plain = PurePosixPath(path)
    if str(plain) != path or plain.is_absolute() or ".." in plain.parts or path == ".":
        raise Refused(f"{path!r} is outside of its overlay")
    content = contents / made.sha256
    if content.parent != contents or not content.is_file() or content.stat().st_size != made.size:
        raise Refused(f"it does not contain {path} with the hash in its manifest")
    target = site / path
    target.parent.mkdir(parents=True, exist_ok=True)
    link(content, target)


def _compile(site: Path, sources: overlay.Files, compiled: dict[tuple[str, str], Path]) -> None:
    """Compile an overlay, and link bytecode that an earlier overlay already has.

    ``compiled`` has the bytecode of each path and content, and is extended.
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
    bytecode.compile_all(waiting, site)


def sweep(cache: Path) -> None:
    """Delete the unfinished folders of processes that were killed."""
    for aside in cache.glob(".unpacked.*"):
        with locked(cache / "unpacking.lock", wait=False) as held:
            if held:
                shutil.rmtree(aside, ignore_errors=True)


def _move_into(cache: Path, aside: Path, keys: Sequence[str]) -> None:
    for key in keys:
        with locked(overlay.lock_file(cache, key)):
            if not (cache / "overlays" / key).exists():
                (aside / "overlays" / key).rename(cache / "overlays" / key)
    (cache / "releases").mkdir(exist_ok=True)
    for file in aside.glob("releases/*.json"):
        os.replace(file, cache / "releases" / file.name)
