"""This machine: which lanes it has, and the facts about it that go into the evidence."""

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
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import lru_cache
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from harness.files import ROOT, locked, writing
from harness.spec import Fault, Lane, Scenario, Unsupported, UserError

MATTERS = re.compile(r"NCCL_|CUDA_|TORCH_|NVSHMEM_|OMP_|MKL_|GLOO_|UV_|HARNESS_")
"""The environment variables that can change a result; their values go into run.json."""


class Gpu(NamedTuple):
    """A GPU as the driver names it."""

    number: str
    """Its place in the order of the PCI bus: nvidia-smi's, not always CUDA's."""
    uuid: str
    name: str


@lru_cache(maxsize=1)
def gpus() -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves visible, or all, in CUDA's order.

    Asks the driver's own tool: torch would know as well, but takes seconds to import.
    """
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return ()
    query = [smi, "--query-gpu=index,uuid,name", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    found = [line.split(", ", 2) for line in lines]
    return visible([row for row in found if len(row) == 3], os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible(found: Sequence[Sequence[str]], named: str | None) -> tuple[Gpu, ...]:
    """Which of the GPUs ``(index, uuid, name)`` CUDA_VISIBLE_DEVICES lets CUDA see.

    As CUDA reads it: indices or beginnings of UUIDs, and nothing after one that does not exist.
    """
    if named is None:
        return tuple(Gpu(*row) for row in found)
    seen = []
    for word in filter(None, (word.strip() for word in named.split(","))):
        match = [
            Gpu(index, uuid, name)
            for index, uuid, name in found
            if word == index or (not word.isdigit() and uuid.startswith(word))
        ]
        if not match:
            break
        seen.append(match[0])
    return tuple(seen)


@contextmanager
def leased(count: int, folder: Path, wait: Callable[[], None]) -> Iterator[tuple[Gpu, ...]]:
    """Lend ``count`` of the visible GPUs, which no other run uses meanwhile, here or elsewhere.

    All of them or none, so that two runs never wait for each other. One that waits has the turn,
    and nobody leases before it: else a run that needs many GPUs would never see them free at once.
    ``wait`` is called between tries. The locks are files in ``folder``; the kernel frees them with
    the process.
    """
    with ExitStack() as locks:
        with _turn(folder, wait):
            while len(lent := _free(count, folder, locks)) < count:
                locks.close()
                wait()
        yield lent


def _free(count: int, folder: Path, locks: ExitStack) -> tuple[Gpu, ...]:
    """Up to ``count`` GPUs that nobody else has leased, locked until ``locks`` is closed."""
    free = (gpu for gpu in gpus() if locks.enter_context(_lock(gpu, folder)))
    return tuple(islice(free, count))


@contextmanager
def _turn(folder: Path, wait: Callable[[], None]) -> Iterator[None]:
    while True:
        with locked(folder / "turn.lock", wait=False) as mine:
            if mine:
                yield
                return
        wait()


def _lock(gpu: Gpu, folder: Path) -> AbstractContextManager[bool]:
    return locked(folder / f"{gpu.uuid}.lock", wait=False)


def choose_lane(scenario: Scenario, ranks: int, asked: str) -> Lane:
    """The lane to run ``ranks`` ranks on; raises Unsupported, with the reason, if there is none.

    ``auto`` goes by the widest variant of the scenario, so that all of them run on one lane.
    """
    if asked == "auto":
        widest = max(scenario.ranks_of(variant) for variant in scenario.variants)
        roomy = Lane.GPU in scenario.lanes and len(gpus()) >= widest
        asked = "gpu" if roomy or Lane.CPU not in scenario.lanes else "cpu"
    lane = Lane(asked)
    if lane not in scenario.lanes:
        raise Unsupported(f"does not run on the {lane} lane")
    if lane is Lane.GPU and len(gpus()) < ranks:
        needed = "1 GPU" if ranks == 1 else f"{ranks} GPUs"
        raise Unsupported(f"needs {needed}, and this machine has {len(gpus())}")
    return lane


def room(lane: Lane, ranks: int, threads: int) -> int:
    """How many trials of so many ranks this machine has room for at once, one at least."""
    if lane is Lane.GPU:
        return max(1, len(gpus()) // ranks)
    return max(1, cores() // (ranks * threads))


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def facts() -> dict[str, Any]:
    """What this machine is."""
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)),
        "torch": _version("torch"),
        "gpus": [gpu.name for gpu in gpus()],
    }


def environment() -> dict[str, str]:
    """The environment variables that can change a result, without the passwords of addresses."""
    return {
        name: re.sub(r"(?<=://)[^/@\s]+@", "", value)
        for name, value in sorted(os.environ.items())
        if MATTERS.match(name)
    }


def source() -> dict[str, Any]:
    """The commit of the harness that runs, and whether its tree has been changed since; where git
    cannot be asked, why."""
    carried = ROOT / "bundle.json"
    if carried.is_file():
        found: dict[str, Any] = json.loads(carried.read_text())["source"]
        return found
    if shutil.which("git") is None:
        return {"commit": None, "dirty": None, "unknown": "no git on the PATH"}
    commit = _git("rev-parse", "HEAD")
    return {"commit": commit, "dirty": bool(_git("status", "--porcelain")) if commit else None}


def _git(*arguments: str) -> str | None:
    if not (ROOT / ".git").exists():
        return None
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def refuse_unless_on_a_path(folder: Path, name: str) -> None:
    """Raise UserError for a folder whose name would be two in PYTHONPATH."""
    if os.pathsep in str(folder):
        raise UserError(f"{name}={folder} has a '{os.pathsep}' in it, which parts a Python path")


def own_place(cache: Path, name: str) -> Path:
    """A folder of the cache for what this user's runs write: leases, compiled extensions, answers.

    In a cache that is somebody else's to write to it lies among the user's temporary files instead,
    so that a run whose overlays are all there needs no more. Raises Inconclusive where that place
    is not the user's own.
    """
    return (cache if _writable(cache / name) else _temporary()) / name


def _writable(folder: Path) -> bool:
    """Whether a folder can be written to, or made."""
    there = next(place for place in (folder, *folder.parents) if os.path.exists(place))
    return os.access(there, os.W_OK | os.X_OK)


def _temporary() -> Path:
    place = Path(tempfile.gettempdir()) / f"distributed-bugs-{os.getuid()}"
    with writing(place, "HARNESS_CACHE"):
        place.mkdir(mode=0o700, exist_ok=True)
        found = place.lstat()
    # Anybody may have made something of that name there before.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise Fault(f"{place} is not this user's alone: name another HARNESS_CACHE")
    return place


def cache_folder() -> Path:
    """Where overlays and other things that can be made again are kept: HARNESS_CACHE, or the
    user's own cache. It may be somebody else's, to read from. Raises Inconclusive where it is no
    folder, and UserError for one that cannot stand in a Python path."""
    named = os.environ.get("HARNESS_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(named).absolute() if named else Path(base) / "distributed-bugs"
    refuse_unless_on_a_path(folder, "HARNESS_CACHE")
    if folder.exists() and not folder.is_dir():
        raise Fault(f"the cache {folder} is no folder: name another in HARNESS_CACHE")
    return folder
