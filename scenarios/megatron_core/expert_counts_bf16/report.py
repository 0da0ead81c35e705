"""Route tokens in bf16 with an expert bias: how many tokens does each expert have?

Needs torch and megatron-core. The exit code is 3 if the bug is there."""

import torch
from megatron.core import __version__ as version
from megatron.core import parallel_state
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.router import TopKRouter

torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29820", rank=0, world_size=1)
parallel_state.initialize_model_parallel()
base: dict[str, object] = {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1}
base |= {"num_moe_experts": 4, "bf16": True, "params_dtype": torch.bfloat16}
base |= {"moe_router_enable_expert_bias": True, "moe_router_score_function": "sigmoid"}
config = TransformerConfig(add_bias_linear=False, **base)  # type: ignore[arg-type]
router = TopKRouter(config, moe_utils.get_default_pg_collection())
router.weight.data.copy_(torch.eye(4, 8))
Float16Module(config, router)
exact = torch.zeros(4, dtype=torch.long)
for _ in range(60):  # micro-batches of 64 tokens
    exact += router(torch.randn(64, 1, 8).bfloat16())[1].sum(0).cpu()
counts = router.local_tokens_per_expert
print(f"megatron-core {version} counts in {counts.dtype}: {counts.int().tolist()}")
print(f"exact: {exact.tolist()}")
wrong = counts.int().tolist() != exact.tolist()
print("WRONG: tokens are missing" if wrong else "right: all tokens are counted")
raise SystemExit(3 if wrong else 0)
