"""A loop with DDP and a kernel of Liger-Kernel, which --kernel chooses.

loss: the fused loss of single tokens, of which those of the prompt count less. rope: the rotary
embedding of rows that are packed, each with documents of other lengths. tvd: the total variation
loss, by which a student learns the bf16 probabilities of a teacher.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--kernel", choices=("loss", "rope", "tvd"), default="loss")
options = parser.parse_args()
if options.kernel == "loss":  # not every release has all of them
    from liger_kernel.transformers.fused_linear_cross_entropy import (
        LigerFusedLinearCrossEntropyLoss,
    )
elif options.kernel == "rope":
    from liger_kernel.ops.rope import LigerRopeFunction
else:
    from liger_kernel.transformers.tvd import LigerTVDLoss

on_gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo")
torch.manual_seed(0)
VOCABULARY, LENGTH, WIDTH, HEADS, PROMPT, BEGIN = 32, 16, 32, 2, 4, 0
"""BEGIN is the token that begins a document."""
weights = torch.ones(LENGTH, device=device)
weights[:PROMPT] = 0.25
rates = 10000 ** -(torch.arange(0, WIDTH // HEADS, 2, device=device) / (WIDTH // HEADS))


def positions(ids):
    """The positions of tokens in their documents."""
    at = torch.arange(LENGTH, device=ids.device).expand_as(ids)
    return at - torch.where(ids == BEGIN, at, 0).cummax(1).values


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.projections = nn.Linear(WIDTH, 3 * WIDTH, bias=False)

    def forward(self, x, ids):
        angles = (positions(ids)[..., None] * rates).repeat(1, 1, 2)
        shape = (*ids.shape, HEADS, WIDTH // HEADS)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.projections(x).chunk(3, -1))
        q, k = LigerRopeFunction.apply(q, k, angles.cos(), angles.sin())
        values = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + values.transpose(1, 2).flatten(2)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.attention = Attention() if options.kernel == "rope" else None
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if options.kernel == "loss":
            self.loss = LigerFusedLinearCrossEntropyLoss(reduction="none")

    def forward(self, ids, following):
        x = self.embedding(ids)
        if self.attention is not None:
            x = self.attention(x, ids)
        x = torch.tanh(self.hidden(x))
        if options.kernel != "loss":
            return self.head(x)
        losses = self.loss(self.head.weight, x.flatten(0, 1), following.flatten())
        return (losses.view_as(ids) * weights).sum() / weights.sum() / len(ids)


ids = torch.randint(1, VOCABULARY, (144, LENGTH + 1))
ids.scatter_(1, torch.randint(1, LENGTH, (144, 1)), BEGIN)
model = Model().to(device)
teacher = Model().to(device).requires_grad_(False)
trained = DDP(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def loss(row_ids):
    inputs, following = row_ids[:, :-1].contiguous(), row_ids[:, 1:].contiguous()
    output = trained(inputs, following)
    if options.kernel == "loss":
        return output
    if options.kernel == "rope":
        return nn.functional.cross_entropy(output.flatten(0, 1), following.flatten())
    both = (output, teacher(inputs, following))
    return LigerTVDLoss()(*(logits.softmax(-1).bfloat16().flatten(0, 1) for logits in both))


loader = DataLoader(ids, options.batch_size, sampler=DistributedSampler(ids, shuffle=False))
for number, row_ids in enumerate(loader, 1):
    (loss(row_ids.to(device)) / options.accum).backward()
    if number % options.accum == 0:
        optimizer.step()
        optimizer.zero_grad()
