"""Prodigy under FSDP multiplies its numerator by the number of ranks in each step.

Prodigy chooses its step size d by the quotient of two sums over all parameters, which it keeps from
step to step. Under FSDP each rank has a part of the parameters, so the ranks add their parts. From
the third step on the numerator is too large. While d grows, it is larger than in one process: here
by up to 31 % on 2 ranks, and twice as large on 4 ranks. All ranks have the same d and the loss goes
down at first, so nothing says that it is wrong.

Root cause: ``Prodigy.step`` adds the rank's part to ``d_numerator``, and then adds that up over all
ranks. But ``d_numerator`` already is the sum over all ranks of the step before. Since 1.1.2 only
the new parts are added up.
"""

from __future__ import annotations

import math
from typing import Any

from harness.bugs import api

BETA_3 = math.sqrt(0.999)
"""By which Prodigy's defaults multiply the numerator in each step."""
TOLERANCE = 1e-3
"""How far (as a fraction) a number may be from that of one process."""


def plan(at: api.Position) -> api.Plan:
    """Prodigy's numbers after each step, under FSDP and in one process."""
    of = api.held({name: api.alike(api.NUMBER) for name in ("d", "numerator")})
    facts = {"fsdp": api.alike(of), "alone": api.alike(of), "sharded": api.FLAG}
    return {"step": api.Kind(facts, api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Train a small network under FSDP, and the same in one process."""
    import copy

    import torch
    import torch.distributed as dist
    from prodigyopt import Prodigy
    from torch import nn
    from torch.distributed.fsdp import FullyShardedDataParallel

    dist.init_process_group(ctx.lane.backend)
    torch.manual_seed(ctx.seed)
    plain = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).to(ctx.device)
    size = sum(weight.numel() for weight in plain.parameters())
    fsdp = FullyShardedDataParallel(copy.deepcopy(plain), device_id=ctx.device)
    inputs = torch.randn(ctx.params.rows, 6, device=ctx.device)
    mine = inputs.chunk(ctx.world_size)[ctx.rank]
    trained: dict[str, Any] = {"fsdp": (fsdp, Prodigy(fsdp.parameters()), mine)}
    trained["alone"] = plain, Prodigy(plain.parameters()), inputs
    share = sum(weight.numel() for weight in fsdp.parameters())

    for number in api.each(ctx.params.steps):
        facts = {name: _step(*parts) for name, parts in trained.items()}
        ctx.record("step", number, **facts, sharded=share < size)


def _step(model: Any, optimizer: Any, rows: Any) -> dict[str, float]:
    optimizer.zero_grad()
    (model(rows) - rows.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    group = optimizer.param_groups[0]
    return {"d": float(group["d"]), "numerator": float(group["d_numerator"])}


def detect(records: api.Records) -> api.Finding | None:
    """The first wrong number is the numerator, by the numerator of the step before for each further
    rank; later steps have another d than one process."""
    steps = records.of("step", 0)
    faults = [step for step in steps if _odd(step, "d") or _odd(step, "numerator")]
    if not faults:
        return None
    start, worst = faults[0], max(faults, key=_apart)
    before = [step["fsdp"]["numerator"] for step in steps if step["step"] == start["step"] - 1]
    again = (len(records.ranks) - 1) * BETA_3 * sum(before)
    alone, numerator = start["alone"]["numerator"], start["fsdp"]["numerator"]
    documented = bool(again) and api.near(numerator, alone + again, share=TOLERANCE)
    lines = [f"step {start['step']}: the numerator is {numerator:.4g}, in one process {alone:.4g}"]
    lines += ["exactly that follows if the sum of the step before is added up again"] * documented
    lines += [f"step {worst['step']}: d is {_apart(worst):.3g} of the right one off"]
    text, apart, unit = "\n".join(lines), _apart(worst), "of the right d"
    ranks = records.ranks
    return api.Finding(text, start["step"], (), ranks, apart, unit, documented=documented)


def _odd(step: api.Record, name: str) -> bool:
    return not api.near(step["fsdp"][name], step["alone"][name], within=1e-12, share=TOLERANCE)


def _apart(step: api.Record) -> float:
    return float(abs(step["fsdp"]["d"] / step["alone"]["d"] - 1))


def exercised(records: api.Records) -> api.Exercise:
    """Several ranks had a part of the parameters each."""
    ranks, sharded = len(records.ranks), all(step["sharded"] for step in records.of("step"))
    return api.Exercise.of(ranks > 1 and sharded, f"{ranks} ranks share the weights", "one rank")


picture = api.lines(
    "Prodigy's step size d under FSDP, as a part of that of one process",
    "with the bug d is larger than in one process, without it they are equal",
    lambda step: step["fsdp"]["d"] / step["alone"]["d"],
    y="times the right d",
)
