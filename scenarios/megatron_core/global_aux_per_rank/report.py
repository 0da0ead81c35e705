"""Balance the experts of an MoE over two data-parallel ranks: is the gradient that of all rows?

Needs torch and megatron-core. The exit code is 3 if the bug is there."""

import torch
from megatron.core import __version__ as version
from megatron.core import distributed, parallel_state
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.router import TopKRouter
from torch.multiprocessing.spawn import spawn

base: dict[str, object] = {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1}
base |= {"moe_router_load_balancing_type": "global_aux_loss", "moe_aux_loss_coeff": 1.0}
base |= {"num_moe_experts": 4, "add_bias_linear": False}
rows = torch.randn(32, 1, 8, generator=torch.Generator().manual_seed(0))


def gradients(rank: int) -> list[torch.Tensor]:  # megatron-core's, plain torch's over all rows
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29806", rank=rank, world_size=2)
    parallel_state.initialize_model_parallel()
    config, options = TransformerConfig(**base), distributed.DistributedDataParallelConfig()
    router = TopKRouter(config, moe_utils.get_default_pg_collection())
    router.set_layer_number(1)
    router.weight.data.copy_(torch.arange(32.0).view(4, 8).sin())
    ddp = distributed.DistributedDataParallel(config, options, router)
    (ddp(rows.chunk(2)[rank])[0].sum() * 0).backward()  # only the balancing loss has a gradient
    distributed.finalize_model_grads([ddp])
    p = torch.softmax(rows[:, 0] @ router.weight.T, -1)
    chosen = torch.zeros_like(p).scatter(1, p.topk(2).indices, 0.5).mean(0)
    balance = 4 * (p.mean(0) * chosen).sum()
    return [router.weight.main_grad, *torch.autograd.grad(balance, router.weight)]


if __name__ == "__main__":
    spawn(gradients, join=False, daemon=True)  # rank 0
    ratio = float(torch.div(*map(torch.norm, gradients(1))))
    print(f"megatron-core {version}: {ratio:.4f} times the right gradient on 2 ranks")
    print("WRONG: it is divided by the ranks" if ratio < 0.99 else "right: that of all rows")
    raise SystemExit(3 if ratio < 0.99 else 0)
