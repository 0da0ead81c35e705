"""What rank 0 does for a thousand ranks: ``python -m tests.guard.thousand --ranks 1024``.

It makes the posts of ranks that train a model with 70 B parameters, without the model, sends them
through a TCPStore, and prints their bytes, and the CPU seconds in which rank 0 reads and judges
them. The first check describes all parameters. ``--part 48`` looks at so many parameters in a
check. ``--fault`` gives one rank a flipped bit, another gradient and another step.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from harness.detectors.arithmetic import step_by_formula
from harness.rank.guard.checks.views import Memory
from harness.rank.guard.judge import judge
from harness.rank.guard.posting.packing import packed, unpacked
from harness.rank.guard.posting.posts import ParameterFacts, Post, Update
from harness.rank.guard.posting.stores import Store
from harness.rank.guard.reporting.mailbox import _name
from harness.rank.guard.sampling.samples import Positions
from harness.rank.guard.sampling.update_samples import UPDATED
from harness.rank.training.layouts import Described

RATE = 3e-4
GROUP = {
    "lr": RATE,
    "betas": [0.9, 0.95],
    "eps": 1e-8,
    "weight_decay": 0.1,
    "amsgrad": False,
    "maximize": False,
    "foreach": True,
    "capturable": False,
    "differentiable": False,
    "fused": False,
}
SIZES = {"70b": (80, 8192, 28672, 128256), "small": (12, 768, 3072, 50304)}
"""Layers, width, width of the feed-forward part, and words."""


def parameters(model: str) -> Iterator[tuple[str, int, int]]:
    """The names of a Llama's parameters, their rows, and the values of a row."""
    layers, width, inner, words = SIZES[model]
    yield "model.embed_tokens.weight", words, width
    for layer in range(layers):
        at = f"model.layers.{layer}"
        for name, rows in (("q", width), ("k", width // 8), ("v", width // 8), ("o", width)):
            yield f"{at}.self_attn.{name}_proj.weight", rows, width
        yield f"{at}.mlp.gate_proj.weight", inner, width
        yield f"{at}.mlp.up_proj.weight", inner, width
        yield f"{at}.mlp.down_proj.weight", width, inner
        yield f"{at}.input_layernorm.weight", width, 1
        yield f"{at}.post_attention_layernorm.weight", width, 1
    yield "model.norm.weight", width, 1
    yield "lm_head.weight", words, width


@cache
def _ranks(start: int, ranks: int, every: int) -> list[int]:
    return list(range(start, ranks, every))


def sharded(shards: int) -> Callable[[int, int, str, int, int], Described]:
    """FSDP2 on so many ranks, with copies of the shards on the others; 1: DDP."""

    def described(rank: int, ranks: int, name: str, rows: int, row: int) -> Described:
        shard, padded = rank % shards, -(-rows // shards)
        begin, end = (min(at * padded, rows) * row for at in (shard, shard + 1))
        copy = f"{name} shard {shard}" if shards > 1 else name
        everyone = _ranks(0, ranks, 1)
        return Described(
            name, rows * row, end - begin, begin, end, everyone, copy, True, True, "float32"
        )

    return described


def tensor_parallel(parts: int) -> Callable[[int, int, str, int, int], Described]:
    """Matrices are split among some ranks, and gradients averaged among those with one part."""

    def described(rank: int, ranks: int, name: str, rows: int, row: int) -> Described:
        part = rank % parts
        size = rows * row // parts if row > 1 else rows
        copy = f"{name} part {part}" if row > 1 else name
        peers = _ranks(part, ranks, parts)
        return Described(name, size, size, 0, size, peers, copy, True, True, "float32")

    return described


LAYOUTS = {
    "FSDP2": ("70b", lambda ranks: sharded(ranks)),
    "HSDP with 8 copies": ("70b", lambda ranks: sharded(ranks // 8)),
    "TP 8": ("70b", lambda ranks: tensor_parallel(8)),
    "DDP": ("small", lambda ranks: sharded(1)),
}


def posts(model: str, layout: Any, ranks: int, check: int, part: int) -> Iterator[Post]:
    """The posts of a right step."""
    whole = list(parameters(model))
    numbers = [(part * check + n) % len(whole) for n in range(part)] if part else []
    looked = numbers or range(len(whole))
    layouts = [layout(0, ranks, *whole[number]) for number in range(len(whole))]
    counts = [Positions.of(layouts[number].numel, check).count for number in looked]
    computed = torch.randn(ranks, sum(counts), generator=torch.Generator().manual_seed(check))
    step = len(layouts[0].ranks)
    stride = ranks // step
    means = [computed[at::stride].mean(0) for at in range(stride)]
    for rank in range(ranks):
        described = [layout(rank, ranks, *one) for one in whole]
        yield _post(rank, check, described, numbers, computed[rank], means[rank % stride], counts)


def _post(
    rank: int,
    check: int,
    described: list[Described],
    numbers: list[int],
    computed: torch.Tensor,
    mean: torch.Tensor,
    counts: list[int],
) -> Post:
    looked = numbers or list(range(len(described)))
    post = Post(rank, 0, check, check, parameters=ParameterFacts("AdamW", numbers=numbers))
    pieces, places = [], []
    for number, values in zip(looked, mean.split(counts), strict=True):
        parameter = described[number]
        low, high = Positions.of(parameter.numel, check).within(parameter.begin, parameter.end)
        if high > low:
            places += [number, low, high]
            pieces.append(values[low:high])
    post.gradients.computed = {str(number): "bfloat16" for number in looked}
    weights, values = [], []
    for at, number in enumerate(looked):
        size = Positions.of(described[number].size).count
        before, gradient = torch.linspace(-1, 1, size), torch.linspace(0.1, 1, size)
        after = before
        if at < UPDATED and size:
            state = {"exp_avg": 0.1 * gradient, "exp_avg_sq": gradient**2}
            step = step_by_formula("AdamW", GROUP, before, gradient, {**state, "step": check})
            after = before + step
            values += [before, gradient, *state.values()]
            post.parameters.updates.append(Update(number, size, list(state), check, RATE, GROUP))
        weights.append(after)
    texts = [_bits(described[number]) for number in looked]
    post.tensors = {
        "computed": computed.contiguous(),
        "used": torch.cat(pieces) if pieces else torch.zeros(0),
        "places": torch.tensor(places, dtype=torch.int64),
        "weights": torch.cat(weights),
        "updates": torch.cat(values) if values else torch.zeros(0),
        "bits": torch.tensor(texts) + check,
        "losses": torch.tensor([2.0, 2.0, 1.0, 1.0, 1.0]),
    }
    if check == 1:
        post.parameters.described = described
        post.tensors["first_bits"] = torch.tensor(list(map(_bits, described)))
    return post


def _bits(parameter: Described) -> int:
    return hash((parameter.name, parameter.copy))


def damage(post: Post) -> None:
    """A flipped bit, another gradient and another step."""
    post.tensors["bits"][0] ^= 1
    post.tensors["used"][:8] *= 3
    post.tensors["weights"][0] += 1


def measure(name: str, ranks: int, part: int, fault: bool, store: Store) -> None:
    """Print what two checks cost."""
    model, of = LAYOUTS[name]
    memory = Memory()
    for check in (1, 2):
        names, sizes = [], []
        for post in posts(model, of(ranks), ranks, check, part):
            if fault and check == 2 and post.rank == ranks // 2:
                damage(post)
            value = packed(post)
            names.append(_name(0, check, post.rank))
            sizes.append(len(value))
            store.put(names[-1], value)
        started = time.thread_time()
        values = store.take(names) if store.check(names) else []
        started_at = time.thread_time()
        read = [unpacked(value) for value in values]
        judged = time.thread_time()
        alarms = judge(read, memory)
        ended = time.thread_time()
        for post_name in names:
            store.remove(post_name, 1)
        print(
            f"{name}, check {check}: {max(sizes):,} bytes a post, {sum(sizes) / 1e6:.1f} MB; "
            f"{started_at - started:.2f} s to get, {judged - started_at:.2f} s to read, "
            f"{ended - judged:.2f} s to judge; compared {memory.compared}; "
            f"alarms {[(alarm.check, alarm.ranks) for alarm in alarms]}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--layout", choices=LAYOUTS, action="append")
    parser.add_argument("--part", type=int, default=0, help="parameters in a check; 0: all")
    parser.add_argument("--fault", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)  # type: ignore[attr-defined]
    store = Store(server)
    for name in options.layout or LAYOUTS:
        measure(name, options.ranks, options.part, options.fault, store)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{peak:.0f} MB of memory at most, with the posts of all ranks and the store")


if __name__ == "__main__":
    main()
