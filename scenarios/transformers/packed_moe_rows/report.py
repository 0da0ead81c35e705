"""Pack two rows for a Qwen2-MoE: are the logits of the second one those that it has alone?

Needs torch and transformers, and no GPU. The exit code is 3 if the bug is there.
"""

import torch
import transformers

torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "use_cache": False}
experts = {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
moe = transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(**sizes, **heads, **experts))
dense = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes, **heads))
first_row, second_row = torch.randint(3, 64, (10,)), torch.randint(3, 64, (12,))
collate = transformers.DataCollatorWithFlattening()
packed = collate([{"input_ids": first_row.tolist()}, {"input_ids": second_row.tolist()}])


def off(model: torch.nn.Module) -> float:
    """How far the logits of the second row are from those that it has alone, as a fraction."""
    with torch.no_grad():
        logits = model(**packed).logits[0, len(first_row) :]
        alone = model(input_ids=second_row[None]).logits[0]
    return float((logits - alone).norm() / alone.norm())


moe_off, dense_off = off(moe), off(dense)
print(f"transformers {transformers.__version__}: off by {moe_off:.1%}; Qwen2: {dense_off:.1%}")
print("WRONG: a packed row sees the row before it" if moe_off > 1e-3 else "right: it does not")
raise SystemExit(3 if moe_off > 1e-3 else 0)
