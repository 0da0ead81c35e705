"""The gradients of a tied embedding are not summed over the pipeline stages that hold a copy.

The first and the last pipeline stage each hold a copy of the word embeddings, and must both apply
the sum of the two gradients. With DeepSpeed's new bf16 optimizer each stage applied its own: the
embedding learned as an embedding only, the output layer as an output layer only, and the copies
took different ways from the first step on.

Met in the training of BLOOM-176B in March 2022 (its run main-2). Nothing failed, and the loss even
looked better. It showed at a restart, as a spike of the loss, because loading a checkpoint puts the
first stage's copy in the place of the last one's. The days trained so far were thrown away.

Root cause: in bf16, gradients gather in an fp32 buffer beside the weight (``_hp_grad``), and the
step reads that. ``PipelineEngine._exec_reduce_tied_grads`` went on summing ``weight.grad``, as was
right in fp16, but which by then nothing read any more. The fix sums the buffer.

No published release has the bug: 0.6.1 has no BF16_Optimizer, 0.6.3 sums the buffer. The buggy
variant is a release that sums ``weight.grad`` again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from harness.records import Record, Records
from harness.spec import Defect, Finding, Outcome, Scenario, Variant

if TYPE_CHECKING:
    import libcst as cst

    from harness.rank import Context

LOSS_TOLERANCE = 5e-3
"""How far (nats) the losses of two stages may be from those of one. bf16 rounding alone moves them
by up to 2e-3 in five steps; the bug moves the second by more than 3e-2."""

NORM_TOLERANCE = 1e-3
"""How far (as a fraction) the norms of two fp32 gradients may be apart and still be the same."""


@dataclass
class Params:
    """The knobs; the defaults are those of the figures in docs/scenarios/tied_grad_reduce.md."""

    precision: str = "bf16"
    """``bf16``, with BF16_Optimizer, or ``fp32``: then ``weight.grad`` is what the step reads."""
    lr: float = 1e-2
    steps: int = 5
    batch: int = 4
    """Sequences in a micro-batch."""
    micro_batches: int = 2

    def __post_init__(self) -> None:
        if self.precision not in ("bf16", "fp32"):
            raise ValueError(f"scenario.precision={self.precision}: choose bf16 or fp32")
        if not 0 < self.lr < math.inf:
            raise ValueError("scenario.lr must be above 0 and finite")
        if self.steps < 1 or self.batch < 1 or self.micro_batches < 1:
            raise ValueError(
                "scenario.steps, scenario.batch and scenario.micro_batches must be at least 1"
            )


def reduce_what_is_not_read(
    function: cst.FunctionDef,
) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression]]:
    """Take ``weight.grad`` whatever the optimizer, where bf16 had ``weight._hp_grad``."""
    import libcst as cst
    import libcst.matchers as m

    choice = m.IfExp(
        body=m.Attribute(attr=m.Name("_hp_grad")), orelse=m.Attribute(attr=m.Name("grad"))
    )
    for node in m.findall(function, choice):
        assert isinstance(node, cst.IfExp)
        yield node, node.orelse


DEFECT = Defect(
    name="reduce_what_is_not_read",
    upstream="deepspeed",
    file="deepspeed/runtime/pipe/engine.py",
    scope="PipelineEngine._exec_reduce_tied_grads",
    edit=reduce_what_is_not_read,
    about="sums weight.grad over the stages, which the bf16 optimizer does not read: it steps with "
    "its fp32 buffer, in which each stage has its own gradient only",
)

SCENARIO = Scenario(
    title="the gradients of tied weights are summed where nothing reads them, and each pipeline "
    "stage applies its own",
    report=(
        "BigScience, The final training: trials and tribulations (main-2, March 2022)",
        "https://github.com/microsoft/DeepSpeed/pull/1801",
    ),
    fix="https://github.com/microsoft/DeepSpeed/commit/37011a92 (2022)",
    symptom="the gradients of the tied weights were not reduced: the front embedding got only its "
    "own, and the loss spiked on restart",
    trigger="a pipeline with tied layers under BF16_Optimizer",
    remedy="use a published release of DeepSpeed that has the fix, or train with one pipeline "
    "stage",
    pins={"deepspeed": "0.19.8"},
    date="2026-11-20",
    ranks=2,
    variants={
        "buggy": Variant(
            "the release, summing weight.grad again", Outcome.SYMPTOM, (DEFECT,)
        ),
        "fixed": Variant("the release as published", Outcome.CLEAN),
        "control": Variant(
            "the defect is in, but in fp32, where weight.grad is what the step reads",
            Outcome.CLEAN, (DEFECT,), params={"precision": "fp32"}, triggers=False,
        ),
        "reference": Variant(
            "one stage holds all layers: one weight, nothing to reduce", Outcome.CLEAN,
            ranks=1, triggers=False,
        ),
    },
)  # fmt: skip


def run(ctx: Context) -> None:
    """Train the tied pipeline; after every step compare the copies and the gradients applied."""
    from scenarios.workloads import tied_pipeline as tied

    training = tied.Training(
        lr=ctx.params.lr,
        batch=ctx.params.batch,
        micro_batches=ctx.params.micro_batches,
        bf16=ctx.params.precision == "bf16",
    )
    with ctx.phase("init"):
        trainer = tied.Trainer(ctx, tied.engine(ctx, tied.SHAPE, training), tied.SHAPE, training)
    with ctx.phase("steps"):
        for number in range(1, ctx.params.steps + 1):
            trainer.step(number)


def detect(records: Records) -> Finding | None:
    """The copies part after a step, and each stage applied its own gradient instead of the sum."""
    drifted = [step for step in records.of("step", 0) if step["drift"]]
    if not drifted:
        return None
    first, last = drifted[0], drifted[-1]
    (name, at_first), at_last = next(iter(first["drift"].items())), max(last["drift"].values())
    same_step = [s for s in records.of("step") if s["step"] == first["step"]]
    unsummed = [s["rank"] for s in same_step if _is(s, "own") and not _is(s, "sum")]
    lines = [
        f"step {first['step']}: the stages' copies of {name} differ by {at_first:.3g}, and by "
        f"{at_last:.3g} after step {last['step']}",
        *(_applied(step) for step in same_step),
    ]
    return Finding(
        message="\n".join(lines),
        step=first["step"],
        parameters=tuple(first["drift"]),
        ranks=records.ranks,
        magnitude=at_first,
        documented=len(unsummed) == len(same_step),
    )


def _is(step: Record, which: str) -> bool:
    """Whether the applied gradient is the stage's ``own``, or the ``sum`` of the stages'."""
    return bool(abs(step["applied"] - step[which]) <= NORM_TOLERANCE * step[which])


def _applied(step: Record) -> str:
    return (
        f"rank {step['rank']} applied a gradient of norm {step['applied']:.4g}: its own has "
        f"{step['own']:.4g}, the sum over the stages {step['sum']:.4g}"
    )


def exercised(records: Records) -> str | None:
    """The stages' own gradients differed, went into a buffer beside ``.grad``, and were summed."""
    steps = records.of("step")
    if not steps or not all(s.get("parted") and s["buffered"] and _is(s, "sum") for s in steps):
        return None
    first = [f"{s['own']:.4g}" for s in steps if s["step"] == 1]
    return (
        f"the tied copies bitwise equal after {len(records.of('step', 0))} steps, though the "
        f"stages' own gradients differed in each (norms {' and '.join(first)} at step 1) and "
        f"gathered in a buffer beside weight.grad; both applied their sum"
    )


def wrong_detectors(records: Records) -> dict[str, bool]:
    """What does not find this bug, or fires without it, and whether it fired."""
    steps = records.of("step", 0)
    norms: dict[int, set[float]] = {}
    for step in records.of("step"):
        norms.setdefault(step["step"], set()).add(step["grad_norm"])
    pairs = pairwise(steps)
    return {
        "the loss rises": any(after["loss"] > before["loss"] for before, after in pairs),
        "the global gradient norm differs between ranks": any(len(n) > 1 for n in norms.values()),
        "weight.grad differs between the stages": any(s.get("left_parted") for s in steps),
    }


def agree(trials: Mapping[str, Records]) -> Iterator[str]:
    """Two stages of the fixed release must train as one stage does."""
    if not {"fixed", "reference"} <= set(trials):
        return
    fixed, reference = (trials[name].of("step", 0) for name in ("fixed", "reference"))
    if len(fixed) != len(reference):
        yield f"fixed took {len(fixed)} steps, and one stage {len(reference)}"
    for two, one in zip(fixed, reference, strict=False):
        if abs(two["loss"] - one["loss"]) > LOSS_TOLERANCE:
            yield (
                f"fixed: loss {two['loss']:.5f} at step {two['step']}, where one stage has "
                f"{one['loss']:.5f}"
            )
