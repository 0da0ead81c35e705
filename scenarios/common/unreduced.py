"""Does each rank apply the mean of all ranks' gradients, or only its own?

The ranks train a linear map by data parallelism, each on its part of every global batch. The
reference is plain torch in one process, on the whole global batch and the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import applied, usual_checks

if TYPE_CHECKING:
    from torch import Tensor, nn

Weights = dict[str, "Tensor"]


def steps(at: api.Position) -> api.Kind:
    """The records of the steps; ``own`` compares what was applied with the rank's own gradient."""
    own_shapes = api.held(applied.shapes(1))
    facts = {"loss": api.SIZE, **applied.shapes(at.world_size), "own": own_shapes}
    return api.Kind(
        {**facts, "apart": api.alike(api.SIZE), "parted": api.alike(api.FLAG)},
        api.each(at.params.steps),
    )


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
    from scenarios.common import linear

    p = ctx.params
    plain_loss = linear.of(reference)
    data = linear.batches(ctx, reference, p.rows, distance=2.0, noise=0.5)
    for step, batch in zip(api.each(p.steps), data, strict=False):
        parts = list(zip(*(part.chunk(ctx.world_size) for part in batch), strict=True))
        before = whole()
        plain = applied.plainly(plain_loss, before, parts)
        own_plain = applied.plainly(plain_loss, before, [parts[ctx.rank]])
        loss = backward(parts[ctx.rank])
        optimizer.step()
        optimizer.zero_grad()
        after = whole()
        alone = applied.facts(own_plain, before, after, p.lr)
        facts = applied.facts(plain, before, after, p.lr)
        ctx.record(
            "step",
            step,
            loss=float(loss.detach()),
            **{**facts, "reference_loss": alone["reference_loss"]},  # that of the rank's part
            own=alone,
            apart=_apart(after),
            parted=any(micro["weight"].ne(plain.micro[0]["weight"]).any() for micro in plain.micro),
        )


def _apart(weights: Weights) -> float:
    """The greatest difference between the weights of any two ranks; a collective call."""
    import torch
    import torch.distributed as dist

    flat = torch.cat([weight.flatten() for weight in weights.values()])
    copies = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(copies, flat)
    stacked = torch.stack(copies)
    return float((stacked.amax(0) - stacked.amin(0)).max())


def _at_last(steps: Sequence[api.Record]) -> str:
    last_step = max(steps, key=lambda step: step["step"])
    return f"after step {last_step['step']} the ranks' weights are {last_step['apart']:.3g} apart"


def full_share(records: api.Records) -> float:
    """A step applied another gradient than plain torch's mean over the ranks: the rank's own."""
    return 1.0


@dataclass(frozen=True)
class Unreduced:
    """The oracle of scenarios whose ranks do not average their gradients."""

    also: Callable[[api.Position], api.Plan]
    """What the scenario records besides the steps."""
    documented: Callable[[api.Records], float] = full_share
    """How much of its own gradient each rank applies. Its docstring is the symptom on the bug's
    page."""

    def plan(self, at: api.Position) -> api.Plan:
        """The scenario's own records, and the steps."""
        return {**self.also(at), "step": steps(at)}

    def detect(self, records: api.Records) -> api.Finding | None:
        """The finding that each rank applied its own gradient, or so much of it, alone."""
        steps, share = records.of("step"), self.documented(records)
        times = "" if share == 1 else f"{share:.3g} times "
        return applied.explained(
            steps,
            lambda step: applied.times(step["own"], share),
            f"each rank applies {times}its own gradient alone",
            odd=list(applied.loss_wrong(records)),
            parted=[step for step in steps if step["apart"]],
            last=_at_last,
        )

    insufficient_checks = staticmethod(
        usual_checks.together(usual_checks.loss_unlike_reference, usual_checks.loss_ends_higher)
    )
    """Checks of the loss on one rank miss it: each rank learns from its own rows."""
    picture = staticmethod(
        api.lines(
            "The greatest difference between the ranks' weights",
            "with the bug each rank trains a model of its own; without the bug all have the same",
            lambda step: step["apart"],
            y="difference",
        )
    )


def parted(records: api.Records) -> api.Exercise:
    """There were several ranks, and their gradients differed."""
    ranks = len(records.ranks)
    differed = ranks > 1 and all(step["parted"] for step in records.of("step"))
    text = f"the gradients of {ranks} ranks differed"
    return api.Exercise.of(differed, text, f"{ranks} ranks had equal gradients")
