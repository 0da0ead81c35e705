"""What one rank does: read run.json, set up, call the scenario, write records, leave.

Started by torchrun as ``python -m harness.rank RUN VARIANT ACT``. It never sees Hydra, and it
imports torch and upstream itself, so that the time each takes can be recorded.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from harness import catalog, shims
from harness.files import sha256
from harness.records import RUN_FILE, Recorder, read_json, records_file
from harness.shims import apex
from harness.spec import Lane

STARTED = time.time()
"""When this process began to run Python, before it imported torch."""

ORPHAN_GRACE = 60
"""Seconds past the deadline after which a rank ends itself, should its harness be gone."""

PEER_GRACE = 10
"""Seconds a rank waits, before it leaves, for the others to finish their records."""


@dataclass
class Context:
    """What a scenario's ``run`` gets: its parameters, its place, and a way to write things down."""

    params: Any
    """The scenario's ``Params``, with what the variant changes already in it."""
    seed: int
    rank: int
    world_size: int
    lane: Lane
    device: Any
    """The ``torch.device`` of this rank."""
    pins: dict[str, str]
    """The upstream releases of this trial."""
    folder: Path
    """The trial's folder, shared by its ranks and acts: checkpoints go here."""
    act: str
    """Which of the scenario's acts this is; empty where it has none."""
    record: Callable[..., None]
    """``record(kind, step=None, **facts)`` appends one record; facts must be JSON values."""
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a part of the run, in seconds of wall clock, under a name for the bench."""
        start = time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + elapsed


def main(run_folder: Path, variant: str, act: str) -> None:
    """Run one rank of one trial, or of one act of it, to the end of its records."""
    run = read_json(run_folder / RUN_FILE)
    trial, folder = run["trials"][variant], run_folder / variant / act
    rank = int(os.environ["RANK"])
    _dump_stacks(folder, rank, run["launch"]["timeout"])
    recorder = Recorder(folder, rank)
    context = _context(run, trial, run_folder / variant, act, recorder)
    context.seconds["start"] = STARTED - float(os.environ["HARNESS_LAUNCHED"])
    _set_up_torch(context)
    context.seconds["torch"] = time.time() - STARTED
    recorder.record("start", pid=os.getpid(), **_environment(context.lane))
    with context.phase("upstream"):
        uses = shims.install(trial["shims"])
        for module in trial["modules"].values():
            importlib.import_module(module)
    _settle()
    catalog.load(run["scenario"]).run(context)
    _finish_kernels(context.lane)
    recorder.record("upstream", **_upstream(trial))
    recorder.record("shims", uses=dict(uses))
    recorder.record("phases", seconds=context.seconds, ended=time.time())
    recorder.close()


def _context(
    run: dict[str, Any], trial: dict[str, Any], folder: Path, act: str, recorder: Recorder
) -> Context:
    params = catalog.load(run["scenario"]).Params(**trial["params"])
    return Context(
        params=params,
        seed=run["seed"],
        rank=recorder.rank,
        world_size=int(os.environ["WORLD_SIZE"]),
        lane=Lane(run["lane"]),
        device=None,
        pins=trial["pins"],
        folder=folder,
        act=act,
        record=recorder.record,
    )


def _dump_stacks(folder: Path, rank: int, timeout: float) -> None:
    # The file must stay open for the life of the process: the handler writes to its descriptor.
    file = (folder / f"stack_rank_{rank}.txt").open("w")
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
    faulthandler.dump_traceback_later(timeout + ORPHAN_GRACE, exit=True, file=file)


def _set_up_torch(context: Context) -> None:
    import torch

    if context.lane is Lane.GPU:
        local = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(local)
        context.device = torch.device("cuda", local)
    else:
        context.device = torch.device("cpu")
    random.seed(context.seed)
    torch.manual_seed(context.seed)


def _environment(lane: Lane) -> dict[str, Any]:
    import torch

    facts: dict[str, Any] = {
        "python": sys.version.split()[0],
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
    }
    if lane is Lane.GPU:
        facts["gpu"] = torch.cuda.get_device_name()
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        facts["cuda"] = torch.version.cuda
    return facts


def _settle() -> None:
    # DeepSpeed collects garbage four times while it initialises, each time through every module
    # that was imported. Nothing imported ever dies: set it aside.
    gc.collect()
    gc.freeze()


def _upstream(trial: dict[str, Any]) -> dict[str, Any]:
    """Which upstream code really ran: the module file and version of every pin, watched files, and
    whether NVIDIA's apex was used."""
    modules = {}
    for name, imported in trial["modules"].items():
        module = sys.modules[imported]
        file = getattr(module, "__file__", None) or next(iter(module.__path__))
        modules[name] = {"version": metadata.version(name), "file": file}
    files = {file: _loaded(file) for file in trial["files"]}
    return {"modules": modules, "files": files, "apex": apex.state()}


def _loaded(file: str) -> dict[str, str] | None:
    module = sys.modules.get(file.removesuffix(".py").replace("/", "."))
    if module is None or not module.__file__:
        return None
    return {"path": module.__file__, "sha256": sha256(Path(module.__file__))}


def _finish_kernels(lane: Lane) -> None:
    if lane is Lane.GPU:
        import torch

        torch.cuda.synchronize()


def leave(folder: Path) -> None:
    """End this process at once, when all ranks are done.

    Tearing down NCCL and torch's modules takes longer than the training. Until a peer has finished
    too, though, its kernels may still read this rank's memory.
    """
    files = [records_file(folder, n) for n in range(int(os.environ["WORLD_SIZE"]))]
    deadline = time.monotonic() + PEER_GRACE
    while time.monotonic() < deadline and not all(file.exists() for file in files):
        time.sleep(0.01)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    from torch.distributed.elastic.multiprocessing.errors import record

    record(main)(Path(sys.argv[1]), *sys.argv[2:])
    leave(Path(*sys.argv[1:]))
