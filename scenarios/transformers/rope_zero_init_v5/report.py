"""Build a LLaMA inside deepspeed.zero.Init in bf16: are its rotary frequencies right?

Needs torch, transformers and deepspeed, and no GPU. The exit code is 3 if the bug is there.
"""

import os

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}

import deepspeed
import torch
import transformers

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for one rank
deepspeed.init_distributed("gloo")


def frequencies() -> torch.Tensor:
    """By how much a new model turns queries and keys from one position to the next."""
    sizes = {"vocab_size": 64, "hidden_size": 128, "intermediate_size": 128}
    config = transformers.LlamaConfig(**sizes, num_hidden_layers=1, num_attention_heads=1)
    return transformers.LlamaForCausalLM(config).model.rotary_emb.inv_freq


zero = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}, "train_batch_size": 1}
reference = frequencies()
with deepspeed.zero.Init(config_dict_or_path=zero):
    actual = frequencies()
count = int((actual != reference).sum())
off = float((actual.double() - reference.double()).abs().max()) * 4000
print(f"transformers {transformers.__version__}, deepspeed {deepspeed.__version__}")
print(f"inv_freq is {actual.dtype}; right: {reference.dtype}")
print(f"{count} of {len(reference)} frequencies are wrong; right: 0")
print(f"angles at position 4000 are off by up to {off:.1f} radians; right: 0")
print("WRONG: zero.Init rounded the frequencies" if count else "right: zero.Init changed nothing")
raise SystemExit(3 if count > 0 else 0)
