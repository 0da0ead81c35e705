"""Recorded results: how they are kept, used, replaced and shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.bugs import catalog, result_file
from harness.publish.bugs import Bug
from harness.system import lines
from tests.made_up import NO, UNCLEAR, YES, cell

Recording = Callable[..., None]


def test_only_a_certain_status_replaces_a_certain_one(record: Recording) -> None:
    record(v4_36_2=YES)
    record(v4_36_2=UNCLEAR)
    assert [f.status for f in result_file.statuses("rope_zero_init")] == ["affected"]
    record(v4_36_2=NO)
    assert [f.status for f in result_file.statuses("rope_zero_init")] == ["not affected"]


def test_releases_with_the_same_result_share_a_row(record: Recording) -> None:
    record(v4_36_2=YES, v4_4_0=YES, v4_38_2=NO, v4_39_0=UNCLEAR)
    titles, *rows = Bug("rope_zero_init").statuses
    assert (titles[0], titles[-1]) == ("transformers", "reason")
    assert rows[0][:4] == ["4.4.0, 4.36.2", "affected", "deepspeed 0.13.3", "cpu"]
    assert "because of v4.39.0" in [row[-1] for row in rows]


def test_a_record_of_a_release_that_the_scenario_no_longer_covers_is_deleted(
    record: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(v4_36_2=YES, v4_38_2=NO)
    narrowed = replace(catalog.scenario("rope_zero_init"), releases="transformers>=4.38")
    monkeypatch.setattr(catalog, "scenario", lambda _: narrowed)
    record(v4_39_0=NO)
    facts = result_file.statuses("rope_zero_init")
    assert [fact.pins["transformers"] for fact in facts] == ["4.38.2", "4.39.0"]


def test_no_record_has_a_path_of_the_machine_that_made_it() -> None:
    recorded = [cell for name in catalog.sound() for cell in result_file.statuses(name)]
    assert not [cell for cell in recorded if result_file.OVERLAY.search(cell.reason)]


def test_a_run_that_confirms_a_result_keeps_its_first_day(folders: Path) -> None:
    def recorded(day: str, torch: str = "2.13.0") -> tuple[str, str]:
        machine = {"python": "3.11.7", "torch": torch}
        result_file.record([replace(cell("4.36.2", YES), day=day, machine=machine)])
        (newest,) = result_file.statuses("rope_zero_init")
        return newest.first_day, newest.day

    assert recorded("2026-11-21") == ("2026-11-21", "2026-11-21")
    assert recorded("2026-11-25") == ("2026-11-21", "2026-11-25")
    assert recorded("2026-11-26", torch="2.14.0") == ("2026-11-26", "2026-11-26")
    assert len(result_file.read("rope_zero_init")) == 3


@pytest.mark.parametrize("name", catalog.names())
def test_each_line_is_read_and_written_as_it_is(name: str) -> None:
    written = lines.read(catalog.folder(name) / result_file.FILE)
    assert [result.to_json() for result in result_file.read(name)] == written
