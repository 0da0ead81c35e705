"""A picture of the rows that came in the epoch in which a run was stopped and resumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.bugs import api

WORDS = {0: "never", 1: "once"}
"""How often a row came; more is "twice"."""


def how_often(epoch: Callable[[api.Records], Sequence[int]]) -> api.Pictures:
    """A picture of how often each of ``rows`` rows, a parameter, came in the epoch of a resume.
    ``epoch`` returns the numbers of the rows that came in it."""

    def fields(records: api.Records) -> list[tuple[int, str, str]]:
        came = epoch(records)
        return [(n, "", WORDS.get(came.count(n), "twice")) for n in range(records.params.rows)]

    return api.grid(
        "How often each row came in the epoch of the resume",
        "with the bug some rows come twice and others never",
        fields,
        x="row",
        value="came",
        wrong=("never", "twice"),
    )
