"""The stories: which of several bugs each release has."""

from __future__ import annotations

import pytest

from harness.bugs.results import Status
from harness.publish import docs_tables

WRONG, RIGHT, UNSURE = Status.AFFECTED, Status.NOT_AFFECTED, Status.INCONCLUSIVE
MARKS = {WRONG: "x", RIGHT: "-", UNSURE: "?", None: " "}


@pytest.mark.parametrize(
    ("first", "second", "spans"),
    [
        (
            {"1.0": RIGHT, "1.1": WRONG, "1.2": WRONG, "1.10": RIGHT},
            {"1.0": RIGHT, "1.1": RIGHT, "1.2": RIGHT, "1.10": UNSURE},
            ["1.0: --", "1.1 to 1.2: x-", "1.10: -?"],
        ),
        (
            {"1.0": WRONG, "1.0.2": WRONG, "1.4": RIGHT},
            {"1.0": RIGHT, "1.0.1": RIGHT, "1.3": WRONG, "1.4": WRONG},
            ["1.0 to 1.0.1: x-", "1.0.2: x ", "1.3:  x", "1.4: -x"],
        ),
    ],
    ids=["equal statuses are one span", "an untested release has the status of its neighbours"],
)
def test_releases_with_equal_statuses_are_one_span(
    first: dict[str, Status],
    second: dict[str, Status],
    spans: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    statuses = {"first": first, "second": second}
    monkeypatch.setattr(docs_tables, "tested", statuses.get)
    rows = docs_tables.spans(["first", "second"])
    assert [f"{of}: {''.join(MARKS[each] for each in signs)}" for of, signs in rows] == spans
