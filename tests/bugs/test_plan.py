"""Plans: a rank writes each planned record once, in order, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from harness.bugs.api.plan import BrokenPlan, Checklist, Kind, Plan, check_alike, each
from harness.bugs.api.shapes import NUMBER, TEXT, alike, exactly, optional

PLAN = {
    "setup": Kind({}),
    "step": Kind({"loss": NUMBER}, each(3)),
    "exception": Kind({"text": TEXT}, each(3), ends=True),
}


def record(kind: str, step: Any = None, **facts: Any) -> dict[str, Any]:
    return {"kind": kind, "rank": 0, "step": step, **facts}


def step(number: Any) -> dict[str, Any]:
    return record("step", number, loss=1.0)


SETUP, RAISED = record("setup"), record("exception", 2, text="too far")


def check(*records: dict[str, Any], plan: Plan = PLAN) -> None:
    checklist = Checklist(plan)
    for entry in records:
        checklist.check(entry)
    checklist.close()


@pytest.mark.parametrize(
    "records",
    [
        (SETUP, step(1), step(2), step(3)),
        (step(1), SETUP, step(2), step(3)),
        (SETUP, step(1), step(2), RAISED),
    ],
)
def test_planned_records_are_accepted(records: tuple[dict[str, Any], ...]) -> None:
    check(*records)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ((), "'setup' is planned, but missing"),
        ((SETUP, step(1), step(2)), "step 3 of 'step' is planned, but missing"),
        ((SETUP, step(1), step(3)), "step 3 of 'step', but the plan has step 2 of 'step' next"),
        ((SETUP, step(1), step(1)), "step 1 of 'step', but the plan has step 2 of 'step' next"),
        ((SETUP, step(True)), "step True of 'step'"),
        ((SETUP, step(None)), "'step', but the plan has step 1"),
        ((SETUP, SETUP), "'setup' is one more than planned"),
        ((SETUP, step(1), step(2), step(3), step(4)), "step 4 of 'step' is one more"),
        ((record("other"),), "a record of kind 'other', which is not planned"),
        ((SETUP, step(1), RAISED), "step 2 of 'step' is planned, but missing"),
        ((SETUP, step(1), step(2), RAISED, step(3)), "step 3 of 'step' after the end at step 2"),
        ((SETUP, step(1), step(2), RAISED, RAISED), "step 2 of 'exception' is not planned"),
        ((record("exception", 9, text=""),), "step 9 of 'exception' is not planned"),
        ((SETUP, record("step", 1)), "step 1 of 'step': loss is missing"),
        ((SETUP, record("step", 1, loss="low")), "step 1 of 'step': loss is 'low', expected a"),
    ],
)
def test_other_records_are_refused(records: tuple[dict[str, Any], ...], message: str) -> None:
    with pytest.raises(BrokenPlan, match=message):
        check(*records)


def test_each_record_of_a_kind_may_have_its_own_facts() -> None:
    moments = [{"when": exactly("before")}, {"when": exactly("after")}]
    before = record("cell", 1, when="before")
    with pytest.raises(BrokenPlan, match="when is 'before', expected 'after'"):
        check(before, before, plan={"cell": Kind(moments, [1, 1])})


NORMED = {
    "step": Kind({"loss": NUMBER, "norm": alike(NUMBER), "lr": optional(alike(NUMBER))}, each(2)),
    "end": Kind({"text": alike(TEXT)}, each(2), ends=True),
}


def compare(rank_1: list[dict[str, Any]], plan: Plan = NORMED) -> None:
    """Compare rank 0, which wrote two usual steps, with rank 1."""
    check_alike({0: NORMED, 1: plan}, {0: [normed(1), normed(2)], 1: rank_1})


def normed(number: int, **facts: Any) -> dict[str, Any]:
    return record("step", number, **{"loss": 1.0, "norm": 2.0, **facts})


@pytest.mark.parametrize(
    "rank_1",
    [
        [normed(1), normed(2)],
        [normed(1, loss=3.0), normed(2, loss=4.0)],
        [normed(1), record("end", 1, text="too far")],
        [],
    ],
)
def test_other_facts_may_differ_between_ranks(rank_1: list[dict[str, Any]]) -> None:
    compare(rank_1)


@pytest.mark.parametrize(
    ("rank_1", "message"),
    [
        ([normed(1), normed(2, norm=2.5)], "step 2 of 'step': norm differs between ranks 0 and 1"),
        ([normed(1, lr=0.1), normed(2)], "step 1 of 'step': lr differs between ranks 0 and 1"),
    ],
)
def test_facts_that_are_alike_must_not_differ(rank_1: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(BrokenPlan, match=message):
        compare(rank_1)


def test_facts_that_another_rank_does_not_plan_as_alike_may_differ() -> None:
    alone = {"step": Kind({"loss": NUMBER, "norm": NUMBER}, each(2))}
    compare([normed(1, norm=3.0), normed(2)], alone)
    compare([], {})
