"""Which alarms count: where the bug is, and where it is not."""

from __future__ import annotations

from typing import Any

import pytest

from harness.run.score.scores import Detection, Watched, score, without_others
from harness.run.score.scoring import Scoring


def test_no_seed_tells_whether_the_bug_is_there() -> None:
    assert Scoring([], [], [5], 90).all_seeds() == [5]
    assert Scoring([], [], [5, 6, 7], 90).all_seeds() == [5, 6, 90]


@pytest.mark.parametrize(
    ("release", "detection"), [("4.46.2", Detection.MISSED), ("5.23.0", Detection.FALSE_ALARM)]
)
def test_the_alarm_of_another_bug_is_right_where_the_release_has_it(
    release: str, detection: Detection
) -> None:
    alarm = [{"text": "the step counts the loss 0.9 times", "step": 1, "where": ""}]
    other_alarm = [{**alarm[0], "text": "the step counts the loss 0.875 times"}]
    has = {"transformers": release}
    scores = [
        score("trainer_counts_first_label", "d", [watched("buggy", alarm), watched("control")]),
        score("eos_masked", "d", [watched("buggy"), watched("fixed", other_alarm, releases=has)]),
    ]
    assert scores[1].found is Detection.FALSE_ALARM
    assert [one.found for one in without_others(scores)] == [Detection.DETECTED, detection]


@pytest.mark.parametrize(
    ("fixed_alarms", "detection"), [(0, Detection.DETECTED), (1, Detection.MISSED)]
)
def test_alarm_is_not_another_bug_s_if_the_fixed_variant_has_that_bug_and_is_silent(
    fixed_alarms: int, detection: Detection
) -> None:
    def alarms(word: str) -> list[dict[str, Any]]:
        return [{"text": word, "step": 1, "where": ""}]

    has = {"transformers": "4.46.2"}
    fixed = [*alarms("tokens"), *(alarms("rows") * fixed_alarms)]
    buggy = [*alarms("tokens"), *alarms("rows")]
    scores = [
        score("trainer_counts_first_label", "d", [watched("buggy", buggy), watched("control")]),
        score(
            "resume_replays_epoch",
            "d",
            [watched("buggy", buggy, releases=has), watched("fixed", fixed, releases=has)],
        ),
    ]
    assert scores[1].found is Detection.FALSE_ALARM
    assert [one.found for one in without_others(scores)] == [Detection.DETECTED, detection]


ALARM = [{"text": "wrong", "step": 3, "where": ""}]


def watched(variant: str, alarms: Any = (), **more: Any) -> Watched:
    symptom = variant == "buggy"
    return Watched(
        variant, 0, symptom, 1 if symptom else None, more.pop("attached", 1), alarms, **more
    )


@pytest.mark.parametrize(
    ("trials", "detection"),
    [
        ([watched("buggy", ALARM), watched("control")], Detection.DETECTED),
        ([watched("buggy"), watched("control")], Detection.MISSED),
        ([watched("buggy", ALARM), watched("buggy"), watched("control")], Detection.MISSED),
        ([watched("buggy", ALARM), watched("control", ALARM)], Detection.FALSE_ALARM),
        ([watched("buggy"), watched("fixed", ALARM)], Detection.FALSE_ALARM),
        ([watched("buggy", attached=0), watched("control")], Detection.NOT_APPLICABLE),
        ([watched("buggy", ALARM, attached=0), watched("control")], Detection.DETECTED),
        ([watched("buggy", attached=0), watched("fixed", ALARM)], Detection.FALSE_ALARM),
        ([watched("buggy", ALARM, changed="weights"), watched("control")], Detection.DISTURBS),
        ([watched("buggy", error="a\nb"), watched("control")], Detection.NO_ANSWER),
        ([watched("buggy", ALARM)], Detection.NO_ANSWER),
        ([watched("control")], Detection.NO_ANSWER),
    ],
)
def test_a_bug_counts_only_with_an_alarm_where_it_is_and_none_elsewhere(
    trials: list[Watched], detection: Detection
) -> None:
    assert score("a", "b", trials).found is detection


def test_without_an_answer_the_variant_and_the_reason_are_named() -> None:
    failed = score("a", "b", [watched("control")], ["buggy: inconclusive: no module mine"])
    assert (failed.found, failed.reason) == (
        Detection.NO_ANSWER,
        "buggy: inconclusive: no module mine",
    )
    assert score("a", "b", [watched("control")]).reason == "no variant showed the bug"


def test_the_delay_is_counted_from_the_first_step_with_the_symptom() -> None:
    grade = score("a", "b", [watched("buggy", ALARM), watched("control")])
    assert (grade.step, grade.late) == (3, 2)
