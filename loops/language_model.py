"""A loop in plain torch with a language model of transformers, which --model and --config choose.

Rows have one length.
"""

import argparse
import json

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from transformers import AutoConfig, AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--model", default="llama", help="the type, as in a config.json")
parser.add_argument("--config", default="{}", help="more settings of the model, as JSON")
options = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
settings = {"vocab_size": 64, **json.loads(options.config)}
model = AutoModelForCausalLM.from_config(
    AutoConfig.for_model(options.model, **sizes, **heads, **settings)
)
# An expert that gets no token has no gradient.
trained = DDP(model, find_unused_parameters=True)
optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3)
rows = torch.randint(1, 64, (144, 12))
loader = DataLoader(rows, options.batch_size, sampler=DistributedSampler(rows, shuffle=False))

for number, ids in enumerate(loader, 1):
    loss = trained(input_ids=ids, labels=ids).loss / options.accum
    loss.backward()
    if number % options.accum == 0:
        optimizer.step()
        optimizer.zero_grad()
