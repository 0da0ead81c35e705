"""Settings that are crossed so that every two values meet."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests.probe.crossing import crossed


@pytest.mark.parametrize("sizes", [(2, 2), (2, 3, 4), (7, 2, 2, 2, 2, 2), (3, 3, 3, 3)])
def test_every_two_values_of_different_factors_meet(sizes: tuple[int, ...]) -> None:
    rows = crossed(sizes)
    for f, g in combinations(range(len(sizes)), 2):
        met = {(row[f], row[g]) for row in rows}
        assert met == set(product(range(sizes[f]), range(sizes[g])))


def test_there_are_few_combinations_and_no_two_alike() -> None:
    rows = crossed((7, 2, 2, 2, 2, 2))
    assert len(rows) <= 16
    assert len(set(rows)) == len(rows)


def test_the_first_combination_has_all_defaults() -> None:
    assert crossed((2, 3, 4))[0] == (0, 0, 0)


def test_one_factor_alone_is_listed() -> None:
    assert crossed((3,)) == [(0,), (1,), (2,)]
