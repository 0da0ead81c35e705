"""What one rank does: read run.json, set up, call the scenario, write records, leave.

Started by torchrun: in a cold launch as ``python -m harness.trial.rank RUN VARIANT ACT``, and then
it imports torch and upstream itself; else as a function, in a process that was forked from one that
has imported them (see ``forkserver``). It never sees Hydra.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import random
import signal
import sys
import time
from contextlib import suppress
from importlib import metadata
from multiprocessing import util
from pathlib import Path
from typing import Any

from harness import apex, catalog
from harness.files import sha256
from harness.spec import Context, Lane
from harness.trial import imports, loaded_files, run_schema, supervisor
from harness.trial.records import RUN_FILE, Identity, Recorder, read_json, records_file
from harness.upstream import bytecode, loaded
from harness.upstream.overlay import INSTALLED

STARTED = time.monotonic()
"""When this process began to run Python, before it imported torch."""

ORPHAN_GRACE = 60
"""Seconds past the deadline after which a rank ends itself, should its harness be gone."""

FIRST_OF_ALL = 1 << 20
"""The priority of what is done first when a forked process ends."""

PEER_GRACE = 10
"""Seconds a rank waits, before it leaves, for the others to finish their records."""


def main(run_folder: Path, variant: str, launch: str) -> None:
    """Run one rank of one trial, or of one launch of it, to the end of its records."""
    run = read_json(run_folder / RUN_FILE)
    trial, folder = run["trials"][variant], run_folder / variant / launch
    if trial["overlay"]["key"] != INSTALLED:
        bytecode.keep(Path(trial["overlay"]["site"]))
    rank = int(os.environ["RANK"])
    _dump_stacks(folder, rank, run["launch"]["timeout"])
    place = run_schema.place(run, variant, launch, rank)
    plan = catalog.load(run["scenario"]).plan(place)
    recorder = Recorder(folder, rank, Identity.of(run, variant, launch), plan)
    context = Context(**vars(place), folder=run_folder / variant, record=recorder.record)
    context.seconds["start"] = STARTED - float(os.environ["HARNESS_LAUNCHED"])
    _set_up_torch(context)
    context.seconds["torch"] = time.monotonic() - STARTED
    recorder.record("start", **_environment(context.lane))
    with context.phase("upstream"):
        uses = imports.upstream(tuple(trial["shims"]), tuple(trial["modules"].values()))
    _seed(context.seed)
    catalog.load(run["scenario"]).run(context)
    _finish_kernels(context.lane)
    recorder.record("upstream", **_upstream(run_folder, trial))
    recorder.record("shims", uses=dict(uses))
    recorder.record("phases", seconds=context.seconds, ended=time.time())
    recorder.close()


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


def _seed(seed: int) -> None:
    """Seed what the training draws from, once all is imported: whatever imports have drawn.

    numpy is not ours to seed; but of ranks that were forked, each gets a state of its own, as in
    interpreters of their own.
    """
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


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


def _upstream(run_folder: Path, trial: dict[str, Any]) -> dict[str, Any]:
    """Which upstream code really ran: the module file and version of every pin, watched files, all
    files of the overlay that were loaded, and what NVIDIA's apex was to it."""
    modules = {}
    for name, imported in trial["modules"].items():
        module = sys.modules[imported]
        file = getattr(module, "__file__", None) or next(iter(module.__path__))
        modules[name] = {"version": metadata.version(name), "file": file}
    files = {file: _watched(file) for file in trial["files"]}
    overlay = trial["overlay"]
    found = {} if overlay["key"] == INSTALLED else loaded.files(Path(overlay["site"]))
    kept = loaded_files.keep(run_folder, found)
    return {"modules": modules, "files": files, "loaded": kept, "apex": apex.state()}


def _watched(file: str) -> dict[str, str] | None:
    named = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    module = sys.modules.get(named)
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


def _leave_when_heard() -> None:
    """End this process at once, when torchrun has heard from all ranks that they are done.

    A forked rank has a return value to hand over, and torchrun lets it wait for the others.
    """
    util.Finalize(None, os._exit, args=(0,), exitpriority=FIRST_OF_ALL)


def _be_a_rank() -> None:
    """Undo what a forked process has inherited from torchrun: here signals end it, as they would
    an interpreter of its own."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    supervisor.end_with_parent()
    supervisor.go_by(f"rank {os.environ['RANK']}")


if __name__ == "__main__":
    _be_a_rank()
    if multiprocessing.parent_process():  # forked: torch keeps the error of a function itself
        with suppress(SystemExit):  # torchrun would wait for the value of a function for ever
            main(Path(sys.argv[1]), *sys.argv[2:])
        _leave_when_heard()
    else:
        from torch.distributed.elastic.multiprocessing.errors import record

        record(main)(Path(sys.argv[1]), *sys.argv[2:])
        leave(Path(*sys.argv[1:]))
