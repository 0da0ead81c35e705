"""Does each rank apply the mean of all ranks' gradients, or only its own?

The ranks train a linear map by data parallelism, each on its part of every global batch. The
reference is plain torch in one process, on the whole global batch and the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from harness.bugs import api
from scenarios.common import applied, plain_loss, usual_checks

if TYPE_CHECKING:
    from torch import Tensor, nn

Weights = dict[str, "Tensor"]


@dataclass(frozen=True)
class Step(applied.Step):
    """``reference_loss`` is that of the rank's part of the rows, as ``loss`` is."""

    loss: api.Size
    own: applied.Single
    """Beside the rank's own gradient."""
    apart: Annotated[float, api.alike(api.SIZE)]
    """The greatest difference between the weights of any two ranks."""
    parted: Annotated[bool, api.alike(api.FLAG)]
    """Whether the ranks' gradients differ."""


def train(
    ctx: api.Context,
    reference: nn.Module,
    outputs: Callable[[Tensor], Tensor],
    optimizer: Any,
    whole: Callable[[], Weights],
) -> None:
    """Train on this rank's part of ``rows`` rows, and record each step.

    ``outputs`` calls the parallel module; ``whole`` gathers a copy of its weights, under the names
    of ``reference``, the plain module.
    """
    from scenarios.common import linear

    def backward(part: linear.Rows) -> Tensor:
        loss = linear.loss(outputs(part[0]), part[1])
        loss.backward()
        return loss

    train_by(ctx, reference, backward, optimizer, whole)


def train_by(
    ctx: api.Context,
    reference: nn.Module,
    backward: Callable[[tuple[Tensor, Tensor]], Tensor],
    optimizer: Any,
    whole: Callable[[], Weights],
) -> None:
    """Do as ``train`` does; ``backward`` computes the gradients of a part, and returns its loss."""
    from scenarios.common import linear, plain_torch

    p = ctx.params
    plain_loss = plain_torch.loss_of(reference, linear.loss)
    data = linear.batches(ctx, reference, p.rows, distance=2.0, noise=0.5)
    for step, batch in zip(api.each(p.steps), data, strict=False):
        parts = list(zip(*(part.chunk(ctx.world_size) for part in batch), strict=True))
        before = whole()
        plain = plain_torch.differentiate(plain_loss, before, parts)
        own_plain = plain_torch.differentiate(plain_loss, before, [parts[ctx.rank]])
        loss = backward(parts[ctx.rank])
        optimizer.step()
        optimizer.zero_grad()
        after = whole()
        alone = plain_torch.facts(own_plain, before, after, p.lr)
        facts = plain_torch.facts(plain, before, after, p.lr)
        ctx.record(
            "step",
            step,
            loss=float(loss.detach()),
            **{**facts, "reference_loss": alone["reference_loss"]},  # that of the rank's part
            own=alone,
            apart=apart(after),
            parted=any(micro["weight"].ne(plain.micro[0]["weight"]).any() for micro in plain.micro),
        )


def apart(weights: Weights) -> float:
    """The greatest difference between the weights of any two ranks; a collective call."""
    import torch

    copies = of_all_ranks(torch.cat([weight.flatten() for weight in weights.values()]))
    stacked = torch.stack(copies)
    return float((stacked.amax(0) - stacked.amin(0)).max())


def of_all_ranks(tensor: Tensor) -> list[Tensor]:
    """This tensor of each rank, which all have the same shape; a collective call."""
    import torch
    import torch.distributed as dist

    copies = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(copies, tensor)
    return copies


def own_alone(step: Step, _: api.Records) -> bool:
    """A step applied another gradient than plain torch's mean over the ranks: the rank's own."""
    return step.own.times(1)


distance = api.lines(
    "The greatest difference between the ranks' weights",
    "with the bug each rank trains a model of its own; without the bug all have the same",
    lambda step: step["apart"],
    y="difference",
)


@dataclass(frozen=True)
class Unreduced(applied.Applied[Step]):
    """The oracle of scenarios whose ranks do not average their gradients."""

    parts: Callable[[api.Position], int] = lambda at: at.world_size
    loss: Literal["", "whole", "parts"] = "whole"
    words: Callable[[Sequence[Step], api.Records], Iterable[str]] = applied.of_first
    reason: str = "exactly that follows if each rank applies its own gradient alone"
    checks: Sequence[api.Check] = (plain_loss.loss_unlike_reference, usual_checks.loss_ends_higher)
    """Checks of the loss on one rank miss it: each rank learns from its own rows."""
    picture: api.Pictures = distance

    def is_right(self, step: Step, records: api.Records) -> bool:
        return super().is_right(step, records) and not step.apart

    def explain(self, steps: Sequence[Step], records: api.Records) -> Iterable[str]:
        yield from super().explain(steps, records)
        end = max(steps, key=lambda step: step.step)
        yield f"after step {end.step} the ranks' weights are {end.apart:.3g} apart"


def parted(records: api.Records) -> api.Exercise:
    """There were several ranks, and their gradients differed."""
    ranks = len(records.ranks)
    differed = ranks > 1 and all(step.parted for step in records.typed(Step))
    text = f"the gradients of {ranks} ranks differed"
    return api.Exercise.of(differed, text, f"{ranks} ranks had equal gradients")
