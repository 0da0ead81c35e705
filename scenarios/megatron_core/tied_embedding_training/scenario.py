"""The two copies of a tied embedding drift apart from the first training step on.

A small language model is trained with the bug that ``tied_embedding_order`` shows cell by cell:
each owner of the tied embedding steps with a gradient that lacks one replica's part, and the owners
on the first stage lack another part than those on the last stage. The replicas always agree with
one another, and the loss is no worse than it should be; for many steps it is even lower.

Reported in May 2024 for GPT-2 with pipeline parallelism and the distributed optimizer. Afterwards
there are two weights instead of one, and a checkpoint or the next restart keeps one of them.

Root cause: the data-parallel reduce-scatter cuts the first and the last stage's copy at different
places, and the all-reduce between the stages then adds reduced to unreduced parts. The fix gives
the tied weight a bucket of its own. The wheels of the releases with the bug do not contain the
distributed optimizer, which the training needs. So the buggy variant is a later release that no
longer checks whether a weight is tied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from harness.bugs import api
from scenarios.common import agree as agreement
from scenarios.common import copies
from scenarios.megatron_core import _tied_layout as layouts
from scenarios.megatron_core.tied_embedding_training import owners

STEP = {
    "apart": api.alike(api.SIZE),
    "replicas_differ": api.many(api.LINE),
    "gradients_differ": api.SIZE,
    "gradient_sum": api.NUMBER,
    "own_gradient": api.SIZE,
    **owners.FACTS,
}


def never_its_own_bucket(function: Any) -> api.Edits:
    """Replace the check whether a weight is a shared embedding with False."""
    import libcst as cst
    import libcst.matchers as m

    name = m.MatchRegex("[\"']shared_embedding[\"']")
    pattern = m.Call(
        func=m.Name("getattr"), args=[m.Arg(), m.Arg(m.SimpleString(name)), m.Arg(m.Name("False"))]
    )
    for call in m.findall(function, pattern):
        yield call, cst.Name("False")


def plan(at: api.Position) -> api.Plan:
    """Each step and the final weight; for a pipeline, also where the copy is."""
    weight, steps = api.Kind({"values": api.many(api.NUMBER, least=1)}), api.each(at.params.steps)
    if at.world_size == 1:
        return {"step": api.Kind({"loss": api.NUMBER}, steps), "weight": weight}
    loss = api.exactly(None) if at.rank < layouts.REPLICAS else api.NUMBER  # the last stage has it
    return {
        "layout": layouts.LAYOUT,
        "step": api.Kind({**STEP, "loss": loss}, steps),
        "weight": weight,
    }


def run(ctx: api.Context) -> None:
    """Train; after every step compare the tied copies, the replicas, and the gradients."""
    from scenarios.megatron_core import _tied_stages as tied
    from scenarios.megatron_core import _tied_trainer as training
    from scenarios.megatron_core.tied_embedding_training import plain as tied_plain

    p, shape = ctx.params, tied.Shape()
    size = (p.micro_batches, layouts.REPLICAS * p.batch, p.sequence)
    data = training.batch(shape, size, ctx.seed, ctx.device)
    if ctx.world_size == 1:
        tied_plain.train(ctx, shape, data, p.lr, p.steps)
        return
    with ctx.phase("init"):
        trainer = training.Trainer(ctx, shape, p.lr)
        place = tied.layout(trainer.ddp, tied.tied_weight(trainer.ddp), sharded=True)
        ctx.record("layout", **vars(place))
    with ctx.phase("steps"):
        beside = tied_plain.Beside(ctx, trainer, data, p.lr)
        _train(ctx, trainer, beside, data.of_replica(ctx.rank % layouts.REPLICAS, p.batch))


def _train(ctx: api.Context, trainer: Any, beside: Any, data: Any) -> None:
    import torch.distributed as dist

    from scenarios.megatron_core import _tied_stages as tied

    weight = tied.tied_weight(trainer.ddp)
    for step in range(1, ctx.params.steps + 1):
        ctx.record(
            "step",
            step,
            loss=trainer.step(data),
            apart=tied.apart(weight),
            replicas_differ=tied.drifted(trainer.ddp),
            gradients_differ=tied.apart(weight.main_grad),
            gradient_sum=float(weight.main_grad.sum()),
            own_gradient=float(trainer.own.norm()),
            **beside.facts(),
        )
    ctx.record("weight", values=weight.flatten().tolist())
    dist.barrier()


def detect(records: api.Records) -> api.Finding | None:
    """The tied copies differ after a step, while the replicas of each agree. The owners on both
    stages stepped as AdamW does, but without one gradient of the other stage."""
    unlike = [step for step in records.of("step") if step.get("replicas_differ")]
    replicas = "the data-parallel replicas " + ("differ" if unlike else "agree")
    parted = [step for step in records.of("step", 0) if step.get("apart")]
    missing = owners.missing(records)
    fault = owners.otherwise_wrong(records)
    if fault or not parted:
        agree_too = f"{replicas}, and the tied copies agree"
        return fault or (api.Finding(agree_too, documented=False) if unlike or missing else None)
    start, end = parted[0], parted[-1]
    examples = [step for step in parted if step["step"] in (start["step"], 5, end["step"])]
    drift = ", ".join(f"{step['apart']:.3g} after step {step['step']}" for step in examples)
    without = [f"; rank {rank} stepped without {name}" for rank, name in missing.items()]
    return api.Finding(
        f"the copies of the tied embedding differ from step {start['step']} on: by up to {drift}\n"
        f"{replicas}{''.join(without)}",
        start["step"],
        ("embedding.word_embeddings.weight", "output_layer.weight"),
        records.ranks,
        end["apart"],
        copies.UNIT,
        documented=start["step"] == 1
        and not unlike
        and {rank // layouts.REPLICAS for rank in missing} == {0, 1},
    )


def exercised(records: api.Records) -> api.Exercise:
    """All ranks' own gradients differed in every step. The copies were at different places of their
    buffers, and cut between the replicas."""
    steps: dict[int, list[tuple[float]]] = {}
    for step in records.of("step"):
        steps.setdefault(step["step"], []).append((step.get("own_gradient", 0.0),))
    equal = [step for step, norms in steps.items() if not layouts.different(norms)]
    norms = ", ".join(f"{norm:.3g}" for (norm,) in steps.get(1, ()))
    return layouts.cut(records, sharded=True) & api.Exercise.of(
        bool(steps) and not equal,
        f"all ranks' own gradients of the weight differed in {len(steps)} steps (norms {norms} at "
        "step 1)",
        f"the ranks' own gradients were equal, 0 or missing in {len(equal)} of {len(steps)} steps",
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """Checks that miss this bug, or fire without it, and whether they fired."""
    if not records.of("layout"):  # one process has nothing to compare
        return {}
    steps = records.of("step")
    sums = ([s["gradient_sum"] for s in records.of("step", rank)] for rank in (1, 2))
    return layouts.insufficient_checks(
        any(step["gradients_differ"] for step in steps),
        any(one != other for one, other in zip(*sums, strict=False)),
    ) | {"the data-parallel replicas differ": any(step["replicas_differ"] for step in steps)}


def agree(trials: Mapping[str, api.Records]) -> Iterator[str]:
    """The fixed release must train both copies as one process trains its only one."""
    yield from agreement.losses(trials, owners.DISTANCE, "one process", _mean_losses)
    if {api.FIXED, agreement.REFERENCE} <= set(trials):
        alone = trials[agreement.REFERENCE].one("weight")
        for rank in (0, 2):
            distance = owners.distance(trials[api.FIXED].one("weight", rank), alone)
            if not api.near(distance, 0.0, within=owners.DISTANCE):
                yield f"fixed: the tied weight of rank {rank} is {distance:.3g} from one process's"


def _mean_losses(records: api.Records) -> list[float]:
    """The mean of both replicas' losses at each step; the last stage's ranks have them."""
    replicas = (records.of("step", rank) for rank in (2, 3))
    return [(a["loss"] + b["loss"]) / 2 for a, b in zip(*replicas, strict=False)]


picture = partial(copies.drifting, field="apart")
