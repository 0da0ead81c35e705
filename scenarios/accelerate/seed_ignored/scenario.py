"""A shuffled DataLoader on several ranks has the same order of samples with every seed.

A user calls ``set_seed`` and lets accelerate prepare a DataLoader with ``shuffle=True``. On more
than one rank the order of the samples does not depend on the seed. The initial weights and the
dropout do depend on it. Each epoch has another order, and a run with the same seed gives the same
result. So nothing shows the bug.

This affects users who repeat a training with several seeds, to learn how much the result depends on
chance. The order of the data is the same in all their runs.

Root cause: if the sampler has no generator, ``prepare`` creates one, so that the ranks can share
its state. Nobody seeds it, and each new generator of torch starts from the same constant. The fix
draws a seed for it from the global generator. 0.13.2 did so too, but 0.14.0 lost that line. From
0.25.0 to 0.29.3 ``prepare`` created no generator: this bug was absent, but these releases have
another one, ``sampler_shards``. The fix of that one in 0.30.0 brought this bug back.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.accelerate import _coverage as coverage

BATCH = 4
"""Samples in a batch of a rank."""


def plan(at: api.Position) -> api.Plan:
    """The epochs of three loaders: a rank's samples, and the order of all on each rank."""
    facts = {
        "seen": api.many(api.COUNT),
        "order": api.alike(api.many(api.COUNT)),
        "seed": api.alike(api.WHOLE),
    }
    return {"epoch": api.Kind(facts, [*api.each(at.params.epochs)] * 3)}


def run(ctx: api.Context) -> None:
    """Set a seed, another one and the first again; each time prepare a new loader and read it."""
    import torch
    from accelerate.utils import set_seed
    from torch.utils.data import DataLoader

    from scenarios.accelerate._accelerator import accelerator

    engine = accelerator(ctx)
    samples: Any = range(ctx.params.samples)
    for seed in (ctx.seed, ctx.seed + 1, ctx.seed):
        set_seed(seed)
        generator = torch.Generator().manual_seed(seed) if ctx.params.generator == "own" else None
        loader = DataLoader(samples, batch_size=BATCH, shuffle=True, generator=generator)
        coverage.watch(ctx, engine.prepare(loader), ctx.params.epochs)


def detect(records: api.Records) -> api.Finding | None:
    """Two different seeds gave the same orders of samples. It counts only if each rank saw its
    own part of the order, and if a seed that was set again gave the same order again."""
    n, orders = records.params.epochs, [one["order"] for one in records.of("epoch", 0)]
    first_orders, other_orders, again = orders[:n], orders[n : 2 * n], orders[2 * n :]
    if first_orders != again:
        return api.Finding("a seed did not give its orders a second time", documented=False)
    finding = coverage.misdrawn(records, BATCH)
    repeats = sum(a == b for a, b in zip(first_orders, other_orders, strict=True))
    if finding or not repeats:
        return finding
    text = f"{repeats} of {n} epochs have the same order with both seeds"
    return api.Finding(text, 1, ranks=records.ranks, clock="epoch", documented=repeats == n)


def exercised(records: api.Records) -> api.Exercise:
    """Under two seeds, the samples were shuffled by a loader without a generator of its own."""
    seeds = sorted({one["seed"] for one in records.of("epoch")})
    generator = records.params.generator
    text = f"the seeds were {' and '.join(map(str, seeds))}, the user's generator: {generator}"
    met = len(seeds) == 2 and generator == "none"
    return coverage.shuffled(records) & api.Exercise.of(met, text)


picture = api.grid(
    "The order of the first epoch",
    "with the bug all rows are alike; otherwise the second seed has an order of its own",
    lambda records: (
        (place, f"{number}: seed {one['seed']}", sample)
        for number, one in enumerate(records.of("epoch", 0)[:: records.params.epochs], 1)
        for place, sample in enumerate(one["order"], 1)
    ),
    x="place",
    y="loader",
    value="sample",
)
