"""The CPU does what a script asks of CUDA. Tests start a new process, since torch stays changed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.system.files import ROOT
from tests.probe.probing import SCRIPTS

SCRIPT = """
import json, os
import torch, torch.distributed as dist
from torch.distributed import init_process_group
from torch.distributed.device_mesh import init_device_mesh

assert torch.cuda.is_available()
assert torch.accelerator.is_available()
init_process_group("nccl", device_id=torch.device("cuda:0"))
torch.cuda.set_device(torch.distributed.get_rank() % torch.cuda.device_count())
device = torch.device("cuda", 0)
model = torch.nn.Linear(4, 4).cuda().to(0).to(device).to(device=0)
model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0], output_device=0)
x = torch.ones(2, 4).pin_memory().to("cuda:0", non_blocking=True).cuda()
mesh = init_device_mesh("cuda", (1,))
with torch.cuda.amp.autocast():
    half = model(x).dtype
with torch.autocast("cuda", dtype=torch.bfloat16):
    brain = model(x).dtype
torch.save(model.state_dict(), "w.pt")
torch.load("w.pt", map_location={"cuda:0": "cuda:1"})
dist.barrier(device_ids=[device.index])
own = torch.empty(2)
dist.reduce_scatter_tensor(own, torch.ones(2), async_op=True).get_future().wait()
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    torch.cuda.synchronize()
state, states = torch.cuda.get_rng_state(), torch.cuda.get_rng_state_all()
drawn = torch.rand(2, device="cuda")
torch.cuda.set_rng_state(state)
assert torch.equal(torch.rand(2, device="cuda"), drawn)
torch.cuda.set_rng_state_all(states)
torch.cuda.set_rng_state(torch.zeros(16, dtype=torch.uint8))  # of a checkpoint from a GPU
assert torch.equal(torch.rand(2, device="cuda"), drawn)
event = torch.cuda.Event(enable_timing=True)
event.record()
assert event.query(), "a loop that waits for it would not end"
assert torch.frombuffer(bytearray(8), dtype=torch.uint8, count=3).numel() == 3
named = torch.accelerator.current_accelerator()
torch.set_default_device(named)
print(json.dumps({
    "devices": [str(one) for one in (device, x.device, torch.zeros(1, device=0).device,
                torch.Generator("cuda").device, torch.empty(1, device=named).device,
                torch.nn.Linear(1, 1).to(named).weight.device)],
    "named": named.type,
    "types": [str(half), str(brain)],
    "scaler": torch.amp.GradScaler("cuda").is_enabled(),
    "mesh": mesh.device_type,
    "backend": dist.get_backend(),
    "reduced": own.tolist(),
    "chosen": "cuda" if torch.cuda.is_available() else "cpu",
}), flush=True)
dist.destroy_process_group()  # gloo's threads may end the process with a signal otherwise
"""
START = (
    "from harness.rank.probe import cuda_calls; cuda_calls.install(); "
    "import runpy; runpy.run_path({!r})"
)

LIBRARY = """
import sys, torch

def one():
    pass; assert torch.cuda.is_available(), "no GPU"

def several_lines():
    assert (
        not sys.flags.dev_mode
        and torch.cuda.is_available()
    )

def raises():
    if not torch.cuda.is_available() and not sys.flags.dev_mode:
        print("no GPU")
        raise RuntimeError("no GPU")

def exits():
    if torch.cuda.is_available():
        pass
    else:
        sys.exit("no GPU")

def counts():
    if torch.cuda.device_count() < 1:
        raise RuntimeError("no GPU")
    else:
        raise KeyError

def chooses():
    if not torch.cuda.is_available():
        return "cpu"
    return "cuda"
"""
DEMANDS = """
import library
for function in (library.one, library.several_lines, library.raises, library.exits):
    function()
try:
    library.counts()
except KeyError:
    print(library.chooses())
"""


def in_a_new_process(folder: Path, script: str, before: str = "", **variables: str) -> str:
    """What a script prints with the replacements; ``library`` is in its site-packages."""
    (folder / "train.py").write_text(script)
    (folder / "site-packages").mkdir()
    (folder / "site-packages" / "library.py").write_text(LIBRARY)
    path = f"{ROOT}:{folder / 'site-packages'}"
    usual = {"RANK": "0", "LOCAL_WORLD_SIZE": "1", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", before + START.format(str(folder / "train.py"))],
        env={**usual, **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not ended.returncode, ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_a_script_for_gpus_runs(tmp_path: Path) -> None:
    where = {"LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    assert json.loads(in_a_new_process(tmp_path, SCRIPT, **where)) == {
        "devices": ["cpu"] * 6,
        "named": "cuda",
        "types": ["torch.float16", "torch.bfloat16"],
        "scaler": True,
        "mesh": "cpu",
        "backend": "gloo",
        "reduced": [1.0, 1.0],
        "chosen": "cpu",
    }


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.usefixtures("command")
def test_what_was_done_on_the_cpu_is_reported_and_can_be_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (SCRIPTS / "ddp.py").read_text()
    text = text.replace('"nccl" if on_gpu else "gloo"', '"nccl"')
    text = text.replace("model = nn.Sequential(", 'model = nn.Linear(1, 1).to("cuda:0")\n\\\n'
                        "model = nn.Sequential(", 1)  # fmt: skip
    (tmp_path / "train.py").write_text(text.replace("\\\n", ""))
    words = [str(tmp_path / "train.py"), "--batch-size", "{rows}"]
    assert main(["probe", "--layouts", "ranks", *words]) == 0
    printed = capsys.readouterr().out
    assert "done on the CPU" in printed
    assert "nccl (1 x)" in printed
    assert main(["probe", "--as-written", "--layouts", "ranks", *words]) == 3


@pytest.mark.slow
def test_a_library_that_demands_a_gpu_goes_on_and_one_that_chooses_takes_the_cpu(
    tmp_path: Path,
) -> None:
    assert in_a_new_process(tmp_path, DEMANDS) == "cpu\n"


def test_a_script_has_no_gpu_where_a_shim_has_replaced_a_method_for_a_package(
    tmp_path: Path,
) -> None:
    shim = "from harness.rank import shims; shims.install(['megatron-core.tensor_cuda']); "
    script = "import torch; print(torch.ones(1).cuda().to(0).device)"
    assert in_a_new_process(tmp_path, script, shim) == "cpu\n"


TRAINS = """
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

def main(rows):
    torch.cuda.set_device(0)
    torch.distributed.init_process_group("nccl")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1).cuda(), device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    data = torch.randn(96, 4)
    for x in DataLoader(data, rows, sampler=DistributedSampler(data)):
        model(x.to("cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.usefixtures("command")
@pytest.mark.parametrize("library", ["trainer", "torchtitan.train"])
def test_a_trainer_of_a_library_runs_on_the_cpu(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts that a package installs do not mention GPUs themselves. A kernel of torchtitan needs
    Triton, which torch for CPUs lacks."""
    site = tmp_path / "site-packages"
    for folder in ("torchtitan", "torchtitan-0.2.2.dist-info"):
        (site / folder).mkdir(parents=True)
    (site / "torchtitan-0.2.2.dist-info" / "METADATA").write_text(
        "Name: torchtitan\nVersion: 0.2.2"
    )
    (site / "trainer.py").write_text(TRAINS)
    (site / "torchtitan" / "train.py").write_text("import triton\nfrom trainer import main\n")
    script = f"import sys, {library} as library; library.main(int(sys.argv[1]))"
    (tmp_path / "train").write_text(script)
    monkeypatch.setenv("PYTHONPATH", str(site))
    assert main(["probe", "--layouts", "ranks", str(tmp_path / "train"), "{rows}"]) == 0
