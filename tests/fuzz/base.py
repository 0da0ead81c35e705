"""The runs to damage: recorded runs, with at most three of their variants."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from harness.trial.grade import grade
from harness.trial.loaded_files import LISTS
from harness.trial.records import RUN_FILE
from tests.recording import recorded, seal

VARIANTS = {"buggy", "fixed", "control"}


@dataclass(frozen=True)
class Base:
    """A recorded run, and its verdict and outcomes."""

    scenario: str
    folder: Path
    verdict: str
    outcomes: dict[str, str]


def bases(folder: Path) -> list[Base]:
    """A copy of every recorded run in ``folder``, with at most three of its variants."""
    return [_base(run, folder / name) for name, run in recorded().items()]


def _base(recorded: Path, folder: Path) -> Base:
    run = json.loads((recorded / RUN_FILE).read_text())
    run["trials"] = {v: trial for v, trial in run["trials"].items() if v in VARIANTS}
    folder.mkdir(parents=True)
    for name in (*run["trials"], LISTS):
        shutil.copytree(recorded / name, folder / name)
    (folder / RUN_FILE).write_text(json.dumps(run))
    seal(folder)
    result = grade(folder)
    assert str(result.verdict) == "reproduced", result.reasons  # otherwise the fuzzer tests nothing
    outcomes = {trial.variant: str(trial.outcome) for trial in result.trials}
    return Base(run["scenario"], folder, str(result.verdict), outcomes)
