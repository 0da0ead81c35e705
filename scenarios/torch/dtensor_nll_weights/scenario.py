"""The mean cross_entropy of a DTensor that is split by rows has a wrong value with class weights.

The mean with class weights is a quotient: the weighted sum of the losses, divided by the sum of the
weights. So is the mean with ``ignore_index``: there ignored rows weigh nothing. If logits are a
DTensor that is split by rows, each rank computes its own quotient, and DTensor averages these. That
is right only if the rows of all ranks weigh the same. Here the reported loss is up to 8 % too high.
The gradients are right, so training itself is not harmed. But everything that uses the value of the
loss is wrong: early stopping, perplexities, comparisons with another layout.

Root cause: DTensor's rule for the forward pass of ``nll_loss`` declares the result of the parts as
a mean to be averaged. The backward pass gets the sum of all weights instead, and is right.

torch 2.13.0 has the bug: as released, it is the buggy variant. torch 2.15.0 has a new rule, which
gathers the rows for a mean. The fixed variant is our remedy, which makes the old rule do the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

from harness.bugs import api
from scenarios.common import applied, usual_checks
from scenarios.common.call_edits import wrapped

if TYPE_CHECKING:
    from torch import Tensor

FEATURES, CLASSES = 16, 4
TARGETS = {
    "classes": [0, 0, 0, 0, 1, 2, 3, 3],
    "ignored": [0, -100, -100, -100, 1, 2, 3, 3],
    "none": [0, 0, 0, 0, 1, 2, 3, 3],
}
"""The targets of all rows: those of the first rank weigh less, by class or because of -100."""
WEIGHTS = [1.0, 5.0, 5.0, 5.0]

ROUNDING = 1e-5
"""How far (as a fraction) a loss may be from another."""


def gathered_for_mean(function: Any) -> api.Edits:
    """For a mean, the rule asks for all rows on each rank; the target follows the input."""
    whole = "tuple([Replicate()] * mesh.ndim)"
    mean = "reduction == Reduction.MEAN.value"
    yield from wrapped(function, "replicate_reduction_dims", f"{whole} if {mean} else _")


def weighed(name: str) -> dict[str, Any]:
    """The parameters of a variant whose rows are weighed in another way."""
    return {"weigh": name}


@dataclass(frozen=True)
class Step(applied.Step):
    loss: Annotated[float, api.alike(api.SIZE)]
    of_parts: api.Size
    """The mean of the ranks' own losses."""
    rows: api.Count
    counted: list[float]
    """The weight of each rank's rows."""


def mean_of_parts(step: Step, _: api.Records) -> bool:
    """The loss is not plain torch's, but the mean of the ranks' own. The gradient is right."""
    return api.near(step.loss, step.of_parts, share=ROUNDING)


def facts(at: api.Position) -> api.Facts:
    """What depends on the number of ranks."""
    return {
        "rows": api.exactly(len(TARGETS["none"]) // at.world_size),
        "counted": api.many(api.SIZE, at.world_size),
    }


@dataclass(frozen=True)
class Reported(applied.Applied[Step]):
    """The loss is judged, and a wrong gradient is another fault."""

    unit = "of the right loss"

    def is_right(self, step: Step, records: api.Records) -> bool:
        return api.near(step.loss, step.reference_loss, share=ROUNDING)

    def error(self, step: Step, records: api.Records) -> float:
        return abs(step.loss / step.reference_loss - 1)

    def describe(self, wrong_steps: Sequence[Step], records: api.Records) -> Iterator[str]:
        step = wrong_steps[0]
        yield f"the loss of step {step.step} is {step.loss:.5g}, not {step.reference_loss:.5g}"

    def odd(self, records: api.Records) -> list[str]:
        return [str(step) for step in records.typed(Step) if not step.times(1)][:1]


oracle = Reported(
    Step,
    mean_of_parts,
    parts=lambda at: 1,
    facts=facts,
    reason="exactly that is the mean of the losses that each rank has on its own rows",
    checks=[applied.same_direction, usual_checks.loss_rises],
)


def run(ctx: api.Context) -> None:
    """Train a linear classifier on logits that are a DTensor, split by rows."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.nn.functional import cross_entropy

    from scenarios.common import plain_torch

    p, tensor = ctx.params, _tensor()
    dist.init_process_group(ctx.lane.backend)
    mesh = init_device_mesh(ctx.device.type, (ctx.world_size,))
    generator = torch.Generator().manual_seed(ctx.seed + 1)
    targets = torch.tensor(TARGETS[p.weigh], device=ctx.device)
    inputs = torch.randn(len(targets), FEATURES, generator=generator).to(ctx.device)
    weight = torch.randn(CLASSES, FEATURES, generator=generator).to(ctx.device) / 4
    weights = torch.tensor(WEIGHTS, device=ctx.device) if p.weigh == "classes" else None
    parted = [tensor.distribute_tensor(part, mesh, [tensor.Shard(0)]) for part in (inputs, targets)]
    head: Any = torch.nn.Parameter(tensor.distribute_tensor(weight, mesh, [tensor.Replicate()]))
    optimizer = torch.optim.SGD([head], lr=p.lr)
    spread = None
    if weights is not None:
        spread = tensor.distribute_tensor(weights, mesh, [tensor.Replicate()])

    def plain(leaves: Mapping[str, Tensor], rows: Any) -> Tensor:
        logits = rows[0] @ leaves["weight"].T
        return cross_entropy(logits, rows[1], weights, reduction=p.reduction)

    chunks = [part.chunk(ctx.world_size) for part in (inputs, targets)]
    for step in api.each(p.steps):
        before = {"weight": head.detach().full_tensor().clone()}
        logits = parted[0] @ head.T
        loss: Any = cross_entropy(logits, parted[1], spread, reduction=p.reduction)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        after = {"weight": head.detach().full_tensor().clone()}
        expected = plain_torch.differentiate(plain, before, [(inputs, targets)])
        parts = plain_torch.differentiate(plain, before, zip(*chunks, strict=True)).losses
        ctx.record(
            "step",
            step,
            loss=float(_whole(loss.detach())),
            of_parts=sum(parts) / len(parts),
            rows=len(parted[0].to_local()),
            counted=[_counted(part, weights) for part in chunks[1]],
            **plain_torch.facts(expected, before, after, p.lr),
        )


def _release() -> tuple[int, ...]:
    """Of torch: (2, 13)."""
    import torch

    return tuple(map(int, torch.__version__.split(".")[:2]))


def _tensor() -> Any:
    """The module of DTensor; before 2.5 it had no public name."""
    return import_module(f"torch.distributed.{'tensor' if _release() >= (2, 5) else '_tensor'}")


def _whole(loss: Any) -> Tensor:
    """The loss of all ranks, as DTensor declares it. gloo before torch 2.9 has no mean, so a mean
    of the ranks' parts is their sum, divided here."""
    import torch.distributed as dist

    (placement,) = loss.placements
    averaged = str(getattr(placement, "reduce_op", "")).lower().endswith("avg")
    if not (averaged and _release() < (2, 9) and dist.get_backend() == "gloo"):
        whole: Tensor = loss.full_tensor()
        return whole
    total = loss.to_local().clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def _counted(targets: Tensor, weights: Tensor | None) -> float:
    """The total weight of these rows."""
    labels = targets[targets >= 0]
    return float(len(labels)) if weights is None else float(weights[labels].sum())


def exercised(records: api.Records) -> api.Exercise:
    """The loss was a mean, and the ranks' rows weighed differently."""
    step, p = records.typed(Step)[0], records.params
    counted = " and ".join(f"{count:g}" for count in step.counted)
    text = f"the ranks' rows weighed {counted}, and the loss was their {p.reduction}"
    return api.Exercise.of(p.reduction == "mean" and len(set(step.counted)) > 1, text)


picture = api.bars(
    "The reported loss, as a share of the right one",
    "with the bug the mean of the ranks' own losses is reported",
    lambda records: (
        (f"step {step['step']}", step["loss"] / step["reference_loss"])
        for step in records.of("step", 0)
    ),
    "times the right loss",
    {"right": 1.0},
)
