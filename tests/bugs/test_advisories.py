"""The bugs as OSV records: valid, and with the statuses that were recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from harness.__main__ import main
from harness.bugs import advisories, catalog, periods, result_file
from harness.bugs.advisories import PREFIX, Record
from harness.bugs.results import Status
from tests.made_up import cell_of
from tests.schemas import complaints

YES, NO, UNCLEAR = "affected", "not affected", "inconclusive"
Capture = pytest.CaptureFixture[str]
SCHEMA = "advisory.json"
HAVE = [name for name in catalog.sound() if periods.periods(name)]


# The evaluation algorithm of the OSV specification, section "Evaluation", for PyPI's versions.


def is_affected(record: Record, package: str, version: str) -> bool:
    return any(
        version in each.get("versions", ()) or in_ranges(version, each.get("ranges", ()))
        for each in record["affected"]
        if (each["package"]["ecosystem"], each["package"]["name"]) == ("PyPI", package)
    )


def in_ranges(version: str, ranges: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a range of releases has the version; ranges of commits say nothing about it."""
    of_releases = [each for each in ranges if each["type"] == "ECOSYSTEM"]
    return any(in_events(Version(version), each["events"]) for each in of_releases)


def in_events(version: Version, events: Sequence[Mapping[str, str]]) -> bool:
    limits = [event["limit"] for event in events if "limit" in event]
    if limits and not any(limit == "*" or version < Version(limit) for limit in limits):
        return False
    inside = False
    for event in sorted(events, key=lambda event: Version(next(iter(event.values())))):
        ((kind, bound),) = event.items()
        if kind == "introduced" and version >= Version(bound):
            inside = True
        elif (kind == "fixed" and version >= Version(bound)) or (
            kind == "last_affected" and version > Version(bound)
        ):
            inside = False
    return inside


@pytest.mark.parametrize("name", HAVE)
def test_a_record_is_valid_and_gives_each_tested_release_its_recorded_status(name: str) -> None:
    record, package = advisories.record(name), catalog.scenario(name).subject
    assert complaints(SCHEMA, record) == []
    for listed in (True, False):
        if not listed:
            record["affected"][0].pop("versions")  # the ranges alone say the same
        for version, status in periods.tested(name).items():
            if status.certain:
                answer = is_affected(record, package, version)
                assert answer is (status is Status.AFFECTED), f"{package} {version}"
    assert not is_affected(record, "another-package", "1.0")


@pytest.mark.parametrize(
    ("results", "ranges"),
    [
        ({"1.0": NO, "1.1": YES, "1.2": YES, "1.3": NO}, [{"introduced": "1.1", "fixed": "1.3"}]),
        ({"1.0": YES, "1.1": UNCLEAR, "1.2": NO}, [{"introduced": "1.0", "last_affected": "1.0"}]),
        ({"1.9": NO, "1.10": YES}, [{"introduced": "1.10"}]),
        ({"1.0": YES, "1.1": UNCLEAR}, [{"introduced": "1.0"}]),
        (
            {"1.0": YES, "1.1": NO, "1.2": YES, "1.3": UNCLEAR, "1.4": YES},
            [
                {"introduced": "1.0", "fixed": "1.1"},
                {"introduced": "1.2", "last_affected": "1.2"},
                {"introduced": "1.4"},
            ],
        ),
    ],
)
def test_each_period_is_a_range_that_ends_only_where_a_run_shows_it(
    folders: Path, results: Mapping[str, str], ranges: list[dict[str, str]]
) -> None:
    name = "clip_max_for_min"
    tested = [cell_of(name, {"deepspeed": v}, Status(s), "") for v, s in results.items()]
    result_file.append(tested)
    record = json.loads(advisories.files()[f"{PREFIX}{name}.json"])
    assert complaints(SCHEMA, record) == []
    timelines = [each["events"] for each in record["affected"][0]["ranges"]]
    assert [{k: v for event in events for k, v in event.items()} for events in timelines] == ranges
    assert record["affected"][0]["versions"] == [v for v, s in results.items() if s == YES]


def test_a_record_says_what_was_run_and_what_to_do() -> None:
    record = advisories.record("rope_zero_init")
    assert record["id"] == "x_distributed-bugs-rope_zero_init"
    assert record["published"] == "2026-11-21T00:00:00Z"
    day = max(cell.day for cell in result_file.statuses("rope_zero_init"))
    assert record["modified"] == f"{day}T00:00:00Z"
    assert {"type": "FIX", "url": "https://github.com/huggingface/transformers/pull/28760"} in (
        record["references"]
    )
    ours = record["database_specific"]
    assert (ours["harm"], ours["visibility"]) == ("ruins training", "silent")
    assert ours["settings"]["precision"] == "bf16 or fp16"
    release = result_file.tested_releases("transformers")[-1]
    assert ours["alive"]["release"] == release
    assert "copy the rotary buffers" in ours["remedy"]
    assert ours["remedy"] in record["details"]
    newest = [run for run in ours["runs"] if run["version"] == release][-1]
    date.fromisoformat(newest.pop("date"))
    assert newest == {
        "version": release,
        "status": YES,
        "lane": "cpu",
        "python": "3.11.7",
        "torch": "2.13.0+cpu",
        "with": {"deepspeed": "0.19.8"},
    }


def test_a_report_is_only_related_if_upstream_does_not_know_the_bug() -> None:
    kinds = {each["type"] for each in advisories.record("trainer_gas_twice")["references"]}
    assert kinds == {"WEB", "FIX"}


def test_records_do_not_depend_on_when_they_are_written(tmp_path: Path, capsys: Capture) -> None:
    for folder in ("one", "two"):
        assert main(["advisories", "--out", str(tmp_path / folder)]) == 0
    files, copies = (sorted((tmp_path / folder).iterdir()) for folder in ("one", "two"))
    assert [(f.name, f.read_bytes()) for f in files] == [(f.name, f.read_bytes()) for f in copies]
    assert len(list((tmp_path / "one").glob("*.json"))) == len(HAVE)


def test_bugs_without_an_affected_release_are_named_in_one_line(
    tmp_path: Path, capsys: Capture
) -> None:
    assert main(["advisories", "--out", str(tmp_path / "out")]) == 0
    summary, omission = capsys.readouterr().out.splitlines()
    assert summary.startswith(f"{len(HAVE)} records: ")
    without = len(catalog.sound()) - len(HAVE)
    assert omission.startswith(f"no record for {without} bugs: only an edit puts it into a release")
    assert "(bf16_clip, " in omission
    assert "no release was tested (device_math)" in omission
    assert not (tmp_path / "out" / f"{PREFIX}bf16_clip.json").exists()


def test_a_folder_with_other_files_is_refused(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    assert main(["advisories", "--out", str(tmp_path)]) == 2
    assert "not part of a set of advisories (thesis.tex)" in capsys.readouterr().err


def test_a_commit_that_was_found_is_a_range_of_the_repository() -> None:
    ranges = advisories.record("clip_max_for_min")["affected"][0]["ranges"]
    (commits,) = [each for each in ranges if each["type"] == "GIT"]
    begin, end = commits["events"]
    assert commits["repo"] == "https://github.com/deepspeedai/DeepSpeed"
    assert begin["introduced"].startswith("961bc8562417")
    assert end["fixed"].startswith("005afe124f56")
