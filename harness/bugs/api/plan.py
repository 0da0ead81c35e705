"""The plan of a rank: which records it writes, at which steps, and with which facts.

    STEP = {"loss": NUMBER, "differing": by_name(SIZE)}

    def plan(at: Position) -> Plan:
        return {"step": Kind(STEP, each(at.params.steps)), "checkpoint": Kind(CHECK)}

A rank checks each record against its plan as it writes the record. Grading computes the plan again
and requires exactly these records: each once, in order, each fact of its shape. Standard library
only: ranks import this module while an old upstream's dependencies shadow ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.bugs.api.shapes import Facts, held, is_alike


@dataclass(frozen=True)
class Kind:
    """The planned records of one kind."""

    facts: Facts | Sequence[Facts]
    """The facts of every record; or one entry for each record, where they differ."""
    steps: Sequence[int | None] = (None,)
    """The step of each record, in order. A step that has two records occurs twice."""
    ends: bool = False
    """Whether the record ends the training: it is optional, may come at any one of the steps, and
    no later step has records. Meant for a documented exception."""

    def facts_of(self, number: int) -> Facts:
        """The facts of the record with this number within its kind, from 0."""
        return self.facts if isinstance(self.facts, Mapping) else self.facts[number]


Plan = Mapping[str, Kind]
"""The planned records by kind."""


class BrokenPlan(ValueError):
    """A record is missing, or differs from its plan."""


def each(steps: int) -> range:
    """The steps 1 to ``steps``."""
    return range(1, steps + 1)


@dataclass
class Checklist:
    """Checks the records of one rank against its plan, one after another."""

    plan: Plan
    counts: dict[str, int] = field(default_factory=dict)
    """The number of records so far, by kind."""
    ended: int | None = None
    """The step of the record that ended the training."""

    def check(self, record: Mapping[str, Any]) -> None:
        """Check the next record; raises BrokenPlan with the reason."""
        name, step = record["kind"], record["step"]
        kind = self.plan.get(name)
        if kind is None:
            raise BrokenPlan(f"a record of kind '{name}', which is not planned")
        if self.ended is not None and step is not None and step > self.ended:
            raise BrokenPlan(f"step {step} of '{name}' after the end at step {self.ended}")
        if kind.ends:
            self._end(name, kind, step)
        else:
            self._next(name, kind, step)
        error = wrong_facts(kind.facts_of(self.counts.get(name, 1) - 1), record)
        if error:
            raise BrokenPlan(f"{describe(name, step)}: {error}")

    def _next(self, name: str, kind: Kind, step: int | None) -> None:
        number = self.counts.get(name, 0)
        if number == len(kind.steps):
            raise BrokenPlan(f"{describe(name, step)} is one more than planned")
        if step != kind.steps[number] or isinstance(step, bool):
            planned = describe(name, kind.steps[number])
            raise BrokenPlan(f"{describe(name, step)}, but the plan has {planned} next")
        self.counts[name] = number + 1

    def _end(self, name: str, kind: Kind, step: int | None) -> None:
        if self.ended is not None or step is None or step not in kind.steps:
            raise BrokenPlan(f"{describe(name, step)} is not planned, or is there twice")
        self.ended = step

    def close(self) -> None:
        """Raise BrokenPlan if a planned record is missing, naming the first one."""
        for name, kind in self.plan.items():
            missing = () if kind.ends else kind.steps[self.counts.get(name, 0) :]
            for step in missing:
                if self.ended is None or step is None or step <= self.ended:
                    raise BrokenPlan(f"{describe(name, step)} is planned, but missing")


def check_alike(
    plans: Mapping[int, Plan], records: Mapping[int, Sequence[Mapping[str, Any]]]
) -> None:
    """Raise BrokenPlan if a fact that is ``alike`` differs between ranks, naming the first one.

    ``plans`` and ``records`` are by rank; each rank's records have passed its ``Checklist``.
    """
    for name in dict.fromkeys(name for plan in plans.values() for name in plan):
        reference, *others = (rank for rank, plan in plans.items() if name in plan)
        ours = list(_alike_facts(plans[reference], name, records[reference]))
        for peer in others:
            theirs = _alike_facts(plans[peer], name, records[peer])
            for (step, mine), (_, its) in zip(ours, theirs, strict=False):  # one may end earlier
                odd = [fact for fact in mine if fact in its and mine[fact] != its[fact]]
                if odd:
                    record, ranks = describe(name, step), f"ranks {reference} and {peer}"
                    raise BrokenPlan(f"{record}: {odd[0]} differs between {ranks}")


def _alike_facts(
    plan: Plan, name: str, records: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[int | None, dict[str, Any]]]:
    """For each record of one kind: its step, and the facts that all ranks share."""
    for number, record in enumerate(entry for entry in records if entry["kind"] == name):
        facts = plan[name].facts_of(number)
        yield record["step"], {n: record.get(n) for n in facts if is_alike(facts[n])}


def describe(name: str, step: int | None) -> str:
    """A record in words: ``step 3 of 'rate'``."""
    return f"'{name}'" if step is None else f"step {step} of '{name}'"


KEYS = ("kind", "rank", "step")
"""What every record contains besides its facts."""


def wrong_facts(facts: Facts, record: Mapping[str, Any]) -> str:
    """What is wrong with a record's facts; empty if nothing is."""
    return held(facts)({name: value for name, value in record.items() if name not in KEYS})
