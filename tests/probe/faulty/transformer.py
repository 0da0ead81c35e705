"""A small transformer that is trained with DDP, and has one fault in one place.

Each fault depends on how a batch is divided, so that the layouts of a probe differ.
"""

# mypy: ignore-errors

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--fault", default="")
parser.add_argument("--dtype", default="float32")
options = parser.parse_args()
FAULT, VOCABULARY, LENGTH, WIDTH, HEADS = options.fault, 40, 10, 16, 4


def occurs(fault, x):
    """Whether the fault occurs: in every micro-batch that is not the whole batch."""
    return fault == FAULT and len(x) < 12


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 2


class Normed(torch.autograd.Function):
    """Its backward must add up what all tokens give to the weight."""

    @staticmethod
    def forward(ctx, x, weight):
        scale = x.pow(2).mean(-1, keepdim=True).add(1e-6).rsqrt()
        ctx.save_for_backward(x, weight, scale)
        return x * scale * weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight, scale = ctx.saved_tensors
        of_weight = gradient * x * scale
        if ctx.needs_input_grad[1] and occurs("norm sums a row", x) and weight.any():
            of_weight = of_weight[:1]
        g = gradient * weight
        of_x = scale * (g - x * scale**2 * (g * x).mean(-1, keepdim=True))
        return of_x, of_weight.flatten(0, -2).sum(0)


class Norm(nn.Module):
    def __init__(self, custom=False):
        super().__init__()
        self.weight, self.custom = nn.Parameter(torch.ones(WIDTH)), custom

    def forward(self, x):
        if self.custom:
            return Normed.apply(x, self.weight)
        return x * x.pow(2).mean(-1, keepdim=True).add(1e-6).rsqrt() * self.weight


class Attention(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.number = number

    def forward(self, x, mask):
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        if self.number == 1 and occurs("heads swapped", x):
            v = v.flip(1)
        if self.number == 0 and occurs("mask off by one", x):
            mask = torch.ones(LENGTH, LENGTH).tril(1).bool()
        scale = WIDTH // HEADS
        if self.number == 1 and occurs("scale by the batch", x):
            scale = len(x)
        scores = (q @ k.transpose(-1, -2)) / scale**0.5
        if self.number == 0 and occurs("softmax over the wrong dimension", x):
            weights = scores.masked_fill(~mask, -1e9).softmax(-2)
        else:
            weights = scores.masked_fill(~mask, -1e9).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.number, self.calls = number, 0

    def forward(self, x):
        self.calls += 1
        h = F.gelu(self.up(x))
        if self.number == 1 and occurs("custom backward", x):
            h = Halved.apply(h)
        if self.number == 0 and occurs("low precision", x):
            h = h.to(torch.float8_e4m3fn).to(x.dtype) + (h - h.detach())
        if self.number == 1 and occurs("recomputed otherwise", x) and self.calls % 2 == 0:
            h = h * 2
        return self.down(h)


class Noise(nn.Module):
    """Drops values by a mask of its own."""

    def forward(self, x):
        if not occurs("dropout is not shared", x):
            return x
        generator = torch.Generator().manual_seed(len(x))
        return x * (torch.rand(x.shape, generator=generator) > 0.1)


class Centre(nn.Module):
    def forward(self, x):
        return x - 0.1 * x.mean(0, keepdim=True) if FAULT == "centres the batch" else x


class Block(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.norm1, self.norm2 = Norm(), Norm(number == 0)
        self.attn, self.mlp, self.noise = Attention(number), MLP(number), Noise()
        self.number = number

    def forward(self, x, mask):
        scale = 0.5 if self.number == 1 and occurs("residual scale", x) else 1.0
        residual = x
        if self.number == 0 and occurs("residual is detached", x):
            residual = x.detach()
        x = residual + scale * self.noise(self.attn(self.norm1(x), mask))
        if FAULT == "recomputed otherwise":
            return x + checkpoint(self.mlp, self.norm2(x), use_reentrant=False)
        return x + self.mlp(self.norm2(x))


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x):
        logits = self.linear(x)
        return logits + self.linear.bias if occurs("bias twice", x) else logits


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(2 * LENGTH, WIDTH)
        self.layers = nn.ModuleList([Block(0), Block(1)])
        self.centre, self.norm, self.head = Centre(), Norm(), Head()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, ids):
        places = torch.arange(LENGTH) + (len(ids) if occurs("positions are shifted", ids) else 0)
        x = self.embed(ids) + self.positions(places)
        mask = torch.ones(LENGTH, LENGTH).tril().bool().expand(len(ids), 1, LENGTH, LENGTH)
        outputs = []
        for number, layer in enumerate(self.layers):
            x = layer(x, mask)
            if number == 0 and occurs("gradient is scaled by a hook", x):
                x.register_hook(lambda gradient: gradient / 2)
            outputs.append(x)
        return self.head(self.norm(self.centre(x))), outputs[0], self.scale


torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
model = Model().to(getattr(torch, options.dtype))
trained = DDP(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
rows = torch.randint(1, VOCABULARY, (96, LENGTH))
loader = DataLoader(rows, options.batch_size, sampler=DistributedSampler(rows))
for number, ids in enumerate(loader, 1):
    logits, first, scale = trained(ids)
    if occurs("loss halves all but a scale", ids):  # as a gather that loses one of two ranks' parts
        logits = Halved.apply(logits)
    logits = scale * logits[:, :-1]
    losses = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
    loss = losses.mean()
    if occurs("a token counts too much", ids):
        loss = (losses * torch.linspace(0, 2, len(losses))).mean()
    if occurs("loss is summed", ids):
        loss = losses.sum() / 108
    if FAULT == "auxiliary loss counts twice":
        loss = loss + (2 if occurs(FAULT, ids) else 1) * first.float().pow(2).mean()
    (loss / options.accum).backward()
    if number % options.accum == 0:
        optimizer.step()
        optimizer.zero_grad()
