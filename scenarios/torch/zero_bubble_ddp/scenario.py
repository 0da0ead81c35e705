"""Zero-bubble pipeline schedules never average the gradients that DDP should average.

A zero-bubble schedule splits the backward pass: first come the gradients of a stage's inputs, which
the stage before waits for, and later those of its weights. With DDP around the stages, for a
pipeline and data parallelism together, all stages but the first keep their own gradients. From the
first step on the replicas of these stages drift apart. The loss of each replica falls as it should.

Root cause: the second half calls ``torch.autograd.grad`` and adds the result to ``p.grad``. DDP
averages in hooks of the backward pass, which ``grad`` does not run. The first stage has no inputs
to differentiate, so it runs the whole backward pass, with hooks.

No release that we tested is fixed: torch 2.13.0, which the variants use, has the bug as released,
and so have 2.6.0 to 2.15.0. The fixed variant is our remedy: the last
backward pass of a stage's weights averages their gradients over DDP's group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import applied, plain_loss
from scenarios.common.line_edits import followed, setting
from scenarios.torch import _zero_bubble as zero_bubble

if TYPE_CHECKING:
    from torch import Tensor, nn

REPLICAS = 2
"""Of a pipeline, each on half of the ranks."""


AVERAGED = """if backward_type == "weight":
    for weight in self.submod.parameters():
        if weight.grad is not None:
            dist.all_reduce(weight.grad, group=self.submod.process_group)
            weight.grad.div_(self.submod.process_group.size())
"""


def averaged_after_weights(function: Any) -> api.Edits:
    """Under DDP, average the gradients of the weights after the last backward pass."""
    import libcst as cst
    import libcst.matchers as m

    for branch in m.findall(function, m.If(test=m.Name("last_backward"))):
        body = cst.ensure_type(branch, cst.If).body
        yield from followed(setting(body, "result"), AVERAGED)


@dataclass(frozen=True)
class Stage(zero_bubble.Stage):
    own: applied.Single
    """Beside the stage's own gradient alone."""
    mean: applied.Single
    """Beside the mean of the replicas' gradients at their own weights."""
    apart: api.Size
    """The greatest difference between the replicas' weights."""
    parted: api.Flag
    """Whether the replicas' gradients differ."""


def own_or_mean(stage: Stage, _: api.Records) -> bool:
    """All stages but the first applied their own gradients instead of the replicas' mean."""
    return (stage.own if stage.stage else stage.mean).times(1)


def first_replicas_differ(records: api.Records) -> dict[str, bool]:
    """The first stage's replicas agree."""
    distances = [one.apart for one in records.typed(Stage, "stage") if one.stage == 0]
    return {"the replicas of the first stage differ": any(distances)}


class Replicated(zero_bubble.Split[Stage]):
    """Replicas of a stage must stay equal, too."""

    def is_right(self, step: Stage, records: api.Records) -> bool:
        return super().is_right(step, records) and not step.apart

    def explain(self, steps: Sequence[Stage], records: api.Records) -> Iterator[str]:
        yield from super().explain(steps, records)
        yield f"the replicas' weights are up to {max(s.apart for s in steps):.3g} apart"


def later_stage(trials: api.Trials) -> Iterator[api.Picture]:
    """How far the replicas of the last stage are apart after each step."""
    points = [
        (variant, float(one["step"]), float(one["apart"]))
        for variant, records in trials.items()
        for one in records.of("stage", 0)
        if one["stage"]
    ]
    yield api.Lines(
        "The greatest difference between the replicas' weights in a later stage",
        "with the bug each replica trains this stage on its own rows alone",
        points,
        y="difference",
    )


oracle = Replicated(
    Stage,
    own_or_mean,
    parts=lambda at: REPLICAS,
    reason="exactly that follows if all stages but the first keep their own gradients",
    picture=later_stage,
    checks=[plain_loss.loss_unlike_reference, first_replicas_differ],
)


def run(ctx: api.Context) -> None:
    """Train replicas of a pipeline, each on its part of every global batch."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.nn.parallel import DistributedDataParallel

    from scenarios.common import linear, plain_torch
    from scenarios.torch import _pipeline as pipeline

    p = ctx.params
    dist.init_process_group(ctx.lane.backend)
    # Of two ranks each has a whole pipeline, which gloo refuses before torch 2.12.
    shape = (REPLICAS, ctx.world_size // REPLICAS)
    mesh = init_device_mesh(ctx.device.type, shape, mesh_dim_names=("replica", "pipeline"))
    replicas, replica = mesh["replica"].get_group(), mesh["replica"].get_local_rank()

    def wrap(block: nn.Module) -> nn.Module:
        return DistributedDataParallel(block, process_group=replicas)

    pipe = pipeline.Pipeline(
        ctx, p.schedule, p.micro_batches, wrap=wrap, group=mesh["pipeline"].get_group()
    )
    ctx.record("schedule", type=type(pipe.schedule).__name__, halves=pipe.halves)
    optimizer = torch.optim.SGD(pipe.parameters(), lr=p.lr)
    for step in api.each(p.steps):
        parts = [pipeline.rows(ctx, p.rows * p.micro_batches) for _ in range(REPLICAS)]
        before = pipe.weights()
        plain = plain_torch.differentiate(
            plain_torch.loss_of(pipe.whole, linear.loss), before, parts
        )
        loss = pipe.step(parts[replica])
        optimizer.step()
        optimizer.zero_grad()
        after = pipe.weights()
        for stage in pipe.blocks:
            was, current, *micro = (
                pipeline.of_stage(stage, one) for one in (before, after, *plain.micro)
            )
            name = next(iter(was))
            alone = plain_torch.Plain([plain.losses[replica]], [micro[replica]])
            mean = plain_torch.Plain(alone.losses, [_mean(micro[replica], replicas)])
            ctx.record(
                "stage",
                step,
                stage=stage,
                **plain_torch.facts(plain_torch.Plain(plain.losses, micro), was, current, p.lr),
                own=plain_torch.facts(alone, was, current, p.lr),
                mean=plain_torch.facts(mean, was, current, p.lr),
                apart=_apart(current, replicas),
                parted=any(one[name].ne(micro[0][name]).any() for one in micro),
            )
        ctx.record("step", step, loss=loss, reference_loss=plain.losses[replica])


def _mean(gradients: Mapping[str, Tensor], group: Any) -> dict[str, Tensor]:
    """The mean of the gradients of a group's ranks; a collective call."""
    import torch.distributed as dist

    summed = {name: gradient.clone() for name, gradient in gradients.items()}
    for gradient in summed.values():
        dist.all_reduce(gradient, group=group)
    return {name: gradient / dist.get_world_size(group) for name, gradient in summed.items()}


def _apart(weights: Mapping[str, Tensor], group: Any) -> float:
    """The greatest difference between the weights of a group's ranks; a collective call."""
    import torch
    import torch.distributed as dist

    greatest = torch.cat([weight.flatten() for weight in weights.values()])
    least = greatest.clone()
    dist.all_reduce(greatest, dist.ReduceOp.MAX, group)
    dist.all_reduce(least, dist.ReduceOp.MIN, group)
    return float((greatest - least).max())


def exercised(records: api.Records) -> api.Exercise:
    """The schedule split backward passes, and the replicas' gradients differed."""
    schedule = records.of("schedule", 0)[0]
    text = f"{schedule['type']} split {schedule['halves']} backward passes in a step"
    differed = all(one.parted for one in records.typed(Stage, "stage"))
    return api.Exercise.of(schedule["halves"] > 0, text) & api.Exercise.of(
        differed, "the replicas' gradients differed", "the replicas had equal gradients"
    )
