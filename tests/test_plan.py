"""Plans: what is promised comes, each once and in its order, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from harness.facts.plan import BrokenPromise, Kind, Ledger, Plan, each, refuse_unlike, to_json
from harness.facts.shapes import NUMBER, TEXT, alike, exactly, optional

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


NORMED = {
    "step": Kind({"loss": NUMBER, "norm": alike(NUMBER), "lr": optional(alike(NUMBER))}, each(2)),
    "end": Kind({"text": alike(TEXT)}, each(2), ends=True),
}


def ranks(*by_rank: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    return dict(enumerate(by_rank))


def compare(first: list[dict[str, Any]], other: list[dict[str, Any]], plan: Plan = NORMED) -> None:
    refuse_unlike({0: NORMED, 1: plan}, ranks(first, other))


def normed(number: int, **facts: Any) -> dict[str, Any]:
    return record("step", number, **{"loss": 1.0, "norm": 2.0, **facts})


@pytest.mark.parametrize(
    "other",
    [
        [normed(1), normed(2)],
        [normed(1, loss=3.0), normed(2, loss=4.0)],
        [normed(1), record("end", 1, text="too far")],
        [],
    ],
)
def test_what_ranks_should_have_alike_is_compared_and_nothing_else(
    other: list[dict[str, Any]],
) -> None:
    compare([normed(1), normed(2)], other)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ([normed(1), normed(2, norm=2.5)], "step 2 of 'step': norm is not alike on ranks 0 and 1"),
        ([normed(1, lr=0.1), normed(2)], "step 1 of 'step': lr is not alike on ranks 0 and 1"),
    ],
)
def test_ranks_that_have_it_otherwise_are_refused(other: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(BrokenPromise, match=said):
        compare([normed(1), normed(2)], other)


def test_a_rank_that_plans_it_otherwise_is_not_compared() -> None:
    alone = {"step": Kind({"loss": NUMBER, "norm": NUMBER}, each(2))}
    compare([normed(1), normed(2)], [normed(1, norm=3.0), normed(2)], alone)
    compare([normed(1), normed(2)], [], {})
