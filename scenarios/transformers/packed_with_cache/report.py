"""Pack two rows in training mode: are the logits of the second one those that it has alone?

Needs torch and transformers, and no GPU. The exit code is 3 if the bug is there.
"""

import torch
import transformers

torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
config = transformers.LlamaConfig(**sizes, num_attention_heads=4)  # its use_cache is True
model = transformers.LlamaForCausalLM(config).train()
first_row, second_row = torch.randint(3, 64, (10,)), torch.randint(3, 64, (12,))
collate = transformers.DataCollatorWithFlattening()
packed = collate([{"input_ids": first_row.tolist()}, {"input_ids": second_row.tolist()}])


def off(use_cache: bool) -> float:
    """How far the logits of the second row are from those that it has alone, as a fraction."""
    model.config.use_cache = use_cache
    with torch.no_grad():
        logits = model(**packed).logits[0, len(first_row) :]
        alone = model(input_ids=second_row[None]).logits[0]
    return float((logits - alone).norm() / alone.norm())


cached, uncached = off(use_cache=True), off(use_cache=False)
print(f"transformers {transformers.__version__}: use_cache=True, the default: off by {cached:.1%};")
print(f"use_cache=False: {uncached:.1%}")
print("WRONG: a packed row sees the row before it" if cached > 1e-3 else "right: it does not")
raise SystemExit(3 if cached > 1e-3 else 0)
