"""Is the learning rate of each step the one that the schedule's formula gives?

A rank records ``rate``: the rates that a step of the optimizer used, one for each parameter group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from harness.bugs import api
from scenarios.common import applied, usual_checks

TOLERANCE = 1e-6
"""How far (as a fraction of the greatest rate that the formula gives) a rate may be from it."""

UNIT = "from the rate of the schedule"


RATES = api.alike(api.many(api.SIZE, least=1))
"""The rates of one step, one for each parameter group; the same on data-parallel ranks."""


@dataclass(frozen=True)
class Deviation:
    """A step whose rate is not that of the formula."""

    rank: int
    step: int
    group: int
    rate: float
    wanted: float

    def __str__(self) -> str:
        group = f" of group {self.group}" if self.group else ""
        return (
            f"step {self.step}: the rate{group} is {self.rate:.4g}, where the schedule has "
            f"{self.wanted:.4g}"
        )


def deviations(records: api.Records, formula: Callable[[int], float]) -> list[Deviation]:
    """The steps, counted from 1, whose rate is not ``formula(step)``, by rank and step."""
    steps = records.of("rate")
    allowed = TOLERANCE * max((formula(step["step"]) for step in steps), default=0.0)
    return [
        Deviation(step["rank"], step["step"], group, rate, formula(step["step"]))
        for step in steps
        for group, rate in enumerate(step["rates"])
        if not api.near(rate, formula(step["step"]), within=allowed)
    ]


def not_moved(records: api.Records) -> Iterator[str]:
    """The steps that did not move the weights by their rate.

    A rank must record ``step`` with ``applied.Step`` at a rate of 1, so that ``ratio`` is the rate
    that was applied.
    """
    for rank in records.ranks:
        steps = records.typed(applied.Step, rank=rank)
        for rate, step in zip(records.of("rate", rank), steps, strict=True):
            if not all(step.times(used_rate) for used_rate in rate["rates"]):
                yield f"{step}, at a rate of {rate['rates']}"


def groups_wrong(records: api.Records) -> Iterator[str]:
    """The steps that have another number of rates than the first one."""
    for rank in records.ranks:
        rates, steps = records.of("rate", rank), records.of("step", rank)
        for rate, step in zip(rates, steps, strict=True):
            counts = (len(rates[0]["rates"]), len(rate["rates"]), len(step["logged"]))
            if len(set(counts)) > 1:
                yield (
                    f"rank {rank}, step {step['step']}: {counts[1]} rates, of which {counts[2]} "
                    f"logged, but the first step has {counts[0]}"
                )


def logged_wrong(records: api.Records, formula: Callable[[int], float]) -> Iterator[str]:
    """The steps after which ``logged`` is not the rate of the next step."""
    for step in records.of("step"):
        expected = formula(step["step"] + 1)
        if not all(api.near(rate, expected, within=1e-9) for rate in step["logged"]):
            yield f"step {step['step']}: {step['logged']} is logged, but {expected:.4g} is next"


def finding(wrong_rates: Sequence[Deviation], *, documented: bool) -> api.Finding:
    """The finding that these steps used a wrong rate."""
    return api.Finding(
        message="\n".join(dict.fromkeys(map(str, wrong_rates))),
        step=min(deviation.step for deviation in wrong_rates),
        ranks=tuple(sorted({deviation.rank for deviation in wrong_rates})),
        magnitude=max(abs(deviation.rate - deviation.wanted) for deviation in wrong_rates),
        unit=UNIT,
        documented=documented,
    )


@dataclass(frozen=True)
class Scheduled:
    """The oracle of scenarios whose steps use another rate than the schedule's."""

    documented: Callable[[Sequence[Deviation], api.Records], bool]
    """Whether the deviations are the documented ones. Its docstring is the symptom on the bug's
    page."""
    formula: Callable[[Any, int], float]
    """The right rate of a step, counted from 1, under the scenario's ``Params``."""
    name: str
    """The name of the schedule's class."""
    facts: Callable[[api.Position], api.Facts]
    """What is recorded of a step besides its ``loss``. Because steps are measured in rates of 1,
    ``ratio`` is the rate that was applied."""
    odd: Callable[[api.Records], Iterable[str]]
    """Messages of other faults."""
    picture: api.Pictures
    checks: Sequence[api.Check] = (usual_checks.loss_ends_higher,)
    """Checks that miss the bug."""

    def plan(self, at: api.Position) -> api.Plan:
        """The schedule's class, the rate of each step, and what each step did to the weights."""
        steps = api.each(at.params.steps)
        return {
            "schedule": api.Kind({"name": api.exactly(self.name)}),
            "rate": api.Kind({"rates": RATES}, steps),
            "step": api.Kind({"loss": api.NUMBER, **self.facts(at)}, steps),
        }

    def detect(self, records: api.Records) -> api.Finding | None:
        """The finding that steps used another rate than the schedule's."""
        if odd := list(self.odd(records)):
            return api.Finding("\n".join(odd[:3]), documented=False)
        wrong_rates = deviations(records, partial(self.formula, records.params))
        return (
            finding(wrong_rates, documented=self.documented(wrong_rates, records))
            if wrong_rates
            else None
        )


def watch(record: Callable[..., None], optimizer: Any) -> None:
    """At each step of torch's optimizer, record ``rate``: the rate of each parameter group as the
    step begins."""
    steps = count(1)

    def note(stepping: Any, *_: object) -> None:
        record("rate", next(steps), rates=[float(g["lr"]) for g in stepping.param_groups])

    optimizer.register_step_pre_hook(note)


def rates(caption: str) -> api.Pictures:
    """A picture of the learning rate of each step."""
    return api.lines(
        "The learning rate that each step used",
        caption,
        lambda record: record["rates"][0],
        "rate",
        y="learning rate",
        stairs=True,
    )
