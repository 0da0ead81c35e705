"""Probes the loops of harness/probe/loops, with servers that all tests of a file share."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from harness.launch.server_pool import Pool
from harness.probe import loops
from harness.probe.compare.comparison import Compared
from harness.probe.layouts import Settings
from harness.probe.questions import Answers, probe
from harness.probe.runner import Runner
from harness.probe.target import target
from harness.system.machine import cache_folder, own_folder

SCRIPTS = loops.FOLDER
SAVE, RESUMED = "--save {dir} --save-at {at}", "--resume {dir}"


@dataclass(frozen=True)
class Probing:
    """Probes a script, with the packages of a site-packages besides those of this Python."""

    pool: Pool
    site: Path | None = None

    def __call__(self, script: str, arguments: str | Sequence[str], settings: Settings) -> Answers:
        given = arguments.split() if isinstance(arguments, str) else arguments
        words = [str(SCRIPTS / script), *given]
        extensions = own_folder(cache_folder(), "extensions") / "probe-tests"
        with tempfile.TemporaryDirectory() as folder, _environment(self._variables()):
            where = Path(folder), extensions, sys.executable
            with Runner(target(words), settings, *where, 120, self.pool) as runner:
                return probe(runner, settings)

    def _variables(self) -> Mapping[str, str]:
        return {"PYTHONPATH": str(self.site)} if self.site else {}


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    with mock.patch.dict(os.environ, variables):
        yield


def layout(answers: Answers, kind: str) -> Compared:
    return next(found for found in answers.layouts if found.layout.kind == kind)


def first_broken(answers: Answers) -> dict[str, tuple[str, str]]:
    """By layout, the relation that is broken first, and what its ratio means; right ones not."""
    return {
        found.layout.kind: (found.broken[0].relation, found.broken[0].meaning)
        for found in answers.layouts
        if found.broken
    }


def refused(answers: Answers) -> list[str]:
    """Why layouts gave no answer."""
    return [found.no_answer + found.log for found in answers.layouts if found.no_answer]
