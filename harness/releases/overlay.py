"""Overlays: read-only folders, each with one set of releases and perhaps a defect.

An overlay is built in a temporary folder and renamed into the user's cache. Its name is a digest of
everything that it is made from. It never changes, so the next use costs milliseconds.
``OVERLAY/site-packages`` is on a rank's path. ``OVERLAY/overlay.json``, the manifest, lists what is
installed, and the size and hash of every file, bytecode included. Each use compares the sizes of
code files; the end of a trial compares the hashes of the files that its ranks loaded, see
``rank/loaded_files``. Other files may change: some security software rewrites certifi's
certificates.

Most releases of a package have most files in common, so overlays share equal files, see
``contents``: the second release costs a small part of the disk that the first one does.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import os
import re
import shutil
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import distributions
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from harness.bugs import pins
from harness.bugs.api.spec import Defect
from harness.bugs.pins import Interpreter, Stack
from harness.rank import bytecode
from harness.rank.manifest import INSTALLED, MANIFEST, BuiltFile, DamagedOverlay, read_manifest
from harness.releases import contents, edits, index, locks, patches, resolution, uv
from harness.system.errors import Fault, Unsupported
from harness.system.files import link, locked, new_folder_beside, sha256, write_whole, writing
from harness.system.installation import refuse_without_torch

FORMAT = 4
"""Increase it when the same key would make a different folder than before."""


SITE = "site-packages"
"""A name that dill knows. It pickles modules from other folders by value; for pyarrow's that fails
with "Can't pickle MonthDayNano"."""


BUILDERS = 2
"""How many overlays are built at once: one downloads while another is compiled."""

_installing = threading.Semaphore(BUILDERS)
"""The same limit for builds outside of the pool of ``builders``, such as those of two runs in one
process."""


CODE = re.compile(r"\.(py|pyc|c|cc|cpp|cxx|cu|cuh|h|hpp)$|\.so(\.\d+)*$")
"""Names of files that a rank executes: Python, bytecode, shared libraries, and the C++ and CUDA
sources that DeepSpeed compiles when it runs."""


SELDOM_IMPORTED = re.compile(r"/tests/|^/transformers/models/(?!auto/)\w+/")
"""Sources that get no bytecode here, but in each process that imports them. They are most of the
files of transformers (all models) and of pandas (its tests), and compiling takes longest."""


Files = Mapping[str, BuiltFile]
"""The files of an overlay, by their path in site-packages."""


@dataclass(frozen=True)
class Overlay:
    """An overlay that is in the cache; or the user's own environment, see ``installed``."""

    key: str
    site: Path
    """The folder on a rank's path."""
    lock: str
    """The installed releases: ``name==version`` lines; empty for the user's own environment."""
    diff: str
    """The changes of its defects, as a unified diff; empty without a defect."""
    is_new: bool = field(default=False, compare=False)
    """Whether this process has just built it."""
    files: Files | None = field(default=None, compare=False, repr=False)
    """Its files; None for the user's own environment, which has no manifest."""

    @property
    def folder(self) -> Path:
        return self.site.parent

    def has(self, file: str) -> bool:
        """Whether it contains a file, by its path in site-packages: other releases may lack it."""
        return (self.site / file).is_file() if self.files is None else file in self.files

    def hash_of(self, file: str) -> str:
        """The SHA-256 of one of its files as it was built, not as it is now.

        In the user's own environment the file is hashed as it is now.
        """
        return sha256(self.site / file) if self.files is None else self.files[file].sha256


def key(stack: Stack, defects: Sequence[Defect] = ()) -> str:
    """The name of an overlay: a digest of everything that it is made from."""
    changes = [[d.name, d.file, d.scope, *_code(d.function)] for d in defects]
    content = json.dumps(
        [FORMAT, stack.to_json(), pins.bounds(stack.pins), changes], sort_keys=True
    )
    return hashlib.sha256(content.encode()).hexdigest()[:20]


def _code(function: Any) -> list[str]:
    """The source of a function, the texts that it refers to in its module, and the same of each
    function of its package that it calls."""
    found: dict[Any, list[str]] = {}
    _read_code(function, found)
    return list(itertools.chain(*found.values()))


def _read_code(function: Any, found: dict[Any, list[str]]) -> None:
    code = function.__code__
    inner = [constant.co_names for constant in code.co_consts if isinstance(constant, CodeType)]
    names = sorted({*code.co_names, *itertools.chain(*inner)})
    values = [function.__globals__.get(name) for name in names]
    texts = (value for value in values if isinstance(value, str))
    found[function] = [inspect.getsource(function), *texts]
    package = function.__module__.partition(".")[0]
    modules = [value for value in values if isinstance(value, ModuleType)]
    for value in [*values, *(getattr(module, name, None) for module in modules for name in names)]:
        is_new = isinstance(value, FunctionType) and value not in found
        if is_new and value.__module__.partition(".")[0] == package:
            _read_code(value, found)


def build(stack: Stack, defects: Sequence[Defect], cache: Path) -> bool:
    """Build an overlay unless it exists; returns whether it was built now."""
    # Polls instead of waiting for the lock: users of the finished overlay hold it shared, perhaps
    # in another thread of this process, and must not be waited for.
    name = key(stack, defects)
    with writing(cache, "HARNESS_CACHE"):
        while not _is_there(cache, name):
            with locked(lock_file(cache, name), wait=False) as has_lock:
                if has_lock and not _is_there(cache, name):
                    _build(name, stack, defects, cache)
                    return True
            time.sleep(0.05)
    return False


@contextmanager
def builders() -> Iterator[ThreadPoolExecutor]:
    """A pool of BUILDERS threads that build overlays.

    Leaving the context stops unfinished builds: it ends uv, and no unfinished folder stays.
    """
    threads: set[int] = set()
    pool = ThreadPoolExecutor(
        BUILDERS, "overlay", initializer=lambda: threads.add(threading.get_ident())
    )
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        uv.give_up(threads)


@contextmanager
def borrow(stack: Stack, defects: Sequence[Defect], cache: Path) -> Iterator[Overlay]:
    """An overlay, built first if it does not exist; nobody can delete it while it is borrowed."""
    name, is_new = key(stack, defects), build(stack, defects, cache)
    with locked(lock_file(cache, name), shared=True):
        yield _open(cache, name, is_new)


@contextmanager
def awaited(stack: Stack, defects: Sequence[Defect], cache: Path) -> Iterator[Overlay]:
    """``borrow``, with a message if the overlay has to be built, which takes long."""
    with ExitStack() as loan:
        with index.waiting(f"the overlay of {stack}"):
            overlay = loan.enter_context(borrow(stack, defects, cache))
        yield overlay


def _build(name: str, stack: Stack, defects: Sequence[Defect], cache: Path) -> None:
    """Build an overlay. One with edits starts from the overlay of the same releases without edits,
    which is built first if it does not exist."""
    if defects or stack.patches:
        with borrow(replace(stack, patches=()), (), cache) as base:
            _build_folder(cache, name, stack, defects, base)
    else:
        _build_folder(cache, name, stack, (), None)


def _build_folder(
    cache: Path, name: str, stack: Stack, defects: Sequence[Defect], base: Overlay | None
) -> None:
    """Build an overlay in a temporary folder and rename it: from its lock, or from ``base`` with
    links to its files and the edits."""
    aside = new_folder_beside(_folder(cache, name))
    try:
        site = aside / SITE
        if base is None:
            with _installing:
                text, diff = _install(stack, site), ""
                files = seal(site)
                _refuse_changed(site, files)
                contents.share(site, files, cache)
                hashes = {file: entry.sha256 for file, entry in files.items()}
                bytecode.remember(hashes, _folder(cache, name) / SITE)
        else:
            shutil.copytree(base.site, site, symlinks=True, copy_function=link)
            text, (diff, edited) = base.lock, _apply_edits(defects, stack, site, base)
            files = _edited_files(base, edited, site)
        manifest = _manifest(name, stack, defects, text, diff, files)
        write_whole(aside / MANIFEST, json.dumps(manifest) + "\n")
        try:
            aside.rename(_folder(cache, name))
        except OSError:
            if not _is_there(cache, name):  # another machine was first, where locks do not work
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _install(stack: Stack, site: Path) -> str:
    """Lock and install the releases, and compile what is often imported; returns the lock."""
    for name in set(stack.pins).intersection(pins.source_only()):
        # Built without torch, DeepSpeed's pipeline would broadcast instead of send, for ever.
        refuse_without_torch(f"building {name} {stack.pins[name]}")
    text = resolution.lock(stack)
    site.mkdir()  # the bugs of a GPU need no package
    resolution.install(text, stack, site)
    sources = sorted(site.rglob("*.py"))
    often_imported = [s for s in sources if not SELDOM_IMPORTED.search(f"/{s.relative_to(site)}")]
    _compile(stack, often_imported, site)
    return text


def _refuse_changed(site: Path, files: Files) -> None:
    """Raise Fault if a file is not what its package's list of files says: somebody has written into
    uv's cache, and a scenario would run code that upstream never released. Bytecode is ours."""
    for package in distributions(path=[str(site)]):
        for entry in package.files or ():
            file = files.get(os.path.normpath(entry))
            if file and entry.hash and entry.hash.mode == "sha256" and entry.suffix != ".pyc":
                built = urlsafe_b64encode(bytes.fromhex(file.sha256)).decode().rstrip("=")
                if built != entry.hash.value:
                    raise Fault(
                        f"{entry} is not as {package.name} {package.version} was released: the "
                        f"cache of uv was changed; run 'uv cache clean {package.name}'"
                    )


def _compile(stack: Stack, sources: Sequence[Path], site: Path) -> None:
    """Write the bytecode of sources; nothing for another Python or platform than ours."""
    if (stack.python, stack.platform) == pins.here():  # otherwise on the machine that unpacks it
        new = [source for source in sources if not bytecode.copied(source, site)]
        bytecode.compile_all(new, site)


def _apply_edits(
    defects: Sequence[Defect], stack: Stack, site: Path, base: Overlay
) -> tuple[str, set[str]]:
    """Apply the patches, then the defects; returns the change as a unified diff, and its files."""
    patched = (patches.paths(text, stack.pins) for text in stack.patches)
    files = {d.file for d in defects}.union(*patched)
    for file in {file for file in files if base.has(file)}:
        if sha256(base.site / file) != base.hash_of(file):
            raise damaged(base, file)  # otherwise the change would pass for a part of the new one
    releases = {d.upstream: f"{d.upstream}=={stack.pins[d.upstream]}" for d in defects}
    texts = [edits.apply_patch(text, site, stack.pins) for text in stack.patches]
    texts += [edits.apply_defect(d, site, releases[d.upstream]) for d in defects]
    sources = [site / file for file in sorted(files) if file.endswith(".py")]
    _compile(stack, [source for source in sources if source.is_file()], site)
    return "".join(texts), files


def _edited_files(base: Overlay, edited: Iterable[str], site: Path) -> dict[str, BuiltFile]:
    """The files of an overlay with edits: its base's files as built, and the edited files."""
    sources = [site / file for file in edited]
    both = {path for source in sources for path in (source, bytecode.of(source))}
    ours = {str(p.relative_to(site)): seal_file(p) for p in both if p.is_file()}
    gone = {str(path.relative_to(site)) for path in both}
    return {n: m for n, m in (base.files or {}).items() if n not in gone} | ours


def seal(site: Path) -> dict[str, BuiltFile]:
    """Make every file under a folder read-only; returns their sizes and hashes.

    Overlays share files by hard links: a change in one would also change the others.
    """
    paths = (Path(folder, file) for folder, _, files in os.walk(site) for file in files)
    return {str(path.relative_to(site)): seal_file(path) for path in sorted(paths)}


def seal_file(path: Path) -> BuiltFile:
    """Make a file read-only; returns its size and hash."""
    status = path.stat()
    path.chmod(status.st_mode & 0o555)
    return BuiltFile(status.st_size, sha256(path))


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


def _open(cache: Path, name: str, is_new: bool) -> Overlay:
    """The overlay of a folder. Raises DamagedOverlay if a code file is missing or has another
    size."""
    folder = _folder(cache, name)
    manifest = read_manifest(folder)
    site, files = folder / SITE, manifest["files"]
    overlay = Overlay(name, site, manifest["lock"], manifest["diff"], is_new, files)
    for file, (size, _) in files.items():
        if not CODE.search(file):
            continue
        try:
            if os.stat(f"{site}/{file}").st_size == size:
                continue
        except OSError:
            pass
        raise damaged(overlay, file)
    return overlay


def damaged(overlay: Overlay, file: str) -> DamagedOverlay:
    """The error for a file that has changed: one line that says how, and what to do."""
    entry = (overlay.files or {}).get(file)
    was = f"was {entry.size} bytes, SHA-256 {entry.sha256[:12]}" if entry else "did not exist"
    return DamagedOverlay(
        f"overlay {overlay.key} is damaged: {file} is not as it was made: then it {was}, now it "
        f"{_state(overlay.site / file)}; run 'python -m harness clean "
        f"{overlay.key}' to delete it; the next run builds it again"
    )


def _state(path: Path) -> str:
    """A file as it is now, in words that follow "it"."""
    try:
        stat, content = path.stat(), sha256(path)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(stat.st_mtime))
    links = f", with {stat.st_nlink} hard links" if stat.st_nlink > 1 else ""
    return f"is {stat.st_size} bytes, SHA-256 {content[:12]}, last written {when}{links}"


def installed(interpreter: Interpreter, names: Iterable[str]) -> Overlay:
    """The user's own environment as an Overlay: nothing was built, and it has no manifest, so files
    are hashed as they are now. All ``names`` must be in the interpreter's site-packages.

    Raises Unsupported if one is missing or is installed elsewhere, for example in editable mode.
    """
    site = Path(interpreter.site)
    for name in names:
        if name not in interpreter.packages:
            raise Unsupported(f"{name} is not installed")
        folder = Path(interpreter.packages[name].folder)
        if folder.resolve() != site.resolve():
            raise Unsupported(f"{name} is installed in {folder}, outside of {site}")
    return Overlay(INSTALLED, site, "", "")


def _folder(cache: Path, name: str) -> Path:
    return cache / "overlays" / name


def _is_there(cache: Path, name: str) -> bool:
    return os.path.exists(_folder(cache, name))  # also False without permission to look


def lock_file(cache: Path, name: str) -> Path:
    """Lock file: shared while the overlay is in use, exclusive while it is built or deleted."""
    return cache / "overlays" / f"{name}.lock"


def is_built(stack: Stack, defects: Sequence[Defect], cache: Path) -> bool:
    """Whether an overlay is in the cache already."""
    return _is_there(cache, key(stack, defects))
