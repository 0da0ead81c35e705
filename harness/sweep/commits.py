"""The configs of a scenario on one commit after another; a commit is built when it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

from harness.config.run_config import RunConfig
from harness.system.machine import cache_folder
from harness.upstream import releases, sources
from harness.upstream.pins import here


@dataclass(frozen=True)
class Commits(Sequence[RunConfig]):
    """A config for each commit of a history. All have the same dependencies, those of the day of
    the last commit, so a step installs one package."""

    base: RunConfig
    package: str
    history: sources.History

    def __len__(self) -> int:
        return len(self.history.commits)

    @overload
    def __getitem__(self, at: int) -> RunConfig: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[RunConfig]: ...

    def __getitem__(self, at: int | slice) -> RunConfig | Sequence[RunConfig]:
        """The config of a commit. Raises Inconclusive if the commit does not build."""
        if isinstance(at, slice):
            return [self[index] for index in range(len(self))[at]]
        commit = self.history.commits[at]
        source = f"{self.history.repository}@{commit}"
        version = sources.pinned(self.package, source, cache_folder())
        return replace(self.base, pins={**self.base.pins, self.package: version}, date=self._day())

    def _day(self) -> str:
        day = self.history.day(self.history.commits[-1])
        return self.base.date or releases.settled(day, here()[0])
