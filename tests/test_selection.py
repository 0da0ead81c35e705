"""What a night asks: of releases that are made up, none of which is run."""

from __future__ import annotations

import datetime

import pytest

from harness import catalog, config
from harness.nightly import selection
from harness.sweep.baseline import about
from harness.sweep.history_rows import Kind, Nightly, ReleaseResult
from harness.upstream import pins, release_days
from harness.upstream.index import Release
from tests.nightly_world import NO, PACKAGE, SCENARIO, UNCLEAR, YES, asked, release

RELEASES = [
    release("0.13.0", "2024-01-10"),
    release("0.13.1", "2024-01-23"),
    release("0.13.2", "2024-02-12"),
    release("0.13.3", "2024-02-23"),
    release("0.14.0rc1", "2024-02-25"),
]
DAY = "2024-03-04"
HERE = ("cpu", "3.11", "2.13.0")
"""Where the cells of tests.nightly_world were asked."""


def night(number: int, day: str, kind: Kind = Kind.NIGHTLY) -> Nightly:
    return Nightly(number, kind, day, day, day, {})


def ask(
    told: list[ReleaseResult], *nights: Nightly, day: str = DAY, releases: list[Release] = RELEASES
) -> list[str]:
    found = selection.tests_of(
        SCENARIO, {PACKAGE: releases}, told, {n.id: n for n in nights}, day, HERE
    )
    assert {question.scenario for question in found} <= {SCENARIO}
    return [question.release.version for question in found]


def test_without_any_answer_the_newest_release_of_the_day_is_asked() -> None:
    assert ask([]) == ["0.13.3"]
    assert ask([], day="2024-02-12") == ["0.13.2"]
    assert ask([], day="2023-12-31") == []


def test_what_appeared_since_the_first_night_is_asked() -> None:
    first = night(1, "2024-02-01")
    assert ask([asked("0.13.1", NO)], first) == ["0.13.2", "0.13.3"]
    assert ask([asked("0.13.1", NO)], first, day="2024-02-12") == ["0.13.2"]
    told = [asked("0.13.1", NO), asked("0.13.2", YES, 2)]
    assert ask(told, first, night(2, "2024-02-12")) == ["0.13.3"]


def test_what_a_night_missed_the_next_one_asks() -> None:
    told = [asked("0.13.1", NO), asked("0.13.3", NO, 2)]  # the second had no room for 0.13.2
    assert ask(told, night(1, "2024-02-01"), night(2, "2024-02-24")) == ["0.13.2"]


def test_a_release_of_the_very_day_of_the_first_night_is_not_missed() -> None:
    later = [*RELEASES, release("0.12.9", "2024-02-23"), release("0.12.8", "2024-02-22")]
    assert ask([asked("0.13.3", NO)], night(1, "2024-02-23"), releases=later) == ["0.12.9"]


def test_what_never_got_a_certain_answer_is_asked_again() -> None:
    told = [
        asked("0.13.0", UNCLEAR),
        asked("0.13.1", UNCLEAR),
        asked("0.13.1", NO, 2),
        asked("0.13.3", NO, 2),
    ]
    assert ask(told, night(1, "2024-02-24"), night(2, "2024-02-25")) == ["0.13.0"]


def test_what_was_recorded_as_inconclusive_is_asked_again_on_another_place_alone() -> None:
    recorded = night(1, "2024-03-01", Kind.RECORDED)
    told = [asked("0.13.1", UNCLEAR), asked("0.13.3", NO)]
    assert ask(told, recorded) == []
    for other in (("gpu", "3.11", "2.13.0"), ("cpu", "3.12", "2.13.0"), ("cpu", "3.11", "2.14.0")):
        found = selection.tests_of(SCENARIO, {PACKAGE: RELEASES}, told, {1: recorded}, DAY, other)
        assert [question.release.version for question in found] == ["0.13.1"]
    again = [*told, asked("0.13.2", UNCLEAR, 2)]  # a night's own is
    assert ask(again, recorded, night(2, DAY)) == ["0.13.2"]


def test_yanked_releases_and_pre_releases_are_never_asked() -> None:
    yanked = [*RELEASES[:3], release("0.13.3", "2024-02-23", yanked=True), RELEASES[4]]
    assert ask([asked("0.13.1", NO)], night(1, "2024-02-01"), releases=yanked) == ["0.13.2"]
    told = [asked("0.13.2", NO), asked("0.13.3", UNCLEAR)]
    assert ask(told, night(1, "2024-02-24"), releases=yanked) == []


def test_a_late_patch_of_an_old_branch_is_asked() -> None:
    late = [*RELEASES, release("0.12.9", "2024-03-01")]
    assert ask([asked("0.13.3", NO)], night(1, "2024-02-24"), releases=late) == ["0.12.9"]


def test_after_a_record_what_appeared_since_it_is_asked_and_the_newest() -> None:
    """The record is a choice of releases, asked on the days that their cells say: 2024-03-01."""
    recorded = night(1, "2024-03-09", Kind.RECORDED)  # of another scenario's newest fact
    told = [asked("0.13.0", NO), asked("0.13.1", NO)]
    assert ask(told, recorded) == ["0.13.3"]
    later = [*RELEASES, release("0.13.4", "2024-03-02"), release("0.14.0", "2024-03-03")]
    assert ask(told, recorded, releases=later) == ["0.13.4", "0.14.0"]


def test_releases_that_the_scenario_is_not_about_are_not_asked() -> None:
    there = [
        release("4.57.0", "2025-01-01", package="transformers"),
        release("5.0.0", "2026-01-01", package="transformers"),
    ]
    scope = catalog.scenario("rope_zero_init_v5")
    found = selection.testable(scope, there, "2026-03-01")
    assert [r.version for r in found] == ["5.0.0"]


@pytest.fixture
def _in_2026(monkeypatch: pytest.MonkeyPatch) -> None:
    class Then(datetime.date):
        @classmethod
        def today(cls) -> datetime.date:  # type: ignore[override]
            return datetime.date(2026, 11, 21)

    monkeypatch.setattr(release_days, "date", Then)
    monkeypatch.setattr(pins, "here", lambda: ("3.11", "linux-x86_64"))


@pytest.mark.usefixtures("_in_2026")
@pytest.mark.parametrize(
    ("version", "day", "as_of", "date"),
    [
        ("0.13.3", "2024-02-23", None, None),  # tonight's: as every run
        ("0.13.3", "2024-02-23", "2024-03-04", "2024-03-04"),  # its dependencies had not settled
        ("0.13.1", "2024-01-23", "2024-03-04", None),  # they had
        ("0.13.2", "2024-02-12", "2024-02-12", "2024-02-12"),  # the scenario's own pin
        ("0.12.6", "2023-11-01", "2023-11-02", None),  # no wheels before the first day
    ],
)
def test_a_young_release_of_a_replay_is_resolved_as_of_the_day(
    version: str, day: str, as_of: str | None, date: str | None
) -> None:
    base = config.compose([f"scenario={SCENARIO}"])
    question = selection.ReleaseTest(SCENARIO, release(version, day))
    asked_ = selection.config(base, question, as_of)
    assert asked_.date == date
    assert asked_.pins == {PACKAGE: version}
    assert asked_.variants == ("released",)
    see = f"python -m harness run scenario={SCENARIO} variant=released pins.deepspeed={version}"
    assert asked_.command == see + (f" date={date}" if date else "")


def test_a_recorded_answer_is_about_the_package_that_the_others_go_with() -> None:
    rope = catalog.scenario("rope_zero_init")
    own = dict(rope.pins)
    assert about(rope, own) == ["transformers", "deepspeed"]
    assert about(rope, {**own, "transformers": "4.38.2"}) == ["transformers"]
    assert about(rope, {**own, "deepspeed": "0.19.8"}) == ["deepspeed"]
    companion = {"transformers": "5.23.0", "deepspeed": "0.19.8"}  # which goes with >=5
    assert about(rope, companion) == ["transformers"]
    assert about(rope, {"transformers": "4.38.2", "deepspeed": "0.19.8"}) == []
