"""An archive of overlays, for a machine that cannot build them.

overlays/KEY/overlay.json   the manifest of an overlay
overlays/KEY/site-packages  its files without bytecode; one that overlays share is stored once
releases/NAME.json          the day of a release, as in the cache
"""

from __future__ import annotations

import json
import lzma
import os
import shutil
import tarfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness.bugs import pins
from harness.rank import bytecode
from harness.rank.manifest import MANIFEST, DamagedOverlay, read_manifest
from harness.releases import contents, overlay, releases
from harness.releases.overlay import CODE, SITE, Overlay, lock_file
from harness.system import archives
from harness.system.errors import Inconclusive
from harness.system.files import link, locked, new_folder_beside, sha256, write_whole, writing
from harness.system.machine import cores


def write(archive: Path, overlays: Mapping[str, tuple[pins.Stack, Overlay]], cache: Path) -> None:
    """Archive borrowed overlays, by key. Data is packed as it is now.

    Raises DamagedOverlay if code is not as it was built.
    """
    files = {}
    for key, (stack, source) in overlays.items():
        files[f"overlays/{key}/{MANIFEST}"] = source.folder / MANIFEST
        for path, built in (source.files or {}).items():
            if is_bytecode(path):
                continue
            file = source.site / path
            if CODE.search(path) and sha256(file) != built.sha256:
                raise overlay.damaged(source, path)
            files[f"overlays/{key}/{SITE}/{path}"] = file
        for name, version in stack.pins.items():
            day = releases.release_file(cache, name, version)
            files[f"releases/{day.name}"] = day
    archives.pack(archive, files)


def is_bytecode(path: str) -> bool:
    """Whether a file is bytecode, which the other machine compiles itself."""
    return "__pycache__" in path.split("/")


def unpack(archive: Path, keys: Sequence[str], cache: Path) -> None:
    """Add these overlays of an archive to a cache, and compile them; existing ones stay.

    Raises Inconclusive if the archive is damaged or the cache cannot be written.
    """
    with writing(cache, "HARNESS_CACHE"), locked(lock_file(cache, "unpacking")):
        missing = [key for key in keys if not (cache / "overlays" / key).exists()]
        if not missing:
            return
        aside = new_folder_beside(cache / "overlays" / "unpacking")
        try:
            archives.unpack(archive, aside)
            _finish([aside / "overlays" / key for key in missing], cache)
            for key in missing:
                with locked(lock_file(cache, key)):
                    if not (cache / "overlays" / key).exists():
                        (aside / "overlays" / key).rename(cache / "overlays" / key)
            (cache / "releases").mkdir(exist_ok=True)
            for file in aside.glob("releases/*.json"):
                os.replace(file, cache / "releases" / file.name)
        except (tarfile.TarError, lzma.LZMAError, EOFError, DamagedOverlay) as error:
            raise Inconclusive(f"{archive} is damaged: copy it again, or make it again") from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)
            contents.sweep(cache)  # if it failed, they belong to no overlay


def _finish(folders: Sequence[Path], cache: Path) -> None:
    """Compile unpacked overlays for this Python, compare their code with their manifests, and write
    these anew. Raises DamagedOverlay if one is not as it was built."""
    manifests, sites = [read_manifest(folder) for folder in folders], [f / SITE for f in folders]
    for site in sites:
        site.mkdir(exist_ok=True)  # an overlay without releases has no file
    with ThreadPoolExecutor(cores()) as pool:
        _compile(sites, pool)
        sealed = list(pool.map(overlay.seal, sites))
    for folder, manifest, files in zip(folders, manifests, sealed, strict=True):
        for path, built in manifest["files"].items():
            if CODE.search(path) and not is_bytecode(path) and files.get(path) != built:
                raise DamagedOverlay(f"{path} of overlay {folder.name} is not as it was built")
        contents.share(folder / SITE, files, cache)
        write_whole(folder / MANIFEST, json.dumps({**manifest, "files": files}) + "\n")


def _compile(sites: Sequence[Path], pool: ThreadPoolExecutor) -> None:
    """Compile all overlays at the same time, each path and content once; the others get a link."""
    equal = defaultdict[tuple[Path, int], list[Path]](list)
    waiting = defaultdict[Path, list[Path]](list)
    for site in sites:
        for source in sorted(site.rglob("*.py")):
            group = equal[source.relative_to(site), source.stat().st_ino]
            if not group:
                waiting[site].append(source)
            group.append(source)
    list(pool.map(bytecode.compile_all, waiting.values(), waiting))
    for first, *others in equal.values():
        for other in others if bytecode.of(first).is_file() else ():
            bytecode.of(other).parent.mkdir(exist_ok=True)
            link(bytecode.of(first), bytecode.of(other))
