"""Forks the ranks of a layout. torchrun does the same, but takes 0.7 s to start its ranks.

A probe starts about ten layouts and must answer in seconds. This process replaces torchrun: it runs
below a keeper, and writes the same files for logs and errors.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import TracebackType

from harness.rank import gpu_places, supervisor
from harness.rank.forks import Children
from harness.rank.probe import own_files
from harness.rank.probe.exchange import Assignment
from harness.system.ports import number, reserve_port

RANK = Path(__file__).with_name("script.py")
STARTERS = (str(Path(__file__).parents[1]), runpy.__file__, "<frozen runpy>")
"""What the names of the files begin with that start a script."""


def main(arguments: Sequence[str]) -> None:
    """Fork the ranks of the layout in this folder, and wait until all have ended or one failed.

    The arguments are a folder and a number of ranks.
    """
    folder, world = Path(arguments[0]), int(arguments[1])
    supervisor.keep()
    file = folder / "assignment.json"
    assignment = own_files.enter(Assignment(**json.loads(file.read_text())))
    file.write_text(json.dumps(asdict(assignment)))
    with reserve_port() as keeper, Children() as children:
        port = number(keeper)
        ranks = {}
        for rank in range(world):
            logs = folder / "logs" / f"rank_{rank}"
            logs.mkdir(parents=True)
            run = partial(_run_rank, folder, logs, rank, world, port)
            child = children.start(run, (logs / "stdout.log", logs / "stderr.log"))
            ranks[child] = rank
        for child, _ in children.hear():
            if child.code:
                print(f"  rank      : {ranks[child]}\n  exitcode  : {child.code}", flush=True)
                raise SystemExit(1)


def _run_rank(folder: Path, logs: Path, rank: int, world: int, port: int) -> None:
    """Run ``rank`` with torchrun's variables."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        # DeepSpeed's launcher sets it; on a CPU, its releases count ranks with it.
        "LOCAL_SIZE": str(world),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "probe",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    gpu_places.take_place()
    sys.argv = [str(RANK), str(folder)]
    try:
        runpy.run_path(str(RANK), run_name="__main__")
    except BaseException as error:
        message = f"{type(error).__name__}: {error}"
        (logs / "error.json").write_text(json.dumps({"message": {"message": message}}))
        if not isinstance(error, Exception):
            raise
        traceback.print_exception(type(error), error, of_script(error))
        raise SystemExit(1) from None


def of_script(error: BaseException) -> TracebackType | None:
    """The traceback from the script's first frame on; all of it if the error is ours alone."""
    frame = error.__traceback__
    while frame and frame.tb_frame.f_code.co_filename.startswith(STARTERS):
        frame = frame.tb_next
    is_of_script = frame or isinstance(error, SyntaxError)  # which names its own line
    return frame if is_of_script else error.__traceback__
