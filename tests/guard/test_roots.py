"""What the graph of a loss says of its terms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harness.rank.guard.sampling.roots import at_arrival, chain_of, factor_of_terms

Make = Callable[[Tensor], Tensor]

TARGETS = torch.tensor([1, 0, 2, -100])


def scores() -> Tensor:
    return torch.linspace(-1, 1, 12).reshape(4, 3).requires_grad_()


@pytest.mark.parametrize(
    ("make", "number"),
    [
        (lambda x: x.mean(), 1.0),
        (lambda x: -x.square().sum(-1).mean(), 1.0),
        (lambda x: (x.mean() * 1.0).double() / torch.tensor(1.0), 1.0),
        (lambda x: 0.0 + x.mean() * 1.0, 1.0),  # as trl adds up its losses
        (lambda x: (torch.zeros(()) + x.mean()) / 4, 0.25),
        (lambda x: x.mean() / 4, 0.25),
        (lambda x: 0.5 * x.mean(), 0.5),
        (lambda x: torch.add(torch.ones(()), x.mean(), alpha=2), None),
        (lambda x: x.sum(), None),
        (lambda x: x.mean() + x.square().mean(), None),
        (lambda x: x.mean() * x.square().mean(), None),
        (lambda x: x[0, 0], None),
    ],
)
def test_plain_mean_is_multiplied_by_a_number_alone(make: Make, number: float | None) -> None:
    chain = chain_of(make(scores()))
    assert (chain.factor if chain.is_mean else None) == number


def of_classes(x: Tensor) -> Tensor:
    return F.cross_entropy(x, TARGETS, reduction="sum")


COUNT = torch.tensor(7)


@pytest.mark.parametrize(
    ("make", "factor"),
    [
        (lambda x: 2 * (of_classes(x) / COUNT + 0.1 * x.mean()), 2.0),
        (lambda x: 2 * (of_classes(x) / 7 + 0.1 * x.mean() + x.square().mean()) * 3, 6.0),
        (lambda x: 2 * (of_classes(x) / COUNT + 0.1 * x.square().sum() / COUNT), 1.0),
        (lambda x: 2 * (of_classes(x) / 7 + 0.1 * x.square().sum() / 7), 1.0),
        (lambda x: 2 * of_classes(x) / COUNT, 1.0),
        (lambda x: 2 * of_classes(x) / COUNT + 0.1 * x.mean(), 1.0),
        (lambda x: 2 * (of_classes(x) + 0.1 * x.mean()), 1.0),
        (lambda x: 2 * (x.square().sum() / COUNT + 0.1 * x.mean()), 1.0),
    ],
)
def test_factor_of_terms_is_that_of_all_if_one_is_divided_alone(make: Make, factor: float) -> None:
    assert factor_of_terms(chain_of(make(scores()))) == factor


class _DDPSink(torch.autograd.Function):
    """As DDP has it behind a model."""

    @staticmethod
    def forward(_: Any, state: Any, *outputs: Tensor) -> Any:
        return outputs

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> Any:
        return None, *gradients


class Mul(torch.autograd.Function):
    """A user's operation that has the name of one of torch, and other operands."""

    @staticmethod
    def forward(_: Any, *terms: Tensor) -> Any:
        return torch.stack(terms).sum()

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> Any:
        return gradients * 3


def divided(loss: Tensor, number: float) -> Tensor:
    """A loss as C++ divides it: the operation has one operand."""
    result: Tensor = torch.ops.aten.div.Scalar(loss, number)
    return result


@pytest.mark.parametrize(
    ("make", "factor"),
    [
        (lambda x: F.cross_entropy(x, x.detach().softmax(-1)), 1.0),
        (lambda x: divided(2 * (of_classes(x) / 7 + 0.1 * x.mean()), 4), 0.5),
        (lambda x: 2 * (divided(of_classes(x), 7) + 0.1 * x.mean()), 2.0),
        (lambda x: 2 * (divided(of_classes(x), 7) + divided(0.1 * x.square().sum(), 7)), 1.0),
        (lambda x: Mul.apply(x.mean(), of_classes(x), x.sum()), 1.0),  # type: ignore[no-untyped-call]
    ],
)
def test_operations_with_other_operands_are_read(make: Make, factor: float) -> None:
    loss = make(scores())
    assert not chain_of(loss).is_mean
    assert factor_of_terms(chain_of(loss)) == factor


def test_outputs_of_ddp_are_those_of_its_model() -> None:
    x = scores()
    _, plain, sum_of_terms = _DDPSink.apply(  # type: ignore[no-untyped-call]
        None, x * 2, x.mean(), of_classes(x) / COUNT + 0.1 * x.mean()
    )
    assert chain_of(plain).is_mean
    assert not chain_of(sum_of_terms).is_mean
    assert factor_of_terms(chain_of(sum_of_terms * 2)) == 2.0


def test_a_leaf_has_no_operation() -> None:
    leaf = torch.ones(2, requires_grad=True)
    at_arrival(leaf, print)
    assert not chain_of(leaf).is_mean
    assert factor_of_terms(chain_of(leaf)) == 1.0


RANKS = 2


@pytest.mark.parametrize(
    ("make", "weight"),
    [
        (lambda loss: loss / RANKS, 1.0),
        (lambda loss: loss / torch.tensor(RANKS), 1.0),
        (lambda loss: loss * RANKS, 2.0),  # unless the Trainer does so
        (lambda loss: loss / float(RANKS), 0.5),
        (lambda loss: loss / RANKS / RANKS, 1.0),
        (lambda loss: 0.5 * loss, 0.5),
        (lambda loss: 0.5 * loss / RANKS, 0.5),
        (lambda loss: loss / 1.5, 1 / 1.5),
    ],
)
@pytest.mark.parametrize("code", ["loss = cross_entropy(x, y) / count", "hidden = 2 * width"])
def test_weight_of_a_loss_is_what_is_no_count(
    make: Make, weight: float, code: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(code)
    loss = make(scores().mean())
    assert chain_of(loss).weight([str(tmp_path / "train.py")]) == pytest.approx(weight)


@pytest.mark.parametrize(
    "code", ["x = loss / 2", "total_loss *= 2", "y = 2 * nll.mean()", "z = F.mse_loss(a, b) / 2.0"]
)
def test_whole_number_in_the_code_of_a_loss_may_be_a_weight(code: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(code)
    assert chain_of(scores().mean() / RANKS).weight([str(tmp_path / "train.py")]) == 0.5
