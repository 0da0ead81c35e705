"""Balance an MoE's experts over one row, and over two equal rows: is the gradient the same?

Needs torch and megatron-core from 0.15. The exit code is 3 if the bug is there."""

import torch
from megatron.core import __version__ as version
from megatron.core import distributed, parallel_state
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.router import TopKRouter

torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29817", rank=0, world_size=1)
parallel_state.initialize_model_parallel()
base: dict[str, object] = {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1}
base |= {"moe_router_load_balancing_type": "seq_aux_loss", "moe_aux_loss_coeff": 1.0}
base |= {"num_moe_experts": 4, "calculate_per_token_loss": True, "add_bias_linear": False}
config, options = TransformerConfig(**base), distributed.DistributedDataParallelConfig()
row = torch.randn(16, 1, 8, generator=torch.Generator().manual_seed(0))
norms = []
for count in (1, 2):
    router = TopKRouter(config, moe_utils.get_default_pg_collection())
    router.set_layer_number(1)
    router.weight.data.copy_(torch.arange(32.0).view(4, 8).sin())
    ddp = distributed.DistributedDataParallel(config, options, router)
    rows = row.expand(16, count, 8).contiguous()
    (ddp(rows)[0].sum() * 0).backward()  # only the balancing loss has a gradient
    distributed.finalize_model_grads([ddp], torch.tensor(16 * count))
    norms.append(float(router.weight.main_grad.norm()))
    print(f"megatron-core {version}: gradient {norms[-1]:.4f} with {count} equal rows")
wrong = norms[1] < 0.99 * norms[0]
print("WRONG: it shrinks with the rows" if wrong else "right: it is the same")
raise SystemExit(3 if wrong else 0)
