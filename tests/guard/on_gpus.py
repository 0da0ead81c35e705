"""What guard costs and finds on GPUs: ``python -m tests.guard.on_gpus --gpus 2``.

Each kind of training of a GPT runs without guard, with it, and the same again, each time in
processes of its own under torchrun. The table has the mean step, guard's checks and its cost.

    python -m tests.guard.on_gpus --gpus 4 --kinds ddp,zero1,zero3 --seconds 20
    python -m tests.guard.on_gpus --gpus 2 --kinds ddp --seconds 1200 --runs guard
    python -m tests.guard.on_gpus --gpus 2 --kinds ddp --fault bit --runs guard
    python -m tests.guard.on_gpus --gpus 2 --kinds ddp --size 4,256     # share one GPU
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from harness.rank import gpu_places
from harness.system.text import markdown_table

WORDS, LENGTH, ROWS = 32_000, 512, 8
SIZES = {"compile": (12, 768), "fsdp2": (24, 1920)}
"""Blocks and width; the others have 24 blocks of width 1024: 368 million parameters."""
USUAL = (24, 1024)
FIRST = 20
"""Steps that are left out of the mean."""
FAULT_AT = 40


class Block(nn.Module):
    """A transformer's block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        heads = self.qkv(self.norms[0](x)).view(rows, length, 3, width // 64, 64)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Gpt(nn.Module):
    """Returns the loss of the next words."""

    def __init__(self, blocks: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words[:, :-1])
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), words[:, 1:].flatten())


Step = Callable[[torch.Tensor], None]


def gpt(kind: str, size: str) -> Gpt:
    """The GPT of a kind of training, or one of another size, such as ``4,256``."""
    blocks, width = map(int, size.split(",")) if size else SIZES.get(kind, USUAL)
    return Gpt(blocks, width).cuda()


def with_torch(kind: str, model: nn.Module, fault: str) -> tuple[nn.Module, Step]:
    """A model under DDP or FSDP2 with a fused Adam, and a step of its training."""
    if kind == "fsdp2":
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        for block in model.blocks:  # type: ignore[union-attr]
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    else:
        model = nn.parallel.DistributedDataParallel(model)
    trained = torch.compile(model) if kind == "compile" else model
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)

    def step(rows: torch.Tensor) -> None:
        alone = fault == "sync" and isinstance(model, nn.parallel.DistributedDataParallel)
        with model.no_sync() if alone else nullcontext():  # type: ignore[operator]
            with torch.autocast("cuda", torch.bfloat16, enabled=kind != "fsdp2"):
                loss = trained(rows)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def with_deepspeed(kind: str, model: nn.Module, _: str) -> tuple[nn.Module, Step]:
    """An engine of DeepSpeed in bf16, and a step of its training."""
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": ROWS,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": int(kind[-1])},
    }
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    engine, *_rest = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    def step(rows: torch.Tensor) -> None:
        engine.backward(engine(rows))
        engine.step()

    return engine, step


def train(kind: str, size: str, seconds: float, fault: str) -> None:
    """Train on this rank; rank 0 prints its steps and their milliseconds as JSON."""
    gpu_places.take_place()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    make = with_deepspeed if kind.startswith("zero") else with_torch
    model, step = make(kind, gpt(kind, size), fault)
    torch.manual_seed(dist.get_rank())
    times: list[float] = []
    is_over = torch.zeros(1, device="cuda")
    began = 0.0
    while not is_over:
        if len(times) == FAULT_AT and fault == "bit" and dist.get_rank() == 1:
            flip_bit(next(model.parameters()))
        start = time.monotonic()
        for _ in range(10):
            step(torch.randint(WORDS, (ROWS, LENGTH + 1), device="cuda"))
        torch.cuda.synchronize()
        times += [(time.monotonic() - start) * 100] * 10
        if len(times) == FIRST:  # compiled, and checked for the first time
            began = time.monotonic()
        is_over += len(times) > FIRST and time.monotonic() - began > seconds
        dist.broadcast(is_over, 0)
    if dist.get_rank() == 0:
        values = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
        print(json.dumps({"steps": len(times), "ms": times[FIRST:], "millions": values / 1e6}))
    dist.destroy_process_group()


def flip_bit(weight: torch.Tensor) -> None:
    """Change one bit of one value, as a faulty memory does."""
    with torch.no_grad():
        weight.view(torch.int32).view(-1)[12_345] ^= 1 << 22


def run(kind: str, is_guarded: bool, options: argparse.Namespace) -> tuple[str, ...]:
    """A row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        ours = ["--train", kind, "--size", options.size, "--fault", options.fault]
        ours += ["--seconds", str(options.seconds)]
        torchrun = ["torch.distributed.run", "--nproc-per-node", str(options.gpus)]
        command = [sys.executable, "-m", *torchrun, "-m", "tests.guard.on_gpus", *ours]
        if is_guarded:
            command = [sys.executable, "-m", "harness", "guard", "--out", folder, *command]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [line for line in process.stdout.splitlines() if line.startswith('{"steps"')]
        if not lines:
            print(process.stdout[-2000:], process.stderr[-4000:], file=sys.stderr, sep="\n")
            return kind, "guard" if is_guarded else "", f"failed: exit code {process.returncode}"
        training = json.loads(lines[0])
        row = (
            f"{kind}, {training['millions']:.0f} million",
            "guard" if is_guarded else "",
            str(training["steps"]),
            f"{statistics.mean(training['ms']):.1f} ms",
            f"{statistics.median(training['ms']):.1f} ms",
        )
        return (*row, *(of_guard(Path(folder)) if is_guarded else ()))


def of_guard(folder: Path) -> Iterator[str]:
    """Guard's checks, its cost and its alarms."""
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    yield str(len(summary["checked"]))
    yield f"{summary['cost_percent']:.2f} %"
    yield (
        "; ".join(f"step {f['step']}: {f['check']}: {f['text']}" for f in summary["faults"]) or "-"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--kinds", default="ddp,fsdp2,compile,zero1,zero2,zero3")
    parser.add_argument("--size", default="", help="blocks and width: 4,256")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each training")
    parser.add_argument("--runs", default=",guard,,guard", help="without guard, with it, ...")
    parser.add_argument("--fault", default="", choices=("", "sync", "bit"))
    parser.add_argument("--train", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train, options.size, options.seconds, options.fault)
        return
    rows = []
    for kind in options.kinds.split(","):
        for guarded in options.runs.split(","):
            row = run(kind, guarded == "guard", options)
            print(*row, sep=" | ", flush=True)
            rows.append([*row, *[""] * (8 - len(row))])
    heading = ("training", "", "steps", "mean step", "median", "checks", "cost", "alarms")
    print(markdown_table(heading, rows))


if __name__ == "__main__":
    main()
