"""Plans: what is promised comes, each once and in its order, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from harness.facts.plan import BrokenPromise, Kind, Ledger, each, to_json
from harness.facts.shapes import NUMBER, TEXT, exactly

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


def book(*records: dict[str, Any]) -> None:
    ledger = Ledger(PLAN)
    for each_ in records:
        ledger.take(each_)
    ledger.close()


@pytest.mark.parametrize(
    "records",
    [
        (SETUP, step(1), step(2), step(3)),
        (step(1), SETUP, step(2), step(3)),
        (SETUP, step(1), step(2), RAISED),
    ],
)
def test_what_was_promised_is_accepted(records: tuple[dict[str, Any], ...]) -> None:
    book(*records)


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ((), "'setup' was promised, and never came"),
        ((SETUP, step(1), step(2)), "step 3 of 'step' was promised, and never came"),
        ((SETUP, step(1), step(3)), "step 3 of 'step', where step 2 of 'step' is due"),
        ((SETUP, step(1), step(1)), "step 1 of 'step', where step 2 of 'step' is due"),
        ((SETUP, step(True)), "step True of 'step'"),
        ((SETUP, step(None)), "'step', where step 1"),
        ((SETUP, SETUP), "'setup' is one more than was promised"),
        ((SETUP, step(1), step(2), step(3), step(4)), "step 4 of 'step' is one more"),
        ((record("other"),), "a record of kind 'other' that was not promised"),
        ((SETUP, step(1), RAISED), "step 2 of 'step' was promised, and never came"),
        ((SETUP, step(1), step(2), RAISED, step(3)), "step 3 of 'step' after the end at step 2"),
        ((SETUP, step(1), step(2), RAISED, RAISED), "step 2 of 'exception' was not promised"),
        ((record("exception", 9, text=""),), "step 9 of 'exception' was not promised"),
        ((SETUP, record("step", 1)), "step 1 of 'step': loss is missing"),
        ((SETUP, record("step", 1, loss="low")), "step 1 of 'step': loss is 'low', and no number"),
    ],
)
def test_anything_else_is_not(records: tuple[dict[str, Any], ...], said: str) -> None:
    with pytest.raises(BrokenPromise, match=said):
        book(*records)


def test_records_of_a_kind_may_have_facts_of_their_own() -> None:
    moments = [{"when": exactly("before")}, {"when": exactly("after")}]
    ledger = Ledger({"cell": Kind(moments, [1, 1])})
    ledger.take(record("cell", 1, when="before"))
    with pytest.raises(BrokenPromise, match="when is 'before', and not 'after'"):
        ledger.take(record("cell", 1, when="before"))


def test_a_plan_is_written_down_by_its_steps() -> None:
    assert to_json(PLAN) == {
        "steps": {"setup": [None], "step": [1, 2, 3], "exception": [1, 2, 3]},
        "ends": ["exception"],
    }
