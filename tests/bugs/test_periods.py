"""Periods of affected releases, and the status of releases that were not tested."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from harness.bugs import catalog, result_file
from harness.bugs.api.spec import Absent
from harness.bugs.lookup import infer, lookup
from harness.bugs.periods import alive, periods
from harness.bugs.results import Status
from tests.made_up import cell_of

YES, NO, UNCLEAR = "affected", "not affected", "inconclusive"
PAIR = "resume_replays_epoch"
Put = Callable[[str, Mapping[str, str]], None]


@pytest.fixture
def put_results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Put:
    """Replaces the recorded results of a scenario: ``put_results(name, {"0.1/1.0": YES})``."""

    def put(name: str, results: Mapping[str, str]) -> None:
        pins = catalog.scenario(name).pins
        monkeypatch.setattr(catalog, "folder", lambda _: tmp_path)
        (tmp_path / result_file.FILE).unlink(missing_ok=True)
        for releases, status in results.items():
            chosen = dict(zip(pins, releases.split("/"), strict=True))
            reason = f"because of {releases}"
            result_file.append([cell_of(name, chosen, Status(status), reason, day="2026-11-22")])

    return put


@pytest.mark.parametrize(
    ("results", "described"),
    [
        ({"1.0": NO, "1.1": YES, "1.2": YES, "1.3": NO}, ["1.1 to 1.2; 1.3 is not affected"]),
        ({"1.0": YES, "1.1": NO}, ["1.0 (or earlier); 1.1 is not affected"]),
        ({"1.0": NO, "1.10": YES, "1.9": NO}, ["1.10 to 1.10, the newest tested"]),
        ({"1.0": NO, "1.1": YES, "1.2": UNCLEAR, "1.3": NO}, ["1.1 (or later)"]),
        (
            {"1.0": UNCLEAR, "1.1": YES, "1.2": UNCLEAR},
            ["1.1 (or earlier) to 1.1, the newest tested"],
        ),
        ({"1.0": NO, "1.1": UNCLEAR}, []),
    ],
)
def test_a_period_says_which_ends_are_known(
    put_results: Put, results: Mapping[str, str], described: list[str]
) -> None:
    put_results("clip_max_for_min", results)
    assert [str(period) for period in periods("clip_max_for_min")] == described


@pytest.mark.parametrize(
    ("absent", "start"),
    [
        ("deepspeed<1.0", "1.0 to 1.1,"),
        ("deepspeed>=0.8,<1.0", "1.0 to 1.1,"),
        ("deepspeed<0.9", "1.0 (or from 0.9) to 1.1,"),
        ("deepspeed<1.1", "1.0 (or earlier) to 1.1,"),
        ("torch<1.0", "1.0 (or earlier) to 1.1,"),
    ],
)
def test_releases_that_cannot_have_a_bug_end_its_first_period(
    put_results: Put, monkeypatch: pytest.MonkeyPatch, absent: str, start: str
) -> None:
    put_results("clip_max_for_min", {"1.0": YES, "1.1": YES})
    scenario = replace(catalog.scenario("clip_max_for_min"), absent=(Absent(absent, "it is new"),))
    monkeypatch.setattr(catalog, "scenario", lambda _: scenario)
    assert str(periods("clip_max_for_min")[0]).startswith(start)


def test_a_bug_is_alive_if_the_newest_certain_release_has_it(put_results: Put) -> None:
    put_results("clip_max_for_min", {"1.0": NO, "1.1": YES, "1.2": UNCLEAR})
    bug = alive("clip_max_for_min")
    assert bug is not None
    assert (bug.release, bug.variant) == ("1.1", "released")
    put_results("clip_max_for_min", {"1.1": YES, "1.2": NO})
    assert alive("clip_max_for_min") is None


def test_a_variant_can_show_a_bug_in_the_newest_release() -> None:
    """accelerate 1.15.0 is right by default, and wrong with its seedable sampler."""
    bug = alive("sampler_shards")
    assert bug is not None
    assert (bug.release, bug.variant) == ("1.15.0", "alive")


def test_a_release_between_changing_ones_is_unknown_unless_its_own_series_says_more() -> None:
    """A bug that comes and goes from release to release may be in the next one or not."""
    no, yes = Status.NOT_AFFECTED, Status.AFFECTED
    tested = [("1.0", no), ("1.1", no), ("1.2.0", no), ("1.2.4", no), ("1.3", yes)]
    assert infer(tested, "1.0.5").status is no
    assert infer(tested, "1.1.5").status is no
    assert infer(tested, "1.2.2").status is no
    assert infer([each for each in tested if each[0] != "1.2.4"], "1.1.5").status is None


def test_the_releases_that_do_not_decide_are_ignored() -> None:
    """At both ends of a period, several releases of accelerate were run, with equal results."""
    for name in catalog.sound():
        scenario = catalog.scenario(name)
        if not scenario.decided_by:
            continue
        by_release: dict[str, set[Status]] = {}
        others: dict[str, set[tuple[str, ...]]] = {}
        for cell in result_file.statuses(name):
            if cell.status.certain:
                release = cell.pins[scenario.subject]
                by_release.setdefault(release, set()).add(cell.status)
                versions = tuple(v for p, v in cell.pins.items() if p != scenario.subject)
                others.setdefault(release, set()).add(versions)
        assert all(len(statuses) == 1 for statuses in by_release.values()), name
        assert sum(len(those) > 1 for those in others.values()) >= 4, name
        ends = {end for each in periods(name) for end in (each.first, each.last)}
        assert any(len(others[end]) > 1 for end in ends), name


def test_upstreams_history_rules_out_what_no_run_has_shown() -> None:
    answer = lookup("pipeline_gas_twice", {"deepspeed": "0.7.1"})
    assert answer.status is Status.NOT_AFFECTED
    assert not answer.tested
    assert "deepspeed 0.7.1 cannot have it: the hook that divides came with 0.18.3" in answer.why
    assert lookup("pipeline_gas_twice", {"deepspeed": "0.19.2"}).status is Status.AFFECTED
    assert lookup("trainer_gas_twice", {"transformers": "4.11.3"}).status is Status.NOT_AFFECTED


def test_the_source_of_a_release_that_cannot_be_run_shows_a_bug() -> None:
    answer = lookup("sequential_lr_resume", {"torch": "1.13.0"})
    assert answer.status is Status.AFFECTED
    assert (answer.tested, answer.is_read) == (False, True)
    assert answer.why.startswith("torch 1.13.0 has it, as its source shows: the constructor")


def test_no_run_contradicts_what_upstreams_history_and_source_say() -> None:
    readings = [
        (name, each, status)
        for name in catalog.sound()
        for those, status in (
            (catalog.scenario(name).absent, Status.AFFECTED),
            (catalog.scenario(name).present, Status.NOT_AFFECTED),
        )
        for each in those
    ]
    assert readings
    for name, reading, contrary in readings:
        requirement = Requirement(reading.releases)
        assert requirement.name in catalog.scenario(name).deciding
        for cell in result_file.statuses(name):
            inside = requirement.specifier.contains(cell.pins[requirement.name], prereleases=True)
            assert not inside or cell.status is not contrary, (name, cell.pins)


def test_a_release_with_another_bug_instead_has_that_bug() -> None:
    count = 0
    for name in catalog.sound():
        for cell in result_file.statuses(name):
            other_bug, instead, _ = cell.reason.partition(" instead: ")
            if instead:
                count += 1
                assert cell.status is Status.NOT_AFFECTED
                assert lookup(other_bug, cell.pins).status is Status.AFFECTED, (name, cell.pins)
    assert count > 40


ROW = {"1.0": NO, "1.2": YES, "1.2.5": YES, "1.4": YES, "1.6": UNCLEAR, "1.7": NO, "1.8": NO}


@pytest.mark.parametrize(
    ("version", "status", "why"),
    [
        ("1.2", YES, "deepspeed 1.2 was tested on 2026-11-22: it has the bug"),
        ("1.2.0", YES, "tested on 2026-11-22"),
        ("1.3", YES, "1.3 was not tested, but deepspeed 1.2.5 and deepspeed 1.4 both have"),
        ("1.1", None, "its neighbours differ: deepspeed 1.0 (not affected) and deepspeed 1.2 (aff"),
        (
            "1.5",
            None,
            "neighbours differ: deepspeed 1.4 (affected) and deepspeed 1.6 (inconclusive)",
        ),
        ("1.7.5", NO, "deepspeed 1.7 and deepspeed 1.8 both do not have the bug"),
        ("1.6", None, "was tested, without a certain result: because of 1.6"),
        ("1.9", None, "1.9 was not tested; deepspeed 1.8, the newest tested, is not affected"),
        ("0.9", None, "0.9 was not tested; deepspeed 1.0, the oldest tested, is not affected"),
        ("not a version", None, "not a version"),
    ],
)
def test_a_release_takes_its_own_result_or_that_of_neighbours_that_agree(
    put_results: Put, version: str, status: str | None, why: str
) -> None:
    put_results("clip_max_for_min", ROW)
    answer = lookup("clip_max_for_min", {"deepspeed": version})
    assert answer.status == (Status(status) if status else None)
    assert why in answer.why


GRID = {"2.0/1.0": NO, "2.2/1.0": YES, "2.4/1.0": YES, "2.2/1.4": YES, "2.4/1.4": NO}


@pytest.mark.parametrize(
    ("releases", "status"),
    [
        ("2.2/1.4", YES),
        ("2.4/1.4", NO),
        ("2.3/1.0", YES),
        ("2.2/1.2", YES),
        ("2.3/1.2", None),  # 2.2 with 1.0 is affected, 2.4 with 1.4 is not
        ("2.3/1.5", None),  # newer than everything tested
        ("2.1/1.2", None),
    ],
)
def test_two_packages_are_looked_up_together(
    put_results: Put, releases: str, status: str | None
) -> None:
    put_results(PAIR, GRID)
    accelerate, transformers = releases.split("/")
    answer = lookup(PAIR, {"transformers": transformers, "accelerate": accelerate})
    assert answer.status == (Status(status) if status else None), answer.why


def test_a_vehicle_does_not_count() -> None:
    """Any tensor-parallel model meets bf16_clip; megatron-core only drives it here."""
    for vehicle in ({}, {"megatron-core": "0.1"}):
        answer = lookup("bf16_clip", {"deepspeed": "0.15.4", **vehicle})
        assert (answer.status, answer.tested) == (Status.NOT_AFFECTED, True)
