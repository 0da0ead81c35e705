"""At ZeRO stage 0, fp16 training that overflows skips steps until the run ends, and never raises.

This is the silent sibling of ``fp16_overflow``, and was found while reproducing it. There DeepSpeed
skips 13 steps and then ends the run with an exception, so only the minutes since the first nan are
lost. Here the loss becomes nan and the scale falls to its minimum in the same way, but no exception
follows. Each further step is computed, overflows and is skipped, until somebody ends the run. The
lines that tell of the overflows are logged at the level INFO, which DeepSpeed 0.19.8 hides by
default. The weights stay those from before the overflow.

Root cause: with an optimizer other than DeepSpeed's own fused one, stage 0 trains through
``FP16_UnfusedOptimizer``, which has a loss scaler of its own. Its ``_update_scale`` takes the
larger of half the scale and the minimum, has no hysteresis, and does not handle an overflow at the
minimum. Stages 1 to 3 use ``DynamicLossScaler``, which raises there.

0.13.3 and 0.19.8 both have the bug. The fixed variant is stage 1, which fails loudly: with the same
weights and data it raises. bf16 does not overflow.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from harness.bugs import api
from scenarios.deepspeed import _fp16 as fp16
from scenarios.deepspeed import _loss_scale as loss_scale
from scenarios.deepspeed import _scaler_records as scaler

SILENT = 10
"""After so many overflows at the minimum, each skipped, the run was not about to raise."""

SHARE = 0.8
"""The part of the steps since the first of those that must have been skipped. Now and then a step
draws a batch that does not overflow at these weights, and is taken."""


check_params = fp16.check_params
oracle = loss_scale
plan, run = scaler.plan, fp16.run


def detect(records: api.Records) -> api.Finding | None:
    """The loss is not finite, and until the run ends steps are skipped at the smallest scale."""
    if loss_scale.exceptions(records) or not loss_scale.broke(records):
        # The exception that the sibling documents is right here; any other end is not documented.
        finding = fp16.raised(records)
        return None if finding is None or finding.documented else finding
    wasted, last_step = _skipped_at_minimum(records), records.of("step")[-1]
    since = f" since step {wasted[0]}" if wasted else ""
    return loss_scale.finding(
        records,
        _doubts(records),
        ranks=records.ranks,
        magnitude=float(len(wasted)),
        unit="steps skipped with the loss scale at its minimum",
        lines=[
            f"step {last_step['step']}: {last_step['skipped']} steps skipped in all, {len(wasted)} "
            f"of them{since} with the loss scale already at {last_step['loss_scale']:g}; nothing "
            "was raised"
        ],
    )


def _skipped_at_minimum(records: api.Records, rank: int = 0) -> list[int]:
    """The steps that were skipped although the scale was at its minimum when they began."""
    setup, steps = records.one("setup", rank), records.of("step", rank)
    if setup is None or not steps:
        return []
    start = {"skipped": 0, "loss_scale": setup["scaler"]["initial"]}
    return [
        step["step"]
        for before, step in pairwise([start, *steps])
        if step["skipped"] > before["skipped"]
        and before["loss_scale"] == setup["scaler"]["minimum"]
    ]


def _doubts(records: api.Records) -> Iterator[str]:
    """What differs from the bug as it was found."""
    yield from loss_scale.cut_short(records)
    ends = set()
    for rank in records.ranks:
        wasted, steps = _skipped_at_minimum(records, rank), records.of("step", rank)
        ends.add((len(wasted), *((s["skipped"], s["loss_scale"]) for s in steps[-1:])))
        if len(wasted) < SILENT:
            yield f"rank {rank}: only {len(wasted)} steps were skipped at the minimum"
        elif len(wasted) < SHARE * (steps[-1]["step"] - wasted[0] + 1):
            yield f"rank {rank}: of the steps since {wasted[0]}, only {len(wasted)} were skipped"
    if len(ends) > 1:
        yield "the ranks do not agree on the skipped steps and the loss scale"


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """Checks that miss this bug, and whether they fired."""
    raised = bool(loss_scale.exceptions(records))
    return loss_scale.insufficient_checks(records) | {"the run ends with an exception": raised}
