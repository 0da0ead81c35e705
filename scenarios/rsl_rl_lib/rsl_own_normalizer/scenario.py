"""Each rank of rsl_rl normalizes its observations with statistics of its own.

This affects users who train a policy on several GPUs with ``empirical_normalization`` (later
``obs_normalization``). rsl_rl averages the gradients of the ranks, but each rank's policy sees
observations of another scale, so the ranks do not train one function. The checkpoint has the
statistics of rank 0 alone: the policy is then used with a normalization that the other ranks never
had. The more the environments of the ranks differ, for example in their terrain, the more it costs.

Root cause: ``EmpiricalNormalization.update`` computes the mean and variance of the rows that it
gets, and never asks other ranks. Since the fix it reduces counts, means and variances over them.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.common import all_rows


def own(record: api.Record, records: api.Records) -> bool:
    """A rank's mean is exactly that of the observations which this rank saw."""
    return api.near(record["value"], record["own"], share=1e-5)


oracle = all_rows.AllRows(
    own, "mean by which observations are normalized", lambda at: {"own": api.NUMBER}, share=1e-5
)


def run(ctx: api.Context) -> None:
    """Update upstream's normalizer with observations whose mean depends on the rank."""
    import torch
    import torch.distributed as dist

    try:
        from rsl_rl.modules import EmpiricalNormalization
    except ImportError:  # 3.1 to 3.3
        from rsl_rl.networks import EmpiricalNormalization

    p = ctx.params
    dist.init_process_group(ctx.lane.backend)
    generator = torch.Generator().manual_seed(ctx.seed)
    terrains = torch.zeros(ctx.world_size) if p.alike else torch.arange(ctx.world_size) + 1.0
    noise = torch.randn(p.steps, p.rows, generator=generator)
    rows = noise.expand(ctx.world_size, -1, -1) + terrains[:, None, None]
    normalizer = EmpiricalNormalization([1]).to(ctx.device)
    for step in api.each(p.steps):
        normalizer.update(rows[ctx.rank, step - 1, :, None].to(ctx.device))
        before = rows[:, :step]
        ctx.record(
            "value",
            step,
            value=float(normalizer.mean),
            own=float(before[ctx.rank].mean()),
            right=float(before.mean()),
        )
