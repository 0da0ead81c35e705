"""Make a model of transformers as torchtitan's Trainer does, and print its rotary frequencies.

Needs torch, torchtitan, triton and transformers 5, and no GPU. The exit code is 3 if the bug is
there."""

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torchtitan.experiments.transformers_modeling_backend import (
    HFTransformerModel,
    TitanModelConfig,
)
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 64}
llama = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **sizes}
folder = Path(tempfile.mkdtemp())
(folder / "config.json").write_text(json.dumps(llama))

config: Any = HFTransformerModel.Config(model_config=TitanModelConfig())
names = ("training", "parallelism", "loss", "debug")
settings = {name: SimpleNamespace(seq_len=16, deterministic=False) for name in names}
config.update_from_config(config=SimpleNamespace(hf_model=str(folder), **settings))
with torch.device("meta"):
    model = config.build()
model.to_empty(device="cpu")
with torch.no_grad():
    model.init_states(buffer_device=None)

actual = model.model.model.rotary_emb.inv_freq
right: Any = LlamaRotaryEmbedding(config).inv_freq
print(f"transformers {transformers.__version__}: {actual.tolist()}, not {right.tolist()}")
wrong = not torch.allclose(actual, right)
print("WRONG: the frequencies are what the memory had" if wrong else "right: frequencies are set")
raise SystemExit(3 if wrong else 0)
