"""Pack two rows in training mode: are the logits of the second one those that it has alone?

Needs torch and transformers, and no GPU. The exit code is 1 if the bug is there.
"""

import torch
import transformers

torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
config = transformers.LlamaConfig(**sizes, num_attention_heads=4)  # its use_cache is True
model = transformers.LlamaForCausalLM(config).train()
first, second = torch.randint(3, 64, (10,)), torch.randint(3, 64, (12,))
collate = transformers.DataCollatorWithFlattening()
packed = collate([{"input_ids": first.tolist()}, {"input_ids": second.tolist()}])


def off(use_cache: bool) -> float:
    """How far the logits of the second row are from those that it has alone, as a fraction."""
    model.config.use_cache = use_cache
    with torch.no_grad():
        got = model(**packed).logits[0, len(first) :]
        alone = model(input_ids=second[None]).logits[0]
    return float((got - alone).norm() / alone.norm())


found, without = off(use_cache=True), off(use_cache=False)
print(f"transformers {transformers.__version__}: use_cache=True, the default: off by {found:.1%};")
print(f"use_cache=False: {without:.1%}")
print("WRONG: a packed row sees the row before it" if found > 1e-3 else "right: it does not")
raise SystemExit(found > 1e-3)
