"""Train attention sinks on two tensor-parallel ranks: does the gradient norm count all of them?

Needs torch and megatron-core, and no GPU where calls of torch.cuda go to the CPU. The exit code is
3 if the bug is there."""

import torch
from megatron.core import __version__, distributed, optimizer, parallel_state
from megatron.core.transformer import TransformerConfig, enums
from megatron.core.transformer.dot_product_attention import DotProductAttention
from torch.multiprocessing.spawn import spawn

base = {"num_layers": 1, "hidden_size": 16, "num_attention_heads": 4, "softmax_type": "learnable"}
base |= {"tensor_model_parallel_size": 2, "sequence_parallel": True, "masked_softmax_fusion": False}


def norms(rank: int) -> tuple[float, list[float]]:
    """The gradient norm that is used for clipping, and the norm of each rank's sinks."""
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29623", rank=rank, world_size=2)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    torch.manual_seed(rank)
    layer = DotProductAttention(TransformerConfig(**base), 1, enums.AttnMaskType.causal, "self")
    options, sink_norms = distributed.DistributedDataParallelConfig(), [0.0, 0.0]
    ddp = distributed.DistributedDataParallel(layer.config, options, layer)
    sgd = optimizer.OptimizerConfig(optimizer="sgd", lr=0.1, clip_grad=1.0)
    clipped = optimizer.get_megatron_optimizer(sgd, [ddp])
    query, key, value = torch.randn(3, 8, 1, 2, 4)  # 8 tokens, 2 heads on each rank
    ddp(query, key, value, torch.ones(8, 8).triu(1).bool()).square().sum().backward()
    distributed.finalize_model_grads([ddp])
    torch.distributed.all_gather_object(sink_norms, float(layer.softmax_offset.main_grad.norm()))
    return clipped.step()[1], sink_norms


if __name__ == "__main__":
    spawn(norms, join=False, daemon=True)  # rank 0
    norm, (norm_0, norm_1) = norms(1)
    print(f"megatron-core {__version__}: the ranks' norms are {norm_0:.4f} and {norm_1:.4f},")
    whole = (norm_0**2 + norm_1**2) ** 0.5
    print(f"so that of all sinks is {whole:.4f}; the optimizer has {norm:.4f}")
    print("WRONG: rank 1 is not counted" if norm < 0.99 * whole else "right: both are counted")
    raise SystemExit(3 if norm < 0.99 * whole else 0)
