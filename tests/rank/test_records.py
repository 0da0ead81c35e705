"""The run folder: written completely or not at all, and checked when it is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from harness.bugs.api.plan import BrokenPlan, Kind, each, wrong_facts
from harness.bugs.api.shapes import NUMBER
from harness.bugs.api.spec import Lane
from harness.rank.exits import Identity
from harness.rank.recorder import HARNESS_KINDS, Recorder
from harness.rank.run_folder import RUN_FILE, create_run_folder, last_record, read_records
from harness.rank.scenario import start_facts
from harness.system.errors import Inconclusive
from harness.system.files import read_json

OF = Identity("run", "bf16_clip", "buggy", "", 2)
RUN: dict[str, Any] = {
    "trials": {"buggy": {"launches": [""]}, "fixed": {"launches": ["save", "load"]}}
}


UPSTREAM = {"modules": {}, "files": {}, "loaded": 0, "changed": [], "apex": "not installed"}
HARNESS_FACTS: dict[str, dict[str, Any]] = {
    "start": {"python": "3.11.7", "torch": "2.13.0", "threads": 1},
    "upstream": UPSTREAM,
    "shims": {"uses": {}},
    "phases": {"seconds": {}, "ended": 0.0},
}


def recorder(folder: Path, rank: int, steps: int) -> Recorder:
    return Recorder(folder, rank, OF, {"step": Kind({"loss": NUMBER}, each(steps))})


def write_rank(folder: Path, rank: int, *losses: float) -> None:
    writing = recorder(folder, rank, len(losses))
    for step, loss in enumerate(losses, start=1):
        writing.record("step", step, loss=loss)
    for kind, facts in HARNESS_FACTS.items():
        writing.record(kind, **facts)
    writing.close()


def test_records_are_read_by_rank_and_in_order(tmp_path: Path) -> None:
    write_rank(tmp_path, 1, 3.0)
    write_rank(tmp_path, 0, 1.0, 2.0)
    records = read_records(tmp_path, 2)
    read = [(r["rank"], r["step"], r["loss"]) for r in records.of("step")]
    assert read == [(0, 1, 1.0), (0, 2, 2.0), (1, 1, 3.0)]
    assert [record["loss"] for record in records.of("step", 1)] == [3.0]
    assert records.one("checkpoint") is None
    with pytest.raises(Inconclusive, match="rank 0 wrote 2 records of kind 'step'"):
        records.one("step")


def test_the_last_record_is_a_complete_line(tmp_path: Path) -> None:
    assert last_record(tmp_path, 0) is None
    writing = recorder(tmp_path, 0, 7)
    assert (last_record(tmp_path, 0) or {})["kind"] == "begin"
    writing.record("step", 1, loss=1.0)
    with writing.part.open("a") as file:
        file.write('{"kind": "st')
    assert (last_record(tmp_path, 0) or {})["step"] == 1
    assert last_record(tmp_path, 1) is None


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), "low", None])
def test_a_fact_of_another_shape_cannot_be_recorded(tmp_path: Path, odd: Any) -> None:
    with pytest.raises(BrokenPlan, match="step 1 of 'step': loss is"):
        recorder(tmp_path, 0, 1).record("step", 1, loss=odd)


def test_a_rank_that_skips_a_planned_record_leaves_no_records(tmp_path: Path) -> None:
    writing = recorder(tmp_path, 0, 2)
    writing.record("step", 1, loss=1.0)
    with pytest.raises(BrokenPlan, match="planned, but missing"):
        writing.close()
    assert not writing.final.exists()


def test_what_a_rank_says_of_its_gpu_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr("torch.cuda.nccl.version", lambda: (2, 28, 9))
    monkeypatch.setattr("torch.version.cuda", "13.0")
    for lane in Lane:
        assert wrong_facts(HARNESS_KINDS["start"].facts_of(0), start_facts(lane)) == ""


@pytest.mark.parametrize("kind", HARNESS_KINDS)
def test_a_plan_must_not_contain_a_record_of_the_harness(tmp_path: Path, kind: str) -> None:
    with pytest.raises(BrokenPlan, match=f"'{kind}' is a record of the harness"):
        Recorder(tmp_path, 0, OF, {kind: Kind({})})


def test_a_run_folder_has_run_json_and_a_folder_for_each_trial(tmp_path: Path) -> None:
    folder = create_run_folder(tmp_path / "runs", "name", RUN)
    assert folder == tmp_path / "runs" / "name"
    assert sorted(os.listdir(folder)) == ["buggy", "fixed", RUN_FILE]
    assert read_json(folder / RUN_FILE) == RUN
    with pytest.raises(Inconclusive, match="cannot write"):
        create_run_folder(folder / RUN_FILE, "name", RUN)


@pytest.mark.parametrize("text", [None, "", '{"half":', "\udcff"])
def test_a_file_that_is_not_json_is_inconclusive(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "file.json"
    if text is not None:
        file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(Inconclusive, match=r"cannot read .*file\.json"):
        read_json(file)
