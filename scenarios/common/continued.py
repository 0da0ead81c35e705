"""Does a run that was stopped and resumed go on like one that was not?

The launch ``whole`` does ``done`` steps, saves, and does ``more``; the launch ``resumed`` loads
in a new process and does the same ``more`` steps. Both record each ``step``. The steps of the
second launch must be those of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.bugs import api

WHOLE, RESUMED = LAUNCHES = ("whole", "resumed")

Judge = Callable[[Sequence[api.Record], Sequence[api.Record], api.Records], bool]
"""Whether something holds for a rank's steps after a resume, all its steps of the uninterrupted
launch, and the records of the trial."""


def steps(at: api.Position) -> range:
    """The numbers of the steps of a launch."""
    start = 1 if at.launch == WHOLE else at.params.done + 1
    return range(start, at.params.done + at.params.more + 1)


def of(records: api.Records, launch: str, rank: int) -> list[api.Record]:
    """The steps of a launch on a rank."""
    return [step for step in records.of("step", rank) if step["launch"] == launch]


@dataclass(frozen=True)
class Continued:
    """The oracle of scenarios in which a resumed run is not the run without an interruption.

    The parameters of the scenario have ``done`` and ``more``, its ``launches`` are LAUNCHES."""

    documented: Judge
    """Whether the steps are wrong as documented. Its docstring is the symptom on the bug's page."""
    facts: Callable[[api.Position], api.Facts]
    """What is recorded of each step. Numbers may differ by rounding, see ``share``."""
    fact: str
    """The fact that messages and the picture show: a number."""
    noun: str
    """That fact in words, for readers: "learning rate"."""
    clock: str = "step"
    """What a step is: a step of training, or an epoch."""
    unit: str = ""
    """The unit of the fact that is shown."""
    share: float = 1e-6
    """The largest difference from rounding, as a fraction."""
    checks: Mapping[str, str] = field(default_factory=dict)
    """Facts that are right in spite of the bug: what they are, by their names."""

    def plan(self, at: api.Position) -> api.Plan:
        """The steps of each launch."""
        return {"step": api.Kind(self.facts(at), steps(at))}

    def detect(self, records: api.Records) -> api.Finding | None:
        """The finding that a step after the resume is not that of the uninterrupted run."""
        mismatches, documented, lines = [], True, []
        for rank in records.ranks:
            whole, resumed = of(records, WHOLE, rank), of(records, RESUMED, rank)
            pairs = list(zip(resumed, whole[records.params.done :], strict=True))
            odd = [(step, expected) for step, expected in pairs if not self._agrees(step, expected)]
            mismatches += odd
            documented &= self.documented(resumed, whole, records)
            if odd:
                actual, expected = ([pair[n][self.fact] for pair in pairs] for n in (0, 1))
                lines.append(
                    f"rank {rank}: after the resume the {self.noun} is {_listed(actual)}; without "
                    f"an interruption {_listed(expected)}"
                )
        if not mismatches:
            return None
        return api.Finding(
            "\n".join(lines),
            step=min(step["step"] for step, _ in mismatches),
            ranks=tuple(sorted({step["rank"] for step, _ in mismatches})),
            magnitude=max(
                abs(step[self.fact] - expected[self.fact]) for step, expected in mismatches
            ),
            unit=self.unit or f"of the {self.noun}",
            clock=self.clock,
            documented=documented,
        )

    def _agrees(self, step: api.Record, expected: api.Record) -> bool:
        """Whether a step has the expected facts; the launch is not compared."""
        names = (step.keys() | expected.keys()) - {"launch"}
        return all(self._equal(step.get(name), expected.get(name)) for name in names)

    def _equal(self, value: Any, expected: Any) -> bool:
        if api.finite(value) and api.finite(expected):
            return api.near(value, expected, share=self.share, within=1e-9)
        return bool(value == expected)

    def insufficient_checks(self, records: api.Records) -> dict[str, bool]:
        """Whether facts differ that the bug leaves right."""
        alarms = {}
        for name, text in self.checks.items():
            late = [of(records, WHOLE, rank)[records.params.done :] for rank in records.ranks]
            came = [of(records, RESUMED, rank) for rank in records.ranks]
            pairs = [
                pair for two in zip(came, late, strict=True) for pair in zip(*two, strict=True)
            ]
            alarms[f"{text} is another after the resume"] = any(
                not self._equal(step[name], expected[name]) for step, expected in pairs
            )
        return alarms

    def picture(self, trials: api.Trials) -> Iterator[api.Picture]:
        """The fact that is shown, in both launches of each variant."""
        points = [
            (f"{variant}: {step['launch']}", float(step["step"]), float(step[self.fact]))
            for variant, records in trials.items()
            for step in records.of("step", 0)
        ]
        title = f"The {self.noun} by {self.clock}"
        caption = "with the bug the resumed run does not go on like the run without an interruption"
        yield api.Lines(title, caption, points, x=self.clock, y=self.noun, stairs=True)


def _listed(values: Sequence[float], most: int = 6) -> str:
    text = ", ".join(f"{value:.4g}" for value in values[:most])
    return text + ", ..." * (len(values) > most)
