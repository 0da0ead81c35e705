"""Which made-up releases a nightly selects; none is run."""

from __future__ import annotations

from collections.abc import Sequence

from harness.bugs import catalog
from harness.publish import selection
from harness.publish.history import Nightly, ReleaseResult, recorded_about
from harness.releases.index import Release
from tests.nightly_world import NO, PACKAGE, SCENARIO, UNCLEAR, YES, release, result

RELEASES = [
    release("0.13.0", "2024-01-10"),
    release("0.13.1", "2024-01-23"),
    release("0.13.2", "2024-02-12"),
    release("0.13.3", "2024-02-23"),
    release("0.14.0rc1", "2024-02-25"),
]
DAY = "2024-03-04"
HERE = ("cpu", "3.11", "2.13.0")
"""Where the cells of tests.nightly_world were found."""


def night(day: str, *results: ReleaseResult) -> Nightly:
    return Nightly(day, day, {}, day, tested={each.key: each for each in results})


def chosen(
    *nights: Nightly,
    recorded: Sequence[ReleaseResult] = (),
    day: str = DAY,
    releases: list[Release] = RELEASES,
    lanes: tuple[str, ...] = HERE,
) -> list[str]:
    tests = selection.tests_of(SCENARIO, {PACKAGE: releases}, recorded, nights, day, lanes)
    assert {test.scenario for test in tests} <= {SCENARIO}
    return [test.release.version for test in tests]


def test_without_any_result_the_newest_release_of_the_day_is_tested() -> None:
    days = [DAY, "2024-02-12", "2023-12-31"]
    assert [chosen(day=day) for day in days] == [["0.13.3"], ["0.13.2"], []]


def test_releases_that_appeared_since_the_first_nightly_are_tested() -> None:
    first_night = night("2024-02-01", result("0.13.1", NO))
    assert chosen(first_night) == ["0.13.2", "0.13.3"]
    assert chosen(first_night, day="2024-02-12") == ["0.13.2"]
    assert chosen(first_night, night("2024-02-12", result("0.13.2", YES))) == ["0.13.3"]


def test_a_release_that_a_nightly_missed_is_tested_by_the_next_one() -> None:
    nights = night("2024-02-01", result("0.13.1", NO)), night("2024-02-24", result("0.13.3", NO))
    assert chosen(*nights) == ["0.13.2"]


def test_a_late_patch_of_an_old_branch_is_tested_from_the_day_of_the_first_nightly() -> None:
    later = [*RELEASES, release("0.12.9", "2024-02-23"), release("0.12.8", "2024-02-22")]
    assert chosen(night("2024-02-23", result("0.13.3", NO)), releases=later) == ["0.12.9"]


def test_a_release_without_a_certain_status_is_tested_again() -> None:
    first = night("2024-02-24", result("0.13.0", UNCLEAR), result("0.13.1", UNCLEAR))
    second = night("2024-02-25", result("0.13.1", NO), result("0.13.3", NO))
    assert chosen(first, second) == ["0.13.0"]


def test_a_release_recorded_as_inconclusive_is_tested_only_in_another_environment() -> None:
    recorded = [result("0.13.1", UNCLEAR), result("0.13.3", NO)]
    assert chosen(recorded=recorded) == []
    for environment in (
        ("gpu", "3.11", "2.13.0"),
        ("cpu", "3.12", "2.13.0"),
        ("cpu", "3.11", "2.14.0"),
    ):
        assert chosen(recorded=recorded, lanes=environment) == ["0.13.1"]
    # a nightly's own result
    assert chosen(night(DAY, result("0.13.2", UNCLEAR)), recorded=recorded) == ["0.13.2"]


def test_yanked_releases_and_pre_releases_are_never_tested() -> None:
    yanked = [*RELEASES[:3], release("0.13.3", "2024-02-23", yanked=True), RELEASES[4]]
    assert chosen(night("2024-02-01", result("0.13.1", NO)), releases=yanked) == ["0.13.2"]
    later = night("2024-02-24", result("0.13.2", NO), result("0.13.3", UNCLEAR))
    assert chosen(later, releases=yanked) == []


def test_releases_since_the_recorded_ones_and_the_newest_are_tested() -> None:
    """Only some releases were recorded; their cells were tested on 2024-03-01."""
    recorded = [result("0.13.0", NO), result("0.13.1", NO)]
    assert chosen(recorded=recorded) == ["0.13.3"]
    later = [*RELEASES, release("0.13.4", "2024-03-02"), release("0.14.0", "2024-03-03")]
    assert chosen(recorded=recorded, releases=later) == ["0.13.4", "0.14.0"]


def test_releases_that_the_scenario_is_not_about_are_not_tested() -> None:
    versions = [("4.57.0", "2025-01-01"), ("5.0.0", "2026-01-01")]
    transformers = [release(version, day, package="transformers") for version, day in versions]
    testable = selection.testable(catalog.scenario("rope_zero_init_v5"), transformers, "2026-03-01")
    assert [each.version for each in testable] == ["5.0.0"]


def test_a_recorded_result_is_about_the_package_that_the_others_are_companions_of() -> None:
    rope = catalog.scenario("rope_zero_init")
    for pins_, packages in (
        ({}, ["transformers", "deepspeed"]),
        ({"transformers": "4.38.2"}, ["transformers"]),
        ({"deepspeed": "0.19.8"}, ["deepspeed"]),
        ({"transformers": "5.23.0", "deepspeed": "0.19.8"}, ["transformers"]),  # a companion
        ({"transformers": "4.38.2", "deepspeed": "0.19.8"}, []),
    ):
        assert recorded_about(rope, {**rope.pins, **pins_}) == packages
