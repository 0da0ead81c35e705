"""Files and folders written completely or not at all, and locks. Standard library only."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.system.documents import json_of
from harness.system.errors import Fault, Inconclusive, UserError
from harness.system.text import NO_ROOM

ROOT = Path(__file__).parent.parent.parent
"""The checkout, or the folder in which the packages are installed."""


def write_whole(path: Path, text: str) -> None:
    """Write a text file under a temporary name and rename it, so that nobody sees half of it.

    Raises OSError if that fails; an old file is then unchanged.
    """
    write_all({path: text})


def write_all(texts: Mapping[Path, str]) -> None:
    """Write several text files that belong together, as ``write_whole`` does: all or none. What is
    no file, such as ``/dev/stdout``, is written as it is."""
    asides = {path: beside(path) for path in texts if not _is_stream(path)}
    try:
        for path, aside in asides.items():
            with aside.open("x", encoding="utf-8") as file:
                file.write(texts[path])
                file.flush()
                os.fsync(file.fileno())
        for path in texts.keys() - asides.keys():
            with path.open("a", encoding="utf-8") as file:
                file.write(texts[path])
        for path, aside in asides.items():
            os.replace(aside, path)
    except BaseException:
        for aside in asides.values():
            aside.unlink(missing_ok=True)
        raise


STREAMS = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/")


def _is_stream(path: Path) -> bool:
    """Whether a path is a device, a pipe or a stream, which no file may replace: the user of a
    container could replace ``/dev/null`` for all programs. A link to a file is replaced, so that
    nobody's folder decides which of the user's files is written."""
    with suppress(OSError):
        mode = path.stat().st_mode
        return os.path.abspath(path).startswith(STREAMS) or not (
            stat.S_ISREG(mode) or stat.S_ISDIR(mode)
        )
    return False


def beside(path: Path) -> Path:
    """An unused hidden name in the same folder, for a temporary file."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")


def new_folder_beside(path: Path) -> Path:
    """Create a folder with an unused name in the folder of ``path``.

    Its mode follows the umask, which mkdtemp ignores.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = beside(path)
    aside.mkdir()
    return aside


@contextmanager
def folder_whole(path: Path) -> Iterator[Path]:
    """Yield a new folder beside ``path`` to fill, and rename it to ``path``: all of it or nothing.

    ``path`` must be missing or an empty folder then. If anything fails, nothing is left.
    """
    aside = new_folder_beside(path)
    try:
        yield aside
        aside.rename(path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def link(source: str | Path, target: str | Path) -> None:
    """Link a file; copy it if the file system has no links, or too many of this file."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        shutil.copy2(source, target)


@contextmanager
def writing(path: Path, way_out: str) -> Iterator[None]:
    """Turn an OSError while writing at ``path`` into Inconclusive, with a message of one line.

    ``way_out`` is the setting with which the user can name another path: ``HARNESS_CACHE``.
    """
    try:
        yield
    except OSError as error:
        raise unwritten(path, error, way_out) from None


def unwritten(path: Path, error: OSError, way_out: str) -> Fault:
    """The error that says, in one line, why ``path`` cannot be written."""
    if error.errno in NO_ROOM:
        return Fault(f"no room on the disk for {path}: free some, or name another {way_out}")
    why = error.strerror or error
    return Fault(f"cannot write {path}: {why}; name another {way_out}")


def refuse_without_folder(file: Path) -> None:
    """Raise UserError for a file that is a folder, or whose folder does not exist."""
    if file.is_dir():
        raise UserError(f"{file} is a folder: name a file")
    if not file.parent.is_dir():
        raise UserError(f"no folder {file.parent} for {file.name}: name one that exists")


def refuse_unless_writable(file: Path) -> None:
    """Raise UserError unless a file can be made at the end of a long command."""
    refuse_without_folder(file)
    if not _is_stream(file):
        _refuse_unless(lambda aside: aside.touch(exist_ok=False), Path.unlink, file)
    elif not os.access(file, os.W_OK):
        raise UserError(f"cannot write {file}: {os.strerror(errno.EACCES)}; name another")


def refuse_unless_creatable(folder: Path, way_out: str = "") -> None:
    """Raise UserError unless a folder can be made; its parents may be missing. ``way_out`` is the
    setting that names another one."""
    nearest = folder
    while not nearest.parent.exists():
        nearest = nearest.parent
    _refuse_unless(Path.mkdir, Path.rmdir, nearest, way_out)


def _refuse_unless(
    make: Callable[[Path], None], remove: Callable[[Path], None], path: Path, way_out: str = ""
) -> None:
    """Make something beside a path, and remove it: permissions do not decide alone, as in /proc."""
    aside = beside(path)
    try:
        make(aside)
        remove(aside)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise unwritten(path, error, way_out or "folder") from None
        line = f"cannot write {path}: {error.strerror}; name another {way_out}"
        raise UserError(line.rstrip()) from None


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def locked(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[bool]:
    """Hold a lock on ``path``. With ``wait=False``, yields False if somebody else holds it.

    The kernel frees the lock when the process ends, also if it is killed. If the lock file cannot
    be created, a shared lock is granted, because nobody can write there; an exclusive one raises
    OSError."""
    mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    handle = _opened(path, shared)
    if handle is None:
        yield True
        return
    is_held = False
    try:
        with suppress(BlockingIOError):
            fcntl.flock(handle, mode if wait else mode | fcntl.LOCK_NB)
            is_held = True
        yield is_held
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)  # a forked process may have the descriptor, too
        os.close(handle)


def _opened(path: Path, shared: bool) -> int | None:
    """The descriptor of the lock file; None if this user cannot create it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as refused:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # as good for a lock
        except OSError:
            if not shared:
                raise refused from None
            return None


Files = Mapping[str, str | bytes]
"""The content of each file by its path in the folder."""


@dataclass(frozen=True)
class Output:
    """What a command writes into a folder of its own."""

    name: str
    """For messages, with its article: ``a site``."""
    mark: str
    """The name of the file that lists all files. A folder with other files is not replaced."""
    maker: str
    """The command."""


def refuse_unless_ours(out: Path, output: Output) -> None:
    """Raise UserError unless ``out`` can be made, is empty, or such an output and nothing else."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise UserError(f"{out} is not a folder: name a new one, or {output.name} to replace")
    refuse_unless_creatable(out)
    if not out.is_dir():
        return
    foreign = sorted(_present(out) - _files_of(out, output))
    if foreign:
        raise UserError(
            f"{out} contains a file that is not part of {output.name} ({foreign[0]}): name a new "
            f"or empty folder, or {output.name} to replace"
        )


def replace_folder(out: Path, files: Files, output: Output) -> None:
    """Write the files to a temporary folder, then replace ``out`` with it.

    Raises the errors of ``refuse_unless_ours``, and Inconclusive if it cannot be written; the old
    folder goes only when the new one is complete.
    """
    refuse_unless_ours(out, output)
    with writing(out, "--out"):
        aside = new_folder_beside(out)
        try:
            _write(aside, files, output)
            if out.exists():
                shutil.rmtree(out)
            aside.rename(out)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _present(folder: Path) -> set[str]:
    """The files, links and empty folders in a folder, by their paths in it."""
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir() or not any(path.iterdir())
    }


def _files_of(folder: Path, output: Output) -> set[str]:
    """The files of the output in a folder; empty if there is none."""
    try:
        content = json.loads((folder / output.mark).read_text(encoding="utf-8"))
        ours = content["made by"] == output.maker
        return {output.mark, *content["files"]} if ours else set()
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _write(folder: Path, files: Files, output: Output) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    listing = {"made by": output.maker, "files": sorted(files)}
    write_whole(folder / output.mark, json.dumps(listing) + "\n")


def write_json(path: Path, data: Any) -> None:
    """Write a complete JSON file; raises Inconclusive with the reason if that is not possible."""
    try:
        write_whole(path, json.dumps(data, indent=2) + "\n")
    except OSError as error:
        raise unwritten(path, error, "runs=") from None


def read_json(path: Path) -> Any:
    """The content of a JSON file of a run folder; raises Inconclusive if it cannot be read."""
    try:
        return json_of(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise Inconclusive(f"cannot read {path}: {why}") from None
