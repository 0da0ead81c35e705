"""At ZeRO stage 0, fp16 training that overflows skips its steps for ever, and nothing is raised.

The silent sibling of ``fp16_overflow``, found while reproducing that one. There, DeepSpeed skips
13 steps and then ends the run with an exception: it costs the minutes since the first nan. Here the
loss is nan just the same, the scale falls to its minimum just the same, and there it stays. Each
further step is computed, found to overflow, skipped and logged as one more overflow, for as long as
somebody pays for the machines. The weights are those from before the overflow.

Root cause: with an optimizer that is not DeepSpeed's own fused one, stage 0 trains through
``FP16_UnfusedOptimizer``, which brings a loss scaler of its own: ``_update_scale`` takes the larger
of half the scale and the minimum, knows no hysteresis, and has no case for an overflow at the
minimum. Stages 1 to 3 use ``DynamicLossScaler``, which raises there.

It is so in 0.13.3 and still in 0.19.8. The fixed variant is stage 1, which fails loudly: with the
same weights and the same data it raises. In bf16 there is no overflow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from harness.records import Records
from harness.spec import Finding, Outcome, Scenario, Variant
from scenarios import fp16_overflow as sibling
from scenarios.fp16_overflow import run as run


@dataclass
class Params(sibling.Params):
    """The knobs of the sibling, but for the stage and the learning rate.

    From 0.18.3 on the gradients at stage 0 are too small by the loss scale, which leaves nothing to
    clip, and the logits grow more slowly. With 0.19.8 at the sibling's 8e-2, two of the seeds 0 to
    2 overflow too late or not at all; at 0.12 seeds 0 to 4 are reproduced, but not every seed (see
    docs/scenarios/fp16_overflow_stage0.md).
    """

    zero_stage: int = 0
    lr: float = 0.12


SCENARIO = Scenario(
    title="at ZeRO stage 0, fp16 training that overflows skips its steps for ever and never raises",
    report=(
        "found while reproducing fp16_overflow: FP16_UnfusedOptimizer._update_scale against "
        "DynamicLossScaler.update_scale",
    ),
    fix="none in any release: ZeRO stage 1 raises, bf16 does not overflow",
    symptom="loss nan; more steps skipped than the loss scale has halvings, the scale at its "
    "minimum, and no exception",
    trigger="fp16 and ZeRO stage 0, with an optimizer that is not DeepSpeed's own",
    remedy="use ZeRO stage 1, which raises, or bf16",
    pins={"deepspeed": "0.13.3"},
    date="2024-03-15",
    ranks=2,
    variants={
        "buggy": Variant("fp16, ZeRO stage 0", Outcome.SYMPTOM),
        "fixed": Variant("fp16, ZeRO stage 1: ends with an exception", Outcome.CLEAN,
            params={"zero_stage": 1},
        ),
        "bf16": Variant("bf16, ZeRO stage 0: does not overflow", Outcome.CLEAN,
            params={"precision": "bf16"},
        ),
        "control": Variant(
            "fp16, stage 0, a 24th of the learning rate: the logits stay small", Outcome.CLEAN,
            params={"lr": 5e-3}, triggers=False,
        ),
    },
)  # fmt: skip

SILENT = 10
"""Overflows at the minimum, each skipped, after which nobody can say that it was about to raise."""

SHARE = 0.8
"""Of the steps since the first of those, the part that must have been skipped. With the weights at
a standstill a step now and then draws a batch that does not overflow, and is taken."""


def detect(records: Records) -> Finding | None:
    """The loss is not finite, and steps go on being skipped at the minimum, to the run's end."""
    broken, raised = sibling.first_broken(records), sibling.exceptions(records)
    if broken is None and not raised:
        return None
    if raised:
        return _loud(records)
    doubts = list(_doubts(records))
    overflow = sibling.first_overflow(records)
    wasted = _wasted(records)
    lines = [*sibling.told_of(records), _summary(records), *doubts]
    return Finding(
        message="\n".join(lines),
        step=broken,
        parameters=(overflow[1],) if overflow else (),
        ranks=records.ranks,
        magnitude=float(len(wasted)),
        documented=not doubts,
    )


def _loud(records: Records) -> Finding | None:
    """Nothing to find where it ends with the documented exception; any other is a riddle."""
    found = sibling.detect(records)
    assert found is not None, "an exception was recorded"
    return None if found.documented else found


def _wasted(records: Records, rank: int = 0) -> list[int]:
    """The steps that were skipped when the scale was at its minimum before they began."""
    setup, wasted, skipped = records.one("setup", rank), [], 0
    if setup is None:
        return []
    scale = setup["scaler"]["initial"]
    for step in records.of("step", rank):
        if step["skipped"] > skipped and scale == setup["scaler"]["minimum"]:
            wasted.append(step["step"])
        skipped, scale = step["skipped"], step["loss_scale"]
    return wasted


def _summary(records: Records) -> str:
    wasted, last = _wasted(records), records.of("step")[-1]
    since = f" since step {wasted[0]}" if wasted else ""
    return (
        f"step {last['step']}: {last['skipped']} steps skipped in all, {len(wasted)} of them"
        f"{since} with the loss scale already at {last['loss_scale']:g}; nothing was raised"
    )


def _doubts(records: Records) -> Iterator[str]:
    """Whatever is not as it was found to be."""
    ends = set()
    for rank in records.ranks:
        steps, setup = records.of("step", rank), records.one("setup", rank)
        if setup is None or len(steps) != setup["steps"]:
            yield f"rank {rank} did not take all of its steps"
            continue
        wasted = _wasted(records, rank)
        ends.add((steps[-1]["skipped"], steps[-1]["loss_scale"], len(wasted)))
        if len(wasted) < SILENT:
            yield f"rank {rank}: only {len(wasted)} steps were skipped at the minimum"
        elif len(wasted) < SHARE * (steps[-1]["step"] - wasted[0] + 1):
            yield f"rank {rank}: of the steps since {wasted[0]}, only {len(wasted)} were skipped"
    if len(ends) > 1:
        yield f"the ranks do not agree: {sorted(ends)}"
    overflow, broken = sibling.first_overflow(records), sibling.first_broken(records)
    if overflow is None or (broken is not None and overflow[0] > broken):
        yield "none of the watched tensors had overflowed"


def exercised(records: Records) -> str | None:
    """The same overflow ended the run with an exception, or was none in bf16."""
    if sibling.exceptions(records):
        found = sibling.detect(records)
        return found.message if found is not None and found.documented else None
    return sibling.exercised(records)


def wrong_detectors(records: Records) -> dict[str, bool]:
    """What does not find this bug, and whether it fired."""
    raised = bool(sibling.exceptions(records))
    return {**sibling.wrong_detectors(records), "the run ends with an exception": raised}


def agree(trials: Mapping[str, Records]) -> Iterator[str]:
    """All variants see the same text; the control stays far from the limit."""
    return sibling.agree(trials)
