"""The gradient of mse_loss of a DTensor split by rows is multiplied by the number of ranks.

Predictions and targets are DTensors, split by rows over the ranks, and ``mse_loss`` is their loss.
Its value is right. Its gradient is multiplied by the number of ranks: here it is doubled on two.
``binary_cross_entropy``, ``smooth_l1_loss``, ``huber_loss`` and ``soft_margin_loss`` have the same
fault. It acts on SGD like a larger learning rate, and if the loss is added to another one, it
weighs too much. Up to 2.10, torch refused these losses of DTensors.

Root cause: DTensor has no rule of its own for the backward pass of these losses. It derives one
from the decomposition into simple operations, which is traced with the size of the whole tensor,
and finds that each rank can work on its rows. But then each rank runs the original operation, which
divides by the number of elements that it sees: those of its own rows.

torch 2.15.0 still has the bug: as released, it is the buggy variant. The fixed variant is our
remedy: the rule that is derived for an operation with a mean asks for the whole tensor on each
rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import applied, plain_loss, usual_checks
from scenarios.common.line_edits import followed, setting

if TYPE_CHECKING:
    from torch import Tensor

FEATURES, OUTPUTS = 16, 4


# An argument that has its default, as the mean of binary_cross_entropy, is not in args_schema.
WHOLE = """
if 1 in [
    op_schema.args_schema[place] if place < len(op_schema.args_schema) else argument.default_value
    for place, argument in enumerate(op_schema.op._schema.arguments)
    if argument.name == "reduction"
]:
    candidate_placements = [
        placements
        for placements in candidate_placements
        if all(placement in (None, Replicate()) for placement in placements)
    ]
"""


def whole_for_mean(function: Any) -> api.Edits:
    """For an operation that divides by a number of elements, all ranks get the whole tensors."""
    yield from followed(setting(function, "candidate_placements"), WHOLE.strip())


@dataclass(frozen=True)
class Local(api.Fields):
    """What this rank has of the predictions."""

    rows: api.Count
    elements: api.Count


@dataclass(frozen=True)
class Step(applied.Step):
    loss: api.Size
    local: Local


def by_ranks(step: Step, records: api.Records) -> bool:
    """Each step applied the right gradient times the number of ranks. The loss is right."""
    return step.times(len(records.ranks))


oracle = applied.Applied(
    Step,
    by_ranks,
    parts=lambda at: 1,
    replicas=True,
    loss="whole",
    words=applied.of_first,
    reason="exactly that follows if each rank divides by its own 1/{ranks} of the elements",
    checks=[plain_loss.loss_unlike_reference, usual_checks.loss_rises, applied.same_direction],
)


def run(ctx: api.Context) -> None:
    """Train a linear map whose predictions are a DTensor, split by rows."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor
    from torch.distributed.tensor.placement_types import Replicate, Shard

    from scenarios.common import plain_torch

    p = ctx.params
    import_module("torch.distributed.tensor._decompositions")  # 2.11 imports it with the first rule
    dist.init_process_group(ctx.lane.backend)
    mesh = init_device_mesh(ctx.device.type, (ctx.world_size,))
    generator = torch.Generator().manual_seed(ctx.seed + 1)
    shapes = (p.rows, FEATURES), (p.rows, OUTPUTS), (OUTPUTS, FEATURES)
    inputs, labels, weight = (torch.randn(s, generator=generator).to(ctx.device) for s in shapes)
    if p.loss == "soft_margin_loss":
        labels = labels.sign()
    if p.loss == "binary_cross_entropy":
        labels = labels.sigmoid()
    placement = Shard(0) if p.split else Replicate()
    parted = [distribute_tensor(part, mesh, [placement]) for part in (inputs, labels)]
    head: Any = torch.nn.Parameter(distribute_tensor(weight, mesh, [Replicate()]))
    optimizer = torch.optim.SGD([head], lr=p.lr)

    def plain(leaves: Mapping[str, Tensor], rows: tuple[Tensor, Tensor]) -> Tensor:
        return _loss(p, rows[0] @ leaves["weight"].T, rows[1])

    for step in api.each(p.steps):
        before = {"weight": head.detach().full_tensor().clone()}
        predictions = parted[0] @ head.T
        loss: Any = _loss(p, predictions, parted[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        after = {"weight": head.detach().full_tensor().clone()}
        expected = plain_torch.differentiate(plain, before, [(inputs, labels)])
        local: Any = predictions.detach()
        ctx.record(
            "step",
            step,
            loss=float(loss.detach().full_tensor()),
            local={"rows": len(local.to_local()), "elements": local.to_local().numel()},
            **plain_torch.facts(expected, before, after, p.lr),
        )


def _loss(p: Any, predictions: Tensor, labels: Tensor) -> Tensor:
    """The loss, of plain tensors or of DTensors."""
    from torch.nn import functional

    if p.loss == "binary_cross_entropy":
        predictions = predictions.sigmoid()
    if p.loss == "written_out":
        return (predictions - labels).square().mean()
    loss: Tensor = getattr(functional, p.loss)(predictions, labels, reduction=p.reduction)
    return loss


def exercised(records: api.Records) -> api.Exercise:
    """A loss with a mean and a backward pass of its own got tensors that were split."""
    p = records.params
    rows = max(step.local.rows for step in records.typed(Step))
    text = f"{p.loss} with a {p.reduction} of {p.rows} rows, {rows} of them on a rank"
    fused = p.loss != "written_out" and p.reduction == "mean"
    return api.Exercise.of(fused and rows < p.rows, text)
