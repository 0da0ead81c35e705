"""guard reaches the ranks of each launcher, and its ranks find each other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import slurm_cluster
from tests.guard.commands import TORCHRUN, guard
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
