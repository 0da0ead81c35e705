"""Has an MoE's auxiliary loss the same gradient on 1 and 2 tensor-parallel ranks?

Needs torch and megatron-core from 0.13 on, and no GPU where calls of torch.cuda go to the CPU. The
exit code is 3 if the bug is there."""

import torch
from megatron.core import __version__, distributed, parallel_state
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe import moe_utils, router
from torch.multiprocessing.spawn import spawn

base = {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "moe_aux_loss_coeff": 0.5}
base |= {"num_moe_experts": 4, "calculate_per_token_loss": True, "add_bias_linear": False}


def norms(rank: int) -> list[float]:
    """The norms of the gradients of the router's weight on 1 and 2 ranks."""
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29620", rank=rank, world_size=2)
    options, sizes = distributed.DistributedDataParallelConfig(), []
    for n in (1, 2):
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=n)
        config = TransformerConfig(**base, tensor_model_parallel_size=n, sequence_parallel=n > 1)
        torch.manual_seed(0)
        layer = router.TopKRouter(config, moe_utils.get_default_pg_collection())
        ddp = distributed.DistributedDataParallel(config, options, layer)
        part = torch.randn(16, 1, 8).chunk(n)[rank % n]  # of 16 tokens
        (0 * ddp(part)[0].sum()).backward()  # so only the auxiliary loss has a gradient
        distributed.finalize_model_grads([ddp], num_tokens=torch.tensor(16))
        sizes.append(float(layer.weight.main_grad.norm()))
        parallel_state.destroy_model_parallel()
    return sizes


if __name__ == "__main__":
    spawn(norms, join=False, daemon=True)  # rank 0
    alone, both = norms(1)
    print(f"megatron-core {__version__}: the norm is {alone:.4f} on 1 rank, {both:.4f} on 2 ranks")
    has_bug = abs(both / alone - 1) > 0.01
    print("WRONG: it depends on the ranks" if has_bug else "right: it is the same")
    raise SystemExit(3 if has_bug else 0)
