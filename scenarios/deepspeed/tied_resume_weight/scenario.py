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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.facts.plan import Plan
from harness.knobs import Knobs, knob
from harness.spec import (
    Context,
    Defect,
    Edits,
    Exercise,
    Finding,
    Position,
    Record,
    Records,
    Scenario,
    affected,
    unaffected,
)
from scenarios.common import copies, stepped
from scenarios.deepspeed.tied_grad_reduce.scenario import DEFECT as REDUCE_DEFECT
from scenarios.deepspeed.tied_resume_norm import resume


@dataclass
class Params(Knobs):
    gradient_clipping: float = knob(
        0.0,
        least=0,
        about="the greatest global gradient norm, 0 for any; the model's is 0.5 to 0.9",
    )
    lr: float = knob(1e-2, above=0, about="of AdamW")
    steps: int = knob(5, least=1, about="before the save; one more is taken on either side of it")
    norm: bool = knob(
        False,
        about="a layer norm in the embedding, moved by weight decay: with it comes the bug "
        "of tied_resume_norm",
    )
    batch: int = knob(4, least=1, unit="sequences", about="in a micro-batch")
    micro_batches: int = knob(2, least=1, about="in a step")


def filter_tied_for_clipping_too(function: Any) -> Edits:
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
    node: Any
    for node in m.findall(function, guard):
        first, *kept = node.body.body
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
    goes_wrong="resume",
    ranks=2,
    launches=resume.LAUNCHES,
    variants={
        "buggy": affected(
            about="the copies drift because their gradients are not summed (tied_grad_reduce)",
            defects=(REDUCE_DEFECT,),
        ),
        "fixed": unaffected(),
        "clipping": affected(
            about="the copies drift because only the first stage clips the summed gradient",
            defects=(CLIPPING_DEFECT,),
            params={"gradient_clipping": 0.1},
        ),
        "control": unaffected(
            about="the second defect is in, but clipping is off, and the copies do not drift",
            defects=(CLIPPING_DEFECT,),
            params={"gradient_clipping": 0.0},
        ),
    },
)


def plan(at: Position) -> Plan:
    """The steps before the save, the load, and the step after it on either side."""
    return resume.plan(at, at.params.steps, copies.tied_step(at, at.params.gradient_clipping))


def run(ctx: Context) -> None:
    """Train and save in one launch; in the next load, and compare every parameter with the dump."""
    from scenarios.common import tied_pipeline as tied

    params = ctx.params
    training = tied.Training(
        lr=params.lr,
        weight_decay=0.1 if params.norm else 0.0,
        clipping=params.gradient_clipping,
        batch=params.batch,
        micro_batches=params.micro_batches,
    )
    trainer = tied.Trainer(ctx, training, tied.Shape(norm=params.norm))
    resume.run(ctx, trainer, params.steps)


def detect(records: Records) -> Finding | None:
    """The last stage's tied weight is not what it was before the save, and had drifted by then, on
    one of the two roads. All else took the step that plain torch takes."""
    wrong = [*copies.astray(records, excused=_drifting), *resume.retold(records)]
    if wrong:
        return stepped.finding(wrong)
    changed, drifted = resume.changed(records), resume.drifted(records)
    if not changed and not drifted:
        return None
    weight = [one for one in changed if one.name == copies.WEIGHT]
    odd = [one for one in changed if one.master or not one.name.startswith("tied_modules.")]
    lines = [
        *map(str, odd or changed),
        _drifted(drifted),
        *([str(resume.losses(records))] * bool(weight)),
    ]
    last = {max(records.ranks)}
    documented = bool(drifted) and not odd and {one.rank for one in weight} == last
    return resume.finding(records, changed, lines, documented=documented)


def _drifting(step: Record, name: str) -> bool:
    """Whether a stage applied its own gradient, or one behind the first the unclipped sum."""
    later = step["rank"] > 0 and name == copies.WEIGHT
    unclipped = later and stepped.gave(step, step["got"][name], 1.0)
    return unclipped or copies.unsummed(step, name)


def _drifted(tied: Mapping[str, float]) -> str:
    if not tied:
        return "the copies were equal before the save"
    return "before the save " + ", ".join(
        f"the copies of {name} were apart by {greatest:.3g}" for name, greatest in tied.items()
    )


def exercised(records: Records) -> Exercise:
    """The stages' own gradients differed in every step, and the saved weight had been trained."""
    trained = resume.trained(records, lambda name: name == copies.WEIGHT, records.ranks)
    return copies.gradients_parted(records) & trained


def insufficient_checks(records: Records) -> dict[str, bool]:
    """What does not find this bug, and whether it fired."""
    return resume.loss_jumps(records, by=resume.JUMP) | resume.copies_differ(records, "tied")


picture = resume.brought_back
