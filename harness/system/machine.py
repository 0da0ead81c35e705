"""This machine: its GPUs, lanes and folders, and its description for run.json."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from harness.system import git
from harness.system.errors import Fault, UserError
from harness.system.files import ROOT, locked, writing
from harness.system.installation import is_checkout
from harness.system.text import SCRIPT

MATTERS = re.compile(r"NCCL_|CUDA_|TORCH_|NVSHMEM_|OMP_|MKL_|GLOO_|UV_|HARNESS_")
"""The environment variables that can change a result; their values go into run.json."""


class Gpu(NamedTuple):
    """A GPU as the driver names it."""

    number: str
    """Its number in the order of the PCI bus: that of nvidia-smi, not always that of CUDA."""
    uuid: str
    name: str


@lru_cache(maxsize=1)
def gpus() -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves visible, in CUDA's order."""
    return visible(_asked_of_driver("index,uuid,name"), os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible(rows: Sequence[Sequence[str]], setting: str | None) -> tuple[Gpu, ...]:
    """The GPUs ``(index, uuid, name)`` that CUDA sees if CUDA_VISIBLE_DEVICES is ``setting``.

    CUDA accepts indices and beginnings of UUIDs, and ignores everything after an unknown one.
    """
    if setting is None:
        return tuple(Gpu(*row) for row in rows)
    selection = []
    for word in filter(None, (word.strip() for word in setting.split(","))):
        match = [
            Gpu(index, uuid, name)
            for index, uuid, name in rows
            if word == index or (not word.isdigit() and uuid.startswith(word))
        ]
        if not match:
            break
        selection.append(match[0])
    return tuple(selection)


CONTEXT = 500
"""The MiB of a GPU that a rank needs before it has any tensor."""


def gpus_of(ranks: int) -> int:
    """How many GPUs so many ranks get: one each, or all of them to share."""
    return min(ranks, len(gpus()))


def why_no_gpus(ranks: int) -> str:
    """Why so many ranks have no place on the GPUs of this machine; empty if they have."""
    if not gpus():
        return "needs 1 GPU, and this machine has 0"
    if ranks <= len(gpus()):
        return ""
    on_each = -(-ranks // len(gpus()))
    free = min(_free_memory(), default=0)
    if free >= on_each * CONTEXT:
        return ""
    return (
        f"{on_each} ranks on a GPU need {on_each * CONTEXT} MiB of it before they train, and "
        f"{free} MiB are free"
    )


def _free_memory() -> list[int]:
    """The MiB that no program uses, of each visible GPU."""
    numbers = {gpu.number for gpu in gpus()}
    rows = _asked_of_driver("index,memory.free", "nounits")
    return [int(free) for number, free in rows if number in numbers]


def _asked_of_driver(fields: str, *formats: str) -> list[list[str]]:
    """What nvidia-smi says of each GPU; torch takes seconds to import."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return []
    query = [smi, f"--query-gpu={fields}", f"--format={','.join(('csv', 'noheader', *formats))}"]
    process = subprocess.run(query, capture_output=True, text=True, check=False)
    lines = process.stdout.splitlines() if process.returncode == 0 else []
    count = fields.count(",")
    rows = [line.split(", ", count) for line in lines]
    return [row for row in rows if len(row) == count + 1]


@contextmanager
def leased(
    count: int, folder: Path, wait: Callable[[], None], sharing: int = 1
) -> Iterator[tuple[Gpu, ...]]:
    """Lease ``count`` visible GPUs. At most ``sharing`` leases of any process share a GPU, and only
    with leases that share it, too.

    A run gets all of them or none, so two runs never wait for each other. Runs get GPUs in the
    order in which they asked; otherwise a run that needs many GPUs could wait for ever. ``wait`` is
    called between attempts. The locks are files in ``folder``; the kernel frees them when the
    process ends."""
    with ExitStack() as locks:
        with _turn(folder, wait):
            while len(free := _free(count, folder, locks, sharing)) < count:
                locks.close()
                wait()
        yield free


def _free(count: int, folder: Path, locks: ExitStack, sharing: int) -> tuple[Gpu, ...]:
    """Up to ``count`` GPUs that have room, locked until ``locks`` is closed."""

    def lock(name: str, *, shared: bool = False) -> bool:
        return locks.enter_context(locked(folder / f"{name}.lock", shared=shared, wait=False))

    def has_room(gpu: Gpu) -> bool:
        if not lock(gpu.uuid, shared=sharing > 1):
            return False
        return sharing == 1 or any(lock(f"{gpu.uuid}.{place}") for place in range(sharing))

    return tuple(islice(filter(has_room, gpus()), count))


@contextmanager
def _turn(folder: Path, wait: Callable[[], None]) -> Iterator[None]:
    while True:
        with locked(folder / "turn.lock", wait=False) as mine:
            if mine:
                yield
                return
        wait()


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def facts() -> dict[str, Any]:
    """A description of this machine for run.json."""
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpus": cores(),
        "torch": release_of("torch"),
        "gpus": [gpu.name for gpu in gpus()],
    }


def environment() -> dict[str, str]:
    """The environment variables that can change a result; passwords in URLs are removed."""
    return {
        name: re.sub(r"(?<=://)[^/@\s]+@", "", value)
        for name, value in sorted(os.environ.items())
        if MATTERS.match(name)
    }


def source() -> dict[str, Any]:
    """The commit of this harness and whether its files were changed; without git, the reason."""
    carried = ROOT / "bundle.json"
    if carried.is_file():
        recorded_source: dict[str, Any] = json.loads(carried.read_text())["source"]
        return recorded_source
    if not is_checkout():
        release = f"no checkout: {SCRIPT} {release_of(SCRIPT)} is installed"
        return {"commit": None, "dirty": None, "unknown": release}
    if shutil.which("git") is None:
        return {"commit": None, "dirty": None, "unknown": "no git on the PATH"}
    commit = _git("rev-parse", "HEAD")
    return {"commit": commit, "dirty": bool(_git("status", "--porcelain")) if commit else None}


def _git(*arguments: str) -> str | None:
    if not (ROOT / ".git").exists():
        return None
    process = git.run(ROOT, *arguments)
    return process.stdout.strip() if process.returncode == 0 else None


def release_of(distribution: str) -> str | None:
    """The installed release of a package; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def refuse_unless_on_a_path(folder: Path, name: str) -> None:
    """Raise UserError for a folder whose name contains the separator of PYTHONPATH."""
    if os.pathsep in str(folder):
        raise UserError(
            f"{name}={folder} contains '{os.pathsep}', which separates the folders of PYTHONPATH"
        )


def own_folder(cache: Path, name: str) -> Path:
    """The folder for what runs of this user write: leases, compiled extensions, stored results.

    It is in the cache, or among the user's temporary files if the cache is read-only. Raises
    Inconclusive if that temporary folder belongs to somebody else.
    """
    folder = cache / name
    nearest = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    return folder if os.access(nearest, os.W_OK | os.X_OK) else temporary_folder() / name


def temporary_folder() -> Path:
    """This user's folder among the temporary files. Raises Inconclusive if somebody else's."""
    folder = Path(tempfile.gettempdir()) / f"distributed-bugs-{os.getuid()}"
    with writing(folder, "HARNESS_CACHE"):
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    refuse_unless_private(folder, status)
    return folder


def refuse_unless_private(folder: Path, status: os.stat_result, *owners: int) -> None:
    """Raise Fault for a link, for a folder of a user who is neither this one nor among the owners,
    and for one in which every user may replace files: what is in the cache is run."""
    is_open = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
    if stat.S_ISLNK(status.st_mode) or is_open or status.st_uid not in (os.getuid(), *owners):
        raise Fault(f"{folder} is not private to this user: name another HARNESS_CACHE")


def cache_folder() -> Path:
    """The folder of overlays and of everything else that can be made again.

    It is HARNESS_CACHE, otherwise a folder in the user's cache, and may be read-only. Raises
    Inconclusive if it is not a folder, or not private to this user, and UserError if it cannot be
    part of PYTHONPATH.
    """
    setting = os.environ.get("HARNESS_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = (Path(setting) if setting else Path(base) / "distributed-bugs").absolute()
    refuse_unless_on_a_path(folder, "HARNESS_CACHE")
    if folder.exists() and not folder.is_dir():
        raise Fault(f"the cache {folder} is not a folder: name another one in HARNESS_CACHE")
    for path in filter(Path.is_dir, (folder, *folder.glob("*"))):
        refuse_unless_private(path, path.stat(), 0)  # root may have filled it for all users
    return folder
