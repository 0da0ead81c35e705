"""Trains on forked ranks: ``python -m tests.guard.server`` imports torch once, and forks the ranks
of each request, which is a line of JSON: a training or a right loop of ours, a case of
``user_code``, or a script with its arguments. Each rank ends as an interpreter does: that is
tested."""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import signal
import sys
import time
import warnings
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
from torch.optim import optimizer as optimizers

from harness.rank import guard, shims
from harness.rank.guard.posting import budget
from harness.rank.guard.settings import Settings
from tests.guard import engine_faults, harms, right, trainings, user_code

LIMIT = 90.0
"""Seconds after which ranks hang; those of an engine may compile kernels."""
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
        time.sleep(4 * LIMIT)
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
    codes = _codes(ranks, 2 * LIMIT if request.get("engine") else LIMIT)
    os.kill(store, signal.SIGKILL)
    os.waitpid(store, 0)
    return codes


def _become_rank(request: dict[str, Any], rank: int, port: int) -> None:
    folder = Path(request["folder"])
    log = os.open(folder / f"log{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    settings = request["settings"]
    if "case" in request:
        (folder / "out").mkdir()
        os.environ["OUT"] = out = str(folder / "out")
        settings = settings and {**settings, "out": out}
    else:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(request["ranks"]))
    shims.install_for(request.get("shims", []), "cpu")
    if settings is not None:
        guard.start(Settings(**settings))
    if "script" in request:
        _run_script(request, rank, port, folder)
    elif "case" in request:
        _run_case(request["case"])
    else:
        _train(request, rank, port, folder)
    sys.exit()


def _run_script(request: dict[str, Any], rank: int, port: int, folder: Path) -> None:
    count = str(request["ranks"])
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=count, LOCAL_SIZE=count)
    os.environ.update(GROUP_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = str(True)  # it is there already
    os.chdir(folder)
    if request.get("engine"):  # a fault begins after guard has started, as in a script
        optimizers.register_optimizer_step_post_hook(_wait_for_rank_0)
        budget.LEAST_SECONDS = 0.0  # ranks wait for rank 0, however short a step is
        engine_faults.begin(request["engine"]["fault"], rank)
    sys.argv = [request["script"], *request["arguments"]]
    sys.path.insert(0, str(Path(request["script"]).parent))
    runpy.run_path(request["script"], run_name="__main__")
    time.sleep(0.1)  # see _train


def _run_case(case: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.manual_seed(0)
    warnings.simplefilter("always")
    print(getattr(user_code, case)(), flush=True)


def _train(request: dict[str, Any], rank: int, port: int, folder: Path) -> None:
    timeout = timedelta(seconds=LIMIT)
    store = TCPStore("127.0.0.1", port, None, False, timeout)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=request["ranks"])
    if "harm" in request:
        before = harms.HARMS[request["harm"]]()
    else:
        before, budget.LEAST_SECONDS = _wait_for_rank_0, 0.0
    module: Any = right if request["training"] in right.LOOPS else trainings
    loop = module.train(request["training"], request["steps"], before)
    result = {"losses": loop.losses, "weights": _digest(loop.model)}
    (folder / f"result{rank}").write_text(json.dumps(result))
    # Torch 2.13 may deadlock without guard, too: gloo's thread needs the GIL to free its last work,
    # and the main thread keeps the GIL while it frees the model and waits for that thread.
    time.sleep(0.1)
    dist.destroy_process_group()


def _wait_for_rank_0(*_: Any) -> None:
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


def _codes(ranks: list[int], seconds: float) -> list[int]:
    codes: dict[int, int] = {}
    end = time.monotonic() + seconds
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
