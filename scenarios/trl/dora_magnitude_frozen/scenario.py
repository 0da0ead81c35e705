"""With DoRA on a quantized model, the magnitudes are cast to bf16 and never change.

This affected QDoRA, ``LoraConfig(use_dora=True)`` on a base of 4 or 8 bits, with the trainers of
trl: SFT, DPO, KTO, GRPO and others. DoRA trains the lengths of the rows of a weight, the
magnitudes, beside the two matrices of LoRA. The matrices begin near 0 and learn. But a step of a
usual learning rate is less than half the distance between two numbers of bf16 at the size of a
magnitude. So each step is rounded away. The magnitudes have gradients and stay trainable, the loss
falls, and what is trained is LoRA with constant magnitudes.

Root cause: the trainers cast all trainable weights of a quantized model to bf16, as the paper of
QLoRA does with LoRA's matrices. Since 1.15.0 they leave the magnitudes in fp32. (1.15.0 itself
needs Triton for SFT.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from harness.bugs import api

SPACING = 2**-10
"""The distance between two numbers of bf16 from 1/8 to 1/4, where all magnitudes begin."""
ROUNDED_AWAY = 0.5
"""A step of Adam moves a weight by about the learning rate. One that moves none of them by this
part of it lost them."""


@dataclass(frozen=True)
class Step(api.Entry):
    kind_of_number: Annotated[str, api.one_of("bfloat16", "float32")]
    """Of the magnitudes."""
    gradient: api.Size
    """The norm of their gradient."""
    moved: api.Size
    """By how much the step changed one of them at most."""
    others: api.Size
    """By how much the step changed one of the other trainable weights at most."""


def plan(at: api.Position) -> api.Plan:
    """Each step, and what it changed."""
    return {"step": api.Kind(Step.shapes(), api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Fine-tune a tiny LLaMA by DoRA."""
    from scenarios.trl.dora_magnitude_frozen import training

    training.train(ctx)


def detect(records: api.Records) -> api.Finding | None:
    """No step changes a magnitude, although each has a gradient; they are in bf16, and other
    weights change."""
    lr, steps = records.params.lr, records.typed(Step)
    lost = [s for s in steps if s.gradient > 0 and s.moved < ROUNDED_AWAY * lr]
    if not lost:
        return None
    documented = all(
        s.moved == 0 and s.others > 0 and s.kind_of_number == "bfloat16" for s in steps
    )
    most = max(s.moved for s in lost)
    return api.Finding(
        f"{len(lost)} of {len(steps)} steps moved no magnitude by more than {most:.2g}, although "
        f"they have gradients; they are in {lost[0].kind_of_number}, and the rate is {lr:g}",
        step=lost[0].step,
        magnitude=1 - most / lr,
        unit="of a step of the learning rate",
        documented=documented,
    )


def exercised(records: api.Records) -> api.Exercise:
    """The base was quantized, the magnitudes had gradients, and a step was less than half the
    distance between two numbers of bf16."""
    p, steps = records.params, records.typed(Step)
    return (
        api.Exercise.needs(p.bits == 4, "the base was not quantized")
        & api.Exercise.needs(p.lr < SPACING / 2, "steps were longer than bf16 rounds away")
        & api.Exercise.of(
            all(step.gradient > 0 for step in steps), "magnitudes on a base of 4 bits had gradients"
        )
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The weights of the adapters change."""
    return {"no trainable weight changes": not any(s.others for s in records.typed(Step))}


picture = api.lines(
    "The greatest change of a magnitude by a step",
    "with the bug no step changes one; without it, each moves by about the learning rate",
    lambda step: float(step["moved"]),
    y="change",
)
