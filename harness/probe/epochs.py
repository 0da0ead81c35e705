"""Over an epoch, every row comes as often as in the reference, whatever the order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from harness.probe.relations import Broken
from harness.probe.runs import Run


def epoch(run: Run, reference: Run, same_rows: bool) -> Broken | None:
    """Whether all ranks together have seen the rows of the reference's epoch.

    Where the rows do not fill the last step, it may repeat rows, or be left out.
    """
    want = Counter(_rows(reference.seen[0][run.layout.first :]))
    ranks = run.seen[:1] if same_rows else run.seen
    seen = Counter(row for rank in ranks for row in _rows(rank))
    twice, never = seen - want, want - seen
    size = len(reference.seen[0][0])
    if want.total() % max(size, 1):
        twice -= Counter(row for rank in ranks for row in _last(rank))
        never = never if never.total() >= size else Counter()
    if not (twice or never):
        return None
    text = (
        f"over an epoch of {want.total()} rows, {twice.total()} come too often, and "
        f"{never.total()} never"
    )
    return Broken("samples", text)


def _rows(steps: Iterable[Iterable[str]]) -> list[str]:
    return [row for step in steps for row in step]


def _last(steps: list[list[str]]) -> list[str]:
    """The rows of the last step, and those after it, which no step has used."""
    return _rows(steps[-2:])
