"""Loading a checkpoint overwrites the last stage's copy of a tied weight that had drifted.

The first and the last pipeline stage each hold a copy of the word embeddings. If a bug lets the
copies drift apart, training continues with two different weights, and each stage adapts to its own.
A checkpoint contains only the first stage's copy. On load it is broadcast, and the last stage gets
a weight that it was not trained with.

This affected the training of BLOOM-176B in March 2022 (its runs main-2 and main-4). On the last
pipeline rank ``tied_modules.embed.word_embeddings.weight`` differed between the last step before
the save and the first step after the load, and in main-2 the loss spiked. It was found by dumping
every parameter on every rank. The fp32 master copies are loaded with their drift, so one step later
the copies are apart again.

Two bugs let the copies drift, and each is a variant. *buggy*: the gradients are not summed over the
stages (see ``tied_grad_reduce``). *clipping*: the gradients are summed, but gradient clipping skips
the later stages' copies (``ds_pipe_replicated``), so only the first stage scales the sum down. This
was the case between the two fixes (37011a92 and 77b649d16): ``get_grads_for_norm`` leaves the
copies out of the norm, where a copy must count once, and it left them out of clipping, too.

The model here has no norm in its embedding, because DeepSpeed 0.19.8 resets that on load (see
``tied_resume_norm``); ``scenario.norm=true`` shows both bugs at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from harness.bugs import api
from scenarios.common import copies, stepped
from scenarios.deepspeed import _tied_resume as resume


def filter_tied_for_clipping_too(function: Any) -> api.Edits:
    """Move the filter for ``ds_pipe_replicated`` from inside ``if not for_clipping`` before it."""
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
        copy_filter, *statements = node.body.body
        body = node.body.with_changes(body=statements)
        yield node, cst.FlattenSentinel([copy_filter, node.with_changes(body=body)])


def plan(at: api.Position) -> api.Plan:
    """The steps before the save, the load, and the step after the save and after the load."""
    return resume.plan(at, at.params.steps, copies.tied_step(at))


def run(ctx: api.Context) -> None:
    """One launch trains and saves; the next one loads, and compares all parameters with a dump."""
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


def detect(records: api.Records) -> api.Finding | None:
    """The last stage's tied weight is not what it was before the save, and its copies had drifted
    by then, through one of the two bugs. All else took the step that plain torch takes."""
    clipping = records.params.gradient_clipping
    excuse = partial(_drifting, clipping=clipping)
    strays = stepped.astray(records, clipping, excuse)
    if strays:
        return stepped.finding(strays)
    changed, drifted = resume.changed(records), resume.drifted(records)
    if not changed and not drifted:
        return None
    weight = [change for change in changed if change.name == copies.WEIGHT]
    odd = [
        change for change in changed if change.master or not change.name.startswith("tied_modules.")
    ]
    lines = [
        *map(str, odd or changed),
        _drifted(drifted),
        *([str(resume.losses(records))] * bool(weight)),
    ]
    last_stage = {max(records.ranks)}
    documented = bool(drifted) and not odd and {change.rank for change in weight} == last_stage
    return resume.finding(records, changed, lines, documented=documented)


def _drifting(step: api.Record, name: str, clipping: float) -> bool:
    """Whether a stage applied its own gradient, or a later stage applied the unclipped sum."""
    later = step["rank"] > 0 and name == copies.WEIGHT
    unclipped = later and stepped.gave(step, step["got"][name], 1.0)
    return unclipped or copies.unsummed(step, name, clipping)


def _drifted(tied: Mapping[str, float]) -> str:
    if not tied:
        return "the copies were equal before the save"
    return "before the save " + ", ".join(
        f"the copies of {name} were apart by {greatest:.3g}" for name, greatest in tied.items()
    )


def exercised(records: api.Records) -> api.Exercise:
    """In every step the stages' own gradients differed, and the saved weight had been trained."""
    trained = resume.trained(records, lambda name: name == copies.WEIGHT, records.ranks)
    return copies.gradients_parted(records) & trained


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """Checks that miss this bug, and whether they fired."""
    return resume.loss_jumps(records, by=resume.JUMP) | resume.copies_differ(records, "tied")


picture = resume.brought_back
