"""Share a sequence among two ranks, 3 and 1 of whose tokens count: which gradient comes?

Needs torch and megatron-core. The exit code is 3 if the bug is there."""

from typing import Any

import torch
from megatron.core import __version__ as version
from megatron.core import distributed, parallel_state
from megatron.core.pipeline_parallel.schedules import forward_step_calc_loss
from megatron.core.transformer import TransformerConfig
from torch.multiprocessing.spawn import spawn

inputs, counted = torch.arange(16.0).view(8, 2), torch.tensor([1.0, 1, 1, 0, 1, 0, 0, 0])
base: Any = {"num_layers": 1, "hidden_size": 4, "num_attention_heads": 1}


def gradient(rank: int) -> list[float]:
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29803", rank=rank, world_size=2)
    parallel_state.initialize_model_parallel(context_parallel_size=2)
    config, model = TransformerConfig(**base), torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    options, counts = distributed.DistributedDataParallelConfig(), counted.chunk(2)[rank]
    ddp = distributed.DistributedDataParallel(config, options, model)
    outputs: Any = ((ddp(inputs.chunk(2)[rank])[:, 0] * counts).sum(), counts.sum().int(), {})
    step: Any = (model, None, lambda _: outputs, config, None, False, 1, [])  # a loss function
    forward_step_calc_loss(*step)[0].backward()
    distributed.finalize_model_grads([ddp])
    return list(model.weight.main_grad[0].tolist())


if __name__ == "__main__":
    spawn(gradient, join=False, daemon=True)  # rank 0
    actual, expected = gradient(1), (counted @ inputs / 4).tolist()
    print(f"megatron-core {version}: the gradient of the mean is {actual}; right is {expected}")
    print("WRONG: each part weighs the same" if actual != expected else "right")
    raise SystemExit(3 if actual != expected else 0)
