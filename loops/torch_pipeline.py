"""A pipeline of torch.distributed.pipelining, as PyTorch's documentation teaches it.

Every stage is the whole model without the layers of other stages, so parameters keep their names.
One rank has the whole model in one stage.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True, help="rows of a call of the schedule")
parser.add_argument("--accum", type=int, default=1, help="calls of the schedule in a step")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--schedule", default="1F1B", help="of torch, without the word Schedule")
parser.add_argument("--micro-batches", type=int, default=2, help="of a call")
parser.add_argument("--stages", type=int, default=1, help="of each rank, if there are several")
parser.add_argument("--shared", action="store_true", help="each block has one layer twice")
parser.add_argument("--own-scale", action="store_true", help="the loss is divided by the script")
parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
options = parser.parse_args()

VOCABULARY, LENGTH, WIDTH, BLOCKS = 32, 8, 16, 4
on_gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if on_gpu else "gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
torch.manual_seed(options.seed)
ids = torch.randint(0, VOCABULARY, (144, LENGTH + 1))
data = TensorDataset(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, WIDTH)
        self.down = self.up if options.shared else nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleDict({str(n): Block() for n in range(BLOCKS)})
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x):
        x = self.embedding(x) if self.embedding else x
        for block in self.blocks.values():
            x = block(x)
        return self.head(x) if self.head else x


def part(stage):
    torch.manual_seed(options.seed + 1)
    model, depth = Model(), BLOCKS // stages
    for n in range(BLOCKS):
        if n // depth != stage:
            del model.blocks[str(n)]
    if stage:
        model.embedding = None
    if stage < stages - 1:
        model.head = None
    return model.to(device)


def loss(logits, labels):
    mean = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    micro_batches = options.micro_batches if options.own_scale else 1
    return mean / (micro_batches * options.accum)


stages = ranks * options.stages if ranks > 1 else 1
numbers = list(range(rank, stages, ranks))
models = [part(number) for number in numbers]
local_stages = [PipelineStage(m, n, stages, device) for m, n in zip(models, numbers, strict=True)]
kind = getattr(schedules, f"Schedule{options.schedule}")
single = issubclass(kind, schedules.PipelineScheduleSingle)
schedule = kind(
    local_stages[0] if single else local_stages,
    options.micro_batches,
    loss_fn=loss,
    scale_grads=not options.own_scale,
)
parameters = [parameter for model in models for parameter in model.parameters()]
if options.optimizer == "adamw":
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
else:
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
batches = list(DataLoader(data, options.batch_size))
for step in range(len(batches) // options.accum):
    for ids, labels in batches[step * options.accum : (step + 1) * options.accum]:
        inputs = (ids.to(device),) if 0 in numbers else ()
        targets = {"target": labels.to(device)} if stages - 1 in numbers else {}
        schedule.step(*inputs, **targets)
    optimizer.step()
    optimizer.zero_grad()
