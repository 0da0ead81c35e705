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
    """The oracle of scenarios in which a metric over N ranks is not that of all rows.

    A rank records ``value`` with ``value``, upstream's, and ``right``. ``value`` is None on ranks
    that upstream gives none."""

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
        there = at.rank == 0 or not self.only_first
        value = api.NUMBER if there else api.exactly(None)
        facts = {"value": value, "right": api.alike(api.NUMBER), **self.facts(at)}
        return {"value": api.Kind(facts, self.steps(at))}

    def detect(self, records: api.Records) -> api.Finding | None:
        """The finding that a value is not that of all rows."""
        given = [one for one in records.of("value") if one["value"] is not None]
        wrong = [one for one in given if not self._right(one)]
        if not wrong:
            return None
        first = min(wrong, key=lambda one: (one["step"], one["rank"]))
        ranks = len(records.ranks)
        return api.Finding(
            f"the {self.metric} over {ranks} ranks is {first['value']:.5g}; that of one rank with "
            f"all rows is {first['right']:.5g}",
            step=first["step"],
            ranks=tuple(sorted({one["rank"] for one in wrong})),
            magnitude=max(abs(one["value"] - one["right"]) for one in wrong),
            unit=f"of the {self.metric}",
            documented=all(self.documented(one, records) for one in given),
        )

    def _right(self, one: api.Record) -> bool:
        return api.near(one["value"], one["right"], share=self.share, within=1e-9)

    def insufficient_checks(self, records: api.Records) -> dict[str, bool]:
        """Whether the ranks disagree, and whether the checks of the scenario give an alarm."""
        given = [one for one in records.of("value") if one["value"] is not None]
        several: dict[int, set[float]] = {}
        for one in given:
            several.setdefault(one["step"], set()).add(one["value"])
        others = {n: any(odd(one, records) for one in given) for n, odd in self.checks.items()}
        apart = any(len(values) > 1 for values in several.values())
        return others if self.only_first else {"the ranks have different values": apart, **others}

    def picture(self, trials: api.Trials) -> Iterator[api.Picture]:
        """The values on rank 0 beside the right ones."""
        values = [
            (variant, f"{name}, step {one['step']}", float(one[fact]))
            for variant, records in trials.items()
            for one in records.of("value", 0)
            for name, fact in (("over the ranks", "value"), ("of all rows", "right"))
        ]
        caption = "with the bug the value over the ranks is not that of one rank with all rows"
        yield api.Bars(f"The {self.metric}", caption, values, self.metric)
