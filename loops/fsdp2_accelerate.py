"""FSDP2 with accelerate, as its documentation teaches it; --adapter trains one of LoRA, with peft.

The adapter is saved as transformers' Trainer saves it: complete, and without the base model.
"""

import argparse

import torch
from accelerate import Accelerator
from accelerate.state import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import load_fsdp_model, save_fsdp_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--bf16", action="store_true", help="mixed precision")
parser.add_argument("--loaded", default="float32", help="the type of the weights as loaded")
parser.add_argument("--adapter", action="store_true")
parser.add_argument("--save", default="")
parser.add_argument("--save-at", type=int, default=0)
parser.add_argument("--resume", default="")
options = parser.parse_args()

precision, on_gpu = "bf16" if options.bf16 else "no", torch.cuda.is_available()
plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2,
    auto_wrap_policy="no_wrap",
    cpu_ram_efficient_loading=False,
    reshard_after_forward=True,
    state_dict_type="FULL_STATE_DICT",
)
accelerator = Accelerator(
    gradient_accumulation_steps=options.accum,
    cpu=not on_gpu,
    mixed_precision=precision,
    fsdp_plugin=plugin,
)
if not on_gpu:  # on CPUs accelerate ignores the plugin
    if options.bf16:
        plugin.set_mixed_precision(precision)
    accelerator.state.fsdp_plugin = plugin
    accelerator.state.distributed_type = DistributedType.FSDP
    PartialState._shared_state["distributed_type"] = DistributedType.FSDP
generator = torch.Generator().manual_seed(0)
inputs = torch.randn(144, 16, generator=generator)
data = TensorDataset(inputs, torch.randint(0, 8, (144,), generator=generator))
torch.manual_seed(options.seed)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
if options.adapter:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(model, LoraConfig(r=4, target_modules=["0", "2"]))
model.to(getattr(torch, options.loaded))
trained = [weight for weight in model.parameters() if weight.requires_grad]
if options.optimizer == "adamw":
    optimizer = torch.optim.AdamW(trained, lr=options.lr)
else:
    optimizer = torch.optim.SGD(trained, lr=options.lr)
model, optimizer, loader = accelerator.prepare(
    model, optimizer, DataLoader(data, options.batch_size, shuffle=True)
)

steps, of = 0, (plugin, accelerator, model)
if options.resume:
    load_fsdp_model(*of, options.resume, adapter_only=options.adapter)
    steps = options.save_at or 2
    loader = accelerator.skip_first_batches(loader, steps * options.accum)
for x, y in loader:
    with accelerator.accumulate(model):
        loss = nn.functional.cross_entropy(model(x).float(), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        steps += 1
        if options.save and steps == options.save_at:
            save_fsdp_model(*of, options.save, adapter_only=options.adapter)
