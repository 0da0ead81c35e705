"""With padding, has an MoE's auxiliary loss the same gradient on 1 and 2 tensor-parallel ranks?

Needs torch and megatron-core, and no GPU where calls of torch.cuda go to the CPU. The exit code is
3 if the bug is there."""

import torch
from megatron.core import __version__, distributed, parallel_state
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe import moe_utils, router
from torch.multiprocessing.spawn import spawn

base = {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "moe_aux_loss_coeff": 0.5}
base |= {"num_moe_experts": 4, "calculate_per_token_loss": True, "add_bias_linear": False}


def gradient_norms(rank: int) -> list[float]:
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29621", rank=rank, world_size=2)
    options, norms = distributed.DistributedDataParallelConfig(), []
    for n in (1, 2):
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=n)
        config = TransformerConfig(**base, tensor_model_parallel_size=n, sequence_parallel=n > 1)
        torch.manual_seed(0)
        layer = router.TopKRouter(config, moe_utils.get_default_pg_collection())
        ddp = distributed.DistributedDataParallel(config, options, layer)
        tokens, padded = torch.randn(16, 1, 8), torch.arange(16).view(16, 1) > 11
        part, mask = (each.chunk(n)[rank % n] for each in (tokens, padded))
        (0 * ddp(part, padding_mask=mask)[0].sum()).backward()  # leaves the auxiliary loss
        distributed.finalize_model_grads([ddp], num_tokens=torch.tensor(12))
        norms.append(float(layer.weight.main_grad.norm()))
        parallel_state.destroy_model_parallel()
    return norms


if __name__ == "__main__":
    spawn(gradient_norms, join=False, daemon=True)  # rank 0
    alone, both = gradient_norms(1)
    print(f"megatron-core {__version__}: the norm is {alone:.4f} on 1 rank, {both:.4f} on 2 ranks")
    has_bug = abs(both / alone - 1) > 0.01
    print("WRONG: it depends on the ranks" if has_bug else "right: it is the same")
    raise SystemExit(3 if has_bug else 0)
