"""The runs of a probe: each layout in its environment, as soon as one asks for it."""

from __future__ import annotations

from dataclasses import dataclass

from harness.rank.probe.exchange import Step
from harness.training.probe.compare.reference import Reference, as_one, without_cleared
from harness.training.probe.layouts import AGAINST, Layout, Settings
from harness.training.probe.runner import Run, Runner


@dataclass(frozen=True)
class Session:
    """The runners of a probe. A layout that has run already is not run again."""

    runner: Runner
    other: Runner | None = None
    """Of the other environment, if there is one."""

    @property
    def settings(self) -> Settings:
        return self.runner.settings

    def start(self, *layouts: Layout) -> None:
        """Begin to run layouts, each in its environment."""
        for layout in layouts:
            self._runner(layout).start(layout)

    def run(self, layout: Layout) -> Run:
        """What a layout did."""
        return self._runner(layout).start(layout).result()

    def _runner(self, layout: Layout) -> Runner:
        return self.other if self.other is not None and layout.kind == AGAINST else self.runner

    def run_as_one(self, layout: Layout) -> Run:
        """What a layout did, as if it had one rank."""
        return as_one(self.run(layout), self.settings.same_rows)

    def first_step(self, layout: Layout) -> Step | str:
        """The first step of a layout, or why there is none."""
        run = self.run_as_one(layout)
        return f"{layout.name}: {run.failure}" if run.failure else run.ranks[0][0]

    def without_rehearsal(self, run: Run, baseline: Reference) -> Run:
        """A run without what its steps have more than those of the reference."""
        return without_cleared(run, baseline.steps, self.settings.same_rows)
