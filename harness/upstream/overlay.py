"""Overlays: the immutable folder that a set of pins, and perhaps a defect, becomes.

An overlay is made aside, renamed into the user's cache under a key of all that it was made from,
and never changed again: the next use costs milliseconds. ``OVERLAY/site-packages`` goes on a
rank's path; ``OVERLAY/overlay.json`` says what is in it, and holds the size and the hash of every
file, bytecode included, as it was made. At each use the sizes of code are compared, and at the end
of a trial the hashes of what its ranks loaded, see ``loaded``. Other files may change: security
software rewrites the certificates of certifi, for example.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import shutil
import sysconfig
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from harness.errors import Inconclusive, Unsupported
from harness.files import link, locked, new_folder_beside, sha256, write_whole, writing
from harness.spec import Defect
from harness.upstream import bytecode, locks, pins
from harness.upstream import defect as edit
from harness.upstream.pins import Stack

FORMAT = 4
"""Raised whenever the same key would make another folder than before."""

MANIFEST = "overlay.json"

SITE = "site-packages"
"""Its folder, by a name that dill knows: it pickles the modules of any other by value, pyarrow's
among them, and the datasets that do so die with "Can't pickle MonthDayNano"."""


MAKERS = 2
"""How many overlays are installed at once: one fetches while another one is compiled."""

_installing = threading.Semaphore(MAKERS)


CODE = re.compile(r"\.(py|pyc|c|cc|cpp|cxx|cu|cuh|h|hpp)$|\.so(\.\d+)*$")
"""The names of files that a rank executes: Python, bytecode, shared libraries, and the C++ and CUDA
sources that DeepSpeed compiles when it is used."""


class DamagedOverlay(Inconclusive):
    """A folder of the cache is no longer what it was when it was made."""


class Made(NamedTuple):
    """A file as it was made."""

    size: int
    """In bytes."""
    sha256: str


Files = Mapping[str, Made]
"""The files of an overlay, by their path in site-packages."""


@dataclass(frozen=True)
class Overlay:
    """A finished overlay."""

    key: str
    site: Path
    """What goes on a rank's path."""
    lock: str
    """What was installed: ``name==version`` lines."""
    diff: str
    """What its defects changed, as a unified diff; empty without a defect."""
    made: bool = field(default=False, compare=False)
    """Whether this process made it just now."""
    files: Files | None = field(default=None, compare=False, repr=False)
    """What it was made of; None of the user's own environment, which nobody has written down."""

    @property
    def folder(self) -> Path:
        return self.site.parent

    def has(self, file: str) -> bool:
        """Whether it holds a file, by its path in site-packages: other releases may lack it."""
        return (self.site / file).is_file() if self.files is None else file in self.files

    def as_made(self, files: Iterable[str]) -> dict[str, str]:
        """The SHA-256 of files as they were made; empty for one that was not made with it."""
        made = self.files or {}
        return {file: made[file].sha256 if file in made else "" for file in files}

    def hash_of(self, file: str) -> str:
        """The SHA-256 of one of its files as it was made, not as it is now.

        Of the user's own environment it is that of the file as it is: that is what is asked there.
        """
        return sha256(self.site / file) if self.files is None else self.files[file].sha256


def key(stack: Stack, defects: Sequence[Defect] = ()) -> str:
    """The name of an overlay: a digest of everything it is made from."""
    edits = [[d.name, d.file, d.scope, inspect.getsource(d.edit)] for d in defects]
    content = json.dumps([FORMAT, stack.to_json(), pins.bounds(stack.pins), edits], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:20]


def make(stack: Stack, defects: Sequence[Defect], cache: Path) -> bool:
    """Make an overlay where there is none yet; whether it was made now."""
    return _make_if_absent(key(stack, defects), stack, defects, cache)


@contextmanager
def makers() -> Iterator[ThreadPoolExecutor]:
    """Threads to make overlays in, as many as there is room for.

    Leaving the context gives up what is not done: uv is ended, and nothing half-made stays.
    """
    threads: set[int] = set()
    pool = ThreadPoolExecutor(
        MAKERS, "overlay", initializer=lambda: threads.add(threading.get_ident())
    )
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        pins.give_up(threads)


@contextmanager
def borrowed(stack: Stack, defects: Sequence[Defect], cache: Path) -> Iterator[Overlay]:
    """Lend an overlay, making it first if need be; nobody frees it until it is given back."""
    name = key(stack, defects)
    made = _make_if_absent(name, stack, defects, cache)
    with locked(lock_file(cache, name), shared=True):
        yield _opened(cache, name, made)


def _make_if_absent(name: str, stack: Stack, defects: Sequence[Defect], cache: Path) -> bool:
    # Whoever waits for the lock must not wait for the users of the finished overlay, too: they hold
    # it shared, perhaps in another thread of this process.
    with writing(cache, "HARNESS_CACHE"):
        while not _is_there(cache, name):
            with locked(lock_file(cache, name), wait=False) as mine:
                if mine and not _is_there(cache, name):
                    _make_now(name, stack, defects, cache)
                    return True
            time.sleep(0.05)
    return False


def _make_now(name: str, stack: Stack, defects: Sequence[Defect], cache: Path) -> None:
    if defects:
        with borrowed(stack, (), cache) as base:
            _make(cache, name, stack, defects, base)
    else:
        _make(cache, name, stack, (), None)


def _make(
    cache: Path, name: str, stack: Stack, defects: Sequence[Defect], base: Overlay | None
) -> None:
    aside = new_folder_beside(_folder(cache, name))
    try:
        site = aside / SITE
        if base is None:
            with _installing:
                text, diff = _install(stack, site), ""
                files = sealed(site)
        else:
            shutil.copytree(base.site, site, copy_function=link)
            text, diff = base.lock, _put_in(defects, stack, site, base)
            files = _with_edits(base, defects, site)
        manifest = _manifest(name, stack, defects, text, diff, files)
        write_whole(aside / MANIFEST, json.dumps(manifest) + "\n")
        aside.rename(_folder(cache, name))
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _install(stack: Stack, site: Path) -> str:
    text = pins.lock(stack)
    site.mkdir()  # torch's own bugs install nothing into it
    pins.install(text, stack, site)
    _compile(stack, sorted(site.rglob("*.py")))
    return text


def _compile(stack: Stack, sources: Sequence[Path]) -> None:
    if (stack.python, stack.platform) == pins.here():  # else where it is unpacked
        bytecode.compile_all(sources)


def _put_in(defects: Sequence[Defect], stack: Stack, site: Path, base: Overlay) -> str:
    releases = {d.upstream: f"{d.upstream}=={stack.pins[d.upstream]}" for d in defects}
    for file in {d.file for d in defects if base.has(d.file)}:
        if sha256(base.site / file) != base.hash_of(file):
            raise damaged(base, file)  # else it would be taken for as made from here on
    diff = "".join(edit.apply(d, site, releases[d.upstream]) for d in defects)
    _compile(stack, [site / file for file in sorted({d.file for d in defects})])
    return diff


def _with_edits(base: Overlay, defects: Sequence[Defect], site: Path) -> dict[str, Made]:
    """The files of an overlay with defects: its base's, as those were made, and the edited ones."""
    edited = [site / defect.file for defect in defects]
    fresh = {path for source in edited for path in (source, bytecode.of(source)) if path.is_file()}
    ours = {str(path.relative_to(site)): sealed_file(path) for path in fresh}
    compiled = {str(bytecode.of(source).relative_to(site)) for source in edited}
    return {n: m for n, m in (base.files or {}).items() if n not in compiled} | ours


def sealed(site: Path) -> dict[str, Made]:
    """Every file under a folder, its size and hash; none can be written to from here on.

    Overlays share files by links: a change of one would be a change of the others, too.
    """
    paths = (Path(place, file) for place, _, files in os.walk(site) for file in files)
    return {str(path.relative_to(site)): sealed_file(path) for path in sorted(paths)}


def sealed_file(path: Path) -> Made:
    """Protect a file from being written to; its size and hash."""
    path.chmod(path.stat().st_mode & 0o555)
    return Made(path.stat().st_size, sha256(path))


def _manifest(
    name: str, stack: Stack, defects: Sequence[Defect], lock: str, diff: str, files: Files
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "key": name,
        "stack": stack.to_json(),
        "defects": [d.name for d in defects],
        "packages": locks.versions(lock),
        "lock": lock,
        "diff": diff,
        "files": files,
    }


def _opened(cache: Path, name: str, made: bool) -> Overlay:
    folder = _folder(cache, name)
    manifest = read_manifest(folder)
    files = files_of(folder, manifest)
    found = Overlay(name, folder / SITE, manifest["lock"], manifest["diff"], made, files)
    site = str(found.site)
    for file, (size, _) in files.items():
        if not CODE.search(file):
            continue
        try:
            if os.stat(f"{site}/{file}").st_size == size:
                continue
        except OSError:
            pass
        raise damaged(found, file)
    return found


def damaged(lent: Overlay, file: str) -> DamagedOverlay:
    """One line that says how a file is not as it was made, and the way out."""
    made = (lent.files or {}).get(file)
    was = f"was {made.size} bytes as made, SHA-256 {made.sha256[:12]}" if made else "was never made"
    return DamagedOverlay(
        f"overlay {lent.key} is damaged: {file} is not as it was made: it {was}, and "
        f"{_now(lent.site / file)}; remove it with 'python -m harness clean {lent.key}' and the "
        "next run makes it anew"
    )


def _now(path: Path) -> str:
    try:
        stat, content = path.stat(), sha256(path)
    except OSError as error:
        return f"cannot be read now: {error.strerror}"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stat.st_mtime))
    links = f", in {stat.st_nlink} places" if stat.st_nlink > 1 else ""
    return f"is {stat.st_size} bytes, SHA-256 {content[:12]}, last written {when}{links}"


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
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return _checked(manifest)
    except (OSError, ValueError):
        raise _unreadable(folder) from None


def files_of(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Made]:
    """The files that a manifest says an overlay was made of; DamagedOverlay if it says nothing."""
    try:
        files = {path: Made(size, content) for path, (size, content) in manifest["files"].items()}
    except (TypeError, ValueError):
        raise _unreadable(folder) from None
    if not all(type(made.size) is int and type(made.sha256) is str for made in files.values()):
        raise _unreadable(folder)
    return files


def _unreadable(folder: Path) -> DamagedOverlay:
    return DamagedOverlay(
        f"overlay {folder.name} is damaged: it has no {MANIFEST}; remove it with "
        f"'python -m harness clean {folder.name}'"
    )


def _checked(manifest: Any) -> dict[str, Any]:
    """What was read from a manifest, if it is one; else a ValueError."""
    told = isinstance(manifest, dict) and all(
        isinstance(manifest.get(name), kind) for name, kind in PARTS.items()
    )
    if not told:
        raise ValueError("not the manifest of an overlay")
    return dict(manifest)


PARTS = {
    "format": int,
    "key": str,
    "stack": dict,
    "defects": list,
    "packages": dict,
    "lock": str,
    "diff": str,
    "files": dict,
}
"""What a manifest holds, by its types."""


def _folder(cache: Path, name: str) -> Path:
    return cache / "overlays" / name


def _is_there(cache: Path, name: str) -> bool:
    return os.path.exists(_folder(cache, name))  # False where it may not be looked up, too


def lock_file(cache: Path, name: str) -> Path:
    """What who uses an overlay has locked, shared, and who makes or removes it, alone."""
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
    with locked(lock_file(cache, name), wait=False) as held:
        if held:
            folder = _folder(cache, name)
            aside = folder.rename(folder.with_name(f".{name}.{os.getpid()}"))
            shutil.rmtree(aside)
        return held


def sweep(cache: Path) -> None:
    """Remove what makers that were killed left half-made."""
    for aside in (cache / "overlays").glob(".*.*"):
        with locked(lock_file(cache, aside.name.split(".")[1]), wait=False) as held:
            if held:
                shutil.rmtree(aside, ignore_errors=True)


def is_made(stack: Stack, defects: Sequence[Defect], cache: Path) -> bool:
    """Whether an overlay is in the cache already."""
    return _is_there(cache, key(stack, defects))
