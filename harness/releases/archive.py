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
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.bugs import pins
from harness.rank import bytecode
from harness.rank.manifest import MANIFEST, DamagedOverlay, read_manifest
from harness.releases import contents, overlay, releases
from harness.releases.overlay import CODE, SITE, Overlay, lock_file
from harness.system import archives
from harness.system.errors import Inconclusive
from harness.system.files import locked, new_folder_beside, sha256, write_whole, writing


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
            for key in missing:
                _finish(aside / "overlays" / key, cache)
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


def _finish(folder: Path, cache: Path) -> None:
    """Compile an unpacked overlay for this Python, compare its code with its manifest, and write
    that anew. Raises DamagedOverlay if it is not as it was built."""
    manifest, site = read_manifest(folder), folder / SITE
    site.mkdir(exist_ok=True)  # an overlay without releases has no file
    sources = sorted(site.rglob("*.py"))
    bytecode.compile_all([each for each in sources if not bytecode.copied(each, site)], site)
    files = overlay.seal(site)
    for path, built in manifest["files"].items():
        if CODE.search(path) and not is_bytecode(path) and files.get(path) != built:
            raise DamagedOverlay(f"{path} of overlay {folder.name} is not as it was built")
    contents.share(site, files, cache)
    bytecode.remember({path: built.sha256 for path, built in files.items()}, site)
    write_whole(folder / MANIFEST, json.dumps({**manifest, "files": files}) + "\n")
