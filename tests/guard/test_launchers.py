"""guard reaches the ranks of each launcher, and its ranks find each other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import slurm_cluster
from tests.guard.commands import TORCHRUN, TWO, guard, packages
from tests.sandbox import Ended, Sandbox, ended
from tests.slurm_cluster import cluster, free_ports

pytestmark = pytest.mark.slow

ALARM = "guard: ALARM: step 3, rank 1: replicas: the copies of weight"


def assert_told(end: Ended) -> None:
    """Both ranks trained, and rank 0 compared them: an alarm, and one summary."""
    assert end.code == 0, end.err
    assert end.out.count("trained") == 2
    assert end.err.count(ALARM) == 1, end.err
    assert end.err.count("guard: 8 steps, ") == 1


@pytest.mark.parametrize(
    "words",
    [
        (*TWO, "-m", "train", "fault"),
        ("bash", "-c", 'unset HOME; exec "$@"', "bash", *TWO, "train.py", "fault"),
    ],
    ids=["module", "no home"],
)
def test_torchrun_in_a_folder_with_spaces(words: tuple[str, ...], sandbox: Sandbox) -> None:
    assert_told(guard(sandbox, *words))


STARTS = """\
import os, runpy, sys
import torch.multiprocessing as mp

def rank(number):
    os.environ["RANK"] = str(number)
    runpy.run_path("train.py", run_name="__main__")

if __name__ == "__main__":
    method, port = sys.argv.pop(), sys.argv.pop()
    os.environ.update(WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    mp.start_processes(rank, nprocs=2, start_method=method)
"""


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_ranks_that_a_script_starts(method: str, sandbox: Sandbox) -> None:
    (sandbox.cwd / "starts.py").write_text(STARTS)
    (port,) = free_ports(1)
    assert_told(guard(sandbox, sys.executable, "starts.py", "fault", str(port), method))


def test_two_nodes_with_an_agent_each(sandbox: Sandbox) -> None:
    (port,) = free_ports(1)
    options = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id"]
    options += ["mine", "--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", "127.0.0.1"]
    words = (*TORCHRUN, *options, "train.py", "fault")
    nodes = [sandbox.start("guard", *words) for _ in range(2)]
    first, second = map(ended, nodes)
    together = Ended(first.code or second.code, first.out + second.out, first.err + second.err)
    assert_told(together)
    assert "no training" not in together.err


@pytest.mark.launch
def test_accelerate_launch_with_two_processes(sandbox: Sandbox) -> None:
    (port,) = free_ports(1)
    options = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    options += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    options += ["--main_process_port", str(port)]
    with packages("trainer_gas_twice") as path:
        words = (sys.executable, "-m", "accelerate.commands.launch", *options, "train.py", "fault")
        assert_told(guard(sandbox, *words, PYTHONPATH=path))


@pytest.mark.launch
def test_the_launcher_of_deepspeed(sandbox: Sandbox) -> None:
    (port,) = free_ports(1)
    options = ["--num_gpus", "2", "--master_addr", "127.0.0.1", "--master_port", str(port)]
    with packages("zero2_micro_batches_lost") as path:
        words = (sys.executable, "-m", "deepspeed.launcher.runner", *options, "train.py", "fault")
        assert_told(guard(sandbox, *words, PYTHONPATH=path, DS_ACCELERATOR="cpu", LOCAL_SIZE="2"))


RANK = (
    "RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT "
    f"exec {sys.executable} train.py fault"
)


@pytest.mark.slurm
@pytest.mark.skipif(bool(slurm_cluster.missing()), reason="Slurm is not installed")
def test_srun_on_two_nodes_and_a_job_of_sbatch(sandbox: Sandbox, tmp_path: Path) -> None:
    srun = ("srun", "--nodes=2", "--ntasks=2", "bash", "-c", RANK)
    with cluster() as slurm:
        (port,) = free_ports(1)
        environment = {"SLURM_CONF": str(slurm.conf), "PORT": str(port)}
        assert_told(guard(sandbox, *srun, **environment))
        out, err = tmp_path / "out", tmp_path / "err"
        job = tmp_path / "job.sh"
        words = " ".join(f"'{word}'" for word in (sys.executable, "-m", "harness", "guard", *srun))
        job.write_text(f"#!/bin/bash\ncd '{sandbox.cwd}'\n{words}\n")
        sbatch = ["sbatch", "--wait", "--nodes=2", "--ntasks=2", f"--output={out}"]
        through = [*sbatch, f"--error={err}", str(job)]
        variables = [f"{k}={v}" for k, v in {**sandbox.environment(), **environment}.items()]
        process = subprocess.run(["env", "-i", *variables, *through], check=False, timeout=200)
        assert_told(Ended(process.returncode, out.read_text(), err.read_text()))
