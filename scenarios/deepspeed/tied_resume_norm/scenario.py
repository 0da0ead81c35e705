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

from dataclasses import dataclass
from typing import Any

from harness.bugs import api
from scenarios.common import copies, stepped
from scenarios.deepspeed import _tied_resume as resume
from scenarios.deepspeed._history import NEVER_TAKEN


@dataclass
class Params(api.Knobs):
    weight_decay: float = api.knob(
        0.1, least=0, about="alone moves the norm on the last stage, where it has no gradient"
    )
    lr: float = api.knob(1e-2, above=0, about="learning rate of AdamW")
    steps: int = api.knob(5, least=1, about="before the save; one more follows, restarted or not")
    head_bias: bool = api.knob(
        False, about="whether the tied module has a bias of the logits, trained on the last stage"
    )
    load_optimizer_states: bool = api.knob(
        True, about="passed to load_checkpoint; False loses the fp32 master copies as well"
    )
    batch: int = api.knob(4, least=1, unit="sequences", about="size of a micro-batch")
    micro_batches: int = api.knob(2, least=1, about="number of micro-batches in a step")


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


REMEDY = api.Defect(
    upstream="deepspeed",
    file="deepspeed/runtime/pipe/module.py",
    scope="PipelineModule._build",
    edit=save_and_load_partials,
    about="our remedy, not upstream's: a tied layer with a forward_fn is saved and loaded like any "
    "other, because its partial gets the state_dict and load_state_dict of its module",
)

SCENARIO = api.Scenario(
    report=("BigScience, The final training: trials and tribulations (main-4, March 2022)",),
    fix="none upstream as of DeepSpeed 0.19.8; the fixed variant is our remedy",
    symptom="on the last pipeline rank tied_modules.embed.word_embeddings.norm is reset to "
    "defaults on load: weight 0.9961 before, 1.0 after",
    trigger="a TiedLayerSpec with a forward_fn whose module holds more than its tied weight, "
    "resumed from a checkpoint",
    remedy="keep everything but the tied weight out of the tied module; see `python -m harness "
    "show tied_resume_norm` for a patch",
    pins={"deepspeed": "0.19.8"},
    absent=(NEVER_TAKEN, resume.LOAD_RAISES),
    harm="wrong resume",
    visibility="silent",
    settings={
        "pipeline_parallel": api.above(1),
        "code": api.by_code("a tied module holds more than its tied weight"),
    },
    seen={"deepspeed.runtime.pipe.module.PipelineModule": api.NEEDED},
    known_upstream=False,
    launches=resume.LAUNCHES,
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean(
            about="the release with our remedy: tied layers with a forward_fn are saved and loaded",
            defects=(REMEDY,),
        ),
        "trained": api.expect_symptom(
            about="the release; the tied module has a bias as well, which the last stage trains",
            params={"head_bias": True},
        ),
        "weights_only": api.expect_symptom(
            about="the release, loaded without optimizer states: the values are lost for good",
            params={"head_bias": True, "load_optimizer_states": False},
        ),
        "control": api.control(
            "the release without weight decay: there are only initial values to lose",
            params={"weight_decay": 0.0},
        ),
    },
)


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
