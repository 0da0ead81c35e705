"""Train a model that was loaded in bf16, with FSDP2 and mixed precision: has it fp32 weights?

Needs torch and accelerate, and no GPU. The exit code is 3 if the bug is there."""

import accelerate
import torch
from accelerate.utils import FullyShardedDataParallelPlugin, fsdp2_prepare_model
from torch.distributed.fsdp import MixedPrecisionPolicy

TYPES = (torch.float32, torch.bfloat16)


def train(fractions: torch.Tensor) -> None:
    """For a model in each type, write which part of rank 0's weights 20 steps of AdamW move."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, mixed_precision_policy=policy, cpu_ram_efficient_loading=False
    )
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    accelerator.state.fsdp_plugin = plugin  # its argument works on GPUs alone
    for place, loaded in enumerate(TYPES):
        torch.manual_seed(0)
        model = fsdp2_prepare_model(accelerator, torch.nn.Linear(32, 32).to(loaded))
        adamw = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0)
        before = model.weight.to_local().clone()
        for _ in range(20):
            adamw.zero_grad()
            (model(torch.ones(4, 32)).float() - 9).square().mean().backward()
            adamw.step()
        fractions[place] = (model.weight.to_local() != before).float().mean()


if __name__ == "__main__":
    shares = torch.zeros(len(TYPES)).share_memory_()
    accelerate.debug_launcher(train, (shares,), num_processes=2)
    for loaded, part in zip(TYPES, shares.tolist(), strict=True):
        print(f"accelerate {accelerate.__version__}, loaded in {loaded}: {part:.2%} have moved")
    has_bug = part < 0.9
    print("WRONG: there are no fp32 weights" if has_bug else "right: all weights move")
    raise SystemExit(3 if has_bug else 0)
