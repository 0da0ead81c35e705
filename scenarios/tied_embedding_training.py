"""A tied embedding becomes two: its copies part at the first training step, and go on parting.

The training of a small language model with the bug that ``tied_embedding_order`` shows cell by
cell: each owner of the tied embedding steps with a gradient that misses one replica's part, the
first stage's owners another one than the last stage's. The replicas agree with one another all the
time, and the loss is no worse than it ought to be, for many steps even lower.

Reported in May 2024 for GPT-2 with pipeline parallelism and the distributed optimizer. Weights that
were to be one are two afterwards, and a checkpoint, or the next restart, keeps one of them.

Root cause: the data-parallel reduce-scatter cuts the first and the last stage's copy at different
places, and the all-reduce between the stages then adds reduced to unreduced parts. The fix, in
megatron-core since 0.6.0, gives the tied weight a bucket of its own. The releases that have the bug
come without the distributed optimizer that trains with it, so the buggy variant is a later release
which no longer asks whether a weight is tied.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.records import Record, Records
from harness.spec import Defect, Finding, Outcome, Scenario, Variant
from scenarios.tied_embedding_order import copies_are_cut

if TYPE_CHECKING:
    import libcst as cst

    from harness.rank import Context

TOLERANCE = 1e-5
"""How far weights, and losses in nats, of four ranks may be from one process's. In fp32 rounding
moved the weights by up to 3e-7 in twenty steps; the bug moves the first step by 1e-2."""


@dataclass
class Params:
    """The knobs; the defaults are those of docs/scenarios/tied_embedding_training.md."""

    lr: float = 1e-2
    """Adam's: it moves each weight by about this much at the first step, whatever the gradient."""
    steps: int = 20
    micro_batches: int = 2
    batch: int = 2
    """Sequences in a micro-batch of one replica."""
    sequence: int = 8

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise ValueError("scenario.lr must be above 0 and finite")
        if min(self.steps, self.micro_batches, self.batch, self.sequence) < 1:
            raise ValueError(
                "scenario.steps, scenario.micro_batches, scenario.batch and scenario.sequence "
                "must be at least 1"
            )


def never_its_own_bucket(function: cst.FunctionDef) -> Iterator[tuple[cst.CSTNode, cst.Name]]:
    """Answer False where a weight is asked whether it is a shared embedding."""
    import libcst as cst
    import libcst.matchers as m

    name = m.MatchRegex("[\"']shared_embedding[\"']")
    asked = m.Call(
        func=m.Name("getattr"),
        args=[m.Arg(), m.Arg(m.SimpleString(name)), m.Arg(m.Name("False"))],
    )
    for call in m.findall(function, asked):
        yield call, cst.Name("False")


DEFECT = Defect(
    name="never_its_own_bucket",
    upstream="megatron-core",
    file="megatron/core/distributed/param_and_grad_buffer.py",
    scope="_does_param_require_new_bucket",
    edit=never_its_own_bucket,
    about="gives a tied weight no bucket of its own, so that the reduce-scatter cuts its copies on "
    "the first and on the last stage at different places",
)

SCENARIO = Scenario(
    title="the two copies of a tied embedding part at the first training step",
    report=(
        "[BUG] Wrong embedding gradients with distributed optimizer and shared embedding",
        "https://github.com/NVIDIA/Megatron-LM/issues/844",
    ),
    fix="https://github.com/NVIDIA/Megatron-LM/commit/daf0006737 (megatron-core 0.6.0)",
    symptom="use_distributed_optimizer with share_embeddings_and_output_weights: wrong embedding "
    "gradients, and the first and the last stage step with different ones",
    trigger="the distributed optimizer, an embedding tied over pipeline stages, and data "
    "parallelism",
    remedy="use megatron-core 0.6.0 or later",
    pins={"megatron-core": "0.16.1"},
    date="2026-11-20",
    ranks=4,
    releases="megatron-core>=0.6",  # the wheels before have no DistributedOptimizer
    variants={
        "buggy": Variant(
            "the release, without a bucket of its own for the tied weight", Outcome.SYMPTOM,
            (DEFECT,),
        ),
        "fixed": Variant("the release as published", Outcome.CLEAN),
        "reference": Variant(
            "one process in plain torch: one weight, all sequences", Outcome.CLEAN,
            ranks=1, triggers=False,
        ),
    },
)  # fmt: skip


def run(ctx: Context) -> None:
    """Train; after every step compare the tied copies, the replicas, and the gradients."""
    from scenarios.workloads import tied_stages as tied

    shape, params = tied.Shape(), ctx.params
    replicas = 2
    size = (params.micro_batches, replicas * params.batch, params.sequence)
    data = tied.batch(shape, size, ctx.seed, ctx.device)
    if ctx.world_size == 1:
        _train_alone(ctx, tied.reference(ctx, shape, params.lr), data)
        return
    with ctx.phase("init"):
        trainer = tied.Trainer(ctx, shape, params.lr)
        place = tied.layout(trainer.ddp, sharded=True)
        ctx.record(
            "layout", sharded=True, buffer=place.buffer, bucket=place.bucket, owned=place.owned
        )
    with ctx.phase("steps"):
        _train(ctx, trainer, data.of_replica(ctx.rank % replicas, params.batch))


def _train_alone(ctx: Context, model: Any, data: Any) -> None:
    for step in range(1, ctx.params.steps + 1):
        ctx.record("step", step, loss=model.step(data))
    ctx.record("weight", values=model.tied.flatten().tolist())


def _train(ctx: Context, trainer: Any, data: Any) -> None:
    import torch.distributed as dist
    from megatron.core import parallel_state

    from harness.detectors.replicas import replica_differences
    from harness.detectors.tied import tied_differences
    from scenarios.workloads import tied_stages as tied

    weight, copies = tied.tied_weight(trainer.ddp), tied.embedding_group()
    replicas = parallel_state.get_data_parallel_group()
    for step in range(1, ctx.params.steps + 1):
        loss = trainer.step(data)
        apart = tied_differences([("embedding", weight, copies)])
        gradients = tied_differences([("main_grad", weight.main_grad, copies)])
        drifted = replica_differences(trainer.ddp.module.named_parameters(), replicas)
        ctx.record(
            "step",
            step,
            loss=loss,
            apart=max((d.greatest for d in apart), default=0.0),
            replicas_differ=[d.name for d in drifted],
            gradients_differ=max((d.greatest for d in gradients), default=0.0),
            gradient_sum=float(weight.main_grad.sum()),
            own_gradient=float(trainer.own.norm()),
        )
    ctx.record("weight", values=weight.flatten().tolist())
    dist.barrier()


def detect(records: Records) -> Finding | None:
    """The tied copies are not bitwise equal after a step, while the replicas of each are."""
    steps = records.of("step", 0)
    parted = [step for step in steps if step.get("apart")]
    if not parted:
        return None
    first, last = parted[0], steps[-1]
    named = sorted({1, 5, len(steps)} & {step["step"] for step in steps})
    way = ", ".join(f"{steps[n - 1]['apart']:.3g} after step {n}" for n in named)
    replicas = [step for step in records.of("step") if step["replicas_differ"]]
    lines = [
        f"the copies of the tied embedding differ from step {first['step']} on: by up to {way}",
        "the data-parallel replicas differ" if replicas else "the data-parallel replicas agree",
    ]
    return Finding(
        message="\n".join(lines),
        step=first["step"],
        parameters=("embedding.word_embeddings.weight", "output_layer.weight"),
        ranks=records.ranks,
        magnitude=last["apart"],
        documented=first["step"] == 1 and not replicas,
    )


def exercised(records: Records) -> str | None:
    """All ranks' own gradients differed, and the reduce-scatter cut both stages' copies."""
    if not copies_are_cut(records):
        return None
    by_step: dict[int, list[float]] = {}
    for step in records.of("step"):
        by_step.setdefault(step["step"], []).append(step["own_gradient"])
    if not by_step or not all(_all_different(norms) for norms in by_step.values()):
        return None
    norms = ", ".join(f"{norm:.3g}" for norm in by_step[1])
    places = " and ".join(str(records.of("layout", rank)[0]["buffer"]) for rank in (0, 2))
    return (
        f"the tied copies bitwise equal after each of {len(by_step)} steps; all four ranks' own "
        f"gradients of it differed (norms {norms} at step 1), and the copies lay at {places} of "
        "their buffers"
    )


def _all_different(norms: list[float]) -> bool:
    return len(norms) == len(set(norms)) == 4 and all(norms)


def wrong_detectors(records: Records) -> dict[str, bool]:
    """What misses this bug, or sees it everywhere, and whether it fired."""
    if not records.of("layout"):  # one process has nothing to compare
        return {}
    steps = records.of("step")
    sums: dict[int, dict[int, float]] = {}
    for step in steps:
        sums.setdefault(step["step"], {})[step["rank"]] = step["gradient_sum"]
    return {
        "the whole main_grad differs within the embedding group": any(
            step["gradients_differ"] for step in steps
        ),
        "the sums of main_grad on ranks 1 and 2 differ (the report's own check)": any(
            by_rank[1] != by_rank[2] for by_rank in sums.values()
        ),
        "the data-parallel replicas differ": any(step["replicas_differ"] for step in steps),
    }


def agree(trials: Mapping[str, Records]) -> Iterator[str]:
    """The fixed release must train both copies as one process trains its only one."""
    if not {"fixed", "reference"} <= set(trials):
        return
    fixed, reference = trials["fixed"], trials["reference"]
    yield from _losses(_mean_losses(fixed), [s["loss"] for s in reference.of("step", 0)])
    for rank in (0, 2):
        distance = _distance(fixed.one("weight", rank), reference.one("weight", 0))
        if not distance <= TOLERANCE:
            yield f"fixed: the tied weight of rank {rank} is {distance:.3g} from one process's"


def _mean_losses(records: Records) -> list[float]:
    """The loss after each step over both replicas: the last stage's ranks have it."""
    replicas = (records.of("step", rank) for rank in (2, 3))
    return [(a["loss"] + b["loss"]) / 2 for a, b in zip(*replicas, strict=True)]


def _losses(ours: list[float], theirs: list[float]) -> Iterator[str]:
    if len(ours) != len(theirs):
        yield f"fixed took {len(ours)} steps, and one process {len(theirs)}"
    for step, (four, one) in enumerate(zip(ours, theirs, strict=False), 1):
        if not abs(four - one) <= TOLERANCE:
            yield f"fixed: loss {four:.6f} at step {step}, where one process has {one:.6f}"


def _distance(ours: Record | None, theirs: Record | None) -> float:
    if not ours or not theirs or len(ours["values"]) != len(theirs["values"]):
        return math.nan
    return max(abs(a - b) for a, b in zip(ours["values"], theirs["values"], strict=True))
