"""A loop with DeepSpeed's ZeRO-3 and a LLaMA that is made inside zero.Init, in bf16."""

import argparse

import deepspeed
import torch
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
options = parser.parse_args()

torch.manual_seed(0)
rows = torch.utils.data.TensorDataset(torch.randint(1, 64, (144, 12)))
settings = {
    "train_micro_batch_size_per_gpu": options.batch_size,
    "gradient_accumulation_steps": options.accum,
    "zero_optimization": {"stage": 3},
    "bf16": {"enabled": True},
    "zero_allow_untested_optimizer": True,
}
shape = LlamaConfig(
    vocab_size=64,
    hidden_size=128,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=2048,
)
deepspeed.init_distributed()
torch.set_default_dtype(torch.bfloat16)
with deepspeed.zero.Init(config_dict_or_path=settings):
    model = LlamaForCausalLM(shape)
torch.set_default_dtype(torch.float32)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
engine, _, loader, _ = deepspeed.initialize(
    model=model, optimizer=optimizer, training_data=rows, config=settings
)
for (ids,) in loader:
    ids = ids.to(engine.device)
    engine.backward(engine(input_ids=ids, labels=ids).loss)
    engine.step()
