"""Build a LLaMA inside deepspeed.zero.Init in bf16: are the buffers of its rotary embedding right?

Needs torch, transformers and deepspeed, and no GPU. The exit code is 3 if the bug is there.
"""

import os

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29660"}

import deepspeed
import torch
import transformers

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for one rank
deepspeed.init_distributed("gloo")
sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1}


def buffers() -> dict[str, torch.Tensor]:
    """A new model's frequencies and, in releases before 4.41, cosines and sines of positions."""
    config = transformers.LlamaConfig(**sizes, num_attention_heads=1, max_position_embeddings=4096)
    pairs = transformers.LlamaForCausalLM(config).named_buffers()
    return {name.rpartition(".")[2]: each for name, each in pairs if "rotary" in name}


zero = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}, "train_batch_size": 1}
reference = buffers()
with deepspeed.zero.Init(config_dict_or_path=zero):
    actual = buffers()
print(f"transformers {transformers.__version__}, deepspeed {deepspeed.__version__}")
counts = {name: int((actual[name] != reference[name]).sum()) for name in reference}
for name, count in counts.items():
    off = float((actual[name].float() - reference[name].float()).abs().max())
    print(f"{name}: {count} of {reference[name].numel()} are wrong, by up to {off:.4f}; right: 0")
    if name == "cos_cached" and count:
        position = int((actual[name] != reference[name]).any(-1).flatten().nonzero()[0])
        print(f"the first wrong position is {position}: bf16 has no 257, and makes it 256")
print("WRONG: zero.Init rounds what they are made from" if any(counts.values()) else "right: equal")
raise SystemExit(3 if any(counts.values()) else 0)
