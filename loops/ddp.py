"""A loop with DDP and gradient accumulation, as PyTorch's documentation teaches it.

``--bug`` puts one mistake into it.
"""

import argparse
import contextlib
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--rows", type=int, default=144, help="of an epoch")
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--clip-value", type=float, default=0.0)
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--dtype", default="float32", help="of the weights")
parser.add_argument("--amp", default="", help="the type of autocast; float16 scales the loss")
parser.add_argument("--scale", type=float, default=2.0**12, help="that the loss begins with")
parser.add_argument("--overflow", action="store_true", help="in fp16, the first step is skipped")
parser.add_argument("--fused", action="store_true", help="the optimizer divides by the scale")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--backend", default="inductor", help="of the compiler")
parser.add_argument("--memory-budget", type=float, default=1.0, help="of the compiler")
parser.add_argument("--padded", action="store_true", help="rows of unlike lengths")
parser.add_argument("--recompute", action="store_true", help="a block, in the backward")
parser.add_argument("--rrelu", action="store_true", help="is last in a checkpointed block")
parser.add_argument("--dataclass", action="store_true", help="as the output of the model")
parser.add_argument("--static-graph", action="store_true")
parser.add_argument("--converted", action="store_true", help="after the model is wrapped")
parser.add_argument("--sequential", action="store_true", help="a SequentialLR, with last_epoch")
parser.add_argument("--lookahead", action="store_true", help="of pytorch_optimizer, over it")
parser.add_argument("--ignite", action="store_true", help="two schedules of ignite")
parser.add_argument("--decay-over", type=int, default=0, help="steps, to a rate of 0")
parser.add_argument("--save", default="")
parser.add_argument("--save-at", type=int, default=0)
parser.add_argument("--resume", default="")
parser.add_argument("--bug", default="")
options = parser.parse_args()

on_gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo")
torch.manual_seed(options.seed)
rank, world, bug = dist.get_rank(), dist.get_world_size(), options.bug

VOCABULARY, LENGTH = 50, 12
data = TensorDataset(torch.randint(1, VOCABULARY, (options.rows, LENGTH)))
labels = data.tensors[0].clone()
if options.padded:
    labels[torch.arange(LENGTH) >= torch.randint(6, LENGTH + 1, (len(labels), 1))] = -100
data = TensorDataset(*data.tensors, labels)


class Checkpointed(nn.Sequential):
    def forward(self, x):
        keeps = bug != "recomputes with other masks"
        return checkpoint(super().forward, x, use_reentrant=False, preserve_rng_state=keeps)


class Model(nn.Sequential):
    def forward(self, ids):  # a forward of torch's own, called by DDP, would not be compiled
        return super().forward(ids)


def hidden():
    linear = nn.Linear(options.width, options.width)
    if options.recompute:
        return Checkpointed(linear, nn.GELU(), nn.Dropout(options.dropout))
    return Checkpointed(linear, nn.RReLU()) if options.rrelu else linear


model = Model(
    nn.Embedding(VOCABULARY, options.width),
    hidden(),
    nn.Dropout(options.dropout),
    nn.LayerNorm(options.width),
    nn.Linear(options.width, VOCABULARY),
).to(device, getattr(torch, options.dtype))


@dataclass
class Output:
    logits: torch.Tensor


class Returning(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, ids):
        return Output(self.inner(ids))


trained = model
if bug != "no all-reduce":
    trained = DDP(
        Returning(model) if options.dataclass else model, static_graph=options.static_graph
    )
if options.converted:
    trained.double().float()
fused = {"fused": True} if options.fused else {}
if options.optimizer == "adamw":
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **fused)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **fused)
if options.lookahead:
    from pytorch_optimizer import Lookahead

    optimizer = Lookahead(optimizer, k=2)
scaling = {"init_scale": options.scale, "enabled": options.amp == "float16"}
if options.overflow:
    scaling |= {"init_scale": 2.0**40, "backoff_factor": 2.0**-32}
scaler = torch.amp.GradScaler(device.type, **scaling)
if options.compile:
    if options.memory_budget < 1:
        import torch._functorch.config

        torch._functorch.config.activation_memory_budget = options.memory_budget
    trained = torch.compile(trained, backend=options.backend)
amp = {"device_type": device.type, "dtype": getattr(torch, options.amp or "bfloat16")}


class Concatenated:
    """ignite's ConcatScheduler, called as ignite's trainer does: before each step."""

    def __init__(self):
        from ignite.handlers import param_scheduler as ignite

        falling = ignite.LinearCyclicalScheduler(optimizer, "lr", 1e-3, 0.0, 40)
        rising = ignite.LinearCyclicalScheduler(optimizer, "lr", 1e-4, 1e-3, 40)
        self.inner = ignite.ConcatScheduler([falling, rising], [3])
        self.state_dict, self.load_state_dict = self.inner.state_dict, self.inner.load_state_dict

    def begin(self):
        self.inner(None)

    def step(self):
        pass


def scheduled(last_epoch=-1):
    if options.ignite:
        return Concatenated()
    if options.decay_over:
        warmup, steps = 6, options.decay_over
        steps *= options.accum if bug == "schedule counts micro-batches" else 1
        factor = lambda n: min(n / warmup, max(0, (steps - n) / (steps - warmup)))  # noqa: E731
        return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    if not options.sequential:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    warmup = torch.optim.lr_scheduler.ConstantLR(optimizer, 0.1, total_iters=1)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    return torch.optim.lr_scheduler.SequentialLR(
        optimizer, [warmup, decay], milestones=[1], last_epoch=last_epoch
    )


sampler = DistributedSampler(data, seed=options.seed)
if bug == "no sampler":
    sampler = None
loader = DataLoader(data, options.batch_size, sampler=sampler)

begun, schedule = 0, None if options.resume and options.sequential else scheduled()
if options.resume and bug != "resume is ignored":
    saved = torch.load(f"{options.resume}/state.pt")
    model.load_state_dict(saved["model"])
    if bug != "resume without optimizer":
        optimizer.load_state_dict(saved["optimizer"])
    begun = saved["step"]
    if options.sequential:
        schedule = scheduled(begun - 1)
    elif bug != "resume without schedule":
        schedule.load_state_dict(saved["schedule"])
    scaler.load_state_dict(saved["scaler"])
    torch.set_rng_state(saved["random"])


def clip() -> None:
    if options.clip:
        nn.utils.clip_grad_norm_(model.parameters(), options.clip)
    if options.clip_value:
        nn.utils.clip_grad_value_(model.parameters(), clip_value=options.clip_value)


@torch.no_grad()
def shrink() -> None:
    for parameter in model.parameters():
        parameter.mul_(0.99)


accum, batches = options.accum, [[x.to(device) for x in batch] for batch in loader]
if bug == "shuffles by itself":  # no mistake, but another order for each number of ranks
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(world))
    subset = torch.utils.data.Subset(data, order[rank::world].tolist())
    batches = [[x.to(device) for x in batch] for batch in DataLoader(subset, options.batch_size)]
if bug == "drops the last steps of several ranks" and world > 1:
    batches = batches[: -2 * accum]
for step in range(begun, len(batches) // accum):
    at = 0 if bug == "resume from the first batch" and options.resume and step == begun else step
    micro_batches = batches[at * accum : (at + 1) * accum]
    if bug == "steps after the first micro-batch":
        micro_batches = batches[max(0, (at - 1) * accum + 1) : at * accum + 1]
    if options.ignite:
        schedule.begin()
    tokens = sum((targets[:, 1:] != -100).sum() for _, targets in micro_batches).float()
    dist.all_reduce(tokens)
    for number, (ids, targets) in enumerate(micro_batches):
        is_last = number == accum - 1
        with contextlib.nullcontext() if is_last or bug == "no all-reduce" else trained.no_sync():
            with torch.autocast(**amp, enabled=bool(options.amp)):
                output = trained(ids)
            logits = output.logits if options.dataclass else output
            loss = nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1).float(), targets[:, 1:].flatten(), reduction="sum"
            )
            loss = loss * world * accum / tokens  # the mean over the tokens of all micro-batches
            loss = loss if bug == "never divided by k" else loss / accum
            loss = loss / accum if bug == "divided by k twice" else loss
            loss = loss * world if bug == "summed over ranks" else loss
            scaler.scale(loss).backward()
        if bug == "shrinks in each micro-batch":
            shrink()
        if bug == "clips each micro-batch":
            clip()
        if bug == "zero_grad in each micro-batch" and not is_last:
            optimizer.zero_grad()
    if (options.clip or options.clip_value) and bug != "clips each micro-batch":
        if bug not in ("clips what is scaled", "clips before unscale_"):
            scaler.unscale_(optimizer)
        clip()
        if bug == "clips before unscale_":
            scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    if bug == "shrinks after each step" or (bug == "shrinks on several ranks" and world > 1):
        shrink()
    schedule.step()
    if bug == "schedule by micro-batch":
        for _ in range(accum - 1):
            schedule.step()
    if bug != "no zero_grad":
        optimizer.zero_grad()
    if options.save and step + 1 == options.save_at and rank == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        state |= {"schedule": schedule.state_dict(), "random": torch.get_rng_state()}
        state["scaler"] = scaler.state_dict()
        torch.save({**state, "step": step + 1}, f"{options.save}/state.pt")
