"""Where ranks share the optimizer's work, their pieces are compared as whole parameters."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from harness.rank.probe.exchange import Step
from harness.training.probe.compare.reference import Moment, Reference, joined
from harness.training.probe.compare.relations import samples, weights
from harness.training.probe.layouts import RANKS, Layout

RIGHT = Step(grad={"embedding": numpy.arange(6.0).reshape(3, 2)})


def rank(piece: list[float], start: int) -> Step:
    return Step(grad={"embedding": numpy.array(piece)}, starts={"embedding": start})


def test_pieces_of_several_ranks_are_one_parameter() -> None:
    records = joined([rank([0, 1, 2, 3], 0), rank([4, 5], 4), Step()], RIGHT)
    for record in records[:2]:
        assert (record.grad["embedding"] == RIGHT.grad["embedding"]).all()
    assert records[2].grad == {}


def test_ranks_with_the_same_piece_keep_their_own() -> None:
    rank_0, rank_1 = joined([rank([0, 1, 2, 3, 4, 5], 0), rank([9, 9], 4)], RIGHT)
    assert rank_0.grad["embedding"].ravel().tolist() == [0, 1, 2, 3, 4, 5]
    assert rank_1.grad["embedding"].ravel().tolist() == [0, 1, 2, 3, 9, 9]


def test_a_piece_without_the_others_stays_a_piece() -> None:
    (record,) = joined([rank([4, 5], 4)], RIGHT)
    assert record.grad["embedding"].tolist() == [4, 5]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([["a", "b"], ["a", "b"]], ""),  # tensor parallelism
        ([["a"], ["b"]], ""),  # replicas
        ([["a"], ["x"], ["b"], ["y"]], ""),  # replicas, each with a later stage
        ([["a"], ["a"]], "1 of its rows are missing"),
        ([["a", "b"], ["b", "b"]], "3 rows, 2 of them distinct"),
    ],
)
def test_ranks_of_several_kinds_see_the_rows_of_the_reference(
    ranks: list[list[str]], text: str
) -> None:
    reference = Reference([Step(rows=[["a", "b"]])], [])
    records = [Step(rows=[rows]) for rows in ranks]
    layout = Layout("ranks", RANKS, len(ranks))
    fault = samples(Moment(reference, 0, records, layout, is_first=True, same_rows=True))
    assert text in fault.text if fault else not text, fault


def begun(*parts: list[float]) -> Any:
    """The fault of ranks that begin with these parts of a weight, 1 to 6 in the reference."""
    whole = numpy.arange(1.0, 7.0).reshape(3, 2)
    sizes = {"eps": {"up": 1e-7}, "largest": {"up": 6.0}}
    reference = Step(update={"up": whole}, before={"up": whole}, **sizes)
    arrays = ({"up": numpy.array(values)} for values in parts)
    records = [Step(update=array, before=array) for array in arrays]
    layout = Layout("ranks", RANKS, len(parts))
    return weights(
        Moment(Reference([reference], []), 0, records, layout, is_first=True, same_rows=True)
    )


@pytest.mark.parametrize(
    "parts",
    [
        [[1, 2, 3], [4, 5, 6]],
        [[1, 2, 5], [3, 4, 6]],  # another order, as where two weights are in one
        [[7, 8], [7, 8]],  # copies: nobody knows
    ],
)
def test_parts_that_are_those_of_the_reference_are_right(parts: list[list[float]]) -> None:
    assert begun(*parts) is None


def test_ranks_that_draw_their_own_parts_begin_with_other_weights() -> None:
    fault = begun([1, 2, 3], [1, 2, 3])
    assert fault.text == "ranks 0, 1 begin with other weights: up"
