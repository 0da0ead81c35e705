"""GRPO's default loss is divided by the tokens of the whole generation, not of the update.

Each update is the right one times gradient_accumulation_steps / steps_per_generation. A run that
generates for several updates at once (steps_per_generation 4, gradient_accumulation_steps 2) trains
at half of the learning rate. A run that generates more often than it updates (2 and 4) trains at
twice the rate. If the two are equal, which is the default, all is right. The loss of GRPO is near 0
anyway, so it does not show the bug.

Root cause: with ``loss_type="dapo"``, the default, the sum of the tokens' losses is divided by
``num_items_in_batch``. That is the number of tokens of the generation batch, which has
steps_per_generation micro-batches. But an update has gradient_accumulation_steps micro-batches. The
types cispo and vespo have the same line; grpo divides in another way, and is right.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.bugs import api
from scenarios.common import applied, counted
from scenarios.trl._companions import TRANSFORMERS_4


@dataclass
class Params(api.Knobs):
    generation: int = api.knob(
        4, choices=(1, 2, 4), about="steps_per_generation: micro-batches of a generation"
    )
    accumulation: int = api.knob(
        2, choices=(1, 2, 4), about="gradient_accumulation_steps: micro-batches of an update"
    )
    loss_type: str = api.knob("dapo", choices=("dapo", "grpo"), about="of GRPO")
    steps: int = api.knob(4, least=1, about="of training")
    lr: float = api.knob(0.01, above=0, about="of SGD")


SCENARIO = api.Scenario(
    report=(
        "DAPO loss is not normalized by gradient_accumulation_steps",
        "https://github.com/huggingface/trl/issues/5619",
        "https://github.com/huggingface/trl/pull/6024",
    ),
    fix="https://github.com/huggingface/trl/pull/6024",
    symptom="with steps_per_generation=4 and gradient_accumulation_steps=2 gradients are halved",
    trigger="GRPO with loss_type dapo, cispo or vespo, and steps_per_generation different from "
    "gradient_accumulation_steps",
    remedy='set loss_type="grpo"',
    pins={"trl": "1.9.0"},
    companions=(TRANSFORMERS_4,),
    harm="ruins training",
    visibility="silent",
    settings={
        "trainer": True,
        "code": api.by_code("steps_per_generation is not gradient_accumulation_steps"),
    },
    seen={
        "trl.trainer.grpo_trainer.GRPOTrainer": {
            "args.loss_type": ("dapo", "cispo", "vespo"),
            "args.steps_per_generation": api.differs("args.gradient_accumulation_steps"),
        }
    },
    files=("trl/trainer/grpo_trainer.py",),
    releases="trl>=0.22",
    absent=(api.Absent("trl<0.22", "the loss type dapo came with 0.22.0"),),
    ranks=1,
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("1.9.1"),
        "control": api.control(
            "1.9.0 with one generation for each update", params={"generation": 2}
        ),
        "often": api.expect_symptom(
            about="1.9.0 with two generations for each update: the gradients are doubled",
            params={"generation": 2, "accumulation": 4},
        ),
        "grpo": api.control("1.9.0 with the loss type grpo", params={"loss_type": "grpo"}),
    },
)


def by_window(step: counted.Step, records: api.Records) -> bool:
    """Each update is the right one times gradient_accumulation_steps / steps_per_generation."""
    p = records.params
    return step.times(p.accumulation / p.generation)


oracle = applied.Applied(counted.Step, by_window, checks=[applied.same_direction])


def run(ctx: api.Context) -> None:
    """Train a tiny model on its own completions; compare each applied gradient with torch's."""
    from scenarios.trl.grpo_window_tokens import groups

    p = ctx.params
    with ctx.phase("init"):
        trainer = groups.trainer(ctx, p.loss_type, p.generation, p.accumulation, p.steps)
    with ctx.phase("steps"):
        trainer.train()


def exercised(records: api.Records) -> api.Exercise:
    """The loss was dapo's, and each update had another number of micro-batches than a
    generation."""
    p = records.params
    counts = sorted({step.micro_batches for step in records.typed(counted.Step)})
    text = f"each update had {counts} micro-batches, and each generation {p.generation}"
    return api.Exercise.needs(
        p.loss_type == "dapo", f"the loss type was {p.loss_type}"
    ) & api.Exercise.of(counts == [p.accumulation] and p.accumulation != p.generation, text)
