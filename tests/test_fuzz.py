"""Two thousand spoilt run folders are graded: nothing is told that a careful person would not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.__main__ import fuzz

SEEDS, EACH = range(8), 250


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_wrong_is_told_of_spoilt_runs(seed: int, tmp_path: Path) -> None:
    told, wrong = fuzz(seed, EACH, tmp_path)
    assert wrong == []
    assert told["reproduced"] < EACH / 2, "most faults spoil what was reproduced"
    assert told["inconclusive"] + told["refused in one line"] > EACH / 3
