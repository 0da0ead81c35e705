"""Keeps the files that the ranks of a layout write apart from the user's files.

Without this, a script that saves into its folder and resumes from it would go on where another
layout stopped, and would replace the user's checkpoint. So the ranks run in a mount namespace in
which an overlay of the kernel covers the user's folders. It catches every write, by any path, and
copies only the files that change. It needs no root where user namespaces are allowed. Most
containers forbid them: there each run gets a copy of the working folder, if that is small.
Otherwise the runs share the folders, and the report says so.

Standard library only: the process that forks the ranks calls this.
"""

from __future__ import annotations

import ctypes
import getpass
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from harness.rank.probe.exchange import Assignment

NEW_MOUNTS, NEW_USER = 0x00020000, 0x10000000
BIND, RECURSIVE, PRIVATE = 0x1000, 0x4000, 0x40000

COMPILED = "TORCHINDUCTOR_CACHE_DIR"
CACHES = ("XDG_CACHE_HOME", "HF_HOME", "HF_DATASETS_CACHE", "TORCH_HOME", "TRITON_CACHE_DIR")
"""Variables with folders that all runs share, like ~/.cache, so that files are downloaded once."""

MOST_FILES, MOST_LINKS = 2000, 20
"""How many files are searched for links out of a folder, and how many links count."""

SYSTEM = ((), ("dev",), ("proc",), ("sys",), ("run",))
"""The root folder, and folders of devices and of the kernel, which an overlay would hide."""

COPY = "copy"
"""In ``store``: the copy of the working folder, if there is no overlay."""

NOT_COPIED = ("__pycache__", ".git", ".venv", "venv", "node_modules")
MOST_COPIED, MOST_BYTES = 5000, 200_000_000
"""The largest working folder that is copied: its number of files, and their bytes."""

NAMES, REFUSAL = "names.json", "refusal"
"""In ``store``: the number of each of the user's folders, and why there is no overlay."""


@dataclass
class Written:
    """What the runs of a script wrote into the user's folders, or would have written there."""

    files: set[str] = field(default_factory=set)
    """New ones and changed ones; in the working folder by their paths in it."""
    removed: set[str] = field(default_factory=set)
    refusal: str = ""
    """Why the runs share the user's folders; empty if each has its own."""

    def add(self, addition: Written) -> None:
        self.files |= addition.files
        self.removed |= addition.removed
        self.refusal = self.refusal or addition.refusal


def enter(assignment: Assignment) -> Assignment:
    """Keep the writes of this process and its children apart from the user's files. Returns the
    assignment with the folder in which they run then."""
    store, earlier = Path(assignment.own), Path(assignment.earlier) if assignment.earlier else None
    cover(assignment.folders, store, earlier, assignment.shared, assignment.cwd)
    if not (store / REFUSAL).is_file() or not _copied(Path(assignment.cwd), store / COPY, earlier):
        return assignment
    (store / REFUSAL).unlink()

    def relocate(word: str) -> str:
        inside = f"{word}/".startswith(f"{assignment.cwd}/")
        return str(store / COPY) + word.removeprefix(assignment.cwd) if inside else word

    words = [relocate(word) for word in assignment.arguments]
    script = relocate(assignment.script)
    return replace(assignment, cwd=str(store / COPY), script=script, arguments=words)


def cover(
    folders: Sequence[str], store: Path, earlier: Path | None, shared: Sequence[str], cwd: str
) -> None:
    """Redirect what this process and its children write from the user's ``folders`` to ``store``.

    ``earlier`` is the store of a run that this one continues: its files are visible. Folders in
    ``shared`` stay as they are, and so does a folder that cannot be covered; for the working folder
    ``cwd`` the reason is noted. Call this before any thread is started.
    """
    store.mkdir()
    numbers: dict[str, str] = {}
    before = _uppers(earlier) if earlier is not None else {}
    try:
        _enter_namespace()
        for folder in folders:
            try:
                _cover(folder, store, before, shared, numbers)
            except OSError:
                if f"{cwd}/".startswith(f"{folder}/"):
                    raise
    except OSError as error:
        (store / REFUSAL).write_text(error.strerror or str(error))
    (store / NAMES).write_text(json.dumps(numbers))


def written(store: Path, cwd: str) -> Written:
    """What the ranks wrote into ``store``, once they have ended."""
    changes = Written()
    with suppress(OSError):
        changes.refusal = (store / REFUSAL).read_text()
    for folder, upper in _uppers(store).items():
        for path in _files(upper):
            file = Path(folder, path.relative_to(upper))
            name = os.path.relpath(file, cwd) if Path(cwd) in file.parents else str(file)
            with suppress(OSError):  # it is gone: a process of the script may be left
                is_removed = stat.S_ISCHR(path.lstat().st_mode)
                (changes.removed if is_removed else changes.files).add(name)
    if (store / COPY).is_dir():
        originals, copies = (  # an unchanged copy keeps its time
            {str(file.relative_to(top)): file.lstat().st_mtime_ns for file in _files(top)}
            for top in (Path(cwd), store / COPY)
        )
        changes.files |= {name for name, time in copies.items() if originals.get(name) != time}
        changes.removed |= originals.keys() - copies.keys()
    return changes


def _uppers(store: Path) -> dict[str, Path]:
    """By the user's folder, the folder in a store with what a run wrote into it."""
    try:
        numbers = json.loads((store / NAMES).read_text())
    except OSError:
        return {}
    return {folder: store / number / "upper" for folder, number in numbers.items()}


def remove(folder: Path) -> None:
    """Delete a folder with what ranks wrote; the kernel leaves an unreadable folder in it."""
    for work in folder.glob("*/work/work"):
        work.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def folders_of(words: Sequence[str], script: Path | None) -> list[Path]:
    """The user's folders that a script may write into: the working folder, the script's folder,
    folders in its arguments, and the targets of links in the first two."""
    begin = [Path.cwd()] if script is None else [Path.cwd(), script.resolve().parent]
    begin = [folder for folder in begin if "site-packages" not in folder.parts]
    names = [word.partition("=")[2] if "=" in word else word for word in words]
    targets = [_target(word) for word in names if word and "{" not in word]
    targets += [target for folder in begin for target in islice(_links(folder), MOST_LINKS)]
    cached = set(map(Path, caches()))  # they need not be there yet
    nearest = [
        next(folder for folder in (path, *path.parents) if os.path.isdir(folder))
        for path in targets
        if not cached & {path, *path.parents}
    ]
    return [one for one in dict.fromkeys([*begin, *nearest]) if one.parts[1:2] not in SYSTEM]


def beside(folders: Sequence[Path], workspace: Path) -> list[str]:
    """The folders that neither contain ``workspace`` nor lie in another one of them."""
    candidates = [one for one in folders if one not in (workspace, *workspace.parents)]
    return [str(one) for one in candidates if not any(other in one.parents for other in candidates)]


def _target(name: str) -> Path:
    """The real path of a name; it need not exist."""
    return Path(os.path.realpath(os.path.expanduser(name)))


def _links(folder: Path) -> Iterator[Path]:
    """The targets of the links near the top of a folder."""
    looked = 0
    for path, inside, names in os.walk(folder):
        inside[:] = [name for name in inside if not name.startswith(".")]
        for name in [*inside, *names]:
            if os.path.islink(os.path.join(path, name)):
                yield _target(os.path.join(path, name))
            looked += 1
            if looked > MOST_FILES:
                return


def caches() -> list[str]:
    """The folders of caches that this user's packages share."""
    paths = [os.environ.get(name, "") for name in CACHES]
    paths += [os.path.expanduser("~/.cache"), compiled()]
    return [os.path.realpath(name) for name in paths if name]


def compiled() -> str:
    """Where torch keeps what it compiles; by default in the folder for temporary files."""
    with suppress(KeyError, OSError):  # a user without a name
        usual = os.path.join(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")
        return os.environ.get(COMPILED, usual)
    return os.environ.get(COMPILED, "")


def _enter_namespace() -> None:
    """Enter a new mount namespace: the machine's mounts stay as they are."""
    user, group = os.geteuid(), os.getegid()
    try:
        _call("unshare", NEW_MOUNTS)
    except OSError:  # only root may, outside of a user namespace
        _call("unshare", NEW_USER | NEW_MOUNTS)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            Path("/proc/self", name).write_text(text)
    _mount("none", "/", flags=RECURSIVE | PRIVATE)


def _cover(
    folder: str,
    store: Path,
    before: Mapping[str, Path],
    shared: Sequence[str],
    numbers: dict[str, str],
) -> None:
    """Cover a folder, and each file system that is mounted in it, with an overlay."""
    within = folder.rstrip("/") + "/"
    inside = [path for path in shared if path.startswith(within)]
    mounts = {path: kind for path, kind in _mounts().items() if path.startswith(within)}
    special = [path for path, kind in mounts.items() if kind in NO_FILES]
    opened: dict[str, int] = {}  # before the overlay hides them
    for path in (folder, *sorted(mounts), *inside):
        with suppress(OSError):  # this user may not read it
            opened[path] = os.open(path, os.O_PATH)
    for path, handle in opened.items():
        number = str(len(numbers))
        try:
            if path not in inside and path not in special:
                _overlay(path, handle, store / number, before.get(path))
                numbers[path] = number
                continue
        except OSError:
            if path == folder:
                raise
        # A cache, a single file, or no file system for files, such as /proc
        _mount(_of(handle), path, flags=BIND | RECURSIVE)
    for handle in opened.values():
        os.close(handle)


def _overlay(path: str, lower: int, store: Path, earlier: Path | None) -> None:
    handles = [lower]
    for name in ("upper", "work"):
        (store / name).mkdir(parents=True)
        handles.append(os.open(store / name, os.O_PATH))
    below = _of(lower)
    if earlier is not None:
        handles.append(os.open(earlier, os.O_PATH))
        below = f"{_of(handles[-1])}:{below}"
    shutil.copymode(_of(lower), store / "upper")  # it is what the folder itself seems to have
    try:  # paths by descriptor: a comma or a colon in a name would be one of the options
        options = f"lowerdir={below},upperdir={_of(handles[1])},workdir={_of(handles[2])},userxattr"
        _mount("overlay", path, kind="overlay", options=options)
    finally:
        for handle in handles[1:]:
            os.close(handle)


def _of(handle: int) -> str:
    return f"/proc/self/fd/{handle}"


def _mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    words = (word.encode() or None for word in (source, target, kind))
    _call("mount", *words, ctypes.c_ulong(flags), options.encode() or None)


def _call(function: str, *arguments: Any) -> None:
    """Call a function of the C library; raises OSError if it fails."""
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


NO_FILES = ("proc", "sysfs", "devtmpfs", "devpts", "mqueue", "cgroup", "cgroup2")


def _mounts() -> dict[str, str]:
    """The kind of each mounted file system, by its mount point."""
    kinds = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words, _, details = line.partition(" - ")
        path = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), words.split()[4])
        kinds[path] = details.split()[0]
    return kinds


def _files(folder: Path) -> Iterator[Path]:
    for path, inside, names in os.walk(folder):
        inside[:] = [name for name in inside if name not in NOT_COPIED]
        yield from (Path(path, name) for name in names)


def _copied(folder: Path, copy: Path, earlier: Path | None) -> bool:
    """Copy the working folder, or an earlier run's copy of it, if it is small; was it copied?"""
    size = 0
    for number, file in enumerate(_files(folder)):
        with suppress(OSError):
            size += file.lstat().st_size
        if number > MOST_COPIED or size > MOST_BYTES:
            return False
    before = earlier / COPY if earlier is not None else folder
    skipped = shutil.ignore_patterns(*NOT_COPIED)
    try:
        shutil.copytree(before, copy, symlinks=True, ignore=skipped)
    except (OSError, shutil.Error):
        shutil.rmtree(copy, ignore_errors=True)
        return False
    return True
