"""Trains on forked ranks: ``python -m tests.guard.server`` imports torch once, and forks the ranks
of each request, which is a line of JSON: a training or a right loop of ours, or a script with its
arguments. Each rank ends as an interpreter does: that is tested."""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed.fsdp
import torch.distributed.tensor.parallel
import torch.utils.checkpoint
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from harness.rank import guard
from harness.rank.guard.posting import budget
from harness.rank.guard.settings import Settings
from harness.rank.probe import script_shims
from tests.guard import harms, right, trainings

LIMIT = 90.0
"""Seconds after which ranks hang."""
HUNG = 999
PATIENCE = 1.0
"""Seconds that a step waits for the choice of the next checked one."""


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        codes = _run(json.loads(line))
        sys.stdout.write(json.dumps(codes) + "\n")
        sys.stdout.flush()


def _run(request: dict[str, Any]) -> list[int]:
    """Fork the ranks, and a process with their store; returns the exit codes."""
    reading, writing = os.pipe()
    store = os.fork()
    if not store:
        server = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        os.write(writing, str(server.port).encode())
        time.sleep(2 * LIMIT)
        os._exit(0)
    port = int(os.read(reading, 9))
    os.close(reading)
    os.close(writing)
    ranks = []
    for rank in range(request["ranks"]):
        child = os.fork()
        if not child:
            os.environ["STORE_PID"] = str(store)
            _become_rank(request, rank, port)
        ranks.append(child)
    codes = _codes(ranks)
    os.kill(store, signal.SIGKILL)
    os.waitpid(store, 0)
    return codes


def _become_rank(request: dict[str, Any], rank: int, port: int) -> None:
    folder = Path(request["folder"])
    log = os.open(folder / f"log{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(request["ranks"]))
    if request["settings"] is not None:
        guard.start(Settings(**request["settings"]))
    if "script" in request:
        os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(request["ranks"]))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = str(True)  # it is there already
        os.chdir(folder)
        if request.get("shims"):
            script_shims.install(request["shims"], "cpu")
        sys.argv = [request["script"], *request["arguments"]]
        runpy.run_path(request["script"], run_name="__main__")
    else:
        _train(request, rank, port, folder)
    sys.exit()


def _train(request: dict[str, Any], rank: int, port: int, folder: Path) -> None:
    timeout = timedelta(seconds=LIMIT)
    store = TCPStore("127.0.0.1", port, None, False, timeout)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=request["ranks"])
    if request["harm"]:
        before = getattr(harms, request["harm"])()
    else:  # ranks wait for rank 0, however short a step is
        before, budget.LEAST_SECONDS = _wait_for_rank_0, 0.0
    module: Any = right if request["training"] in right.LOOPS else trainings
    loop = module.train(request["training"], request["steps"], before)
    result = {"losses": loop.losses, "weights": _digest(loop.model)}
    (folder / f"result{rank}").write_text(json.dumps(result))
    # Torch 2.13 may deadlock without guard, too: gloo's thread needs the GIL to free its last work,
    # and the main thread keeps the GIL while it frees the model and waits for that thread.
    time.sleep(0.1)
    dist.destroy_process_group()


def _wait_for_rank_0(step: int) -> None:
    """Wait until rank 0 has chosen the next checked step: tiny steps would be over before, and how
    many of them are checked would depend on the machine."""
    end = time.monotonic() + PATIENCE
    trainings = guard._guards[0].trainings if guard._guards else []
    while (
        any(one.turn.next_step is None and not one.turn.is_left_out for one in trainings)
        and time.monotonic() < end
    ):
        time.sleep(0.002)


def _digest(model: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for weight in model.state_dict().values():
        part = weight.to_local() if hasattr(weight, "to_local") else weight
        digest.update(part.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _codes(ranks: list[int]) -> list[int]:
    codes: dict[int, int] = {}
    end = time.monotonic() + LIMIT
    while len(codes) < len(ranks) and time.monotonic() < end:
        for rank in [rank for rank in ranks if rank not in codes]:
            ended, status = os.waitpid(rank, os.WNOHANG)
            if ended:
                codes[rank] = os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    for rank in [rank for rank in ranks if rank not in codes]:
        os.kill(rank, signal.SIGKILL)
        os.waitpid(rank, 0)
    return [codes.get(rank, HUNG) for rank in ranks]


if __name__ == "__main__":
    main()
