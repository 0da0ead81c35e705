"""Does each rank apply the mean of all ranks' gradients, or only its own?

The ranks train a linear map by data parallelism, each on its part of every global batch. The
reference is plain torch in one process, on the whole global batch and the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from harness import api
from scenarios.common import applied, usual_checks

if TYPE_CHECKING:
    from torch import Tensor, nn

Weights = dict[str, "Tensor"]


def steps(at: api.Position) -> api.Kind:
    """The records of the steps, each with what the rank's own gradient alone would give."""
    own = api.held(applied.shapes(1))
    facts = {"loss": api.SIZE, **applied.shapes(at.world_size), "own": own}
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
    """The same with ``backward``, which makes the gradients of a part and returns its loss."""
    from scenarios.common import linear

    p = ctx.params
    plain_loss = linear.of(reference)
    data = linear.batches(ctx, reference, p.rows, distance=2.0, noise=0.5)
    for step, batch in zip(api.each(p.steps), data, strict=False):
        parts = list(zip(*(part.chunk(ctx.world_size) for part in batch), strict=True))
        before = whole()
        plain = applied.plainly(plain_loss, before, parts)
        own = applied.plainly(plain_loss, before, [parts[ctx.rank]])
        loss = backward(parts[ctx.rank])
        optimizer.step()
        optimizer.zero_grad()
        after = whole()
        alone = applied.facts(own, before, after, p.lr)
        facts = applied.facts(plain, before, after, p.lr)
        ctx.record(
            "step",
            step,
            loss=float(loss.detach()),
            **{**facts, "reference_loss": alone["reference_loss"]},  # that of the rank's part
            own=alone,
            apart=_apart(after),
            parted=any(one["weight"].ne(plain.micro[0]["weight"]).any() for one in plain.micro),
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


def detect(records: api.Records) -> api.Finding | None:
    """A step applied another gradient than plain torch's mean over the ranks: the rank's own."""
    return own_alone(records, 1.0)


def own_alone(records: api.Records, share: float) -> api.Finding | None:
    """The finding that each rank applied ``share`` times its own gradient, and nothing else."""
    steps, odd = records.of("step"), list(applied.loss_wrong(records))
    wrong = [step for step in steps if not applied.times(step, 1)]
    parted = [step for step in steps if step["apart"]]
    if not wrong and not odd and not parted:
        return None
    own = all(applied.times(step["own"], share) for step in steps)
    lines = [*odd, *map(applied.described, wrong[:1])]
    if own:
        times = "" if share == 1 else f"{share:.3g} times "
        lines.append(f"exactly that follows if each rank applies {times}its own gradient alone")
    last = max(steps, key=lambda step: step["step"])
    lines.append(f"after step {last['step']} the ranks' weights are {last['apart']:.3g} apart")
    documented = own and bool(wrong) and not odd
    return applied.finding(wrong or parted or steps, lines, documented=documented)


def parted(records: api.Records) -> api.Exercise:
    """There were several ranks, and their gradients differed."""
    ranks = len(records.ranks)
    differed = ranks > 1 and all(step["parted"] for step in records.of("step"))
    text = f"the gradients of {ranks} ranks differed"
    return api.Exercise.of(differed, text, f"{ranks} ranks had equal gradients")


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """Checks of the loss on one rank miss it: each rank learns from its own rows."""
    return usual_checks.loss_unlike_reference(records) | usual_checks.loss_ends_higher(records)


def picture(trials: api.Trials) -> Iterator[api.Picture]:
    """How far the ranks' weights are apart after each step."""
    yield api.Lines(
        "The greatest difference between the ranks' weights",
        "with the bug each rank trains a model of its own; without the bug all have the same",
        api.by_step(trials, lambda step: step["apart"]),
        y="difference",
    )
