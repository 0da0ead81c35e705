"""Let AutoEP replace the experts of a tiny DeepSeek-V3: is the bias of its router kept?

Needs torch, deepspeed and transformers, and no GPU. The exit code is 3 if the bug is there."""

import os
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29630"}

import deepspeed
import torch
import transformers

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for this
deepspeed.init_distributed("gloo")
sizes: Any = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "v_head_dim": 8}
sizes |= {"moe_intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
sizes |= {"num_key_value_heads": 2, "num_experts_per_tok": 2, "n_routed_experts": 4}
sizes |= {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "kv_lora_rank": 8}
sizes |= {"q_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
torch.manual_seed(0)
model: Any = transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**sizes)).eval()
gate = model.model.layers[1].mlp.gate
gate.e_score_correction_bias.copy_(torch.tensor([5.0, -5.0, 5.0, -5.0]))
tokens = torch.randint(0, 32, (1, 16))
own = model(tokens).logits.detach()
experts = {"enabled": True, "autoep_size": 1, "preset_model": "deepseek_v3"}
config: Any = {"train_batch_size": 1, "expert_parallel": experts}
config["zero_allow_untested_optimizer"] = True
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
engine = deepspeed.initialize(model=model, optimizer=sgd, config=config)[0]
off = float((engine.module.eval()(tokens).logits.detach() - own).abs().max())
print(f"deepspeed {deepspeed.__version__}: AutoEP moves the logits by up to {off:.6f}")
print("WRONG: other experts are selected" if off > 1e-5 else "right: the same experts")
raise SystemExit(3 if off > 1e-5 else 0)
