"""Recorded results that are run again: which are due, and what differs."""

from __future__ import annotations

import platform
import random
from dataclasses import replace

import pytest
from packaging.version import Version

from harness.__main__ import main
from harness.bugs import result_file
from harness.bugs.results import Result
from harness.publish import confirmations
from harness.run import cells
from harness.system.errors import ExitCode
from tests.nightly_world import NO, SCENARIO, YES, World, cell, world

__all__ = ["world"]

Capture = pytest.CaptureFixture[str]


def confirmed_on(*days: str) -> list[Result]:
    return [replace(cell(f"0.{n}.0", NO), day=day) for n, day in enumerate(days)]


def versions(cells: list[Result]) -> list[str]:
    return sorted(one.pins["deepspeed"] for one in cells)


def test_the_results_that_were_confirmed_longest_ago_are_due_first() -> None:
    cells = confirmed_on("2026-03-03", "2026-03-01", "2026-03-02", "2026-03-04")
    assert versions(confirmations.due(cells, "2026-03-05", 2)) == ["0.1.0", "0.2.0"]


def test_on_one_day_all_machines_choose_the_same_and_on_another_day_others() -> None:
    cells = confirmed_on(*["2026-03-01"] * 60)
    mixed = random.Random(1).sample(cells, len(cells))
    chosen = confirmations.due(cells, "2026-03-05", 10)
    assert confirmations.due(mixed, "2026-03-05", 10) == chosen
    assert confirmations.due(cells, "2026-03-06", 10) != chosen


def test_results_of_another_environment_are_not_compared(record: object) -> None:
    record(v4_36_2=YES)  # type: ignore[operator]
    (recorded_cell,) = result_file.statuses("rope_zero_init")
    environment = recorded_cell.platform
    assert len(confirmations.recorded(["rope_zero_init"], environment)) == 1
    assert not confirmations.recorded(["rope_zero_init"], ("cpu", "3.9", "1.0.0"))


@pytest.mark.parametrize(
    ("before", "after", "alike"),
    [
        ("the norm was 1.08, 2e-06 aside", "the norm was 1.2, 3e-06 aside", True),
        ("the norm was 1.08 of 10", "the norm was 1.08 of 20", False),
        ("the norm was 1.08", "the mean was 1.08", False),
        ("rank 0 failed first: x", "rank 1 failed first: x", True),
        ("a==1 could not be installed: because", "a==1 could not be installed: for", True),
        ("the trigger occurred: 4 batches", "the trigger occurred: batches is 4", True),
        ("the trigger occurred: 4 batches", "the trigger did not occur: 4 batches", False),
    ],
)
def test_reasons_are_alike_if_only_the_machine_can_make_the_difference(
    before: str, after: str, alike: bool
) -> None:
    older, newer = (replace(cell("1", NO), reason=reason) for reason in (before, after))
    assert (confirmations.difference(older, newer) == "") is alike


@pytest.fixture
def _recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.13.0 is recorded as affected, and 0.13.1 as not affected."""
    cells = [cell("0.13.0", YES), cell("0.13.1", NO)]
    monkeypatch.setattr(result_file, "statuses", lambda name: cells if name == SCENARIO else [])


@pytest.mark.usefixtures("_recorded")
def test_a_difference_is_reported(world: World, capsys: Capture) -> None:
    assert main(["confirm", f"scenario={SCENARIO}", "lane=cpu"]) == ExitCode.NOT_AS_EXPECTED
    assert sorted(world.versions) == ["0.13.0", "0.13.1"]
    out = " ".join(capsys.readouterr().out.split())
    assert "1 as recorded, 1 differ" in out
    assert "deepspeed 0.13.0: not affected, recorded as affected" in out


@pytest.mark.parametrize(("reason", "code"), [("step 68", 0), ("row 94", 1)])
def test_numbers_alone_are_no_failure(
    world: World, monkeypatch: pytest.MonkeyPatch, reason: str, code: int
) -> None:
    record, today = (replace(cell("0.13.1", NO), reason=text) for text in ("step 94", reason))
    monkeypatch.setattr(result_file, "statuses", lambda name: [record] if name == SCENARIO else [])
    monkeypatch.setattr(cells, "find", lambda *_, **__: today)
    assert main(["confirm", f"scenario={SCENARIO}", "lane=cpu"]) == code


def test_what_this_python_cannot_import_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = result_file.statuses("ignite_sync_twice")
    surroundings = cells[0].platform
    for python, old in (("3.11.7", True), ("3.11.2", False)):
        monkeypatch.setattr(platform, "python_version", lambda version=python: version)
        due = confirmations.recorded(["ignite_sync_twice"], surroundings)
        assert due
        assert any(Version(cell.pins["pytorch-ignite"]) < Version("0.4.12") for cell in due) is old
