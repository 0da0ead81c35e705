"""Overlays: the immutable folder that a set of pins, and perhaps a defect, becomes.

An overlay is made aside, renamed into the user's cache under a key of all that it was made from,
and never changed again: the next use costs milliseconds. ``OVERLAY/site-packages`` goes on a
rank's path; ``OVERLAY/overlay.json`` says what is in it.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shutil
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from harness.files import locked, sha256, write_whole
from harness.spec import Defect, Inconclusive, Unsupported
from harness.upstream import defect as edit
from harness.upstream import pins
from harness.upstream.pins import Stack

FORMAT = 3
"""Raised whenever the same key would make another folder than before."""

MANIFEST = "overlay.json"

SITE = "site-packages"
"""Its folder, by a name that dill knows: it pickles the modules of any other by value, pyarrow's
among them, and the datasets that do so die with "Can't pickle MonthDayNano"."""


class DamagedOverlay(Inconclusive):
    """A folder of the cache is no longer what it was when it was made."""


@dataclass(frozen=True)
class Overlay:
    """A finished overlay."""

    key: str
    site: Path
    """What goes on a rank's path."""
    lock: str
    """What was resolved: a requirements file with versions and hashes."""
    diff: str
    """What its defects changed, as a unified diff; empty without a defect."""
    made: bool = field(default=False, compare=False)
    """Whether this process made it just now."""

    @property
    def folder(self) -> Path:
        return self.site.parent

    def has(self, file: str) -> bool:
        """Whether it holds a file, by its path in site-packages: other releases may lack it."""
        return (self.site / file).is_file()

    def hash_of(self, file: str) -> str:
        """The SHA-256 of one of its files, by its path in site-packages."""
        return sha256(self.site / file)


def key(stack: Stack, defects: Sequence[Defect] = ()) -> str:
    """The name of an overlay: a digest of everything it is made from."""
    edits = [[d.name, d.file, d.scope, inspect.getsource(d.edit)] for d in defects]
    content = json.dumps([FORMAT, stack.to_json(), pins.bounds(stack.pins), edits], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:20]


@contextmanager
def borrowed(stack: Stack, defects: Sequence[Defect], cache: Path) -> Iterator[Overlay]:
    """Lend an overlay, making it first if need be; nobody frees it until it is given back."""
    name = key(stack, defects)
    made = _make_if_absent(name, stack, defects, cache)
    with locked(_lock_file(cache, name), shared=True):
        yield _opened(cache, name, made)


def _make_if_absent(name: str, stack: Stack, defects: Sequence[Defect], cache: Path) -> bool:
    if _folder(cache, name).exists():
        return False
    with locked(_lock_file(cache, name)):
        if _folder(cache, name).exists():
            return False
        if defects:
            with borrowed(stack, (), cache) as base:
                _make(cache, name, stack, defects, base)
        else:
            _make(cache, name, stack, (), None)
    return True


def _make(
    cache: Path, name: str, stack: Stack, defects: Sequence[Defect], base: Overlay | None
) -> None:
    aside = Path(tempfile.mkdtemp(dir=cache / "overlays", prefix=f".{name}."))
    try:
        site = aside / SITE
        if base is None:
            text, diff = _install(stack, aside, site), ""
        else:
            shutil.copytree(base.site, site, copy_function=os.link)
            text, diff = base.lock, _put_in(defects, stack, site)
        manifest = _manifest(name, stack, defects, text, diff, site)
        write_whole(aside / MANIFEST, json.dumps(manifest) + "\n")
        aside.chmod(0o755)
        aside.rename(_folder(cache, name))
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _install(stack: Stack, aside: Path, site: Path) -> str:
    text = pins.lock(stack)
    lock_file = aside / "lock.txt"
    lock_file.write_text(text)
    pins.install(lock_file, stack, site)
    return text


def _put_in(defects: Sequence[Defect], stack: Stack, site: Path) -> str:
    releases = {d.upstream: f"{d.upstream}=={stack.pins[d.upstream]}" for d in defects}
    return "".join(edit.apply(d, site, releases[d.upstream]) for d in defects)


def _manifest(
    name: str, stack: Stack, defects: Sequence[Defect], lock: str, diff: str, site: Path
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "key": name,
        "stack": stack.to_json(),
        "defects": [d.name for d in defects],
        "packages": pins.locked(lock),
        "lock": lock,
        "diff": diff,
        "files": _sizes(site),
    }


def _sizes(site: Path) -> dict[str, int]:
    # Not the bytecode: a bundle leaves it out and compiles for the box's own Python.
    sizes = {}
    for folder, folders, files in os.walk(site):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for file in files:
            path = os.path.join(folder, file)
            sizes[os.path.relpath(path, site)] = os.stat(path).st_size
    return sizes


def _opened(cache: Path, name: str, made: bool) -> Overlay:
    folder = _folder(cache, name)
    manifest = read_manifest(folder)
    for file, size in manifest["files"].items():
        try:
            whole = os.stat(os.path.join(folder, SITE, file)).st_size == size
        except OSError:
            whole = False
        if not whole:
            raise DamagedOverlay(
                f"overlay {name} is damaged: {file} is missing or was changed; remove it with "
                f"'python -m harness clean {name}' and the next run makes it anew"
            )
    return Overlay(name, folder / SITE, manifest["lock"], manifest["diff"], made)


def installed(names: Iterable[str]) -> Overlay:
    """The user's own environment, where it has all of these packages in one place.

    Raises Unsupported where one is missing or installed from elsewhere, in editable mode say.
    """
    site = Path(sysconfig.get_path("purelib"))
    for name in names:
        try:
            place = Path(str(metadata.distribution(name).locate_file("")))
        except metadata.PackageNotFoundError:
            raise Unsupported(f"{name} is not installed") from None
        if place.resolve() != site.resolve():
            raise Unsupported(f"{name} is installed in {place}, beside the environment's own")
    return Overlay(INSTALLED, site, "", "")


INSTALLED = "installed"
"""Stands for a key where there is no overlay, but the user's own environment."""


def read_manifest(folder: Path) -> dict[str, Any]:
    """What is in an overlay; raises DamagedOverlay if it does not say."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return manifest
    except (OSError, ValueError):
        raise DamagedOverlay(
            f"overlay {folder.name} is damaged: it has no {MANIFEST}; remove it with "
            f"'python -m harness clean {folder.name}'"
        ) from None


def _folder(cache: Path, name: str) -> Path:
    return cache / "overlays" / name


def _lock_file(cache: Path, name: str) -> Path:
    return cache / "overlays" / f"{name}.lock"


def kept(cache: Path) -> list[Path]:
    """The folders of all overlays in the cache."""
    folder = cache / "overlays"
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def disk_use(folder: Path, seen: set[int] | None = None) -> int:
    """The bytes a folder takes; a file that is linked twice counts once (``seen``: its inodes)."""
    seen = set() if seen is None else seen
    total = 0
    for path in folder.rglob("*"):
        stat = path.lstat()
        if stat.st_ino not in seen and not path.is_dir():
            seen.add(stat.st_ino)
            total += stat.st_size
    return total


def free(cache: Path, name: str) -> bool:
    """Remove one overlay; False if a run is using it just now."""
    # The lock file stays: somebody may be waiting on it.
    with locked(_lock_file(cache, name), wait=False) as held:
        if held:
            folder = _folder(cache, name)
            aside = folder.rename(folder.with_name(f".{name}.{os.getpid()}"))
            shutil.rmtree(aside)
        return held


def sweep(cache: Path) -> None:
    """Remove what makers that were killed left half-made."""
    for aside in (cache / "overlays").glob(".*.*"):
        with locked(_lock_file(cache, aside.name.split(".")[1]), wait=False) as held:
            if held:
                shutil.rmtree(aside, ignore_errors=True)


def is_made(stack: Stack, defects: Sequence[Defect], cache: Path) -> bool:
    """Whether an overlay is in the cache already."""
    return _folder(cache, key(stack, defects)).exists()
