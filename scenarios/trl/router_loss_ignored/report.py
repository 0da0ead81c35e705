"""Train DeepSeek-V3's architecture with router_aux_loss_coef: is a balancing loss logged?

Needs torch, transformers, datasets and trl from 1.7, and no GPU. The exit code is 3 if the bug is
there."""

import tempfile
from typing import Any

import transformers
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models

words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(32)}, unk_token="w0"))
special: Any = {"pad_token": "w0", "eos_token": "w1"}
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)
sizes: Any = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "q_lora_rank": 8}
sizes |= {"moe_intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
sizes |= {"num_key_value_heads": 2, "num_experts_per_tok": 2, "num_experts": 4, "v_head_dim": 8}
sizes |= {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
sizes |= {"kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
model: Any = transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**sizes))
settings: Any = {"use_cpu": True, "bf16": False, "report_to": [], "max_steps": 1}
args = trl.SFTConfig(tempfile.mkdtemp(), router_aux_loss_coef=0.5, logging_steps=1, **settings)
data: Any = {"train_dataset": Dataset.from_list([{"text": "w2 w3 w4"}] * 8)}
try:
    trainer = trl.SFTTrainer(model, args=args, processing_class=tokenizer, **data)
    trainer.train()
    balanced = any("aux_loss" in line for line in trainer.state.log_history)
    print(f"trl {trl.__version__}: a balancing loss was logged: {balanced}")
except ValueError as error:
    balanced = "router_aux_loss_coef" in str(error)
    print(f"trl {trl.__version__} refuses it: {error}")
print("right: it is added or refused" if balanced else "WRONG: it was silently ignored")
raise SystemExit(0 if balanced else 3)
