"""Bisecting: flips are found with few tests, also next to releases without a certain status."""

from __future__ import annotations

import pytest

from harness.bugs.results import Status
from harness.cli.bisect import Flip, Search, SearchResult

UNCLEAR = {"?": Status.INCONCLUSIVE, "-": Status.UNSUPPORTED}
STATUSES = {"A": Status.AFFECTED, "n": Status.NOT_AFFECTED, **UNCLEAR}


def searched(line: str, apart: int) -> tuple[SearchResult, list[int]]:
    """The result of a search, and the indices of the tested releases."""
    tested: list[int] = []

    def status_of(index: int) -> Status:
        tested.append(index)
        return STATUSES[line[index]]

    return Search(len(line), status_of, apart).run(), tested


def flips(line: str, apart: int) -> list[tuple[int, int]]:
    return [(flip.before, flip.after) for flip in searched(line, apart)[0].flips]


@pytest.mark.parametrize("index", [1, 2, 50, 98, 99])
def test_one_flip_is_found_anywhere_with_few_tests(index: int) -> None:
    search, tested = searched("A" * index + "n" * (100 - index), 99)
    assert search.flips == (Flip(index - 1, index),)
    assert len(set(tested)) == len(tested) <= 2 + 7, "a release was tested twice"


def test_a_gap_between_tested_releases_is_reported_as_it_may_hide_a_bug_that_came_back() -> None:
    line = "AAAnnnnnAAA"
    assert flips(line, 4) == [(2, 3), (7, 8)]
    assert searched(line, 10) == (SearchResult((), gap=9), [0, 10])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("AAA?nnn", [(2, 4)]),
        ("AAA?-?nnn", [(2, 6)]),
        ("?AAAnnn?", [(3, 4)]),
        ("A?????n", [(0, 6)]),
        ("??A?n??", [(2, 4)]),
        ("?-?", []),
    ],
)
@pytest.mark.parametrize("apart", [1, 3, 100])
def test_the_neighbours_of_a_release_without_a_certain_status_are_tested(
    line: str, expected: list[tuple[int, int]], apart: int
) -> None:
    assert flips(line, apart) == expected


def test_every_release_can_be_tested() -> None:
    assert flips("AnAnnA", 1) == [(0, 1), (1, 2), (2, 3), (4, 5)]
    search, tested = searched("AnAnnA", 1)
    assert (search.gap, len(tested)) == (0, 6)
