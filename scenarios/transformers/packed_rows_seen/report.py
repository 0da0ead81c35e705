"""Pack two rows for GPT-OSS: are the logits of the second one those that it has alone?

Needs torch and transformers, and no GPU. The exit code is 3 if the bug is there.
"""

import torch
import transformers

torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "pad_token_id": 0}
gpt_oss = transformers.GptOssForCausalLM(
    transformers.GptOssConfig(**sizes, **heads, **experts, attn_implementation="eager")
)
llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads))


def off(model: torch.nn.Module) -> float:
    """How far the logits of the second row are from those that it has alone, as a fraction."""
    first_row, second_row = torch.randint(3, 64, (10,)), torch.randint(3, 64, (12,))
    packed = torch.cat([first_row, second_row])[None]
    positions = torch.cat([torch.arange(10), torch.arange(12)])[None]
    with torch.no_grad():
        logits = model(input_ids=packed, position_ids=positions, use_cache=False).logits[0, 10:]
        alone = model(input_ids=second_row[None], use_cache=False).logits[0]
    return float((logits - alone).norm() / alone.norm())


gpt_oss_off, llama_off = off(gpt_oss), off(llama)
print(f"transformers {transformers.__version__}: off by {gpt_oss_off:.1%}; LLaMA: {llama_off:.1%}")
print("WRONG: a packed row sees the row before it" if gpt_oss_off > 1e-3 else "right: it does not")
raise SystemExit(3 if gpt_oss_off > 1e-3 else 0)
