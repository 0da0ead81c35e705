"""A training in the launch ``whole``, and its end once more in the launch ``resumed``.

A rank records ``step`` with the optimizer's ``rate``, and the rate by which the step ``moved`` the
weights.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.bugs import api


def both(records: api.Records) -> Iterator[tuple[api.Record, api.Record]]:
    """Each step of the resumed launch, with the same step of the uninterrupted one."""
    steps = records.of("step")
    whole = {(s["rank"], s["step"]): s for s in steps if s["launch"] == "whole"}
    yield from ((s, whole[s["rank"], s["step"]]) for s in steps if s["launch"] == "resumed")


def otherwise_moved(records: api.Records) -> list[api.Record]:
    """The steps that moved the weights by another rate than the optimizer's."""
    steps = records.of("step")
    return [step for step in steps if not api.near(step["moved"], step["rate"], share=1e-3)]


def rates(caption: str) -> api.Pictures:
    """A picture of the rate of each step, without and with an interruption."""

    def picture(trials: api.Trials) -> Iterator[api.Picture]:
        points = [
            (f"{variant}: {step['launch']}", float(step["step"]), float(step["rate"]))
            for variant, records in trials.items()
            for step in records.of("step", 0)
        ]
        title = "The learning rate of each step"
        yield api.Lines(title, caption, points, y="learning rate", stairs=True)

    return picture
