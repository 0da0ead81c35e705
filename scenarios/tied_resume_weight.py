"""Loading a checkpoint overwrites the last stage's copy of a tied weight that had drifted.

The first and the last pipeline stage each hold a copy of the word embeddings. Where a bug lets the
copies drift apart, training goes on with two different weights, and each learns to work with its
own half of the model. A checkpoint holds the first stage's copy only: on load it is broadcast, and
the last stage gets a weight that it was not trained with.

Met in the training of BLOOM-176B in March 2022 (its runs main-2 and main-4): on the last pipeline
rank ``tied_modules.embed.word_embeddings.weight`` was not the same at the first step after the load
as at the last one before the save, and in main-2 the loss spiked. It was found by dumping every
parameter on every rank. The fp32 master copies are loaded as they were, each with its drift, so
that one step later the copies are apart again.

Two roads led there, and each is a variant. *buggy*: the gradients are not summed over the stages
(see tied_grad_reduce). *clipping*: they are, but gradient clipping passes over what the first
stage owns too (``ds_pipe_replicated``), so that only the first stage scales the sum down. That was
so for a while between the two fixes (37011a92 and 77b649d16): ``get_grads_for_norm`` filters for
the norm, where a copy must be counted once, and filtered for clipping as well.

The model here has no norm in its embedding, which DeepSpeed 0.19.8 would reset on load
(see tied_resume_norm): ``scenario.norm=true`` shows both at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.records import Record, Records
from harness.spec import Defect, Finding, Outcome, Scenario, Variant
from scenarios.tied_grad_reduce import DEFECT as REDUCE_DEFECT

if TYPE_CHECKING:
    import libcst as cst

    from harness.rank import Context

MASTER = " (fp32)"
"""What the names of fp32 master copies end with, in the records."""

JUMP = 0.05
"""By how much (nats) a loss must be above that without a restart to be seen in a log."""


@dataclass
class Params:
    """The knobs; the defaults are those of the figures in docs/scenarios/tied_resume_weight.md."""

    gradient_clipping: float = 0.0
    """The greatest global gradient norm; 0 switches clipping off. The model's is 0.5 to 0.9."""
    lr: float = 1e-2
    steps: int = 5
    """Steps before the save; one more is taken on either side of it."""
    norm: bool = False
    """Whether the embedding has a layer norm, and weight decay moves it: this brings in the bug of
    tied_resume_norm."""
    batch: int = 4
    micro_batches: int = 2

    def __post_init__(self) -> None:
        if not (0 < self.lr < math.inf and 0 <= self.gradient_clipping < math.inf):
            raise ValueError(
                "scenario.lr must be above 0, scenario.gradient_clipping at least 0, both finite"
            )
        if self.steps < 1 or self.batch < 1 or self.micro_batches < 1:
            raise ValueError(
                "scenario.steps, scenario.batch and scenario.micro_batches must be at least 1"
            )


def filter_tied_for_clipping_too(
    function: cst.FunctionDef,
) -> Iterator[tuple[cst.CSTNode, cst.FlattenSentinel[cst.BaseStatement]]]:
    """Move the filter for ``ds_pipe_replicated`` out of ``if not for_clipping``, to before it."""
    import libcst as cst
    import libcst.matchers as m

    copies = m.If(
        test=m.BooleanOperation(right=m.Attribute(attr=m.Name("ds_pipe_replicated"))),
        body=m.IndentedBlock([m.SimpleStatementLine([m.Continue()])]),
    )
    guard = m.If(
        test=m.UnaryOperation(m.Not(), m.Name("for_clipping")),
        body=m.IndentedBlock([copies, m.AtLeastN(n=1)]),
    )
    for node in m.findall(function, guard):
        assert isinstance(node, cst.If)
        first, *kept = node.body.body
        assert isinstance(first, cst.If)
        body = node.body.with_changes(body=kept)
        yield node, cst.FlattenSentinel([first, node.with_changes(body=body)])


CLIPPING_DEFECT = Defect(
    name="filter_tied_for_clipping_too",
    upstream="deepspeed",
    file="deepspeed/runtime/bf16_optimizer.py",
    scope="BF16_Optimizer.get_grads_for_norm",
    edit=filter_tied_for_clipping_too,
    about="passes over the later stages' copies of tied weights also when the gradients are "
    "fetched to be clipped, so that only the first stage scales the summed gradient",
)

SCENARIO = Scenario(
    title="loading a checkpoint overwrites the last pipeline stage's copy of a tied weight that "
    "had drifted",
    report=(
        "BigScience, The final training: trials and tribulations (main-2, main-4, March 2022)",
        "https://github.com/microsoft/DeepSpeed/pull/1801",
    ),
    fix="https://github.com/microsoft/DeepSpeed/commit/37011a92 and 77b649d16 (2022)",
    symptom="on the last pipeline rank tied_modules.embed.word_embeddings.weight differs between "
    "the last step before the save and the first after the load",
    trigger="a pipeline with tied layers under BF16_Optimizer, resumed from a checkpoint",
    remedy="use a published release of DeepSpeed that has the fix",
    pins={"deepspeed": "0.19.8"},
    date="2026-11-20",
    ranks=2,
    acts=("train", "resume"),
    variants={
        "buggy": Variant(
            "the copies drift because their gradients are not summed (tied_grad_reduce)",
            Outcome.SYMPTOM, (REDUCE_DEFECT,),
        ),
        "fixed": Variant("the release as published", Outcome.CLEAN),
        "clipping": Variant(
            "the copies drift because only the first stage clips the summed gradient",
            Outcome.SYMPTOM, (CLIPPING_DEFECT,), params={"gradient_clipping": 0.1},
        ),
        "control": Variant(
            "the clipping defect is in, but clipping is off: the copies do not drift",
            Outcome.CLEAN, (CLIPPING_DEFECT,), params={"gradient_clipping": 0.0},
        ),
    },
)  # fmt: skip


def run(ctx: Context) -> None:
    """Train and save in one act; in the next load, and compare every parameter with the dump."""
    from scenarios.workloads import tied_pipeline as tied

    shape = tied.Shape(norm=ctx.params.norm)
    training = tied.Training(
        lr=ctx.params.lr,
        weight_decay=0.1 if ctx.params.norm else 0.0,
        clipping=ctx.params.gradient_clipping,
        batch=ctx.params.batch,
        micro_batches=ctx.params.micro_batches,
    )
    with ctx.phase("init"):
        trainer = tied.Trainer(ctx, tied.engine(ctx, shape, training), shape, training)
    with ctx.phase(ctx.act):
        if ctx.act == "train":
            tied.save(ctx, trainer, ctx.params.steps)
        else:
            tied.load(ctx, trainer, ctx.params.steps)


def detect(records: Records) -> Finding | None:
    """The last stage's tied weight is not what it was before the save, and had drifted by then."""
    loaded = records.of("loaded")
    changed = [(one["rank"], change) for one in loaded for change in one["changed"]]
    drifted = records.of("drift", 0)[0]["tied"]
    if not changed and not drifted:
        return None
    weight = [(r, c) for r, c in changed if c["name"].endswith("word_embeddings.weight")]
    lines = [f"rank {rank}: {change['name']}: {change['about']}" for rank, change in changed]
    lines += [_drifted(drifted) if drifted else "the copies were equal before the save"]
    lines += [_loss(records)] if weight else []
    return Finding(
        message="\n".join(lines),
        step=loaded[0]["step"],
        parameters=tuple(change["name"] for _, change in changed),
        ranks=tuple(sorted({rank for rank, _ in changed})),
        magnitude=max((change["greatest"] for _, change in changed), default=None),
        documented=bool(drifted and weight) and {r for r, _ in weight} == {max(records.ranks)},
    )


def _drifted(tied: dict[str, float]) -> str:
    return "before the save " + ", ".join(
        f"the copies of {name} were apart by {greatest:.3g}" for name, greatest in tied.items()
    )


def _loss(records: Records) -> str:
    before, uninterrupted, resumed = _losses(records)
    return (
        f"the loss of the first step after the load is {resumed:.4f}, where it would have been "
        f"{uninterrupted:.4f} without the restart ({before:.4f} in the step before)"
    )


def _losses(records: Records) -> tuple[float, float, float]:
    """The loss of the last step before the save, and of the one after it, both ways."""
    steps: list[Record] = records.of("step", 0)
    trained = [step["loss"] for step in steps if step["act"] == "train"]
    (resumed,) = (step["loss"] for step in steps if step["act"] == "resume")
    return trained[-2], trained[-1], resumed


def exercised(records: Records) -> str | None:
    """The stages' own gradients differed in every step, and the saved weight had been trained."""
    steps, loaded = records.of("step"), records.of("loaded")
    weight = "tied_modules.embed.word_embeddings.weight"
    if not steps or not all(step.get("parted") for step in steps):
        return None
    if not loaded or not all(weight in one["trained"] for one in loaded):
        return None
    compared, masters = (sum(one[key] for one in loaded) for key in ("compared", "masters"))
    return (
        f"all {compared} tensors on {len(records.ranks)} ranks ({masters} of them fp32 master "
        f"copies) are bitwise what they were before the save, and the tied copies equal, though "
        f"the stages' own gradients differed in all steps and the weight had been trained"
    )


def wrong_detectors(records: Records) -> dict[str, bool]:
    """What does not find this bug, and whether it fired."""
    loaded = records.of("loaded")
    _, uninterrupted, resumed = _losses(records)
    return {
        f"the loss is {JUMP:g} nats higher after the load": resumed > uninterrupted + JUMP,
        "the tied copies differ after the load": any(one["tied"] for one in loaded),
    }
