"""Did a step of SGD apply the gradient that plain torch computes on the same rows?

With SGD at a known rate, (before - after) / rate is the gradient that was applied. Plain torch
computes the gradient of each micro-batch at the same weights; their mean is what the step should
have applied. All rows have the same length, so the mean of the micro-batches' means is the mean of
the batch.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from harness.bugs import api
from scenarios.common import usual_checks

if TYPE_CHECKING:
    from torch import Tensor

TOLERANCE = 1e-3
"""How far (as a fraction) the applied gradient may be from the right one. Rounding in fp32 moves it
by 1e-5."""

CUT = 1e-2
"""Combinations of the micro-batches' gradients that are shorter than this part of the longest one
are ignored: they would explain rounding errors by shares of any size."""

UNIT = "of the right gradient"


def shapes(micro_batches: int | None = None) -> api.Facts:
    """The shapes of what ``facts`` returns, for a known or unknown number of micro-batches."""
    return {
        "gradient": api.SIZE,
        "applied": api.SIZE,
        "ratio": api.NUMBER,
        "off": api.SIZE,
        "micro": api.many(api.NUMBER, micro_batches, least=1),
        "reference_loss": api.NUMBER,
    }


@dataclass(frozen=True)
class Plain:
    """What plain torch computes on some micro-batches."""

    losses: Sequence[float]
    """The loss of each."""
    micro: Sequence[Mapping[str, Tensor]]
    """The gradient of each, by the names of the weights."""

    @property
    def loss(self) -> float:
        """The mean of the micro-batches' losses."""
        return sum(self.losses) / len(self.losses)


def plainly(
    loss: Callable[[Mapping[str, Tensor], Any], Tensor],
    weights: Mapping[str, Tensor],
    micro_batches: Iterable[Any],
) -> Plain:
    """Differentiate ``loss(weights, micro_batch)``, a mean over its rows, for each micro-batch.

    ``torch.func.functional_call`` makes such a function of a module.
    """
    import torch

    leaves = {name: weight.detach().clone().requires_grad_() for name, weight in weights.items()}
    losses, gradients = [], []
    for batch in micro_batches:
        value = loss(leaves, batch)
        tensors = torch.autograd.grad(value, list(leaves.values()))
        losses.append(float(value.detach()))
        gradients.append(dict(zip(leaves, tensors, strict=True)))
    return Plain(losses, gradients)


def copied(module: Any, dtype: Any = None) -> dict[str, Tensor]:
    """A copy of a module's weights, by name."""
    return {n: p.detach().to(dtype or p.dtype).clone() for n, p in module.named_parameters()}


def facts(
    plain: Plain, before: Mapping[str, Tensor], after: Mapping[str, Tensor], rate: float
) -> dict[str, Any]:
    """What to record of a step that moved this rank's weights from ``before`` to ``after``.

    ``gradient`` and ``applied`` are the norms of the right and the applied gradient. ``ratio`` is
    how much of the right gradient was applied, along its direction; ``off`` is the part of what was
    applied (0 to 1) that has another direction. ``micro`` has the share of each micro-batch's
    gradient in what was applied: 1 each if the step is right.
    """
    import torch

    def flat(tensors: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([tensors[name].cpu().double().flatten() for name in before])

    applied = (flat(before) - flat(after)) / rate
    micro = torch.stack([flat(part) for part in plain.micro])
    gradient = micro.mean(0)
    projection = api.projection(applied, gradient)
    aside = (applied - projection.ratio * gradient)[:, None]
    beside = torch.linalg.lstsq(micro.T / len(micro), aside, rcond=CUT, driver="gelsd").solution
    return {
        "gradient": projection.right,
        "applied": projection.got,
        "ratio": projection.ratio,
        "off": projection.aside,
        "micro": [
            round(share, 4) + 0.0 for share in (projection.ratio + beside.flatten()).tolist()
        ],
        "reference_loss": plain.loss,
    }


def straight(step: api.Record) -> bool:
    """Whether the applied gradient has the right direction."""
    return bool(step["off"] <= math.sqrt(2 * TOLERANCE))


def times(step: api.Record, ratio: float) -> bool:
    """Whether the step applied ``ratio`` times the right gradient, judged by share and norms."""
    norm = abs(ratio) * step["gradient"]
    # ``straight`` accepts an angle that makes the norm greater by TOLERANCE.
    norms = api.near(step["applied"], norm, share=2 * TOLERANCE)
    return (
        api.near(step["ratio"], ratio, share=TOLERANCE) and norms and straight(step) and _even(step)
    )


def _even(step: api.Record) -> bool:
    """Whether each micro-batch has the same share in what was applied, up to what is ``off``."""
    count, off = len(step["micro"]), step["off"] * step["applied"]
    within = 1e-4 + off * math.sqrt(count) / CUT / max(step["gradient"], sys.float_info.min)
    return all(api.near(share, step["ratio"], within=within) for share in step["micro"])


def loss_wrong(
    records: api.Records, *, parts: bool = False, tolerance: float = TOLERANCE
) -> Iterator[str]:
    """One message for each step whose ``loss`` differs from plain torch's by more than a fraction.

    ``parts``: each rank computed the loss of its part of the rows, so their mean is compared.
    """
    by_step: dict[int, list[api.Record]] = {}
    for step in records.of("step"):
        by_step.setdefault(step["step"], []).append(step)
    for number, steps in by_step.items():
        mean = math.fsum(step["loss"] for step in steps) / len(steps)
        for step in steps:
            loss, expected = mean if parts else step["loss"], step["reference_loss"]
            if not api.near(loss, expected, share=tolerance):
                yield f"the loss of step {number} is {loss:.5g}, but plain torch has {expected:.5g}"


def described(step: api.Record) -> str:
    """What one step of a rank applied, in words."""
    shares = ", ".join(f"{share:.4g}" for share in step["micro"])
    aside = (
        "" if straight(step) else f", plus {step['off']:.2g} times its norm in another direction"
    )
    several = (
        f"; each micro-batch has {shares} times its right weight"
        if step["micro"][1:] or not _even(step)
        else ""
    )
    return (
        f"rank {step['rank']}, step {step['step']}: applied {step['ratio']:.4g} times the right "
        f"gradient{aside} (norm {step['applied']:.4g}, right: {step['gradient']:.4g}){several}"
    )


def explained(
    steps: Sequence[api.Record],
    explains: Callable[[api.Record], bool],
    why: str,
    *,
    odd: Sequence[str] = (),
    sound: bool = True,
    parted: Sequence[api.Record] = (),
    last: Callable[[Sequence[api.Record]], str] = lambda steps: "",
    words: Callable[[api.Record], str] | None = None,
) -> api.Finding | None:
    """The finding that steps applied another gradient; ``why`` explains which.

    It is the documented one if ``explains`` holds for every step and nothing else is wrong: ``odd``
    are messages of other faults, and ``sound`` says that there are no others. ``parted`` are steps
    that are wrong by another fact. ``last`` makes a line for the end; ``words`` describes the first
    wrong step.
    """
    wrong_steps = [step for step in steps if not times(step, 1)]
    if not (wrong_steps or parted or odd) and sound:
        return None
    ours = all(map(explains, steps))
    lines = [*odd, *map(words or described, wrong_steps[:1])]
    lines += [f"exactly that follows if {why}"] * ours + [*filter(None, [last(steps)])]
    documented = ours and bool(wrong_steps) and not odd and sound
    return finding(wrong_steps or parted or steps, lines, documented=documented)


def first_step(steps: Sequence[api.Record], _: api.Records) -> api.Finding:
    """The finding of these steps, with what each rank applied in the first one."""
    lines = [described(step) for step in steps if step["step"] == steps[0]["step"]]
    return finding(steps, lines, documented=True)


def finding(
    steps: Sequence[api.Record],
    lines: Iterable[str],
    right_ratio: Callable[[api.Record], float] = lambda _: 1.0,
    *,
    documented: bool,
    another: str = "",
) -> api.Finding:
    """The finding that these steps did not apply ``right_ratio`` times the gradient."""
    return api.Finding(
        message="\n".join(lines),
        step=min(step["step"] for step in steps),
        ranks=tuple(sorted({step["rank"] for step in steps})),
        magnitude=max(abs(step["ratio"] / right_ratio(step) - 1) for step in steps),
        unit=UNIT,
        documented=documented,
        another=another,
    )


def accumulated(records: api.Records, counted: Callable[[api.Record], int]) -> api.Exercise:
    """Each step of the optimizer came after several micro-batches: as many as were requested.

    ``counted`` returns how many a step had."""
    steps, requested = records.of("step"), records.params.accumulation
    counts = sorted(set(map(counted, steps)))
    text = f"{len(steps)} updates came after {', '.join(map(str, counts))} micro-batches each"
    return api.Exercise.needs(requested > 1, "no accumulation was requested") & api.Exercise.of(
        counts == [requested], text, f"{text}, but {requested} were requested"
    )


def divided(records: api.Records, counted: Callable[[api.Record], int]) -> api.Exercise:
    """Several ranks or several micro-batches made each step, as many as were requested.

    ``counted`` returns how many micro-batches a rank had in a step."""
    steps, requested, ranks = records.of("step"), records.params.accumulation, len(records.ranks)
    counts = sorted(set(map(counted, steps)))
    text = f"{len(steps)} records of steps with {requested} micro-batches on each of {ranks} ranks"
    return api.Exercise.needs(
        requested * ranks > 1, "one micro-batch on one rank"
    ) & api.Exercise.of(
        counts == [requested], text, f"the steps had {counts} micro-batches, not {requested}"
    )


def same_direction(records: api.Records) -> dict[str, bool]:
    """A wrong factor leaves the direction right, so this check misses it."""
    aside = any(not straight(step) for step in records.of("step"))
    return {"the applied gradient has another direction": aside}


def ratios(trials: api.Trials, by: str = "step") -> Iterator[api.Picture]:
    """A picture of how much of the right gradient each ``step`` or ``stage`` applied."""
    values = {
        (variant, f"{by} {step[by]}"): float(step["ratio"])
        for variant, records in trials.items()
        for step in records.of("step")
    }
    bars = [(*who, ratio) for who, ratio in values.items()]
    yield api.Bars(
        "How much of the gradient was applied",
        "with the bug a fraction of plain torch's gradient is applied; without the bug, all of it",
        bars,
        "times the right gradient",
        {"right": 1.0},
    )


def norms(trials: api.Trials) -> Iterator[api.Picture]:
    """A picture of the norm of each applied gradient, with the threshold of clipping."""
    thresholds = (records.params.clipping for records in trials.values())
    yield api.Lines(
        "The norm of the gradient that was applied",
        "with the bug no norm is below the threshold, and large gradients are not clipped",
        api.by_step(trials, lambda step: step["applied"]),
        y="norm",
        log=True,
        limits={"threshold": max(thresholds, default=0.0)},
    )


Judge = Callable[[api.Record, api.Records], bool]
"""Whether something holds for a step, among the records of its trial."""


@dataclass(frozen=True)
class Applied(usual_checks.Checked):
    """The oracle of scenarios whose steps apply another gradient than plain torch's mean.

    It needs records ``step`` with ``facts``, one for each of the scenario's ``steps`` on each rank;
    without such a parameter there is one step."""

    documented: Judge
    """Whether a step is wrong as documented. Its docstring is the symptom on the bug's page."""
    right: Callable[[api.Record, api.Records], float] = lambda step, records: 1.0
    """How much of plain torch's mean a step should apply; less than 1 if it should be clipped."""
    parts: Callable[[api.Position], int | None] = lambda at: None
    """The number of micro-batches, or of ranks, whose gradients a step should average; None if that
    is not known before."""
    facts: Callable[[api.Position], api.Facts] = lambda at: {}
    """What the scenario records of a step besides."""
    also: Callable[[api.Position], api.Plan] = lambda at: {}
    """What it records besides the steps."""
    replicas: bool = False
    """Whether all ranks apply the same."""
    loss: Literal["", "whole", "parts"] = ""
    """Whether each step has a ``loss``, to be compared with plain torch's: that of all rows, or
    that of the rank's part of them."""
    found: Callable[[Sequence[api.Record], api.Records], api.Finding] = first_step
    """The finding of the wrong steps."""
    then: str = ""
    """A line for the documented finding: what explains it."""
    instead: Mapping[str, Judge] = field(default_factory=dict)
    """Other bugs of the catalogue, by name, and what holds for every step with them."""
    checks: Sequence[usual_checks.Check] = ()
    """Checks that miss the bug."""
    picture: api.Pictures = ratios

    def plan(self, at: api.Position) -> api.Plan:
        """Each step, with what it applied."""
        steps = api.each(getattr(at.params, "steps", 1))
        return {"step": api.Kind(self.step(at), steps), **self.also(at)}

    def step(self, at: api.Position) -> api.Facts:
        """The facts of a step."""
        facts = {**shapes(self.parts(at)), **self.facts(at)}
        step_facts = (
            {name: api.alike(shape) for name, shape in facts.items()} if self.replicas else facts
        )
        return {**({"loss": api.NUMBER} if self.loss else {}), **step_facts}

    def detect(self, records: api.Records) -> api.Finding | None:
        """The finding that steps applied another gradient than plain torch's mean."""
        for odd in loss_wrong(records, parts=self.loss == "parts") if self.loss else ():
            return api.Finding(odd, documented=False)
        steps = records.of("step")
        wrong_steps = [step for step in steps if not times(step, self.right(step, records))]
        if not wrong_steps:
            return None
        base = self.found(wrong_steps, records)
        if all(self.documented(step, records) for step in steps):
            return replace(base, message="\n".join([base.message, *filter(None, [self.then])]))
        others = (n for n, of in self.instead.items() if all(of(step, records) for step in steps))
        return replace(base, documented=False, another=next(others, ""))
