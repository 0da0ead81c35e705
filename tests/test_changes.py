"""What changed: pure functions over answers, none of which asks anything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness import catalog
from harness.spec import Verdict
from harness.sweep import changes
from harness.sweep.cell import Status
from harness.sweep.history_rows import ReleaseResult
from tests.nightly_world import NO, SCENARIO, UNCLEAR, YES, asked, indexed, own, release

DAY = "2024-03-04"
UNSUPPORTED = Status.UNSUPPORTED
RELEASES = indexed([release("2.0", "2024-03-01")])


def kinds(tonight: list[ReleaseResult], before: list[ReleaseResult]) -> dict[str | None, str]:
    found = changes.of_releases(tonight, before, RELEASES, DAY)
    return {change.version: change.kind for change in found}


@pytest.mark.parametrize(
    ("before", "now", "kind"),
    [
        (NO, YES, "now affected"),
        (YES, NO, "no longer affected"),
        (YES, UNCLEAR, "no longer answers"),
        (NO, UNSUPPORTED, "cannot be asked here"),
        (UNCLEAR, YES, "answers again"),
        (UNSUPPORTED, NO, "answers again"),
        (YES, YES, None),
        (NO, NO, None),
        (UNCLEAR, UNSUPPORTED, None),
    ],
)
def test_a_release_is_compared_with_the_one_before_it(
    before: Status, now: Status, kind: str | None
) -> None:
    assert kinds([asked("2.0", now, 2)], [asked("1.0", before)]) == ({"2.0": kind} if kind else {})


def test_a_release_without_a_predecessor_is_a_baseline() -> None:
    for answer in (YES, NO, UNCLEAR):
        assert kinds([asked("2.0", answer, 2)], [asked("3.0", NO)]) == {}
        assert kinds([asked("2.0", answer, 2)], []) == {}


def test_a_late_patch_is_compared_within_its_branch() -> None:
    branches = [asked("4.57.6", NO), asked("5.1.0", YES), asked("5.10.0", YES)]
    assert kinds([asked("4.57.7", NO, 2)], branches) == {}
    assert kinds([asked("5.9.0", NO, 2)], branches) == {"5.9.0": "no longer affected"}


def test_a_flip_across_a_silent_release_is_seen() -> None:
    silent = [asked("1.0", NO), asked("1.1", UNCLEAR)]
    (change,) = changes.of_releases([asked("1.2", YES, 2)], silent, {}, DAY)
    assert (change.kind, change.before, change.after) == (
        "now affected",
        "not affected",
        "affected",
    )
    assert "1.0 was not." in change.message


def test_releases_of_one_night_are_compared_with_each_other() -> None:
    tonight = [asked("1.2", NO, 2), asked("1.1", YES, 2)]
    assert kinds(tonight, [asked("1.0", NO)]) == {
        "1.1": "now affected",
        "1.2": "no longer affected",
    }


def test_a_release_that_stays_silent_is_told_once() -> None:
    before = [asked("1.0", NO), asked("1.1", UNCLEAR, 2)]
    assert kinds([asked("1.1", UNCLEAR, 3)], before) == {}


def test_a_release_that_was_silent_itself_answers_again() -> None:
    before = [asked("1.0", NO), asked("1.1", UNCLEAR, 2)]
    assert kinds([asked("1.1", NO, 3)], before) == {"1.1": "answers again"}
    assert kinds([asked("1.1", YES, 3)], before) == {"1.1": "now affected"}


def test_scenarios_and_packages_are_never_compared_with_each_other() -> None:
    others = [asked("1.0", NO, scenario="rope_zero_init"), asked("1.0", NO, package="transformers")]
    assert kinds([asked("2.0", YES, 2)], others) == {}


def test_what_got_worse_is_told_so_that_a_person_can_act() -> None:
    (change,) = changes.of_releases([asked("2.0", YES, 2)], [asked("1.0", NO)], RELEASES, DAY)
    scenario = catalog.scenario(SCENARIO)
    assert changes.worse([change]) == [change]
    for word in (
        "deepspeed 2.0 (2024-03-01)",
        f"is affected by {SCENARIO}; 1.0 was not.",
        scenario.title[1:],
        f"Only with {scenario.trigger}",
        scenario.remedy,
        f"First seen in the nightly of {DAY}",
        f"python -m harness run scenario={SCENARIO} variant=released pins.deepspeed=2.0",
    ):
        assert word in change.message
    assert "\n" not in change.message


def test_a_release_that_no_longer_answers_says_why() -> None:
    (change,) = changes.of_releases([asked("2.0", UNCLEAR, 2)], [asked("1.0", NO)], {}, DAY)
    assert "Reason: because of 2.0." in change.message
    assert "1.0 was not affected." in change.message
    assert changes.worse([change])


@pytest.mark.parametrize(
    ("before", "now", "kind"),
    [
        ([], Verdict.REPRODUCED, None),
        ([], Verdict.NOT_REPRODUCED, "no longer reproduces"),
        ([Verdict.REPRODUCED], Verdict.NOT_REPRODUCED, "no longer reproduces"),
        ([Verdict.NOT_REPRODUCED], Verdict.NOT_REPRODUCED, None),
        ([Verdict.NOT_REPRODUCED], Verdict.REPRODUCED, "reproduces again"),
        (
            [Verdict.REPRODUCED, Verdict.INCONCLUSIVE],
            Verdict.NOT_REPRODUCED,
            "no longer reproduces",
        ),
        ([Verdict.NOT_REPRODUCED, Verdict.INCONCLUSIVE], Verdict.NOT_REPRODUCED, None),
        ([Verdict.REPRODUCED], Verdict.INCONCLUSIVE, None),
        ([Verdict.REPRODUCED], Verdict.UNSUPPORTED, None),
    ],
)
def test_a_scenario_of_ours_is_compared_with_the_last_night_that_said_something(
    before: list[Verdict], now: Verdict, kind: str | None
) -> None:
    earlier = [own(verdict, night) for night, verdict in enumerate(before)]
    others = [own(Verdict.NOT_REPRODUCED, scenario="bf16_clip")]
    found = changes.of_ours([own(now, 9)], [*earlier, *others], DAY)
    assert [change.kind for change in found] == ([kind] if kind else [])
    assert bool(changes.worse(found)) is (kind == "no longer reproduces")


def test_a_release_that_was_yanked_since_is_told_for_each_scenario_that_it_answered() -> None:
    before = indexed([release("1.0", "2024-01-01"), release("1.1", "2024-02-01", yanked=True)])
    now = [
        release("1.0", "2024-01-01", True),
        release("1.1", "2024-02-01", True),
        release("1.2", "2024-03-01", True),
    ]
    told = [asked("1.0", YES), asked("1.0", NO, scenario="bf16_clip"), asked("1.1", YES)]
    found = changes.of_yanked(now, before, told)
    assert [(c.kind, c.scenario, c.version, c.before) for c in found] == [
        ("yanked", "bf16_clip", "1.0", "not affected"),
        ("yanked", SCENARIO, "1.0", "affected"),
    ]
    assert not changes.worse(found)


def test_a_reason_that_was_cut_ends_where_it_was_cut() -> None:
    tonight = [asked("2.0", UNSUPPORTED, 2)]
    long = replace(tonight[0], cell=replace(tonight[0].cell, reason="word " * 60))
    (cut,) = changes.of_releases([long], [asked("1.0", NO)], RELEASES, DAY)
    assert " ... Run the nightly" in cut.message
    short = replace(tonight[0], cell=replace(tonight[0].cell, reason="it is too old"))
    (whole,) = changes.of_releases([short], [asked("1.0", NO)], RELEASES, DAY)
    assert "it is too old. Run the nightly" in whole.message
