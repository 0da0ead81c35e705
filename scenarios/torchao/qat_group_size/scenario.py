"""Int4 quantization-aware training rounds in groups of 128 weights, whatever size is configured.

This affected trainings that prepare a model with torchao's ``QATConfig`` and
``Int4WeightOnlyConfig(group_size=32)``, or another size than 128. The model learns to live with the
rounding of groups of 128 weights. When the training ends, the same configuration converts the
weights in groups of 32. So the model that was trained is not the one that is used: with a smaller
group the training fought a rounding error that is never there, and with a larger one it never saw
the error that comes. Nothing is printed, and the loss falls.

Root cause: the function that infers how to simulate a quantization passes ``group_size=128`` for
int4 weights, and never reads the group size of the configuration. Its twin for int4 weights with
8-bit activations reads it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from harness.bugs import api

SIZES = (32, 64, 128, 256)
"""The sizes of groups that a weight is examined for."""
COLUMNS, ROWS = 512, 8
"""The inputs and outputs of the layer."""
LEVELS = 16
"""Values that int4 has."""
HARDCODED = 128


def plan(at: api.Position) -> api.Plan:
    """Of each step: the most values in a group of each size, the rounding, and the loss."""
    facts = {"values": api.by_name(api.COUNT), "rounding": api.SIZE, "loss": api.SIZE}
    return {"step": api.Kind(facts, api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Train a layer that torchao has prepared, and record the weight that its forward pass uses.

    The inputs are the rows of an identity matrix, so the outputs are the weight."""
    import torch
    from torchao.quantization import Int4WeightOnlyConfig, quantize_
    from torchao.quantization.qat import QATConfig

    p = ctx.params
    torch.manual_seed(ctx.seed)
    model: Any = torch.nn.Sequential(torch.nn.Linear(COLUMNS, ROWS, bias=False))
    model.to(ctx.device, torch.bfloat16)
    quantize_(model, QATConfig(Int4WeightOnlyConfig(group_size=p.group_size), step="prepare"))
    optimizer = torch.optim.SGD(model.parameters(), lr=p.lr)
    inputs = torch.eye(COLUMNS, device=ctx.device, dtype=torch.bfloat16)
    for step in range(1, p.steps + 1):
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = outputs.float().square().sum()
        loss.backward()
        weight, rounded = model[0].weight.detach().float(), outputs.detach().float().T
        ctx.record(
            "step",
            step,
            values={str(size): _most_values(rounded, size) for size in SIZES},
            rounding=float((rounded - weight).norm() / weight.norm()),
            loss=float(loss),
        )
        optimizer.step()


def _most_values(weight: Any, size: int) -> int:
    """The most different values in a group of ``size`` neighbours of a row."""
    return max(len(group.unique()) for group in weight.reshape(-1, size))


def group_of(step: api.Record) -> int:
    """The largest group with no more values than int4 has; 0 if there is none."""
    return max((size for size in SIZES if step["values"][str(size)] <= LEVELS), default=0)


def detect(records: api.Records) -> api.Finding | None:
    """In every step the forward pass uses weights that are rounded in groups of 128, and the
    configuration has another size."""
    size, steps = records.params.group_size, records.of("step")
    wrong_steps = [step for step in steps if group_of(step) != size]
    if not wrong_steps:
        return None
    groups = sorted({group_of(step) for step in wrong_steps})
    return api.Finding(
        f"{len(wrong_steps)} of {len(steps)} steps round the weight in groups of "
        f"{', '.join(map(str, groups))}; the configuration has {size}; the rounding moves the "
        f"weight by {wrong_steps[0]['rounding']:.3g} of its norm",
        step=wrong_steps[0]["step"],
        ranks=records.ranks,
        magnitude=groups[-1] / size,
        unit="times the configured group",
        documented=len(wrong_steps) == len(steps) and groups == [HARDCODED],
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The weights are rounded, and the loss falls."""
    steps = records.of("step")
    return {
        "the loss does not fall": any(
            later["loss"] >= step["loss"] for step, later in itertools.pairwise(steps)
        ),
        "the weight is not rounded": any(not step["rounding"] for step in steps),
    }


def _by_size(records: api.Records) -> Iterator[tuple[str, float]]:
    for size in SIZES:
        yield f"groups of {size}", records.of("step")[0]["values"][str(size)]


picture = api.bars(
    "The most different values in a group of a rounded weight",
    "int4 has 16; with the bug no group of up to 128 neighbours has more, though 32 is configured",
    _by_size,
    "values",
)
