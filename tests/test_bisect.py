"""Bisecting: flips are found without asking all, and releases without an answer stepped round."""

from __future__ import annotations

import pytest

from harness.__main__ import main
from harness.commands.bisect import Flip, Found, Search
from harness.sweep import cells
from harness.sweep.cell import Status
from tests.made_up import Upstream

STATUSES = {
    "A": Status.AFFECTED,
    "n": Status.NOT_AFFECTED,
    "?": Status.INCONCLUSIVE,
    "-": Status.UNSUPPORTED,
}


def searched(line: str, apart: int) -> tuple[Found, list[int]]:
    asked: list[int] = []

    def ask(place: int) -> Status:
        asked.append(place)
        return STATUSES[line[place]]

    return Search(len(line), ask, apart).run(), asked


def flips(line: str, apart: int) -> list[tuple[int, int]]:
    return [(flip.before, flip.after) for flip in searched(line, apart)[0].flips]


@pytest.mark.parametrize("place", range(1, 100))
def test_one_flip_is_found_wherever_it_is_with_few_questions(place: int) -> None:
    line = "A" * place + "n" * (100 - place)
    found, asked = searched(line, 99)
    assert found.flips == (Flip(place - 1, place),)
    assert len(asked) <= 2 + 7
    assert len(set(asked)) == len(asked), "a release was asked twice"


def test_a_bug_that_was_fixed_and_came_back_flips_twice() -> None:
    assert flips("AAAAAAAnnnnnnnnnnnnAAA", 5) == [(6, 7), (18, 19)]


def test_between_the_ends_alone_a_bug_that_came_back_is_missed_and_that_is_said() -> None:
    line = "AAAnnnnnAAA"
    assert flips(line, 4) == [(2, 3), (7, 8)]
    found, asked = searched(line, 10)
    assert found == Found((), gap=9)
    assert asked == [0, 10]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("AAA?nnn", [(2, 4)]),
        ("AAA?-?nnn", [(2, 6)]),
        ("?AAAnnn?", [(3, 4)]),
        ("A?????n", [(0, 6)]),
        ("??A?n??", [(2, 4)]),
    ],
)
@pytest.mark.parametrize("apart", [1, 3, 100])
def test_a_release_without_an_answer_is_stepped_round(
    line: str, expected: list[tuple[int, int]], apart: int
) -> None:
    assert flips(line, apart) == expected


def test_where_nothing_answers_there_is_no_flip() -> None:
    found, asked = searched("?-?", 2)
    assert found == Found((), 0)
    assert sorted(asked) == [0, 1, 2]


def test_every_release_can_be_asked() -> None:
    found, asked = searched("AnAnnA", 1)
    assert [(f.before, f.after) for f in found.flips] == [(0, 1), (1, 2), (2, 3), (4, 5)]
    assert found.gap == 0
    assert len(asked) == 6


def test_the_overlays_of_the_releases_to_ask_are_made_in_the_background(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    note = lambda config, *_: made.append(config.pins["transformers"])  # noqa: E731
    monkeypatch.setattr(cells, "_make_overlay", note)
    assert main(["bisect", "scenario=rope_zero_init", "pins.transformers=4.36:4.38"]) == 0
    assert set(made) >= {"4.36.2", "4.38.2"}
