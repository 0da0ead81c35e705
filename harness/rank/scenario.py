"""What one rank does: read run.json, set up, call the scenario, write records, exit.

torchrun starts it. A cold launch runs ``python -m harness.rank.scenario RUN VARIANT LAUNCH``, which
imports torch and upstream itself. A warm launch calls ``main`` in a process forked from one that
has imported both (see ``forkserver``). Ranks do not import Hydra.
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
from types import SimpleNamespace
from typing import Any

from harness.bugs import catalog
from harness.bugs.api.spec import Context, Lane
from harness.rank import apex, attachment, bytecode, gpu_places, loaded_files, shims, supervisor
from harness.rank.exits import Identity, trial_folder
from harness.rank.manifest import INSTALLED, changed_files
from harness.rank.recorder import Recorder
from harness.rank.run_folder import RUN_FILE, position_of, records_file
from harness.system.files import read_json, sha256

STARTED = time.monotonic()
"""When this process began to run Python, before it imported torch; on the monotonic clock."""

ORPHAN_GRACE = 60
"""Seconds past the deadline after which a rank ends itself, in case the harness is gone."""

EXIT_FIRST = 1 << 20
"""A priority above that of all other exit functions of a forked process."""

PEER_GRACE = 10
"""Seconds that a rank waits for the others to finish their records before it exits."""


def main(run_folder: Path, variant: str, launch: str) -> Path:
    """Run one rank of a launch until its records are complete; returns the launch's folder."""
    run = read_json(run_folder / RUN_FILE)
    trial, trials_folder = run["trials"][variant], trial_folder(run_folder, run, variant)
    folder = trials_folder / launch
    if trial["overlay"]["key"] != INSTALLED:
        bytecode.keep(Path(trial["overlay"]["site"]))
    rank = int(os.environ["RANK"])
    _dump_stacks(folder, rank, run["launch"]["timeout"])
    # The command has checked them; their class is in bug.toml, which no rank reads.
    position = position_of(run, variant, launch, rank, SimpleNamespace(**trial["params"]))
    scenario = catalog.code(run["scenario"])
    plan = scenario.plan(position)
    recorder = Recorder(folder, rank, Identity.of(run, variant, launch), plan)
    context = Context(**vars(position), folder=trials_folder, record=recorder.record)
    context.seconds["start"] = STARTED - float(os.environ["HARNESS_LAUNCHED"])
    _set_up_torch(context)
    context.seconds["torch"] = time.monotonic() - STARTED
    recorder.record("start", **start_facts(context.lane))
    with context.phase("upstream"):
        uses = shims.import_upstream(trial["shims"], trial["modules"].values())
    _seed(context.seed)
    with attachment.attached(run.get("detectors", ()), trials_folder, launch, rank):
        scenario.run(context)
    _finish_kernels(context.lane)
    recorder.record("upstream", **_upstream(trial))
    recorder.record("shims", uses={name: uses[name] for name in trial["shims"]})
    recorder.record("phases", seconds=context.seconds, ended=time.time())
    recorder.close()
    return folder


def _dump_stacks(folder: Path, rank: int, timeout: float) -> None:
    # The file stays open as long as the process lives: the handler writes to its descriptor.
    file = (folder / f"stack_rank_{rank}.txt").open("w")
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
    faulthandler.dump_traceback_later(timeout + ORPHAN_GRACE, exit=True, file=file)


def _set_up_torch(context: Context) -> None:
    import torch

    if context.lane is Lane.GPU:
        gpu_places.take_place()
        local = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(local)
        context.device = torch.device("cuda", local)
    else:
        context.device = torch.device("cpu")


def _seed(seed: int) -> None:
    """Seed Python's and torch's generators, after all imports, as imports may draw numbers.

    numpy gets a random state, as in a new interpreter: otherwise forked ranks would share one.
    """
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def start_facts(lane: Lane) -> dict[str, Any]:
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
        facts["shares_gpu"] = gpu_places.shares_gpu()
    return facts


def _upstream(trial: dict[str, Any]) -> dict[str, Any]:
    """Which upstream code ran: the file and version of each pinned module, the watched files, the
    number of loaded files of the overlay, those that changed since it was built, and the state of
    NVIDIA's apex."""
    modules = {}
    for name, imported in trial["modules"].items():
        module = sys.modules[imported]
        file = getattr(module, "__file__", None) or next(iter(module.__path__))
        modules[name] = {"version": metadata.version(name), "file": file}
    files = {file: _watched(file) for file in trial["files"]}
    is_installed = trial["overlay"]["key"] == INSTALLED
    hashes = {} if is_installed else loaded_files.files(site := Path(trial["overlay"]["site"]))
    changed = [] if is_installed else changed_files(site, hashes)
    return {
        "modules": modules,
        "files": files,
        "loaded": len(hashes),
        "changed": changed,
        "apex": apex.state(),
    }


def _watched(file: str) -> dict[str, str] | None:
    """The path and hash of a file of upstream as this process loaded it; None if it did not."""
    name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    module = sys.modules.get(name)
    if module is None or not module.__file__:
        return None
    return {"path": module.__file__, "sha256": sha256(Path(module.__file__))}


def _finish_kernels(lane: Lane) -> None:
    if lane is Lane.GPU:
        import torch

        torch.cuda.synchronize()


def exit_with_peers(folder: Path) -> None:
    """End this process once all ranks have finished their records, without any teardown.

    The teardown of NCCL and torch takes longer than the training. But until a peer has finished,
    its kernels may still read this rank's memory.
    """
    files = [records_file(folder, n) for n in range(int(os.environ["WORLD_SIZE"]))]
    deadline = time.monotonic() + PEER_GRACE
    while time.monotonic() < deadline and not all(file.exists() for file in files):
        time.sleep(0.01)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _skip_teardown() -> None:
    """End this process as soon as it exits, without any teardown.

    A forked rank returns a value to torchrun, which makes it wait for the other ranks.
    """
    util.Finalize(None, os._exit, args=(0,), exitpriority=EXIT_FIRST)


def _set_up_process() -> None:
    """Undo what a forked process has inherited from torchrun: signals end a rank at once."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    supervisor.end_with_parent()
    supervisor.set_name(f"rank {os.environ['RANK']}")


if __name__ == "__main__":
    _set_up_process()
    if multiprocessing.parent_process():  # forked: torchrun itself records the error of a function
        with suppress(SystemExit):  # torchrun would wait forever for the function's value
            main(Path(sys.argv[1]), *sys.argv[2:])
        _skip_teardown()
    else:
        from torch.distributed.elastic.multiprocessing.errors import record

        if folder := record(main)(Path(sys.argv[1]), *sys.argv[2:]):
            exit_with_peers(folder)
