"""A loop with DDP and a layer of flash-linear-attention, which --layer chooses.

convolution: the short convolution of queries and keys, which are concatenated with the values.
gate: a norm, a gate and a linear layer in one. attention: normalised linear attention. penalty:
l2_warp, a penalty on the largest logit.
"""

import argparse
import os
import sys

import torch
import torch.distributed as dist
from fla.modules import FusedRMSNormSwishGateLinear, ShortConvolution
from fla.modules.l2warp import l2_warp
from fla.ops.linear_attn import fused_recurrent_linear_attn
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument(
    "--layer", choices=("convolution", "gate", "attention", "penalty"), default="convolution"
)
options = parser.parse_args()

on_gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo")
torch.manual_seed(0)
VOCABULARY, LENGTH, WIDTH, HEADS = 32, 16, 32, 2

for name, module in list(sys.modules.items()):  # the others differ in speed alone
    for kernel in list(vars(module).values()) if name.startswith("fla.") else ():
        while hasattr(kernel, "fn"):
            if hasattr(kernel, "configs"):
                kernel.configs = kernel.configs[:1]
            kernel = kernel.fn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        if options.layer == "convolution":
            self.convolution = ShortConvolution(WIDTH, 4)
            self.last = nn.Linear(2 * WIDTH, WIDTH)
        if options.layer == "gate":
            self.gated = FusedRMSNormSwishGateLinear(WIDTH)
            self.last = nn.Linear(WIDTH, WIDTH, bias=False)
        if options.layer == "attention":
            self.third = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        first, second = self.first(x), self.second(x)
        if options.layer == "convolution":
            return x + self.last(torch.cat([self.convolution(first)[0], second], -1))
        if options.layer == "gate":
            return x + self.gated(first, second, self.last.weight, None)
        if options.layer == "penalty":
            return x + torch.tanh(first) * second
        shape = (*x.shape[:2], HEADS, WIDTH // HEADS)
        query, key = (nn.functional.elu(part).add(1).view(shape) for part in (first, second))
        value = self.third(x).view(shape)
        scale = (WIDTH // HEADS) ** -0.5
        outputs = fused_recurrent_linear_attn(query, key, value, scale=scale, normalize=True)
        return x + outputs[0].flatten(2)


model = nn.Sequential(
    nn.Embedding(VOCABULARY, WIDTH), Layer(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)
).to(device)
trained = DDP(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ids = torch.randint(1, VOCABULARY, (144, LENGTH + 1))
loader = DataLoader(ids, options.batch_size, sampler=DistributedSampler(ids, shuffle=False))
for number, row_ids in enumerate(loader, 1):
    inputs, following = row_ids[:, :-1].to(device), row_ids[:, 1:].to(device)
    logits = trained(inputs)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())
    if options.layer == "penalty":
        loss = l2_warp(loss, logits)
    (loss / options.accum).backward()
    if number % options.accum == 0:
        optimizer.step()
        optimizer.zero_grad()
