"""Is the value of a metric over several ranks that of one rank with all rows?

Each rank gets a part of the rows and computes the metric with upstream's code, which gathers or
reduces over the ranks. The right value is that of all rows, computed without upstream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.bugs import api

Judge = Callable[[api.Record, api.Records], bool]
"""Whether something holds for a value, among the records of its trial."""


def each_step(at: api.Position) -> range:
    """The steps of a scenario that has a parameter ``steps``; otherwise one."""
    return api.each(getattr(at.params, "steps", 1))


@dataclass(frozen=True)
class AllRows:
    """The oracle of scenarios in which a metric over N ranks is not that of all rows. A rank
    records ``value`` with upstream's ``value``, or None if upstream gives it none, and the
    ``right`` one."""

    documented: Judge
    """Whether a value is wrong as documented. Its docstring is the symptom on the bug's page."""
    metric: str
    """The name of the metric, for readers."""
    facts: Callable[[api.Position], api.Facts] = lambda at: {}
    """What the scenario records of a value besides."""
    steps: Callable[[api.Position], Sequence[int]] = each_step
    """When values are computed."""
    only_first: bool = False
    """Whether only rank 0 gets a value."""
    share: float = 1e-6
    """The largest difference from rounding, as a fraction."""
    checks: Mapping[str, Judge] = field(default_factory=dict)
    """Checks that miss the bug, and when each gives an alarm."""

    def plan(self, at: api.Position) -> api.Plan:
        """The values, with the right ones."""
        has_value = at.rank == 0 or not self.only_first
        value = api.NUMBER if has_value else api.exactly(None)
        facts = {"value": value, "right": api.alike(api.NUMBER), **self.facts(at)}
        return {"value": api.Kind(facts, self.steps(at))}

    def detect(self, records: api.Records) -> api.Finding | None:
        """The finding that a value is not that of all rows."""
        values = [record for record in records.of("value") if record["value"] is not None]
        wrong_values = [record for record in values if not self._is_right(record)]
        if not wrong_values:
            return None
        fault = min(wrong_values, key=lambda record: (record["step"], record["rank"]))
        ranks = len(records.ranks)
        return api.Finding(
            f"the {self.metric} over {ranks} ranks is {fault['value']:.5g}; that of one rank with "
            f"all rows is {fault['right']:.5g}",
            step=fault["step"],
            ranks=tuple(sorted({record["rank"] for record in wrong_values})),
            magnitude=max(abs(record["value"] - record["right"]) for record in wrong_values),
            unit=f"of the {self.metric}",
            documented=all(self.documented(record, records) for record in values),
        )

    def _is_right(self, record: api.Record) -> bool:
        return api.near(record["value"], record["right"], share=self.share, within=1e-9)

    def insufficient_checks(self, records: api.Records) -> dict[str, bool]:
        """Whether the ranks disagree, and whether the checks of the scenario give an alarm."""
        values = [record for record in records.of("value") if record["value"] is not None]
        by_step: dict[int, set[float]] = {}
        for record in values:
            by_step.setdefault(record["step"], set()).add(record["value"])
        others = {
            n: any(odd(record, records) for record in values) for n, odd in self.checks.items()
        }
        apart = any(len(at_step) > 1 for at_step in by_step.values())
        return others if self.only_first else {"the ranks have different values": apart, **others}

    def picture(self, trials: api.Trials) -> Iterator[api.Picture]:
        """The values on rank 0 beside the right ones."""
        values = [
            (variant, f"{name}, step {record['step']}", float(record[fact]))
            for variant, records in trials.items()
            for record in records.of("value", 0)
            for name, fact in (("over the ranks", "value"), ("of all rows", "right"))
        ]
        caption = "with the bug the value over the ranks is not that of one rank with all rows"
        yield api.Bars(f"The {self.metric}", caption, values, self.metric)
