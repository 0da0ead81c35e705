"""On the last pipeline stage, loading a checkpoint resets a tied module, except its tied weight.

A pipeline that ties its embedding to its head builds the complete embedding module on the last
stage too. Checkpoints do not contain that copy. On load the tied weight is broadcast from the first
stage, and everything else in the module keeps the value that a new process initialised it with.

This affected the training of BLOOM-176B in March 2022 (its run main-4); its embedding has a layer
norm. On the last pipeline rank ``tied_modules.embed.word_embeddings.norm`` was 0.9961 before the
save, and 1.0 after a restart. It was found by dumping every parameter on every rank.

Root cause: a ``TiedLayerSpec`` with a ``forward_fn`` becomes ``functools.partial(forward_fn,
module)``. ``PipelineModule.save_state_dict`` and ``load_state_dir`` skip whatever has no
``state_dict`` or ``load_state_dict``, and a partial has neither. Then ``_synchronize_tied_weights``
broadcasts only what ``tied_weight_attr`` names.

DeepSpeed 0.19.8 still has the bug: as released, it is the buggy variant. The fixed variant is our
remedy, not upstream's: the partial gets the two methods of its module. BLOOM avoided the bug by
leaving the norm out of the last stage.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common import copies, stepped
from scenarios.deepspeed import _tied_resume as resume


def save_and_load_partials(function: Any) -> api.Edits:
    """After a tied layer's partial is appended, give it its module's ``state_dict`` methods."""
    import libcst as cst
    import libcst.matchers as m

    module = m.SaveMatchedNode(m.DoNotCare(), "module")
    partial = m.Call(func=m.Name("partial"), args=[m.Arg(), m.Arg(module)])
    functions = m.SaveMatchedNode(m.DoNotCare(), "functions")
    append = m.Call(func=m.Attribute(functions, m.Name("append")), args=[m.Arg(partial)])
    matcher = m.SimpleStatementLine([m.Expr(append)])
    for line in m.findall(function, matcher):
        nodes: Any = m.extract(line, matcher)
        parts = {name: cst.Module([]).code_for_node(node) for name, node in nodes.items()}
        statements = (
            cst.parse_statement("{functions}[-1].{0} = {module}.{0}".format(method, **parts))
            for method in ("state_dict", "load_state_dict")
        )
        yield line, cst.FlattenSentinel([line, *statements])


def plan(at: api.Position) -> api.Plan:
    """The steps before the save, the load, and the step after the save and after the load."""
    return resume.plan(at, at.params.steps, copies.tied_step(at))


def run(ctx: api.Context) -> None:
    """One launch trains and saves; the next one loads, and compares all parameters with a dump."""
    from scenarios.common import tied_pipeline as tied

    params = ctx.params
    training = tied.Training(
        lr=params.lr,
        weight_decay=params.weight_decay,
        batch=params.batch,
        micro_batches=params.micro_batches,
    )
    trainer = tied.Trainer(ctx, training, tied.Shape(head_bias=params.head_bias))
    resume.run(ctx, trainer, params.steps, params.load_optimizer_states)


def detect(records: api.Records) -> api.Finding | None:
    """Parameters beside the tied weight on the last stage are not what they were before the save,
    but as initialised. Every step was the one that plain torch takes."""
    strays = stepped.astray(records)
    if strays:
        return stepped.finding(strays)
    changed = resume.changed(records)
    if not changed:
        return None
    reset = [change for change in changed if change.reset and _beside_the_tied_weight(change.name)]
    documented = reset == changed and {change.rank for change in reset} == {max(records.ranks)}
    odd = [change for change in changed if change not in reset]
    examples = [*odd[:3], *reset]
    lines = [*map(str, examples), *(resume.later(records, change) for change in reset)]
    return resume.finding(records, examples, lines, documented=documented)


def _beside_the_tied_weight(name: str) -> bool:
    beside = name.startswith("tied_modules.") and not name.endswith("word_embeddings.weight")
    return beside and not name.endswith(resume.MASTER)


def exercised(records: api.Records) -> api.Exercise:
    """The last stage had saved other than initial values beside the tied weight."""
    return resume.trained(records, _beside_the_tied_weight, records.ranks[-1:])


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """Checks that miss this bug, and whether they fired."""
    return (
        resume.loss_jumps(records)
        | resume.copies_differ(records, "tied", "tied_masters")
        | resume.later_differs(records)
    )


picture = resume.brought_back
