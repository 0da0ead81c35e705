"""A bug on the site: its content, its results in a history and in runs, and their charts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from harness.bugs.advisories import file_name
from harness.bugs.api.spec import RELEASED
from harness.bugs.periods import alive_in
from harness.bugs.results import Status
from harness.publish import charts, inputs
from harness.publish.alive import AliveBug, finding
from harness.publish.bugs import Bug
from harness.publish.charts import Chart
from harness.publish.history import ReleaseResult
from harness.publish.inputs import Evidence, SiteInputs


@dataclass(frozen=True)
class ShownBug(Bug):
    """A bug with all its results, from a history and from runs."""

    inputs: SiteInputs

    @property
    def known_upstream(self) -> str:
        """Whether the maintainers know of the bug."""
        if self.alive:
            return self.alive.known_upstream[1]
        if self.scenario.known_upstream:
            return "yes"
        if self.scenario.known_in_part:
            return f"in part: {self.scenario.known_in_part}"
        fixed = any(period.after for period in self.periods)
        return "fixed upstream, without a report of this symptom" if fixed else "no"

    @property
    def shown_run(self) -> Evidence | None:
        """The run that its pictures show."""
        return self.inputs.runs.get(self.name)

    @cached_property
    def newest_result(self) -> ReleaseResult | None:
        """The result of the highest release with a certain status."""
        return self.inputs.statuses.newest_certain(self.name, self.upstream)

    @cached_property
    def alive(self) -> AliveBug | None:
        """The bug in the highest release with a certain status; None if it is not affected."""
        if self.newest_result is None:
            return None
        bug = alive_in(self.name, self.newest_result.version, self.newest_result.cell.status)
        if bug is None:
            return None
        as_published = bug.variant == RELEASED
        reason = self.newest_result.reason if as_published else finding(bug)
        return AliveBug(self.name, bug, reason)

    @property
    def current_status(self) -> tuple[str, str]:
        """The status of the highest release with a certain status, and the same in words."""
        if self.newest_result is None:
            return "", ""
        release = f"{self.newest_result.package} {self.newest_result.version}"
        if self.alive is None:
            return str(Status.NOT_AFFECTED), f"{release}: not affected"
        suffix = (
            "" if self.newest_result.cell.status is Status.AFFECTED else " with another trigger"
        )
        return str(Status.AFFECTED), f"{release}: alive{suffix}"

    @property
    def advisory(self) -> str:
        """The address of its advisory on the site; it exists if the bug has periods."""
        return f"advisories/{file_name(self.name)}"

    @cached_property
    def pictures(self) -> list[Chart]:
        return list(map(charts.chart, self.shown_run.pictures)) if self.shown_run else []

    @cached_property
    def evidence(self) -> list[Evidence]:
        """The run that the pictures show, then the kept runs."""
        shown = [self.shown_run] if self.shown_run else []
        return [*shown, *inputs.kept_evidence(self.name)]

    @property
    def text(self) -> str:
        """The text that a search looks through, in lower case."""
        scenario = self.scenario
        parts = (
            self.name,
            scenario.title,
            scenario.symptom,
            scenario.trigger,
            scenario.harm,
            scenario.visibility,
            *scenario.pins,
            *self.story,
        )
        return " ".join(" ".join(parts).split()).lower()
