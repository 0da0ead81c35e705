"""Commands under guard: a training script, how they end, and that nothing of them is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.overlays import lent
from tests.sandbox import PATIENCE, ROOT, Ended, Sandbox

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
TWO = (*TORCHRUN, "--nproc-per-node", "2")

TRAIN = """\
import importlib.util, os, signal, sys, time
importlib.util.find_spec("torch")  # as transformers does
import torch
import torch.nn.functional as F

rank = int(os.environ.get("RANK", 0))
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
wrapped = torch.nn.parallel.DistributedDataParallel(model) if "RANK" in os.environ else model
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
torch.manual_seed(1 + rank)


def say(*words):
    # In one piece: two ranks write to one pipe, and an unbuffered print writes word by word.
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())


stops = []
signal.signal(signal.SIGUSR1, lambda *_: say("got USR1"))
if "save" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: stops.append(1))
for step in range(1000 if "endless" in sys.argv else 8):
    F.cross_entropy(wrapped(torch.randn(4, 8)), torch.randint(0, 4, (4,))).backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 1 and rank == 1 and "fault" in sys.argv:
        with torch.no_grad():
            model.weight[0, 0] += 1
    if {"endless", "slowly"} & set(sys.argv):
        time.sleep(0.2)
        say("step", step)
    if "save" in sys.argv:  # all ranks stop in the same step: one may be in a collective
        total = torch.tensor(len(stops))
        torch.distributed.all_reduce(total)
        if total:
            say("saved by", rank)
            break
say("trained")
sys.exit(int(sys.argv[1]) if sys.argv[1:2] and sys.argv[1].isdigit() else 0)
"""


PATH = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
"""With torchrun and this Python."""


@contextmanager
def packages(scenario: str) -> Iterator[str]:
    """The path of Python with the packages of a scenario's release with the bug."""
    with lent(scenario, "buggy") as overlays:
        yield os.pathsep.join([str(ROOT), str(overlays["buggy"].site)])


def guard(sandbox: Sandbox, *words: str, **environment: str) -> Ended:
    """How a guarded command ends; nothing of it is left then."""
    end = sandbox.run("guard", *words, **environment)
    assert_nothing_left(sandbox)
    return end


def printed(sandbox: Sandbox, *words: str) -> str:
    """What a script that calls guard itself prints, which is in the sandbox."""
    environment = {**sandbox.environment(), "PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        words, cwd=sandbox.cwd, env=environment, capture_output=True, text=True, check=True
    )
    return process.stderr


def assert_nothing_left(sandbox: Sandbox) -> None:
    assert sandbox.living() == []
    assert list(sandbox.cache.glob("guard/.*")) == []


def wait_for_step(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    deadline = time.monotonic() + PATIENCE
    for line in process.stdout:
        if "step" in line:
            return
        assert time.monotonic() < deadline
    raise AssertionError(process.stderr.read() if process.stderr else "it has ended")
