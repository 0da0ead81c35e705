"""Changes between nightlies: pure functions of results."""

from __future__ import annotations

import pytest

from harness.bugs.api.spec import Verdict
from harness.bugs.results import Status
from harness.publish import changes
from harness.publish.history import ReleaseResult
from tests.nightly_world import NO, UNCLEAR, YES, own, release, result

DAY = "2024-03-04"
RELEASES = {("deepspeed", "2.0"): release("2.0", "2024-03-01")}


def kinds(tonight: list[ReleaseResult], before: list[ReleaseResult]) -> dict[str | None, str]:
    differences = changes.of_releases(tonight, before, RELEASES, DAY)
    return {change.version: change.kind for change in differences}


BRANCHES = [result("4.57.6", NO), result("5.1.0", YES), result("5.10.0", YES)]
SILENT = [result("1.0", NO), result("1.1", UNCLEAR)]
OTHERS = [result("1.0", NO, scenario="rope_zero_init"), result("1.0", NO, package="transformers")]
FLIPS = {"1.1": "now affected", "1.2": "no longer affected"}


@pytest.mark.parametrize(
    ("tonight", "before", "expected"),
    [
        ({"2.0": YES}, [], {}),
        ({"2.0": UNCLEAR}, [result("3.0", NO)], {}),
        ({"4.57.7": NO}, BRANCHES, {}),
        ({"5.9.0": NO}, BRANCHES, {"5.9.0": "no longer affected"}),
        ({"1.2": YES}, SILENT, {"1.2": "now affected"}),
        ({"1.1": UNCLEAR}, SILENT, {}),
        ({"1.1": NO}, SILENT, {}),
        ({"1.1": YES}, SILENT, {"1.1": "now affected"}),
        ({"1.2": NO, "1.1": YES}, [result("1.0", NO)], FLIPS),
        ({"2.0": YES}, OTHERS, {}),
        ({"2.0": YES}, [result("1.0", NO)], {"2.0": "now affected"}),
        ({"2.0": NO}, [result("1.0", YES)], {"2.0": "no longer affected"}),
        ({"2.0": UNCLEAR}, [result("1.0", YES)], {"2.0": "no longer certain"}),
        ({"2.0": Status.UNSUPPORTED}, [result("1.0", NO)], {}),
        ({"2.0": YES}, [result("1.0", UNCLEAR)], {}),
        ({"2.0": NO}, [result("1.0", Status.UNSUPPORTED)], {}),
        ({"2.0": YES}, [result("1.0", YES)], {}),
        ({"2.0": Status.UNSUPPORTED}, [result("1.0", UNCLEAR)], {}),
    ],
)
def test_a_release_is_compared_within_its_branch_and_with_the_last_certain_status(
    tonight: dict[str, Status], before: list[ReleaseResult], expected: dict[str, str]
) -> None:
    assert kinds([result(v, status) for v, status in tonight.items()], before) == expected


def test_a_message_about_an_inconclusive_release_says_why() -> None:
    (change,) = changes.of_releases([result("2.0", UNCLEAR)], [result("1.0", NO)], {}, DAY)
    assert "Reason: because of 2.0." in change.message
    assert "1.0 was not affected." in change.message
    assert change.is_worse


GOOD, BAD, LOST = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED, Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ([], GOOD, None),
        ([], BAD, "no longer reproduces"),
        ([GOOD], BAD, "no longer reproduces"),
        ([BAD], BAD, None),
        ([BAD], GOOD, None),
        ([GOOD, LOST], BAD, "no longer reproduces"),
        ([BAD, LOST], BAD, None),
        ([GOOD], LOST, None),
        ([GOOD], Verdict.UNSUPPORTED, None),
    ],
)
def test_a_scenario_of_ours_is_compared_with_its_last_certain_verdict(
    before: list[Verdict], after: Verdict, kind: str | None
) -> None:
    earlier = [*map(own, before), own(BAD, scenario="bf16_clip")]
    differences = changes.of_ours([own(after)], earlier, DAY)
    assert [change.kind for change in differences] == ([kind] if kind else [])
    assert any(c.is_worse for c in differences) is (kind == "no longer reproduces")
