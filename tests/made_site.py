"""Makes sites for tests from a small history."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.__main__ import main
from harness.bugs.api.spec import Finding, Verdict
from harness.bugs.results import Result, RunResult, Status
from harness.publish import history
from harness.publish.history import Change, Nightly, ReleaseResult, writing
from harness.releases.index import Release
from harness.run.suite import Done
from tests.made_up import cell_of

EVIL = "<script>alert(1)</script>"
"""Pages must show this as text, wherever it comes from."""

YES, NO, UNCLEAR = Status.AFFECTED, Status.NOT_AFFECTED, Status.INCONCLUSIVE
DAYS = dict(
    zip(
        ("4.30.0", "4.36.2", "4.38.2", "5.15.0", "5.15.1", "5.23.0"),
        ("2023-06-08", "2023-12-18", "2024-03-01", "2026-02-10", "2026-02-17", "2026-11-02"),
        strict=True,
    )
)


def a_cell(scenario: str, version: str, status: Status, reason: str = "because") -> Result:
    """The cell of a scenario and a release of transformers."""
    pins = {"transformers": version, "deepspeed": "0.19.8"}
    finding = Finding(reason, step=0) if status is YES else None
    return cell_of(scenario, pins, status, reason, seconds=12.0, finding=finding)


def the_recorded() -> list[ReleaseResult]:
    """What is recorded of the bugs of the small history."""
    rope = (("4.36.2", YES), ("4.38.2", NO), ("5.15.1", YES), ("5.23.0", YES))
    cells = [a_cell("rope_zero_init", version, status) for version, status in rope]
    cells.append(a_cell("trainer_gas_twice", "5.23.0", NO))
    return [ReleaseResult("transformers", cell) for cell in cells]


def a_history(file: Path) -> Path:
    """Write three nightlies."""
    days = ("2026-02-17", "2026-11-20", "2026-11-21")
    first, second, third = (Nightly(day, f"{day}T03:00:00", {}, day) for day in days)
    first.releases = [Release("transformers", v, day) for v, day in DAYS.items()]
    crash = a_cell("trainer_gas_twice", "5.15.1", UNCLEAR, f"a crash: {EVIL}")
    first.add_result(ReleaseResult("transformers", crash))
    about = ("rope_zero_init", "transformers", "5.15.1", str(NO), str(YES))
    first.changes.append(Change("now affected", *about, f"affected again {EVIL}"))
    for name, verdict in (("bf16_clip", Verdict.REPRODUCED), (EVIL, Verdict.NOT_REPRODUCED)):
        second.ours[name] = Done(RunResult(name, verdict, (), ()), 8.0, None)
    third.ours["bf16_clip"] = Done(RunResult("bf16_clip", Verdict.REPRODUCED, (), ()), 9.0, None)
    with writing(file) as history:
        for night in (first, second, third):
            history.append(night)
    return file


def a_site(folder: Path) -> Path:
    """A site of all bugs and a small history, made in a folder."""
    file, out = a_history(folder / "nights.jsonl"), folder / "site"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "recorded_results", the_recorded)
        assert main(["site", "--out", str(out), "--history", str(file)]) == 0
    return out


def a_bare_site(folder: Path) -> Path:
    """A site without a history and runs: only the recorded releases are shown."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["site", "--out", "site"]) == 0
    return folder / "site"
