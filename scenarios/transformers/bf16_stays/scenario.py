"""After a training in bf16, the next one in the same process is in bf16 as well, unasked.

This affected notebooks, sweeps and tests: whoever trains with ``bf16=True`` (or ``fp16=True``), and
then makes ``TrainingArguments`` without it. The arguments of the second training say
``bf16=False``, and its forward passes run in bf16. A comparison of both precisions compares bf16
with bf16, and what needs fp32 does not get it. ``bf16=False`` does not help: it is the default.
There is no warning. trl's tests failed by it, as trl's own arguments have bf16 by default.

Root cause: ``TrainingArguments`` writes the precision into the environment variable
``ACCELERATE_MIXED_PRECISION``, from which accelerate reads it. If no precision is asked for, it
takes the default from the same variable, where the first training has left its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.bugs import api

PRECISIONS = ("no", "bf16")


TRAININGS = ("first", "second")


def plan(at: api.Position) -> api.Plan:
    """Of each step of both trainings: the precision of the forward pass, and how far its outputs
    are from those in fp32, in parts of their norm."""
    facts = {"precision": api.one_of(*PRECISIONS), "off": api.SIZE, "loss": api.SIZE}
    return {name: api.Kind(facts, api.each(at.params.steps)) for name in TRAININGS}


def run(ctx: api.Context) -> None:
    """Train in the precision of ``first``, and then without one, in the same process."""
    import os

    from scenarios.transformers.bf16_stays import watched

    p = ctx.params
    watched.train(ctx, "first", bf16=p.first == "bf16")
    if p.clear:
        os.environ.pop("ACCELERATE_MIXED_PRECISION", None)
    watched.train(ctx, "second")


def detect(records: api.Records) -> api.Finding | None:
    """Each forward pass of the second training is in bf16, and its outputs are rounded. The first
    training has the precision that it asked for."""
    second = records.of("second")
    wrong = [step for step in second if step["precision"] != "no"]
    if not wrong:
        return None
    off = max(step["off"] for step in wrong)
    return api.Finding(
        f"{len(wrong)} of {len(second)} steps of the second training are in bf16, though it asked "
        f"for none; their outputs are up to {off:.2g} of their norm from those in fp32",
        step=wrong[0]["step"],
        ranks=records.ranks,
        magnitude=off,
        unit="of the norm of the outputs",
        documented=len(wrong) == len(second)
        and 0 < off < 2**-6
        and {step["precision"] for step in records.of("first")} == {records.params.first},
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The second training learns."""
    losses = [float(step["loss"]) for step in records.of("second")]
    return {"the loss at the end is not below that at the start": not losses[-1] < losses[0]}


def picture(trials: api.Trials) -> Iterator[api.Picture]:
    """How much the outputs of both trainings are rounded."""
    bars = [
        (variant, name, max(float(step["off"]) for step in records.of(name)))
        for variant, records in trials.items()
        for name in TRAININGS
    ]
    yield api.Bars(
        "How far outputs are from those in fp32",
        "with the bug the second training is rounded like the first; without the bug it is not",
        bars,
        "part of the norm",
    )
