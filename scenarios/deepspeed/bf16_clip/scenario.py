"""BF16_Optimizer clips the gradients of replicated parameters only on tensor-parallel rank 0.

With tensor parallelism, each rank has a copy of the layer norms, the position embeddings and the
biases of row-parallel layers. These copies are the replicas. All ranks update them with the same
gradient, so they stay equal. With gradient clipping, DeepSpeed's new BF16_Optimizer clipped this
gradient only on tensor-parallel rank 0. So the ranks took different steps, and their copies stayed
different.

This affected the training of BLOOM-176B in early 2022. No error was raised. The loss went down, and
the global gradient norm was the same on all ranks. People found the difference when they compared
the checkpoint files of the ranks. To repair the weights of such a large run took much time.

Root cause: ``get_grads_for_norm`` returns gradients for two purposes. The global norm must count a
replicated gradient once, so the function skips it on all ranks but 0. Clipping needs all gradients
of every rank (``for_clipping=True``). The function skipped them there, too. The fix skips them only
if ``for_clipping`` is false.

No published release has the bug, because the optimizer was first released with the fix. The variant
``buggy`` is a release in which an edit puts the bug back.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from harness.bugs import api
from scenarios.common import agree as agreement
from scenarios.common import copies, stepped

LOSS_TOLERANCE = 5e-3
"""How far (nats) the losses of two ranks may be from those of one. bf16 rounding alone moved them
by up to 7e-4 in ten steps; the bug moves the tenth by 0.06."""

STEP = {
    "loss": api.NUMBER,
    "grad_norm": api.SIZE,
    "replicas": api.alike(api.many(api.LINE, least=1)),
    "differing": api.alike(api.by_name(api.SIZE)),
    **stepped.FACTS,
}
KEY = api.matching(r"(input|post_attention)_layernorm\.(weight|bias)", "key of a layer norm")
FILE = api.matching(r"layer_\d\d-model_0[01]-model_states\.pt", "file of a layer")


def filter_for_clipping_too(function: Any) -> api.Edits:
    """Move the filter for duplicates out of ``if not for_clipping``, to right after it."""
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
    node: Any
    for node in m.findall(function, guard):
        *statements, duplicate_filter = node.body.body
        body = node.body.with_changes(body=statements)
        yield node, cst.FlattenSentinel([node.with_changes(body=body), duplicate_filter])


def plan(at: api.Position) -> api.Plan:
    """Each step; on rank 0 of several, the result of the documented check of the checkpoint."""
    planned = {"step": api.Kind(STEP, api.each(at.params.steps))}
    if at.rank == 0 and at.world_size > 1:
        tag = api.exactly(f"global_step{at.params.steps}")
        failure = api.held({"key": KEY, "checkpoint": tag, "files": api.many(FILE, 2)})
        planned["checkpoint"] = api.Kind({"compared": api.COUNT, "failures": api.many(failure)})
    return planned


def run(ctx: api.Context) -> None:
    """Train a small tensor-parallel GPT; compare the replicas after every step, then on disk."""
    import torch

    from scenarios.deepspeed.bf16_clip import fused
    from scenarios.deepspeed.bf16_clip import model as gpt

    adam, sgd = partial(fused.adam, ctx.lane), torch.optim.SGD
    optimizer = partial(sgd if ctx.params.optimizer == "sgd" else adam, lr=ctx.params.lr)
    with ctx.phase("init"):
        config = gpt.config(ctx.params.batch, ctx.params.gradient_clipping)
        engine, group = gpt.engine(ctx, optimizer, config)
    with ctx.phase("steps"):
        _train(ctx, engine, group, stepped.Watch(engine, optimizer))
    with ctx.phase("check"):
        tag = f"global_step{ctx.params.steps}"
        engine.save_checkpoint(str(ctx.folder / "checkpoints"), tag=tag)
        torch.distributed.barrier()
        if ctx.rank == 0 and ctx.world_size > 1:
            ctx.record("checkpoint", **gpt.unlike_norms(ctx.folder / "checkpoints" / tag))


def _train(ctx: api.Context, engine: Any, group: Any, watch: stepped.Watch) -> None:
    from harness.detectors.replicas import replica_differences, replicated_parameters
    from scenarios.deepspeed.bf16_clip import model as gpt

    data = gpt.batch(gpt.Shape(), ctx.params.batch, ctx.seed, ctx.device)
    for step in range(1, ctx.params.steps + 1):
        watch.begin()
        plain = gpt.plainly(engine, group, data)
        loss = engine.train_batch(iter([data]))
        replicas = list(replicated_parameters(engine.module))
        differences = replica_differences(replicas, group)
        ctx.record(
            "step",
            step,
            loss=float(loss),
            grad_norm=float(engine.get_global_grad_norm()),
            replicas=[name for name, _ in replicas],
            differing=copies.facts(differences),
            **watch.facts(plain),
        )


def detect(records: api.Records) -> api.Finding | None:
    """After a step the replicas differ, because ranks other than 0 applied unclipped gradients. So
    the layer norms of the two ranks differ in the checkpoint, too, as the report says. All other
    parameters took the right steps."""
    clipping = records.params.gradient_clipping
    if strays := stepped.astray(records, clipping, excused=_unclipped):
        return stepped.finding(strays)
    parting, saved = copies.parting(records, "differing"), records.one("checkpoint")
    failures = saved["failures"] if saved else []
    if saved and not _goes_with(saved, records.of("step", 0)[-1]):
        failed = f"the documented check failed for {len(failures)} of {saved['compared']} keys"
        expected = f"the model has {len(_layer_norms(records.of('step', 0)[-1]))}"
        return api.Finding(f"{failed} ({expected}): not those that had drifted", documented=False)
    if not parting:
        undocumented = "the documented check fails, but no drift was seen during training"
        return api.Finding(undocumented, documented=False) if failures else None
    replicas = len(records.of("step", 0)[0]["replicas"])
    lines = [
        f"step {parting.step}: {len(parting.differences)} of {replicas} replicated parameters "
        f"differ between tensor-parallel ranks, by up to {parting.greatest:.3g}",
        _assertion(failures[0]) if failures else "the documented check passes",
    ]
    if saved and failures:
        lines.append(f"{len(failures)} of {saved['compared']} layer-norm keys differ on disk")
    return parting.finding(lines, records.ranks, documented=bool(failures))


def _unclipped(step: api.Record, name: str) -> bool:
    """Whether a rank other than 0 applied the unclipped gradient of a replicated parameter."""
    theirs = step["rank"] > 0 and name in step["replicas"]
    return theirs and stepped.gave(step, step["got"][name], 1.0)


def _layer_norms(step: api.Record) -> list[str]:
    """The parameters that the documented check compares, by their names in the model."""
    return [name for name in step["got"] if not KEY(name.partition(".")[2])]


def _goes_with(saved: api.Record, step: api.Record) -> bool:
    """Whether the documented check compared the model's layer norms, and failed for those that had
    drifted by the last step."""
    keys = _layer_norms(step)
    failed = [f"{int(failure['files'][0][6:8])}.{failure['key']}" for failure in saved["failures"]]
    norms = [name for name in keys if name in step["differing"]]
    matches = not (failed and norms) or sorted(failed) == sorted(norms)
    return matches and len(failed) <= saved["compared"] == len(keys)


def _assertion(failure: Mapping[str, Any]) -> str:
    return (
        f"AssertionError: Checking Transformer Layer norm weights in key {failure['key']}, "
        f"checkpoint {failure['checkpoint']}, files {failure['files']}"
    )


def exercised(records: api.Records) -> api.Exercise:
    """Clipping was active in every step: the norm was above the threshold."""
    steps, clipping = records.of("step", 0), records.params.gradient_clipping
    active = [step for step in steps if 0 < clipping < step["grad_norm"]]
    norms = [step["grad_norm"] for step in steps]
    figures = f"(norm {min(norms):.3g} to {max(norms):.3g}, threshold {clipping:g})"
    return api.Exercise.of(
        len(active) == len(steps),
        f"clipping was active in all {len(steps)} steps {figures} of a model with "
        f"{len(steps[0]['replicas'])} replicated parameters",
        f"clipping was active in {len(active)} of {len(steps)} steps {figures}",
    )


picture = partial(copies.drifting, field="differing")
insufficient_checks = copies.norm_differs
agree = partial(agreement.losses, tolerance=LOSS_TOLERANCE, noun="one rank")
