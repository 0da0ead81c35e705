"""BF16_Optimizer clips the gradients of replicated parameters on tensor-parallel rank 0 only.

Layer norms, position embeddings and the biases of row-parallel layers are replicated across the
tensor-parallel ranks. Every rank updates its own copy, from a gradient that is the same on all.
With gradient clipping on, DeepSpeed's new BF16_Optimizer scaled that gradient down on rank 0 and
left it as it was on the others, so the copies took different steps and parted for good.

Met in the training of BLOOM-176B in early 2022. Nothing failed: the loss went down, the global
gradient norm was the same on all ranks. The copies were found to differ when checkpoints were
compared file by file, and repairing the weights of a run of that size cost much time.

Root cause: ``get_grads_for_norm`` filters gradients for two purposes. For the global norm, a
replicated gradient must be counted once, so all ranks but 0 skip it. For clipping
(``for_clipping=True``) every rank needs all of its gradients; the filter stood where it applied to
both. The fix moves it under ``if not for_clipping``.

No published release has the bug: the optimizer first shipped with the fix in it. The buggy variant
is a release with the filter moved back to where it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.records import Records
from harness.spec import Companion, Defect, Finding, Outcome, Scenario, Variant

if TYPE_CHECKING:
    import libcst as cst

    from harness.rank import Context

LAYER_NORMS = (
    "input_layernorm.weight",
    "input_layernorm.bias",
    "post_attention_layernorm.weight",
    "post_attention_layernorm.bias",
)
"""The keys that the upstream test compares, in its order."""

LOSS_TOLERANCE = 5e-3
"""How far (nats) the losses of two ranks may be from those of one. bf16 rounding alone moved them
by up to 7e-4 in ten steps; the bug moves the tenth by 0.06."""


@dataclass
class Params:
    """The knobs; the defaults are those of the figures in docs/scenarios/bf16_clip.md."""

    gradient_clipping: float = 0.1
    """The greatest global gradient norm; 0 switches clipping off. The model's is 0.9 to 2.3."""
    optimizer: str = "sgd"
    """``sgd`` or ``adam``. Adam divides a constant factor out and hides the first step."""
    lr: float = 1.0
    """bf16 weights near 1 move in steps of 4e-3: at lr 0.1 the layer norms would not move."""
    steps: int = 10
    batch: int = 4

    def __post_init__(self) -> None:
        if self.optimizer not in ("sgd", "adam"):
            raise ValueError(f"scenario.optimizer={self.optimizer}: choose sgd or adam")
        if not (0 <= self.gradient_clipping < math.inf and 0 < self.lr < math.inf):
            raise ValueError(
                "scenario.gradient_clipping must be at least 0, scenario.lr above 0, both finite"
            )
        if self.steps < 1 or self.batch < 1:
            raise ValueError("scenario.steps and scenario.batch must be at least 1")


def filter_for_clipping_too(
    function: cst.FunctionDef,
) -> Iterator[tuple[cst.CSTNode, cst.FlattenSentinel[cst.BaseStatement]]]:
    """Move the filter for duplicates out of ``if not for_clipping``, to stand right after it."""
    import libcst as cst
    import libcst.matchers as m

    duplicates = m.If(
        test=m.UnaryOperation(m.Not(), m.BooleanOperation()),
        body=m.IndentedBlock([m.AtLeastN(n=1)]),
    )
    guard = m.If(
        test=m.UnaryOperation(m.Not(), m.Name("for_clipping")),
        body=m.IndentedBlock([m.AtLeastN(n=1), duplicates]),
        orelse=None,
    )
    for node in m.findall(function, guard):
        assert isinstance(node, cst.If)
        *kept, last = node.body.body
        assert isinstance(last, cst.If)
        body = node.body.with_changes(body=kept)
        yield node, cst.FlattenSentinel([node.with_changes(body=body), last])


DEFECT = Defect(
    name="filter_for_clipping_too",
    upstream="deepspeed",
    file="deepspeed/runtime/bf16_optimizer.py",
    scope="BF16_Optimizer.get_grads_for_norm",
    edit=filter_for_clipping_too,
    about="skips the duplicates of replicated parameters also when the gradients are fetched to be "
    "clipped, so that only tensor-parallel rank 0 scales its copy",
)

SCENARIO = Scenario(
    title="BF16_Optimizer clips replicated parameters on tensor-parallel rank 0 only, "
    "and their copies part",
    report=(
        "DeepSpeed BF16_Optimizer Gradient Clipping Leading to Model Weights Out-of-Sync",
        "https://github.com/microsoft/DeepSpeed/pull/1801",
    ),
    fix="https://github.com/microsoft/DeepSpeed/commit/e24814a10 (2022)",
    symptom="AssertionError: Checking Transformer Layer norm weights in key "
    "input_layernorm.weight, checkpoint global_step10, files ['layer_03-model_00-model_states.pt', "
    "'layer_03-model_01-model_states.pt']",
    trigger="BF16_Optimizer, gradient clipping and tensor parallelism",
    remedy="use a published release of DeepSpeed: none has this bug",
    pins={"deepspeed": "0.19.8", "megatron-core": "0.16.1"},
    date="2026-11-20",
    companions=(
        Companion(
            when="deepspeed<0.16",
            pins={"megatron-core": "0.14.0"},
            why="later ones need a packaging or numpy that is younger than these releases",
        ),
    ),
    ranks=2,
    variants={
        "buggy": Variant(
            "the release with the filter put back in its old place", Outcome.SYMPTOM, (DEFECT,)
        ),
        "fixed": Variant("the release as published", Outcome.CLEAN),
        "control": Variant(
            "the defect is in, but clipping is off: nothing to do wrong", Outcome.CLEAN, (DEFECT,),
            params={"gradient_clipping": 0.0}, triggers=False,
        ),
        "reference": Variant("one rank, nothing replicated", Outcome.CLEAN, ranks=1),
    },
)  # fmt: skip


def run(ctx: Context) -> None:
    """Train a small tensor-parallel GPT; compare the replicas after every step, then on disk."""
    with ctx.phase("init"):
        engine, group = _engine(ctx)
    with ctx.phase("steps"):
        _train(ctx, engine, group)
    with ctx.phase("check"):
        _documented_check(ctx, engine)


def _engine(ctx: Context) -> tuple[Any, Any]:
    """DeepSpeed's own pipeline engine and BF16_Optimizer over the model; the group of replicas."""
    import deepspeed
    import torch
    import torch.distributed as dist
    from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
    from megatron.core import parallel_state

    from scenarios.workloads import fused, gpt

    width = ctx.world_size
    deepspeed.init_distributed(dist_backend=ctx.lane.backend)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=width)
    torch.manual_seed(ctx.seed)
    module = deepspeed.PipelineModule(
        gpt.layers(gpt.Shape(), gpt.parallel_config(width), ctx.lane),
        topology=PipeModelDataParallelTopology(num_pp=1, num_mp=width, num_dp=1),
        loss_fn=gpt.loss,
        partition_method="uniform",
        activation_checkpoint_interval=0,
    )
    if ctx.params.optimizer == "adam":
        optimizer = fused.adam(module.parameters(), ctx.params.lr, ctx.lane)
    else:
        optimizer = torch.optim.SGD(module.parameters(), lr=ctx.params.lr)
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=optimizer,
        config=_config(ctx),
    )
    group = parallel_state.get_tensor_model_parallel_group()
    theirs = dist.get_process_group_ranks(engine.grid.get_slice_parallel_group())
    assert isinstance(engine.optimizer, BF16_Optimizer), type(engine.optimizer)
    assert theirs == dist.get_process_group_ranks(group), "grid and parallel_state disagree"
    return engine, group


def _config(ctx: Context) -> dict[str, Any]:
    from scenarios.workloads import bf16

    return {
        "train_micro_batch_size_per_gpu": ctx.params.batch,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": ctx.params.gradient_clipping,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1_000_000,
        **bf16.config(ctx.pins),
    }


def _train(ctx: Context, engine: Any, group: Any) -> None:
    from harness.detectors.replicas import replica_differences, replicated_parameters
    from scenarios.workloads import gpt

    data = gpt.batch(gpt.Shape(), ctx.params.batch, ctx.seed, ctx.device)
    for step in range(1, ctx.params.steps + 1):
        loss = engine.train_batch(iter([data]))
        replicas = list(replicated_parameters(engine.module))
        differences = replica_differences(replicas, group)
        ctx.record(
            "step",
            step,
            loss=float(loss),
            grad_norm=float(engine.get_global_grad_norm()),
            clipping=ctx.params.gradient_clipping,
            replicas=len(replicas),
            differing={d.name: d.greatest for d in differences},
            ranks=sorted({0, *(r for d in differences for r in d.ranks)}) if differences else [],
        )


def _documented_check(ctx: Context, engine: Any) -> None:
    """Save a checkpoint and compare the files of the two ranks key by key, as upstream's test."""
    import torch.distributed as dist

    tag = f"global_step{ctx.params.steps}"
    engine.save_checkpoint(str(ctx.folder / "checkpoints"), tag=tag)
    dist.barrier()
    if ctx.rank == 0 and ctx.world_size > 1:
        compared, failures = _compare(ctx.folder / "checkpoints" / tag)
        ctx.record("checkpoint", compared=compared, failures=failures)


def _compare(checkpoint: Path) -> tuple[int, list[dict[str, Any]]]:
    """How many layer-norm keys were compared, and each that differs between the two files."""
    import torch

    compared, failures = 0, []
    for first in sorted(checkpoint.glob("layer_*-model_00-model_states.pt")):
        pair = [first, first.with_name(first.name.replace("model_00", "model_01"))]
        ours, theirs = (torch.load(f, map_location="cpu", weights_only=False) for f in pair)
        for key in (key for key in LAYER_NORMS if key in ours):
            compared += 1
            if not torch.equal(ours[key], theirs[key]):
                distance = (ours[key].double() - theirs[key].double()).abs().max()
                failures.append(
                    {
                        "key": key,
                        "checkpoint": checkpoint.name,
                        "files": [file.name for file in pair],
                        "greatest": float(distance),
                    }
                )
    return compared, failures


def detect(records: Records) -> Finding | None:
    """The replicas part after a step, and the documented check fails on the checkpoint."""
    drifted = [step for step in records.of("step", 0) if step["differing"]]
    saved = records.one("checkpoint")
    failures = saved["failures"] if saved else []
    if not drifted and not failures:
        return None
    lines = [_drift(drifted[0])] if drifted else ["no drift was seen during training"]
    lines.append(_assertion(failures[0]) if failures else "the documented check passes")
    if saved and failures:
        lines.append(f"{len(failures)} of {saved['compared']} layer-norm keys differ on disk")
    first = drifted[0] if drifted else {"step": None, "differing": {}, "ranks": [0, 1]}
    return Finding(
        message="\n".join(lines),
        step=first["step"],
        parameters=tuple(first["differing"]),
        ranks=tuple(first["ranks"]),
        magnitude=max(first["differing"].values(), default=None),
        documented=bool(drifted and failures),
    )


def _drift(step: Mapping[str, Any]) -> str:
    differing = step["differing"]
    return (
        f"step {step['step']}: {len(differing)} of {step['replicas']} replicated parameters "
        f"differ between tensor-parallel ranks, by up to {max(differing.values()):.3g}"
    )


def _assertion(failure: Mapping[str, Any]) -> str:
    return (
        f"AssertionError: Checking Transformer Layer norm weights in key {failure['key']}, "
        f"checkpoint {failure['checkpoint']}, files {failure['files']}"
    )


def exercised(records: Records) -> str | None:
    """Clipping was active in every compared step: the norm was above the threshold."""
    steps = records.of("step", 0)
    active = [s for s in steps if 0 < s["clipping"] < s["grad_norm"]]
    if not steps or len(active) < len(steps):
        return None
    norms = [step["grad_norm"] for step in steps]
    return (
        f"{steps[0]['replicas']} replicated parameters bitwise equal in {len(steps)} of "
        f"{len(steps)} steps; clipping was active in all (norm {min(norms):.3g} to "
        f"{max(norms):.3g}, threshold {steps[0]['clipping']:g})"
    )


def wrong_detectors(records: Records) -> dict[str, bool]:
    """What does not find this bug, and whether it fired: the norm is all-reduced, so it agrees."""
    norms: dict[int, set[float]] = {}
    for step in records.of("step"):
        norms.setdefault(step["step"], set()).add(step["grad_norm"])
    return {
        "the global gradient norm differs between ranks": any(len(n) > 1 for n in norms.values())
    }


def agree(trials: Mapping[str, Records]) -> Iterator[str]:
    """Two ranks of the fixed release must train as one rank does."""
    if not {"fixed", "reference"} <= set(trials):
        return
    fixed, reference = (trials[name].of("step", 0) for name in ("fixed", "reference"))
    if len(fixed) != len(reference):
        yield f"fixed took {len(fixed)} steps, and one rank {len(reference)}"
    for two, one in zip(fixed, reference, strict=False):
        if abs(two["loss"] - one["loss"]) > LOSS_TOLERANCE:
            yield (
                f"fixed: loss {two['loss']:.5f} at step {two['step']}, where one rank has "
                f"{one['loss']:.5f}"
            )
