"""With pipeline parallelism in fp32, gradients are clipped by the norm of the first stage alone.

This affects users who set ``gradient_clipping`` and train DeepSpeed's pipeline in fp32 at ZeRO
stage 0. The norm leaves out all stages but the first, so it is too small, and steps are longer than
the limit: here 1.8 times as long with two stages, and 2.4 times with four. The direction of the
step is right, and so is the loss.

Root cause: ``clip_grad_norm_`` counts a parameter only on rank 0 of its model-parallel group, as if
the others held copies of it. In a pipeline that group consists of the stages, which hold different
parameters. So the sum over the group is the first stage's norm. ZeRO, fp16 and bf16 compute the
norm in other code.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from harness.bugs import api
from scenarios.common import applied
from scenarios.deepspeed import _stages as stages


def by_slice(function: Any) -> api.Edits:
    """Ask for the rank among those that share a layer, and not among all of a model."""
    import libcst as cst
    import libcst.matchers as m

    query = m.Call(m.Attribute(attr=m.Name("get_model_parallel_rank")))
    for call in m.findall(function, query):
        yield call, cst.parse_expression("mpu.get_slice_parallel_rank()")


def by_first_stage(step: stages.Step, records: api.Records) -> bool:
    """All stages applied their gradients times the limit, divided by the norm of the first stage
    alone. The loss is that of plain torch."""
    norm, *_ = _norms(records)[step.step]
    return step.times(_factor(records, norm))


def by_all_stages(step: stages.Step, records: api.Records) -> float:
    """The right factor of clipping."""
    return _factor(records, math.hypot(*_norms(records)[step.step]))


def _factor(records: api.Records, norm: float) -> float:
    limit = records.params.clipping
    return min(1.0, limit / norm) if limit else 1.0


def _norms(records: api.Records, of: str = "gradient") -> dict[int, list[float]]:
    """The norm of each stage's gradient, or of what it applied, by step."""
    norms: dict[int, list[float]] = {}
    for step in records.of("step"):
        norms.setdefault(step["step"], []).append(step[of])
    return norms


def of_norm(wrong_steps: Sequence[stages.Step], records: api.Records) -> Iterator[str]:
    """The norm of the first wrong step over all stages, and what they applied."""
    number, limit = wrong_steps[0].step, records.params.clipping
    length = math.hypot(*_norms(records, "applied")[number])
    yield f"step {number}: its norm is {length:.4g}, the limit is {limit:g}"
    yield from applied.of_first_step(wrong_steps, records)


def lengths(trials: api.Trials) -> Iterator[api.Picture]:
    """A picture of the norm of each step over all stages, with the limit."""
    yield api.Lines(
        "The norm of each step, over all stages",
        "with the bug the steps are longer than the limit; without it clipping keeps them there",
        [
            (variant, step, math.hypot(*parts))
            for variant, records in trials.items()
            for step, parts in _norms(records, "applied").items()
        ],
        y="norm",
        log=True,
        limits={"limit": max((r.params.clipping for r in trials.values()), default=0.0)},
    )


oracle = stages.Stages(
    stages.Step, by_first_stage, by_all_stages, parts=lambda at: 1, words=of_norm, picture=lengths
)


def run(ctx: api.Context) -> None:
    """Train a pipeline with SGD; compare each stage's step with plain torch's gradient."""
    from scenarios.deepspeed import _layers as layers
    from scenarios.deepspeed import _regression as regression

    p = ctx.params
    with ctx.phase("init"):
        engine = layers.pipeline(
            ctx,
            regression.sgd(p.lr),
            gradient_clipping=p.clipping,
            train_micro_batch_size_per_gpu=p.batch,
            gradient_accumulation_steps=1,
            zero_optimization={"stage": p.zero_stage},
        )
    data, stage = layers.rows(ctx, 1, p.batch), layers.Stage(ctx, engine)
    for step in api.each(p.steps):
        stage.begin(data)
        loss = float(engine.train_batch(iter(data)))
        ctx.record("step", step, loss=loss, **stage.facts(p.lr))


def exercised(records: api.Records) -> api.Exercise:
    """There were several stages in fp32 without ZeRO, and their common norm was above the limit."""
    p, norms = records.params, _norms(records)
    above_limit = [n for n, parts in norms.items() if 0 < p.clipping < math.hypot(*parts)]
    count = len(records.ranks)
    text = f"{count} stages at ZeRO stage {p.zero_stage}"
    return api.Exercise.of(count > 1 and p.zero_stage == 0, text) & api.Exercise.of(
        len(above_limit) == len(norms),
        f"{len(above_limit)} gradients were above the limit",
        f"{len(above_limit)} of {len(norms)} gradients were above the limit",
    )
