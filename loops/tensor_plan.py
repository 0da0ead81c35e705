"""A loop in plain torch with a model of transformers that its tp_plan splits over the ranks.

All ranks read the same rows.
"""

import argparse
import importlib.util
import inspect
import tempfile

import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--model", default="llama", help="the type, as in a config.json")
parser.add_argument("--activation", default="silu")
options = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 8}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": options.activation}
settings = {"vocab_size": 64, "attention_dropout": 0.0, "tie_word_embeddings": False}
model = AutoModelForCausalLM.from_config(
    AutoConfig.for_model(options.model, **sizes, **heads, **settings)
)


def plan():
    """The arguments by which a release splits a model."""
    if importlib.util.find_spec("transformers.distributed"):
        from transformers.distributed import DistributedConfig

        if "tp_plan" in inspect.signature(DistributedConfig).parameters:
            size = {"tp_size": dist.get_world_size(), "tp_plan": "auto"}
            return {"distributed_config": DistributedConfig(**size)}
    return {"tp_plan": "auto"}


if dist.get_world_size() > 1:
    with tempfile.TemporaryDirectory() as folder:
        folders = [folder]
        dist.broadcast_object_list(folders)
        if dist.get_rank() == 0:
            model.save_pretrained(folder)
        dist.barrier()
        model = AutoModelForCausalLM.from_pretrained(folders[0], **plan())
        dist.barrier()
model = model.to("cpu").train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = torch.randint(1, 64, (144, 12), generator=torch.Generator().manual_seed(0))
for number, ids in enumerate(rows.split(options.batch_size), 1):
    (model(input_ids=ids, labels=ids).loss / options.accum).backward()
    if number % options.accum == 0:
        optimizer.step()
        optimizer.zero_grad()
