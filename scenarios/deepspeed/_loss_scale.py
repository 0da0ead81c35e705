"""Did fp16 training overflow, and how did DeepSpeed's loss scaler react? ``_scaler_records`` has
the records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import mean, median
from typing import Any

from harness.bugs import api
from scenarios.deepspeed import _first_steps as begun

LIMIT = 65504
"""The largest finite fp16 number; ``harness.detectors.headroom`` has it too, but needs torch."""


def first_broken(records: api.Records) -> int | None:
    """The first step at which some rank's loss is not finite."""
    broken = (s["step"] for s in records.of("step") if not math.isfinite(float(s["loss"])))
    return min(broken, default=None)


def first_overflow(records: api.Records) -> tuple[int, str] | None:
    """The first step at which a watched tensor passed 65504 on some rank, and its name."""
    over = [
        (step["step"], name)
        for step in records.of("step")
        for name, bits in step["headroom"].items()
        if not float(bits) >= 0
    ]
    return min(over, key=lambda found: found[0], default=None)


def first_warning(records: api.Records) -> int | None:
    """The first step at which the headroom of a watched tensor was below the threshold."""
    threshold = records.params.warn_below
    low = (s["step"] for s in records.of("step") if not _least([s]) >= threshold)
    return min(low, default=None)


def exceptions(records: api.Records) -> dict[int, api.Record]:
    """What each rank recorded of the exception that ended it; empty if none was raised."""
    return {record["rank"]: record for record in records.of("exception")}


def skipped(records: api.Records) -> int:
    """The total number of skipped steps."""
    return max((step["skipped"] for step in records.of("step")), default=0)


def expected_skips(steps: Sequence[api.Record], scaler: Mapping[str, Any]) -> int:
    """How many steps the loss scaler has skipped, by its rule, when it raises.

    The scale is halved log2(initial / minimum) times. Before the first halving, hysteresis - 1
    overflows are ignored. A doubling of the scale needs one more halving, and restarts the count of
    ignored overflows; with consecutive hysteresis, so does a finite step.
    """
    halvings = math.ceil(math.log2(scaler["initial"] / scaler["minimum"]))
    patience = (scaler["hysteresis"] or 1) - 1
    patience_left, passed = patience, 0
    start = {"skipped": 0, "loss_scale": scaler["initial"]}
    for before, step in pairwise([start, *steps]):
        doubled = step["loss_scale"] > before["loss_scale"]
        skips = step["skipped"] > before["skipped"]
        halvings += doubled
        if doubled or (scaler["consecutive"] and not skips):
            patience_left = patience
        elif skips and patience_left:
            patience_left -= 1
            passed += 1
    return halvings + passed


def broke(records: api.Records) -> bool:
    """Whether a loss was not finite, or DeepSpeed gave up."""
    return first_broken(records) is not None or bool(exceptions(records))


def finding(
    records: api.Records,
    doubts: Iterable[str],
    *,
    ranks: tuple[int, ...],
    magnitude: float,
    unit: str,
    lines: Iterable[str] = (),
) -> api.Finding:
    """The finding: first the doubts, then what happened in order, then ``lines``. It is documented
    if there is no doubt."""
    doubts, overflow = [*doubts, *_from_elsewhere(records)], first_overflow(records)
    doubts += untrue(records)
    return api.Finding(
        message="\n".join([*doubts, *_events(records), *lines]),
        step=first_broken(records),
        parameters=(overflow[1],) if overflow else (),
        ranks=ranks,
        magnitude=magnitude,
        unit=unit,
        documented=not doubts,
    )


def _events(records: api.Records) -> Iterator[str]:
    broken, overflow = first_broken(records), first_overflow(records)
    if overflow:
        warned = first_warning(records)
        ahead = broken - warned if broken is not None and warned is not None else None
        before = "" if ahead is None else f", {ahead} steps before the first nan"
        yield f"step {overflow[0]}: {overflow[1]} pass {LIMIT}; {_warning(records)}{before}"
    if broken is not None:
        yield f"step {broken}: the loss is not finite"
    for raised in list(exceptions(records).values())[:1]:
        yield (
            f"step {raised['step']}, after {skipped(records)} skipped steps: "
            f"{raised['type']}: {raised['text']}"
        )


def _warning(records: api.Records) -> str:
    warned = first_warning(records)
    if warned is None:
        return "the headroom gave no warning"
    return f"the headroom was below {records.params.warn_below:g} bits from step {warned} on"


def _from_elsewhere(records: api.Records) -> Iterator[str]:
    overflow, broken = first_overflow(records), first_broken(records)
    if overflow is None or (broken is not None and overflow[0] > broken):
        yield "none of the watched tensors had overflowed"


def untrue(records: api.Records) -> Iterator[str]:
    """What is wrong with the training besides any overflow.

    Another bug is excused: at ZeRO stage 0, releases since 0.18.3 divide by the scale twice.
    """
    yield from begun.untrue(records, unscaled_twice=not records.params.zero_stage)
    for rank in records.ranks:
        for check in (_setup_wrong, _begun_wrong, _rates_wrong, _scale_wrong, _weights_wrong):
            yield from list(check(records, rank))[:1]


def _setup_wrong(records: api.Records, rank: int) -> Iterator[str]:
    """Whether upstream's loss scaler is not the one that the parameters select."""
    setup, params = records.one("setup", rank), records.params
    if setup is None:
        return
    scaler, fp16 = setup["scaler"], params.precision == "fp16"
    if scaler["dynamic"] is not fp16:
        yield f"rank {rank}: in {params.precision} its loss scaler has dynamic {scaler['dynamic']}"
    if fp16 and ("Unfused" in scaler["optimizer"]) is not (params.zero_stage == 0):
        yield f"rank {rank}: at ZeRO stage {params.zero_stage} it has {scaler['optimizer']}"


def _ended(records: api.Records, rank: int) -> list[api.Record]:
    """A rank's steps without the one that raised."""
    raised = {each["step"] for each in records.of("exception", rank)}
    return [step for step in records.of("step", rank) if step["step"] not in raised]


def _begun_wrong(records: api.Records, rank: int) -> Iterator[str]:
    """Where the rate or the norm of a first step contradicts the record ``begun`` of that step."""
    setup = records.one("setup", rank)
    if setup is None:
        return
    rate = records.params.first_lr
    before = {"loss_scale": setup["scaler"]["initial"], "lr": rate, "skipped": 0}
    for comparison, step in zip(records.of("begun", rank), _ended(records, rank), strict=False):
        where, is_taken = f"rank {rank}, step {step['step']}:", step["skipped"] == before["skipped"]
        if is_taken and not api.near(comparison["rate"], before["lr"], share=1e-3):
            yield f"{where} its rate is {comparison['rate']:.4g}, where {before['lr']:.4g} was due"
        if is_taken and not math.isfinite(float(comparison["gradient"])):
            yield f"{where} it was taken, but plain torch's gradient is {comparison['gradient']}"
        elif is_taken and not _norm_of(step, comparison):
            norms = f"{step['grad_norm']}, but plain torch's {comparison['gradient']:.5g}"
            yield f"{where} its gradient norm is {norms}, at a scale of {comparison['scale']:g}"
        before = step


def _norm_of(step: api.Record, comparison: api.Record) -> bool:
    """Whether the gradient norm is plain torch's, or missing. Some releases and stages multiply it
    by the scale, or divide it by the scale once too often."""
    norms = (comparison["gradient"] * comparison["scale"] ** power for power in (0, 1, -1))
    norm = step["grad_norm"]
    return norm is None or any(api.near(norm, due, share=begun.TOLERANCE) for due in norms)


def _rates_wrong(records: api.Records, rank: int) -> Iterator[str]:
    """Every step that is taken must raise the rate by the same amount up to the top of the ramp,
    and then lower it by that amount for as many steps."""
    params = records.params
    for step in _ended(records, rank):
        count = step["step"] - step["skipped"]
        from_top = abs(count - params.ramp) / params.ramp
        expected = params.lr - (params.lr - params.first_lr) * from_top
        if from_top <= 1 and not api.near(step["lr"], expected, share=1e-3):
            where = f"rank {rank}, step {step['step']}:"
            yield f"{where} the next rate is {step['lr']:.4g}, where {expected:.4g} is right"


def _scale_wrong(records: api.Records, rank: int) -> Iterator[str]:
    """A skipped step must halve the scale or leave it; a step that is taken must not lower it."""
    setup, steps = records.one("setup", rank), _ended(records, rank)
    least = setup["scaler"]["minimum"] if setup else None
    for before, step in pairwise(steps):
        was, scale = before["loss_scale"], step["loss_scale"]
        skips = step["skipped"] > before["skipped"]
        if step["skipped"] - before["skipped"] not in (0, 1):
            counts = f"from {before['skipped']} to {step['skipped']}"
            yield f"rank {rank}, step {step['step']}: the count of skipped steps went {counts}"
        if scale not in ((was, max(was / 2, least or 0.0)) if skips else (was, 2 * was)):
            fate = "skipped" if skips else "taken"
            yield (
                f"rank {rank}, step {step['step']} was {fate}: the scale went {was:g} to {scale:g}"
            )


def _weights_wrong(records: api.Records, rank: int) -> Iterator[str]:
    """A step that is taken must move the weights, a skipped one must not; ranks must stay equal."""
    steps = _ended(records, rank)
    for before, step, of_rank_0 in zip(steps, steps[1:], records.of("step", 0)[1:], strict=False):
        skips = step["skipped"] > before["skipped"]
        if (step["weights"] == before["weights"]) is not skips:
            fault = "was skipped, but moved" if skips else "was taken, but did not move"
            yield f"rank {rank}, step {step['step']} {fault} the weights"
        if step["weights"] != of_rank_0["weights"]:
            yield f"rank {rank}, step {step['step']}: the weights are not those of rank 0"


def cut_short(records: api.Records) -> Iterator[str]:
    """The ranks that did not take all of their steps."""
    for rank in records.ranks:
        count = len(records.of("step", rank))
        if count != records.params.steps:
            yield f"rank {rank} took {count} of {records.params.steps} steps"


def unwell(records: api.Records) -> api.Finding | None:
    """The finding that the overflow harmed the training, though every loss was finite.

    Without an overflow, a skipped step is normal: loss scaling skips steps.
    """
    odd = [*cut_short(records), *untrue(records)]
    if skipped(records) and first_overflow(records):
        odd.append(f"{skipped(records)} steps were skipped, though every loss was finite")
    return api.Finding("\n".join(odd), ranks=records.ranks, documented=False) if odd else None


def exercised(records: api.Records) -> api.Exercise:
    """A watched tensor passed 65504, the largest fp16 number, in whichever precision it has."""
    steps, overflow = records.of("step"), first_overflow(records)
    if not steps:
        return api.Exercise(False, "no step was recorded")
    if overflow is None:
        count, least = max(step["step"] for step in steps), _least(steps)
        why = f"no watched tensor passed {LIMIT} in {count} steps"
        return api.Exercise(False, f"{why}; the least headroom was {least:.1f} bits")
    values = (float(value) for step in steps for value in step["largest"].values())
    largest = max((value for value in values if not math.isnan(value)), default=math.nan)
    how = f"{overflow[1]} passed {LIMIT} at step {overflow[0]}, and the largest value was"
    return api.Exercise(True, f"{how} {largest:.3g}; {_warning(records)}")


def _least(steps: Iterable[api.Record]) -> float:
    bits = (float(bits) for step in steps for bits in step["headroom"].values())
    return min(bits, default=math.inf)


SETTLED = 40
"""Sudden changes count only after so many steps: at first the model learns fast."""


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """Checks that do not warn of an overflow, and whether they fired before the first nan."""
    broken = first_broken(records) or math.inf
    sound = [step for step in records.of("step") if step["step"] < broken]
    by_step: dict[int, list[float]] = {}
    for step in sound:
        by_step.setdefault(step["step"], []).append(float(step["loss"]))
    losses = [mean(values) for values in by_step.values()]
    norms = [float(step["grad_norm"] or 0) for step in sound if not step["rank"]]
    times = range(SETTLED, len(losses) + 1)
    return {
        "the loss rises by 0.5 (mean of ten steps)": any(
            mean(losses[n - 10 : n]) - mean(losses[n - 20 : n - 10]) > 0.5 for n in times
        ),
        "the gradient norm doubles (median of ten steps)": any(
            median(norms[n - 10 : n]) > 2 * median(norms[n - 20 : n - 10]) for n in times
        ),
        "one gradient norm is twice the last twenty": any(
            norms[n - 1] > 2 * max(norms[n - 21 : n - 1]) for n in times
        ),
    }


FIRST_LOSS = 0.05
"""How far (nats) precisions may be apart in the loss of the first step, before any update;
measured: below 1e-3."""


def agree(trials: Mapping[str, api.Records]) -> Iterator[str]:
    """The variants must begin alike, and the control must stay far from the limit."""
    setups = [records.one("setup") for records in trials.values()]
    if len({setup["corpus"]["sha256"] for setup in setups if setup}) > 1:
        yield "the variants did not train on the same text"
    firsts = [float(step["loss"]) for r in trials.values() for step in r.of("step", 0)[:1]]
    if not all(api.near(one, other, within=FIRST_LOSS) for one in firsts for other in firsts):
        yield f"the variants have different losses in the first step: {firsts}"
    warned = first_warning(trials["control"]) if "control" in trials else None
    if warned is not None:
        yield f"control: the headroom went below the threshold at step {warned}"


def picture(trials: api.Trials) -> Iterator[api.Picture]:
    """Pictures of the largest value with fp16's limit, and of the loss scale, by step."""
    largest, scales, marks = [], [], []
    for variant, records in trials.items():
        for step in records.of("step", 0):
            values = [float(value) for value in step["largest"].values()]
            largest.append((variant, step["step"], max(values, default=None)))
            scales.append((variant, step["step"], float(step["loss_scale"])))
        events = {
            "headroom warns": first_warning(records),
            "loss not finite": first_broken(records),
        }
        marks += [(f"{variant}: {what}", at) for what, at in events.items() if at is not None]
    yield api.Lines(
        "The largest value of a watched tensor",
        "the values grow past what fp16 can represent; the headroom warns before that",
        largest,
        y="magnitude",
        log=True,
        limits={"fp16's largest number": LIMIT},
        marks=marks,
    )
    yield api.Lines(
        "The loss scale",
        "once values overflow, the scale is halved again and again, down to its minimum",
        scales,
        y="loss scale",
        log=True,
        stairs=True,
    )
