"""Save a LoRA adapter under FSDP2 with FULL_STATE_DICT and load it: has each rank its part back?

Needs torch, accelerate and peft, and no GPU. The exit code is 3 if the bug is there."""

import tempfile

import accelerate
import peft
import torch
from accelerate import utils
from torch import nn


def compare(restored: torch.Tensor, folder: str) -> None:
    """Write which part of its adapter weights each rank has back after a load."""
    plugin = utils.FullyShardedDataParallelPlugin(
        fsdp_version=2, state_dict_type="FULL_STATE_DICT", cpu_ram_efficient_loading=False
    )
    accelerator = accelerate.Accelerator(cpu=True)
    accelerator.state.fsdp_plugin = plugin  # its argument works on GPUs alone
    accelerator.state.distributed_type = utils.DistributedType.FSDP
    weights = []
    for seed, function in enumerate((utils.save_fsdp_model, utils.load_fsdp_model)):
        torch.manual_seed(seed)  # so that the two adapters are not equal
        config = peft.LoraConfig(r=4, target_modules=["0"], init_lora_weights=False)
        plain = peft.get_peft_model(nn.Sequential(nn.Linear(8, 8)), config)
        model = utils.fsdp2_prepare_model(accelerator, plain)
        function(plugin, accelerator, model, folder, adapter_only=True)
        parts = [each.to_local().flatten() for each in model.parameters() if each.requires_grad]
        weights.append(torch.cat(parts))
    restored[accelerator.process_index] = (weights[0] == weights[1]).float().mean()


if __name__ == "__main__":
    restored = torch.zeros(2).share_memory_()
    accelerate.debug_launcher(compare, (restored, tempfile.mkdtemp()), num_processes=2)
    part_0, part_1 = restored.tolist()
    print(f"accelerate {accelerate.__version__}: rank 0 has {part_0:.0%} back, rank 1 {part_1:.0%}")
    print("WRONG: rank 1 has lost its part" if part_1 < 0.5 else "right: no rank has lost any")
    raise SystemExit(3 if part_1 < 0.5 else 0)
