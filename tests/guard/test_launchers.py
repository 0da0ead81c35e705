"""guard reaches the ranks of each launcher, and its ranks find each other."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import slurm_cluster
from tests.cli.test_guard import TRAIN, guard
from tests.overlays import lent
from tests.sandbox import ROOT, Ended, Sandbox, ended
from tests.slurm_cluster import cluster, free_ports

pytestmark = pytest.mark.slow

ALARM = "guard: ALARM: step 3, rank 1: replicas: the copies of weight"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
TWO = (*TORCHRUN, "--nproc-per-node", "2")


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """One for all tests, as the file with the bugs of the catalogue is written once."""
    folder = tmp_path_factory.mktemp("a folder with spaces")
    sandbox = Sandbox.under(folder, folder / "cache")
    (sandbox.cwd / "train.py").write_text(TRAIN)
    (sandbox.cwd / "spawns.py").write_text(SPAWNS)
    yield sandbox
    sandbox.end()


SPAWNS = """\
import os, runpy, sys
import torch.multiprocessing as mp

def rank(number):
    os.environ["RANK"] = str(number)
    runpy.run_path("train.py", run_name="__main__")

if __name__ == "__main__":
    os.environ.update(WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv.pop(2))
    mp.start_processes(rank, nprocs=2, start_method=sys.argv.pop(2))
"""


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
        ("env", "MINE=1", "nice", "-n", "1", *TWO, "train.py", "fault"),
        ("bash", "-c", 'unset HOME; exec "$@"', "bash", *TWO, "train.py", "fault"),
    ],
    ids=["module", "wrappers", "no home"],
)
def test_torchrun_in_a_folder_with_spaces(words: tuple[str, ...], sandbox: Sandbox) -> None:
    assert_told(guard(sandbox, *words))


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_ranks_that_a_script_starts(method: str, sandbox: Sandbox) -> None:
    (port,) = free_ports(1)
    assert_told(guard(sandbox, sys.executable, "spawns.py", "fault", str(port), method))


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


def test_ranks_that_are_restarted_begin_again(sandbox: Sandbox) -> None:
    """What the first ranks posted is not read by the second ones: the weights are others."""
    dies = 'if step == 6 and rank and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0": os._exit(3)'
    script = TRAIN.replace("    optimizer.step()\n", f"    {dies}\n    optimizer.step()\n")
    seed = 'torch.manual_seed(int(os.environ["TORCHELASTIC_RESTART_COUNT"]))'
    script = script.replace("torch.manual_seed(0)", seed)
    (sandbox.cwd / "restarts.py").write_text(script)
    # In one store, gloo's second ranks would find the addresses of the first ones.
    alone = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    end = guard(sandbox, *TWO, "--max-restarts", "1", "restarts.py", **alone)
    assert end.code == 0, end.err
    assert end.out.count("trained") == 2
    assert "ALARM" not in end.err
    assert "guard: 8 steps, " in end.err


@pytest.mark.launch
def test_accelerate_launch_with_two_processes(sandbox: Sandbox) -> None:
    with lent("trainer_gas_twice", "buggy") as overlays:
        path = os.pathsep.join([str(ROOT), str(overlays["buggy"].folder / "site-packages")])
        (port,) = free_ports(1)
        options = ["--cpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision"]
        options += ["no", "--dynamo_backend", "no", "--main_process_port", str(port)]
        words = (sys.executable, "-m", "accelerate.commands.launch", *options, "train.py", "fault")
        assert_told(guard(sandbox, *words, PYTHONPATH=path))


@pytest.mark.launch
def test_the_launcher_of_deepspeed(sandbox: Sandbox) -> None:
    with lent("zero2_micro_batches_lost", "buggy") as overlays:
        path = os.pathsep.join([str(ROOT), str(overlays["buggy"].folder / "site-packages")])
        (port,) = free_ports(1)
        options = ["--num_gpus", "2", "--master_addr", "127.0.0.1", "--master_port", str(port)]
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
