"""With pipeline parallelism and gradient accumulation, all stages but the last train too slowly.

Each stage of DeepSpeed's pipeline divides by the number of micro-batches (GAS) again. The last
stage applies the right gradient, the stage before it 1/GAS of that, and the one before 1/GAS
squared. With two stages and GAS 4, half of the model learns at a quarter of its learning rate. The
reported loss is right, every gradient points the right way, and nothing fails.

Reported in July 2026 for DeepSpeed 0.19.2. Root cause: since 0.18.3 a hook on the output of a
stage's forward divides the gradient that arrives there by GAS, so that users may call
``loss.backward()`` directly. In a pipeline every stage has the hook, and the gradient that arrives
at a stage has been divided by the stage behind it. The fix divides on the last stage only.

Releases 0.16.0 to 0.18.2 have the opposite bug (DeepSpeed 7773): they never divide, and all stages
apply GAS times the gradient. Here that does not count as the documented symptom.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from harness import api
from scenarios.common import applied, usual_checks


@dataclass
class Params(api.Knobs):
    micro_batches: int = api.knob(
        4, least=1, about="GAS: a step averages the gradients of this many"
    )
    batch: int = api.knob(4, least=1, unit="rows", about="size of a micro-batch")
    steps: int = api.knob(5, least=1, about="steps of training")
    lr: float = api.knob(0.1, above=0, about="learning rate of SGD")
    zero_stage: int = api.knob(
        1, choices=(0, 1), about="stage of ZeRO; 0.18.3 and 0.18.4 refuse 0 with an error"
    )


SCENARIO = api.Scenario(
    report=(
        "[BUG] Gradient accumulation scaling is applied repeatedly across pipeline stages",
        "https://github.com/deepspeedai/DeepSpeed/issues/8152",
    ),
    fix="https://github.com/deepspeedai/DeepSpeed/pull/8154",
    symptom="the last stage receives the expected 1/GAS scaling, but the first stage receives an "
    "additional 1/GAS",
    trigger="pipeline parallelism and gradient accumulation",
    pins={"deepspeed": "0.19.2"},
    absent=(
        api.Absent(
            "deepspeed<0.18.3",
            "the hook that divides came with 0.18.3",
            "https://github.com/deepspeedai/DeepSpeed/pull/7665",
        ),
    ),
    harm="ruins training",
    visibility="silent",
    settings={"pipeline_parallel": api.above(1), "gradient_accumulation_steps": api.above(1)},
    files=("deepspeed/runtime/engine.py", "deepspeed/runtime/pipe/engine.py"),
    ranks=2,
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("0.19.3"),
        "four_stages": api.expect_symptom(
            about="0.19.2 with four stages: the first divides four times", ranks=4
        ),
        "control": api.control(
            "0.19.2 with one micro-batch: nothing to divide by", params={"micro_batches": 1}
        ),
        "one_stage": api.control("0.19.2 with all layers in one stage: divided once", ranks=1),
    },
)
picture = partial(applied.ratios, by="stage")


def plan(at: api.Position) -> api.Plan:
    """Each step, with what this stage applied."""
    stage = {"stages": api.exactly(at.world_size), "stage": api.exactly(at.rank)}
    losses = {"loss": api.alike(api.NUMBER), "reference_loss": api.alike(api.NUMBER)}
    facts = {**stage, **applied.shapes(at.params.micro_batches), **losses}
    return {"step": api.Kind(facts, api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Train a pipeline with SGD; compare each stage's step with plain torch's gradient."""
    import torch

    from scenarios.common import linear, regression

    p = ctx.params
    with ctx.phase("init"):
        engine = regression.pipeline(
            ctx,
            partial(torch.optim.SGD, lr=p.lr),
            gradient_clipping=0.0,
            train_micro_batch_size_per_gpu=p.batch,
            gradient_accumulation_steps=p.micro_batches,
            zero_optimization={"stage": p.zero_stage},
        )
    data = regression.rows(ctx, p.micro_batches, p.batch)
    whole = linear.of(regression.layers(ctx.seed))
    for step in range(1, p.steps + 1):
        before = applied.copied(engine.module, torch.float64)
        plain = applied.plainly(whole, regression.gathered(before), data)
        loss = float(engine.train_batch(iter(data)))
        facts = applied.facts(plain, before, applied.copied(engine.module), p.lr)
        stage = {"stage": engine.stage_id, "stages": engine.num_stages}
        ctx.record("step", step, loss=loss, **stage, **facts)


def detect(records: api.Records) -> api.Finding | None:
    """The last stage applied its gradient, and each stage before it divided by GAS once more. The
    loss is that of plain torch."""
    steps, count = records.of("step"), records.params.micro_batches
    for odd in applied.loss_wrong(records):
        return api.Finding(odd, documented=False)
    wrong = [step for step in steps if not applied.times(step, 1)]
    if not wrong:
        return None
    documented = all(divided_again(count, step) for step in steps)
    never = all(applied.times(step, count) for step in steps)
    return applied.finding(
        wrong,
        [applied.described(step) for step in steps if step["step"] == wrong[0]["step"]],
        documented=documented,
        another="pipeline_gas_never" if never and not documented else "",
    )


def divided_again(count: int, step: api.Record) -> bool:
    """Whether the step divided by ``count`` once more for every stage behind this one."""
    return applied.times(step, float(count ** (step["stage"] + 1 - step["stages"])))


def exercised(records: api.Records) -> api.Exercise:
    """There were several stages, and several micro-batches in a step."""
    stages = max((step["stages"] for step in records.of("step")), default=0)
    count = records.params.micro_batches
    text = f"{stages} stages accumulated over {count} micro-batches"
    return api.Exercise.of(stages > 1 and count > 1, text)


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """Checks that miss this bug, and whether they fired."""
    return usual_checks.loss_unlike_reference(records) | applied.same_direction(records)
