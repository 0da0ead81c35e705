"""What a rank is going to record: told before it runs, and held against what came.

    STEP = {"loss": NUMBER, "differing": by_name(SIZE)}

    def plan(at: Position) -> Plan:
        return {"step": Kind(STEP, each(at.params.steps)), "checkpoint": Kind(CHECK)}

Each rank asks its scenario's ``plan`` and writes the answer down first; grading asks once more, and
finds exactly that: every record once, in its order, each fact of its shape. Standard library only:
ranks import this, with an old upstream's dependencies before ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.facts.shapes import Facts, held, told_alike


@dataclass(frozen=True)
class Kind:
    """The records of one kind that a rank is going to write."""

    facts: Facts | Sequence[Facts]
    """Those of every record; or those of each, where they are not alike."""
    steps: Sequence[int | None] = (None,)
    """The step of each, in their order; a step occurs twice where it has two records."""
    ends: bool = False
    """Whether it is not owed: one, at any of the steps, after which nothing more is owed of the
    steps that follow. It is for the documented exception that ends a training."""

    def of(self, place: int) -> Facts:
        """The facts of a record, by its place among those of its kind, from 0."""
        return self.facts if isinstance(self.facts, Mapping) else self.facts[place]


Plan = Mapping[str, Kind]
"""By kind, what a rank is going to record."""


class BrokenPromise(ValueError):
    """What was recorded is not what was going to be."""


def each(steps: int) -> range:
    """The steps 1 to ``steps``."""
    return range(1, steps + 1)


def to_json(plan: Plan) -> dict[str, Any]:
    """The plan as it is written down: by kind its steps, and which kind ends them."""
    ends = [name for name, kind in plan.items() if kind.ends]
    return {"steps": {n: list(k.steps) for n, k in plan.items()}, "ends": ends}


@dataclass
class Ledger:
    """How much of a plan has come: for the rank that writes, and for whoever reads."""

    plan: Plan
    come: dict[str, int] = field(default_factory=dict)
    ended: int | None = None
    """The step that an ending kind was recorded at."""

    def take(self, record: Mapping[str, Any]) -> None:
        """Book the next record; raises BrokenPromise, naming what is odd about it."""
        name, step = record["kind"], record["step"]
        kind = self.plan.get(name)
        if kind is None:
            raise BrokenPromise(f"a record of kind '{name}' that was not promised")
        if self.ended is not None and step is not None and step > self.ended:
            raise BrokenPromise(f"step {step} of '{name}' after the end at step {self.ended}")
        if kind.ends:
            self._end(name, kind, step)
        else:
            self._next(name, kind, step)
        wrong = wrong_facts(kind.of(self.come.get(name, 1) - 1), record)
        if wrong:
            raise BrokenPromise(f"{told(name, step)}: {wrong}")

    def _next(self, name: str, kind: Kind, step: int | None) -> None:
        place = self.come.get(name, 0)
        if place == len(kind.steps):
            raise BrokenPromise(f"{told(name, step)} is one more than was promised")
        if step != kind.steps[place] or isinstance(step, bool):
            raise BrokenPromise(f"{told(name, step)}, where {told(name, kind.steps[place])} is due")
        self.come[name] = place + 1

    def _end(self, name: str, kind: Kind, step: int | None) -> None:
        if self.ended is not None or step is None or step not in kind.steps:
            raise BrokenPromise(f"{told(name, step)} was not promised, or came before")
        self.ended = step

    def close(self) -> None:
        """Raises BrokenPromise, naming the first record that is still owed."""
        for name, kind in self.plan.items():
            owed = () if kind.ends else kind.steps[self.come.get(name, 0) :]
            for step in owed:
                if self.ended is None or step is None or step <= self.ended:
                    raise BrokenPromise(f"{told(name, step)} was promised, and never came")


def refuse_unlike(
    plans: Mapping[int, Plan], records: Mapping[int, Sequence[Mapping[str, Any]]]
) -> None:
    """Raises BrokenPromise, naming the first fact that ranks of a launch should have alike, and do
    not. By rank, what each recorded is as it was planned."""
    for name in dict.fromkeys(name for plan in plans.values() for name in plan):
        first, *others = (rank for rank, plan in plans.items() if name in plan)
        ours = list(_alike(plans[first], name, records[first]))
        for other in others:
            theirs = _alike(plans[other], name, records[other])
            for (step, one), (_, its) in zip(ours, theirs, strict=False):  # one may have ended
                odd = [fact for fact in one if fact in its and one[fact] != its[fact]]
                if odd:
                    where = f"ranks {first} and {other}"
                    raise BrokenPromise(f"{told(name, step)}: {odd[0]} is not alike on {where}")


def _alike(
    plan: Plan, name: str, records: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[int | None, dict[str, Any]]]:
    """Of a rank's records of one kind, the step and the facts that all ranks have alike."""
    for place, record in enumerate(each for each in records if each["kind"] == name):
        facts = plan[name].of(place)
        yield record["step"], {n: record.get(n) for n in facts if told_alike(facts[n])}


def told(name: str, step: int | None) -> str:
    """A record in words: ``step 3 of 'rate'``."""
    return f"'{name}'" if step is None else f"step {step} of '{name}'"


KEYS = ("kind", "rank", "step")
"""What every record has besides its facts."""


def wrong_facts(facts: Facts, record: Mapping[str, Any]) -> str:
    """What is wrong with a record's facts; empty if nothing is."""
    return held(facts)({name: value for name, value in record.items() if name not in KEYS})
