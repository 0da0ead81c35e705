"""Which rows of a dataset came, as pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness import api


def how_often(epoch: Callable[[api.Records], Sequence[int]]) -> api.Pictures:
    """How often each of the parameter ``rows`` came in the epoch of a resume: ``epoch`` returns the
    rows that came in it, by number."""
    words = {0: "never", 1: "once"}

    def fields(records: api.Records) -> list[tuple[int, str, str]]:
        came = epoch(records)
        return [(n, "", words.get(came.count(n), "twice")) for n in range(records.params.rows)]

    return api.grid(
        "How often each row came in the epoch of the resume",
        "with the bug some rows come twice and others never",
        fields,
        x="row",
        value="came",
        wrong=("never", "twice"),
    )
