"""Prepare a model and its optimizer for FSDP in one call: does the model train?

Needs torch and accelerate, and no GPU. The exit code is 3 if the bug is there."""

import os

import accelerate
import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

os.environ["FSDP_SYNC_MODULE_STATES"] = "False"  # otherwise old releases ask for a GPU


def train(moved: torch.Tensor) -> None:
    """20 steps of SGD under FSDP with accelerate's default; how far they move the weights."""
    plugin = FullyShardedDataParallelPlugin(use_orig_params=False)
    accelerator = accelerate.Accelerator(cpu=True, fsdp_plugin=plugin)
    accelerator.state.fsdp_plugin = plugin  # accelerate does these things itself on GPUs
    accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.device = torch.device("cpu")
    PartialState._shared_state["distributed_type"] = DistributedType.FSDP
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    before = [weight.detach().clone() for weight in model.parameters()]
    for _ in range(20):
        optimizer.zero_grad()
        accelerator.backward(model(torch.ones(2, 4)).square().mean())
        optimizer.step()
    for weight, old in zip(model.parameters(), before, strict=True):
        moved += (weight.detach() - old).abs().sum()


if __name__ == "__main__":
    moved = torch.zeros(1).share_memory_()
    accelerate.debug_launcher(train, (moved,), num_processes=2)
    print(f"accelerate {accelerate.__version__}: 20 steps moved the weights by {moved.item():.4f}")
    print("WRONG: the model does not train" if moved == 0 else "right: the model trains")
    raise SystemExit(3 if moved.item() == 0 else 0)
