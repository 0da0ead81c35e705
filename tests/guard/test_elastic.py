"""Torchrun starts ranks again: after one has failed, and as nodes come and go."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guard.commands import TORCHRUN, TWO, assert_nothing_left, guard
from tests.guard.trainer import summary_of
from tests.sandbox import Ended, Sandbox, ended
from tests.slurm_cluster import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.launch]

SCRIPT = """\
import os, sys, time
import torch
import torch.nn.functional as F

case = sys.argv[1]
rank = int(os.environ["RANK"])
restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
torch.distributed.init_process_group("gloo")
ranks = torch.distributed.get_world_size()
torch.manual_seed(restart + ranks)  # each start has other weights
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
torch.manual_seed(10 + rank)
waits = case == "nodes" and ranks == 2
for step in range(1, 10**6 if waits else 13):
    F.cross_entropy(model(torch.randn(4, 8)), torch.randint(0, 4, (4,))).backward()
    optimizer.step()
    optimizer.zero_grad()
    if case == "dies" and restart == 0 and step == 5 and rank == 1:
        os._exit(3)
    if case == "fault" and step == 3 and rank == 1:
        with torch.no_grad():
            model.module.weight[0, 0] += 1
    if case == "fault" and restart == 0 and step == 9:
        sys.exit(3)
    if waits:
        time.sleep(0.05)
        if step == 6:
            os.write(1, b"step of two ranks\\n")
    else:
        time.sleep(0.2)  # rank 0 chooses the next checked step
os.write(1, f"trained {ranks}\\n".encode())
"""

OWN_STORES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Otherwise gloo of torch 2.13 waits for the addresses of the first ranks, without guard, too."""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def restarted(sandbox: Sandbox, script: str, case: str, out: Path) -> Ended:
    """A training of two ranks that fails once, and is started again."""
    words = (*TWO, "--max-restarts", "2", script, case)
    return guard(sandbox, "--out", str(out), *words, **OWN_STORES)


def test_ranks_that_start_again_are_compared_anew(
    sandbox: Sandbox, script: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    end = restarted(sandbox, script, "dies", out)
    assert end.code == 0, end.err
    assert end.out.count("trained 2") == 2
    assert "ALARM" not in end.err
    assert end.err.count("guard: 12 steps since restart 1, ") == 1, end.err
    newest = summary_of(out)
    assert (newest["restarts"], newest["notes"]) == (1, [])
    assert newest["checked"][:5] == [1, 2, 3, 4, 5]
    assert newest["compared"]["replicas"]
    assert summary_of(out, "summary-1.json")["restarts"] == 0
    end = sandbox.run("guard-report", str(out))
    assert "12 steps since restart 1" in end.out


def test_a_fault_is_told_once_in_each_start(sandbox: Sandbox, script: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    end = restarted(sandbox, script, "fault", out)
    assert end.code == 0, end.err
    alarms = [line for line in end.err.splitlines() if "ALARM" in line]
    assert len(alarms) == 2, end.err
    assert all("rank 1: replicas: the copies of weight" in line for line in alarms)


def test_a_node_that_comes_makes_all_ranks_start_again(
    sandbox: Sandbox, script: str, tmp_path: Path
) -> None:
    """Torchrun counts no restart then."""
    (port,) = free_ports(1)
    options = ["--nnodes", "1:2", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    options += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "mine"]
    options += ["--local-addr", "127.0.0.1", "--rdzv-conf", "last_call_timeout=1,join_timeout=100"]
    words = (*TORCHRUN, *options, script, "nodes")
    out = tmp_path / "out"
    first = sandbox.start("guard", "--out", str(out), *words, **OWN_STORES)
    assert first.stdout is not None
    for line in first.stdout:
        if "step of two ranks" in line:
            break
    second = sandbox.start("guard", "--out", str(out), *words, **OWN_STORES)
    ends = [ended(first), ended(second)]
    assert_nothing_left(sandbox)
    errors = "".join(end.err for end in ends)
    assert [end.code for end in ends] == [0, 0], errors
    assert sum(end.out.count("trained 4") for end in ends) == 4
    assert "ALARM" not in errors
    assert errors.count("guard: 12 steps, ") == 1, errors
    newest = summary_of(out)
    assert newest["notes"] == []
    assert newest["settings"]["ranks"] == 4
    assert newest["checked"][:5] == [1, 2, 3, 4, 5]
