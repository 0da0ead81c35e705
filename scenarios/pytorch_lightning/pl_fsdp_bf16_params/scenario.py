"""FSDP with bf16-mixed makes the weights in bf16: there are no fp32 masters, small updates vanish.

This affects users of Lightning who make their model in ``configure_model``, or in Fabric's
``init_module``, as is recommended for FSDP. Mixed precision promises weights in fp32 that are only
computed with in bf16. Here the optimizer holds bf16 weights, and an update below 0.2 to 0.4 % of a
weight is rounded away: with a small rate, the weights do not move at all. The loss is finite, and
models that are made in ``__init__`` are right.

Root cause: pull request 21361 let ``FSDPPrecision.module_init_context`` take the dtype of the
computation, ``param_dtype``, instead of the dtype of the weights. For 16-true and 32-true both are
the same. The fix goes back to the dtype of the weights.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from harness.bugs import api

WIDTH = 4


def plan(at: api.Position) -> api.Plan:
    """How far the weights have moved since the start, and how many bits each of them has."""
    facts = {"moved": api.alike(api.NUMBER), "bits": api.alike(api.COUNT)}
    return {"step": api.Kind(facts, api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Train a linear map under torch's FSDP with the contexts and dtypes of Lightning's plugin.

    Lightning's FSDPStrategy itself demands a GPU. All inputs are 1, so that all gradients are 1.
    """
    import torch
    import torch.distributed as dist
    from pytorch_lightning.plugins.precision import FSDPPrecision
    from torch.distributed.fsdp import FullyShardedDataParallel

    dist.init_process_group(ctx.lane.backend)
    p, precision = ctx.params, FSDPPrecision("bf16-mixed")
    making: Any = precision.module_init_context() if p.made == "configure_model" else nullcontext()
    with making:
        linear = torch.nn.Linear(WIDTH, 1, bias=False)
    torch.nn.init.ones_(linear.weight)
    mixed = precision.mixed_precision_config
    model: Any = FullyShardedDataParallel(linear, mixed_precision=mixed, device_id=ctx.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=p.lr)
    for step in api.each(p.steps):
        with precision.forward_context():
            loss = model(torch.ones(2, WIDTH, device=ctx.device)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with FullyShardedDataParallel.summon_full_params(model, writeback=False):
            weight = next(model.parameters())
            distance, bits = 1 - float(weight.double().mean()), 8 * weight.element_size()
        ctx.record("step", step, moved=distance, bits=bits)


def detect(records: api.Records) -> api.Finding | None:
    """The weights are in 16 bits, and no step moves them."""
    steps, lr = records.of("step", 0), records.params.lr
    faults = [step for step in steps if not api.near(step["moved"], lr * step["step"], share=1e-3)]
    if not faults:
        return None
    end = steps[-1]
    return api.Finding(
        f"after {end['step']} steps the weights of {end['bits']} bits have moved by "
        f"{end['moved']:.3g}, not by {lr * end['step']:.3g}",
        step=faults[0]["step"],
        ranks=records.ranks,
        magnitude=abs(1 - end["moved"] / (lr * end["step"])),
        unit="of the updates lost",
        documented=all(step["bits"] == 16 and not step["moved"] for step in steps),
    )


picture = api.lines(
    "How far the weights have moved",
    "with the bug they do not move; otherwise each step moves them by the rate",
    lambda step: step["moved"],
    y="distance from the start",
)
