"""A tied embedding that crosses the end of its bucket drifts apart: bucket and padding disagree.

With the distributed optimizer, megatron-core gives a tied embedding a bucket of its own, so that
its replicas cut the copies on the first and on the last pipeline stage at the same places. In the
affected releases the copy on the first stage can begin before its bucket does. Then each owner of
a part of it steps with a gradient that lacks one replica's part, and the owners on the last stage
lack another one. The two copies become two weights, and the loss shows nothing of it.

This happens if the weights before the tied one end at a multiple of the number of replicas, but not
at one of 128. So it needs a hidden size that is no multiple of 128, such as the 1600 of GPT-2 XL.

Root cause: a bucket ends at a multiple of 128 and of the replicas. But before it begins the bucket
of the tied weight, the buffer tests only for a multiple of the replicas, and then does not move the
weight to the end of the bucket before. The fix tests for what the padding asks for.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.megatron_core import _tied_layout as layouts

PADDING = 128
"""The weights before the bucket of the tied one are padded to a multiple of this."""
EMBEDDING, LAYER = 128, 64
"""The numbers of weights of the embedding, and of a layer before it."""


def plan(at: api.Position) -> api.Plan:
    """Where the copy is. Of each step: how far the two copies are apart, which replicas differ, the
    norm of this rank's own gradient, and how far the weight is from that of torch's Adam with the
    gradients of all ranks."""
    facts = {
        "apart": api.alike(api.SIZE),
        "replicas_differ": api.many(api.LINE),
        "own": api.SIZE,
        "off": api.SIZE,
    }
    return {"layout": layouts.LAYOUT, "step": api.Kind(facts, api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Train; after each step compare the tied copies, the replicas, and torch's Adam."""
    import torch
    import torch.distributed as dist

    from scenarios.megatron_core import _tied_stages as tied
    from scenarios.megatron_core import _tied_trainer as training

    p, shape = ctx.params, tied.Shape(more_layers=ctx.params.more_layers)
    size = (p.micro_batches, layouts.REPLICAS * p.batch, p.sequence)
    data = training.batch(shape, size, ctx.seed, ctx.device)
    with ctx.phase("init"):
        trainer = training.Trainer(ctx, shape, p.lr)
        weight: Any = tied.tied_weight(trainer.ddp)
        ctx.record("layout", **vars(tied.layout(trainer.ddp, weight, sharded=True)))
        copy = weight.detach().clone().requires_grad_()
        adam = torch.optim.AdamW([copy], lr=p.lr, weight_decay=0.0)
    mine = data.of_replica(ctx.rank % layouts.REPLICAS, p.batch)
    with ctx.phase("steps"):
        for step in api.each(p.steps):
            trainer.step(mine)
            own: Any = trainer.own
            total = own.clone()
            dist.all_reduce(total)
            copy.grad = total / layouts.REPLICAS
            adam.step()
            ctx.record(
                "step",
                step,
                apart=tied.apart(weight),
                replicas_differ=tied.drifted(trainer.ddp),
                own=float(own.norm()),
                off=float((weight.detach() - copy.detach()).abs().max()),
            )
    dist.barrier()


def _is_wrong(step: api.Record) -> bool:
    return step["apart"] > 0 or not api.near(step["off"], 0.0, within=1e-5)


def detect(records: api.Records) -> api.Finding | None:
    """The two copies differ after each step, and the replicas of each agree. In the first step, no
    weight is further from Adam's than Adam in the opposite direction."""
    steps = records.of("step")
    wrong_steps = [step for step in steps if _is_wrong(step)]
    if not wrong_steps:
        return None
    last, lr = records.of("step", 0)[-1], records.params.lr
    first = [step for step in steps if step["step"] == 1]
    return api.Finding(
        f"after {last['step']} steps the copies of the tied weight are {last['apart']:.3g} apart, "
        f"and up to {max(s['off'] for s in steps):.3g} from those of torch's Adam; the learning "
        f"rate is {lr:g}",
        step=wrong_steps[0]["step"],
        ranks=tuple(sorted({step["rank"] for step in wrong_steps})),
        magnitude=last["apart"] / lr,
        unit="learning rates",
        documented=all(s["apart"] > 0 and not s["replicas_differ"] for s in steps)
        and all(s["off"] < 2.01 * lr for s in first),
    )


def exercised(records: api.Records) -> api.Exercise:
    """Weights that are no multiple of the padding lay before the tied one, and each rank had a
    gradient of its own."""
    before = EMBEDDING + LAYER * records.params.more_layers
    norms = {step["own"] for step in records.of("step") if step["step"] == 1}
    return api.Exercise.of(
        before % PADDING != 0, f"{before} weights lay before the tied one, padded to {PADDING}"
    ) & api.Exercise.of(
        len(norms) == layouts.RANKS and 0 not in norms,
        "each rank had a gradient of its own",
        f"the ranks had {len(norms)} gradients",
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The replicas gather their weights from the same owners."""
    return {"data-parallel replicas differ": any(s["replicas_differ"] for s in records.of("step"))}


picture = api.lines(
    "How far the two copies of the tied weight are apart",
    "without the bug they are equal, as they are one weight",
    lambda step: float(step["apart"]),
    y="difference",
)
