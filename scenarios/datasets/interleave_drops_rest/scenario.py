"""interleave_datasets without replacement stops when the shortest dataset is exhausted.

This affected users who mix datasets of unequal lengths and want each row once, which is what
``stopping_strategy="all_exhausted_without_replacement"`` promises. The mixture ends with the
shortest dataset: of 10,000 and 1,000,000 rows, 20,000 are trained, in every epoch the same ones.
There is no warning, and the length of the result is the only hint. With ``probabilities`` the
strategy is right.

Root cause: without probabilities, ``_interleave_map_style_datasets`` computes the order of the rows
by one formula for ``all_exhausted`` and by another one for all other strategies, which is that of
``first_exhausted``. The strategy came with 4.2.0, and 4.6.0 gave it a formula of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.bugs import api

SOURCES = 3
APART = 100
"""Row n of source s has the number ``APART * s + n``."""


def plan(at: api.Position) -> api.Plan:
    """The rows of the mixture."""
    return {"mixture": api.Kind({"rows": api.many(api.COUNT)})}


def run(ctx: api.Context) -> None:
    """Interleave three datasets of numbered rows."""
    from datasets import Dataset, interleave_datasets

    sources = [Dataset.from_dict({"row": rows}) for rows in _sources(ctx.params)]
    mixture = interleave_datasets(
        sources,
        probabilities=[1 / SOURCES] * SOURCES if ctx.params.probabilities else None,
        seed=ctx.seed,
        stopping_strategy="all_exhausted_without_replacement",
    )
    ctx.record("mixture", rows=[int(row) for row in mixture["row"]])


def _sources(p: Any) -> list[list[int]]:
    """The numbers of the rows of each source."""
    lengths = (p.shortest, p.longest, p.shortest)
    return [[APART * source + n for n in range(length)] for source, length in enumerate(lengths)]


def detect(records: api.Records) -> api.Finding | None:
    """The mixture has one row of each dataset in turn, and ends when the shortest one is
    exhausted. Each row comes once at most."""
    mixture, sources = records.one("mixture"), _sources(records.params)
    if mixture is None:
        return None
    rows, every = mixture["rows"], [row for source in sources for row in source]
    if sorted(rows) == sorted(every):
        return None
    missing = set(every) - set(rows)
    return api.Finding(
        f"{len(rows)} rows of {len(every)} come, and {len(missing)} never",
        ranks=records.ranks,
        magnitude=len(missing) / len(every),
        unit="of all rows are missing",
        documented=rows == [row for turn in zip(*sources, strict=False) for row in turn],
    )


def exercised(records: api.Records) -> api.Exercise:
    """The datasets had unequal lengths, and took turns."""
    p = records.params
    text = f"datasets of {p.shortest}, {p.longest} and {p.shortest} rows"
    drawn = api.Exercise.needs(not p.probabilities, "probabilities")
    return api.Exercise.of(p.shortest != p.longest, text) & drawn


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """No row comes twice."""
    mixtures = [mixture["rows"] for mixture in records.of("mixture")]
    return {"a row comes twice": any(len(set(rows)) < len(rows) for rows in mixtures)}


def _came(records: api.Records) -> Iterator[tuple[int, str, str]]:
    """Whether each row came."""
    for mixture in records.of("mixture", 0):
        for source, numbers in enumerate(_sources(records.params)):
            for row in numbers:
                came = "comes" if row in mixture["rows"] else "never"
                yield row - APART * source, f"dataset {source}", came


picture = api.grid(
    "Which rows are in the mixture",
    "with the bug, the rows that a longer dataset has left are missing",
    _came,
    x="row",
    value="in the mixture",
    wrong=("never",),
)
