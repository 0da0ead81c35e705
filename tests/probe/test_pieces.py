"""What ranks record: it is read without torch, pieces are compared as whole parameters, and a
distance is measured in units of what rounding does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from harness.rank.compare import astray, spread, ulp
from harness.rank.probe.exchange import Step, dumped, loaded
from harness.rank.probe.recording.draws import Draws
from harness.training.probe.compare.reference import Moment, Reference, joined, without_cleared
from harness.training.probe.compare.relations import samples, weights
from harness.training.probe.layouts import RANKS, Layout
from harness.training.probe.runner import Run

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
    reference = Step(eps={"up": 1e-7}, largest={"up": 6.0})
    reference.update = reference.before = {"up": whole}
    arrays = ({"up": numpy.array(values)} for values in parts)
    records = [Step(update=array, before=array) for array in arrays]
    layout = Layout("ranks", RANKS, len(parts))
    return weights(
        Moment(Reference([reference], []), 0, records, layout, is_first=True, same_rows=True)
    )


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([[1, 2, 3], [4, 5, 6]], ""),
        ([[1, 2, 5], [3, 4, 6]], ""),  # another order, as where two weights are in one
        ([[7, 8], [7, 8]], ""),  # copies: nobody knows
        ([[1, 2, 3], [1, 2, 3]], "ranks 0, 1 begin with other weights: up"),
    ],
)
def test_ranks_that_draw_their_own_parts_begin_with_other_weights(
    parts: list[list[float]], text: str
) -> None:
    fault = begun(*parts)
    assert (fault.text if fault is not None else "") == text


def test_a_step_that_would_lose_all_its_rows_has_no_rehearsal() -> None:
    """A pipeline's first stage has all forwards before the backward whose gradients DeepSpeed adds
    up in fp32, and clears."""
    step = Step(rows=[["a"], ["b"]], cleared={"rows": 2, "losses": 0})
    run = Run(Layout("1 rank"), [[step]], seen=[[["a", "b"]]])
    assert without_cleared(run) == run


def test_a_model_that_seeds_its_generators_draws_nothing() -> None:
    """DeepSpeed's pipelines do that before each layer."""
    record = SimpleNamespace(now=Step())
    draws = Draws(record)  # type: ignore[arg-type]
    for seed, drawn in ((3, 0), (3, 1)):
        draws.begin()
        torch.manual_seed(seed)
        torch.rand(drawn)
        draws.end()
        assert record.now.draws is bool(drawn)


ZERO, ONE = numpy.zeros(2), numpy.ones(2)


@pytest.mark.parametrize(
    ("tensor", "reference", "spread", "far"),
    [
        (ZERO, ZERO, 0.0, False),  # a rate of 0 at the first step of a warmup
        (ONE, ZERO, 0.0, True),
        (ONE, ONE, 0.1, False),
        (1.1 * ONE, ONE, 0.1, False),
        (3.0 * ONE, ONE, 0.1, True),
        (numpy.array([float("nan"), 1]), ONE, 0.1, True),
    ],
)
def test_what_is_further_than_rounding_moves_it_is_astray(
    tensor: numpy.ndarray, reference: numpy.ndarray, spread: float, far: bool
) -> None:
    assert bool(astray({"weight": tensor}, {"weight": reference}, {"weight": spread})) is far


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_perturbed_run_that_is_not_finite_does_not_say_how_far_rounding_goes(
    value: float,
) -> None:
    """All was far then, or nothing was."""
    perturbed = [{"weight": ONE * value}, {"weight": ONE * 1.25}]
    rounding = spread(perturbed, {"weight": ONE})
    assert rounding["weight"] == pytest.approx(0.25 * 2**0.5)
    assert (
        astray({"weight": 9 * ONE}, {"weight": ONE}, spread(perturbed[:1], {"weight": ONE})) == {}
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_ulp_is_the_least_change_of_a_value(dtype: torch.dtype) -> None:
    tensor = torch.tensor([1.0, -1.0, 0.0] * 20, dtype=dtype)
    change = ulp(tensor, torch.Generator().manual_seed(0))
    assert {float(value) for value in change} == {
        0.0,
        torch.finfo(dtype).eps,
        -torch.finfo(dtype).eps,
    }
    assert torch.equal(change, ulp(tensor, torch.Generator().manual_seed(0)))


def test_the_rounding_of_a_single_value_is_that_of_its_largest_update() -> None:
    """Momentum cancels an update of 0.01, in fp16, down to 0.0004; its rounding stays."""

    def single_value(update: float) -> Step:
        grad, arrays = {"b": numpy.array([1.0])}, {"b": numpy.array([update])}
        step = Step(eps={"b": 1e-7}, largest={"b": 0.1})
        return step.copy(grad=grad, update=arrays, coarse=2.0**-10)

    reference = Reference([single_value(0.01), single_value(0.0004)], [])
    assert reference.spread(1, "update")["b"] == pytest.approx(2.0**-11 * 0.01)
    assert reference.spread(1, "grad")["b"] == pytest.approx(2.0**-11)


RECORDED = {
    "steps": [Step(grad={"weight": torch.arange(6.0).reshape(2, 3)}, losses=[1.5])],
    "reported": [(2, "eval_loss", 0.5)],
    "empty": torch.zeros(0, dtype=torch.float64),
    "scalar": torch.tensor(3),
}


def test_tensors_become_arrays_and_other_values_stay() -> None:
    content = loaded(dumped(RECORDED))
    weight = content["steps"][0].grad["weight"]
    assert isinstance(weight, numpy.ndarray)
    assert weight.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert content["steps"][0].losses == [1.5]
    assert content["reported"] == [(2, "eval_loss", 0.5)]
    assert content["empty"].shape == (0,)
    assert content["scalar"] == 3
    assert loaded(dumped(content))["steps"][0].grad["weight"].tolist() == weight.tolist()


def test_no_module_of_a_package_is_named() -> None:
    content = dumped(RECORDED)
    assert not any(name in content for name in (b"numpy", b"torch"))
