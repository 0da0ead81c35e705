"""Share a sequence among two ranks, with the loss of pretrain_gpt.py: which gradient comes?

Needs torch and megatron-core. The exit code is 3 if the bug is there."""

from typing import Any

import torch
from megatron.core import __version__ as version
from megatron.core import distributed, parallel_state
from megatron.core.transformer import TransformerConfig
from torch.multiprocessing.spawn import spawn

inputs = torch.arange(16.0).view(8, 2)  # of 8 tokens
base: Any = {"num_layers": 1, "hidden_size": 4, "num_attention_heads": 1}


def gradient(rank: int) -> list[float]:
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29804", rank=rank, world_size=2)
    parallel_state.initialize_model_parallel(context_parallel_size=2)
    config, model = TransformerConfig(**base), torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    options = distributed.DistributedDataParallelConfig()
    ddp = distributed.DistributedDataParallel(config, options, model)
    ddp(inputs.chunk(2)[rank]).sum().div(8).mul(2).backward()  # times the ranks, as in the script
    distributed.finalize_model_grads([ddp])
    return list(model.weight.main_grad[0].tolist())


if __name__ == "__main__":
    spawn(gradient, join=False, daemon=True)  # rank 0
    actual, expected = gradient(1), inputs.mean(0).tolist()
    print(f"megatron-core {version}: the gradient of the mean is {actual}; right is {expected}")
    print("WRONG: it is multiplied by the number of ranks" if actual != expected else "right")
    raise SystemExit(3 if actual != expected else 0)
