"""What a tied module holds besides its tied weight is reset to defaults on load, on the last stage.

A pipeline that ties its embedding to its head builds the whole embedding module on the last stage
too. Checkpoints leave that copy out: on load the tied weight is broadcast from the first stage, and
everything else in the module stays as a fresh process has initialised it.

Met in the training of BLOOM-176B in March 2022 (its run main-4), whose embedding has a layer norm.
After a restart ``tied_modules.embed.word_embeddings.norm`` on the last pipeline rank was 1.0 again,
where it had been 0.9961 before the save. It was found by dumping every parameter on every rank.

Root cause: a ``TiedLayerSpec`` with a ``forward_fn`` becomes ``functools.partial(forward_fn,
module)``. ``PipelineModule.save_state_dict`` and ``load_state_dir`` pass over whatever has no
``state_dict`` or ``load_state_dict``, and a partial has neither. ``_synchronize_tied_weights`` then
broadcasts what ``tied_weight_attr`` names, and no more.

DeepSpeed 0.19.8 as released still does this: it is the buggy variant. The fixed one is a remedy of
ours, not upstream's: the partial gets its module's two methods. BLOOM went round it by leaving the
norm out of the last stage.
"""

from __future__ import annotations

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
    Records,
    Scenario,
    affected,
    unaffected,
)
from scenarios.common import copies, stepped
from scenarios.deepspeed.tied_resume_norm import resume


@dataclass
class Params(Knobs):
    weight_decay: float = knob(
        0.1, least=0, about="all that moves the norm on the last stage, where it has no gradient"
    )
    lr: float = knob(1e-2, above=0, about="of AdamW")
    steps: int = knob(5, least=1, about="before the save; one more is taken on either side of it")
    head_bias: bool = knob(
        False, about="a bias of the logits in the tied module, which the last stage does train"
    )
    load_optimizer_states: bool = knob(
        True, about="as to load_checkpoint; False loses the fp32 master copies, the last trace"
    )
    batch: int = knob(4, least=1, unit="sequences", about="in a micro-batch")
    micro_batches: int = knob(2, least=1, about="in a step")


def save_and_load_partials(function: Any) -> Edits:
    """After a tied layer's partial is appended, give it ``state_dict`` and ``load_state_dict``."""
    import libcst as cst
    import libcst.matchers as m

    module = m.SaveMatchedNode(m.DoNotCare(), "module")
    partial = m.Call(func=m.Name("partial"), args=[m.Arg(), m.Arg(module)])
    functions = m.SaveMatchedNode(m.DoNotCare(), "functions")
    append = m.Call(func=m.Attribute(functions, m.Name("append")), args=[m.Arg(partial)])
    matcher = m.SimpleStatementLine([m.Expr(append)])
    for line in m.findall(function, matcher):
        found: Any = m.extract(line, matcher)
        parts = {name: cst.Module([]).code_for_node(node) for name, node in found.items()}
        given = (
            cst.parse_statement("{functions}[-1].{0} = {module}.{0}".format(method, **parts))
            for method in ("state_dict", "load_state_dict")
        )
        yield line, cst.FlattenSentinel([line, *given])


REMEDY = Defect(
    name="save_and_load_partials",
    upstream="deepspeed",
    file="deepspeed/runtime/pipe/module.py",
    scope="PipelineModule._build",
    edit=save_and_load_partials,
    about="our remedy, not upstream's: a tied layer with a forward_fn is saved and loaded like any "
    "other, because its partial gets the state_dict and load_state_dict of its module",
)

SCENARIO = Scenario(
    report=("BigScience, The final training: trials and tribulations (main-4, March 2022)",),
    fix="none upstream as of DeepSpeed 0.19.8; the fixed variant is a remedy of ours",
    symptom="on the last pipeline rank tied_modules.embed.word_embeddings.norm is reset to "
    "defaults on load: weight 0.9961 before, 1.0 after",
    trigger="a TiedLayerSpec with a forward_fn whose module holds more than its tied weight, "
    "resumed from a checkpoint",
    remedy="keep everything but the tied weight out of the tied module; see `python -m harness "
    "show tied_resume_norm` for a patch",
    pins={"deepspeed": "0.19.8"},
    goes_wrong="resume",
    ranks=2,
    launches=resume.LAUNCHES,
    variants={
        "buggy": affected(),
        "fixed": unaffected(
            about="our remedy: the release, but tied layers with a forward_fn are saved and loaded",
            defects=(REMEDY,),
        ),
        "trained": affected(
            about="the release; the tied module has a bias too, which the last stage trains",
            params={"head_bias": True},
        ),
        "weights_only": affected(
            about="the release, loaded without optimizer states: the values are lost for good",
            params={"head_bias": True, "load_optimizer_states": False},
        ),
        "control": unaffected(
            about="the release without weight decay: only initial values to lose",
            params={"weight_decay": 0.0},
            triggers=False,
        ),
    },
)


def plan(at: Position) -> Plan:
    """The steps before the save, the load, and the step after it on either side."""
    step, loads = copies.tied_step(at), at.params.load_optimizer_states
    return resume.plan(at, at.params.steps, step, optimizer_states=loads)


def run(ctx: Context) -> None:
    """Train and save in one launch; in the next load, and compare every parameter with the dump."""
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


def detect(records: Records) -> Finding | None:
    """A parameter is not what it was before the save; documented where it was reset to default, and
    every step was the one that plain torch takes."""
    wrong = [*copies.astray(records), *resume.retold(records)]
    if wrong:
        return stepped.finding(wrong)
    changed = resume.changed(records)
    if not changed:
        return None
    reset = [one for one in changed if one.reset and _beside_the_tied_weight(one.name)]
    documented = reset == changed and {one.rank for one in reset} == {max(records.ranks)}
    odd = [one for one in changed if one not in reset]
    shown = [*odd[:3], *reset]
    lines = [*map(str, shown), *(resume.later(records, one) for one in reset)]
    return resume.finding(records, shown, lines, documented=documented)


def _beside_the_tied_weight(name: str) -> bool:
    beside = name.startswith("tied_modules.") and not name.endswith("word_embeddings.weight")
    return beside and not name.endswith(resume.MASTER)


def exercised(records: Records) -> Exercise:
    """The last stage had saved something else than initial values beside the tied weight."""
    return resume.trained(records, _beside_the_tied_weight, records.ranks[-1:])


def insufficient_checks(records: Records) -> dict[str, bool]:
    """What does not find this bug, and whether it fired."""
    return (
        resume.loss_jumps(records)
        | resume.copies_differ(records, "tied", "tied_masters")
        | resume.later_differs(records)
    )


picture = resume.brought_back
