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

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.records import Record, Records
from harness.spec import Defect, Finding, Outcome, Scenario, Variant

if TYPE_CHECKING:
    import libcst as cst

    from harness.rank import Context

MASTER = " (fp32)"
"""What the names of fp32 master copies end with, in the records."""


@dataclass
class Params:
    """The knobs; the defaults are those of the figures in docs/scenarios/tied_resume_norm.md."""

    weight_decay: float = 0.1
    """Without a gradient on the last stage, it is all that moves the norm there."""
    lr: float = 1e-2
    steps: int = 5
    """Steps before the save; one more is taken on either side of it."""
    head_bias: bool = False
    """Whether the tied module has a bias of the logits too, which the last stage does train."""
    load_optimizer_states: bool = True
    """As to ``load_checkpoint``. False loses the fp32 master copies too, the last trace."""
    batch: int = 4
    micro_batches: int = 2

    def __post_init__(self) -> None:
        if not (0 < self.lr < math.inf and 0 <= self.weight_decay < math.inf):
            raise ValueError(
                "scenario.lr must be above 0, scenario.weight_decay at least 0, both finite"
            )
        if self.steps < 1 or self.batch < 1 or self.micro_batches < 1:
            raise ValueError(
                "scenario.steps, scenario.batch and scenario.micro_batches must be at least 1"
            )


def save_and_load_partials(
    function: cst.FunctionDef,
) -> Iterator[tuple[cst.CSTNode, cst.FlattenSentinel[cst.BaseStatement]]]:
    """After a tied layer's partial is appended, give it ``state_dict`` and ``load_state_dict``."""
    import libcst as cst
    import libcst.matchers as m

    module = m.SaveMatchedNode(m.DoNotCare(), "module")
    partial = m.Call(func=m.Name("partial"), args=[m.Arg(), m.Arg(module)])
    functions = m.SaveMatchedNode(m.DoNotCare(), "functions")
    append = m.Call(func=m.Attribute(functions, m.Name("append")), args=[m.Arg(partial)])
    matcher = m.SimpleStatementLine([m.Expr(append)])
    for line in m.findall(function, matcher):
        found = m.extract(line, matcher)
        assert isinstance(line, cst.SimpleStatementLine)
        assert found is not None
        parts = {
            name: cst.Module([]).code_for_node(node)
            for name, node in found.items()
            if isinstance(node, cst.CSTNode)
        }
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
    title="what a tied module holds besides its tied weight is reset to defaults on load, on the "
    "last pipeline stage",
    report=(
        "BigScience, The final training: trials and tribulations (main-4, March 2022)",
    ),
    fix="none upstream as of DeepSpeed 0.19.8; the fixed variant is a remedy of ours",
    symptom="on the last pipeline rank tied_modules.embed.word_embeddings.norm is reset to "
    "defaults on load: weight 0.9961 before, 1.0 after",
    trigger="a TiedLayerSpec with a forward_fn whose module holds more than its tied weight, "
    "resumed from a checkpoint",
    remedy="keep everything but the tied weight out of the tied module; see `python -m harness "
    "show tied_resume_norm` for a patch",
    pins={"deepspeed": "0.19.8"},
    date="2026-11-20",
    ranks=2,
    acts=("train", "resume"),
    variants={
        "buggy": Variant("the release as published", Outcome.SYMPTOM),
        "fixed": Variant(
            "our remedy: the release, but tied layers with a forward_fn are saved and loaded",
            Outcome.CLEAN, (REMEDY,),
        ),
        "trained": Variant(
            "the release; the tied module has a bias too, which the last stage trains",
            Outcome.SYMPTOM, params={"head_bias": True},
        ),
        "weights_only": Variant(
            "the release, loaded without optimizer states: the values are lost for good",
            Outcome.SYMPTOM, params={"head_bias": True, "load_optimizer_states": False},
        ),
        "control": Variant(
            "the release without weight decay: only initial values to lose",
            Outcome.CLEAN, params={"weight_decay": 0.0}, triggers=False,
        ),
    },
)  # fmt: skip


def run(ctx: Context) -> None:
    """Train and save in one act; in the next load, and compare every parameter with the dump."""
    from scenarios.workloads import tied_pipeline as tied

    shape = tied.Shape(head_bias=ctx.params.head_bias)
    training = tied.Training(
        lr=ctx.params.lr,
        weight_decay=ctx.params.weight_decay,
        batch=ctx.params.batch,
        micro_batches=ctx.params.micro_batches,
    )
    with ctx.phase("init"):
        trainer = tied.Trainer(ctx, tied.engine(ctx, shape, training), shape, training)
    with ctx.phase(ctx.act):
        if ctx.act == "train":
            tied.save(ctx, trainer, ctx.params.steps)
        else:
            tied.load(ctx, trainer, ctx.params.steps, ctx.params.load_optimizer_states)


def detect(records: Records) -> Finding | None:
    """A parameter is not what it was before the save; documented where it was reset to default."""
    loaded = records.of("loaded")
    changed = [(one["rank"], c) for one in loaded for c in one["changed"]]
    weights = [(rank, c) for rank, c in changed if not c["name"].endswith(MASTER)]
    # Without optimizer states the master copies are made of the bf16 weights, so rounded: meant.
    masters = [
        (r, c) for r, c in changed if c["name"].endswith(MASTER) and _masters_loaded(records)
    ]
    if not weights and not masters:
        return None
    reset = [(rank, c) for rank, c in weights if c["reset"] and _beside_the_tied_weight(c["name"])]
    lines = [
        f"rank {rank}: {c['name']}: {c['about']}{_default(c)}" for rank, c in weights or masters
    ]
    lines += [_later(records, rank, c["name"]) for rank, c in reset]
    last = max(records.ranks)
    return Finding(
        message="\n".join(lines),
        step=loaded[0]["step"],
        parameters=tuple(c["name"] for _, c in weights or masters),
        ranks=tuple(sorted({rank for rank, _ in weights or masters})),
        magnitude=max(c["greatest"] for _, c in weights or masters),
        documented=bool(reset)
        and len(reset) == len(weights)
        and not masters
        and {rank for rank, _ in reset} == {last},
    )


def _masters_loaded(records: Records) -> bool:
    return all(one["optimizer_states"] for one in records.of("loaded"))


def _beside_the_tied_weight(name: str) -> bool:
    return name.startswith("tied_modules.") and not name.endswith("word_embeddings.weight")


def _default(change: Record) -> str:
    return ", as initialised" if change["reset"] else ""


def _later(records: Records, rank: int, name: str) -> str:
    """What one step more does to a parameter that the load has reset."""
    later = records.one("later", rank)
    still = {c["name"]: c for c in later["changed"]} if later else {}
    if name in still:
        return f"one step later {name} is still off, by {still[name]['greatest']:.3g}"
    return f"one step later {name} is back: the step copies the fp32 master over it"


def exercised(records: Records) -> str | None:
    """The last stage had saved something else than initial values beside the tied weight."""
    last = records.one("loaded", max(records.ranks))
    if last is None:
        return None
    trained = {
        name: values
        for name, values in last["trained"].items()
        if _beside_the_tied_weight(name) and not name.endswith(MASTER)
    }
    if not trained:
        return None
    what = ", ".join(f"{n} from {was:.5g} to {now:.5g}" for n, (was, now) in trained.items())
    compared = sum(one["compared"] for one in records.of("loaded"))
    masters = sum(one["masters"] for one in records.of("loaded"))
    return (
        f"all {compared} tensors on {len(records.ranks)} ranks ({masters} of them fp32 master "
        f"copies) are bitwise what they were before the save, though training had moved what the "
        f"last stage holds beside the tied weight: {what}"
    )


def wrong_detectors(records: Records) -> dict[str, bool]:
    """What does not find this bug, and whether it fired."""
    loaded = records.of("loaded")
    after = [s for s in records.of("step", 0) if s["act"] == "resume"]
    uninterrupted = {s["step"]: s["loss"] for s in records.of("step", 0) if s["act"] == "train"}
    shown = {
        "the loss is higher than without the restart": any(
            s["loss"] > uninterrupted[s["step"]] for s in after if s["step"] in uninterrupted
        ),
        "the tied copies differ after the load": any(
            one["tied"] or one["tied_masters"] for one in loaded
        ),
    }
    if _masters_loaded(records):
        later = any(one["changed"] for one in records.of("later"))
        shown["a parameter differs one step after the load"] = later
    return shown
