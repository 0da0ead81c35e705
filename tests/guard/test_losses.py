"""How often a step counts each loss, and what the graph of a loss says of its terms."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from harness.rank.guard.posting.posts import Post
from harness.rank.guard.sampling.losses import Losses
from harness.rank.guard.sampling.roots import at_arrival, chain_of, factor_of_terms

TARGETS = torch.tensor([1, 0, 2, -100])


def scores() -> Tensor:
    return torch.zeros(4, 3, requires_grad=True)


def cross_entropy(losses: Losses, *arguments: Any, **keywords: Any) -> Tensor:
    """Call torch's loss function as the instrument tells it."""
    value = F.cross_entropy(*arguments, **keywords)
    losses.called(value, arguments, keywords)
    return value


def backward(losses: Losses, root: Tensor, scaler: Any = None) -> None:
    losses.backward(root, scaler)
    root.backward()


def test_numbers_are_not_copied_to_the_device() -> None:
    """A copy from the host's pageable memory waits for the device."""
    losses = Losses()
    backward(losses, cross_entropy(losses, scores(), TARGETS))
    with Copies() as copies:
        losses.tensor()
    assert copies.from_host == 0


class Copies(TorchFunctionMode):
    """Counts the tensors that are made of numbers of the host."""

    from_host = 0

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        makes = function in (torch.as_tensor, torch.tensor)
        self.from_host += makes and not isinstance(arguments[0], Tensor)
        return function(*arguments, **(keywords or {}))


def rows(losses: Losses, batches: int = 0) -> list[list[float]]:
    """Weight, count and scale of each micro-batch."""
    tensor = losses.tensor(batches=batches)
    assert tensor is not None
    return [row[2:] for row in tensor.reshape(-1, 5).tolist()]


@pytest.mark.parametrize(("items", "count"), [(None, 1.0), (12, 0.25)])
def test_label_smoothing_divides_by_its_own_tokens_or_by_all(items: Any, count: float) -> None:
    losses, smoother = Losses(), SimpleNamespace(ignore_index=-100)
    value = scores().sum()
    keywords = {"shift_labels": True, "num_items_in_batch": items}
    losses.called(value, [None, torch.tensor([[7, 1, 0, 2, -100]])], keywords, smoother)
    backward(losses, value)
    assert rows(losses) == [[1.0, count, 1.0]]


@pytest.mark.parametrize("number", [2, 4])
def test_mean_that_the_loop_divides_by_its_micro_batches_is_a_whole_loss(number: int) -> None:
    """Another number may be the user's own weight of the loss."""
    losses = Losses()
    for _ in range(2):
        backward(losses, (0.0 + scores().square().mean()) / number)
    if number == 2:
        assert rows(losses, batches=2) == [[0.5, 1.0, 1.0]] * 2
        assert losses.are_whole
    else:
        assert losses.tensor(batches=2) is None


@pytest.mark.parametrize(
    ("divisor", "parts", "weight"), [(1, 4, 1.0), (2, 1, 0.5), (2, 2, 1.0), (3, 1, 1.0)]
)
def test_loop_that_divides_what_deepspeed_does_not_divide_counts_it_once(
    divisor: int, parts: int, weight: float
) -> None:
    """With gradient_accumulation_steps of 1, a loop accumulates by itself."""
    losses = Losses()
    for _ in range(2):
        loss = scores().square().sum() / 5 / divisor
        losses.hand(loss, parts)
        backward(losses, loss)
    assert rows(losses) == [[weight, 1.0, 1.0]] * 2


def test_loss_that_deepspeed_multiplies_beyond_fp16_is_finite() -> None:
    losses = Losses()
    for _ in range(2):
        loss = (scores() + 2.5).half().mean()
        losses.note_unscaled(loss)
        losses.note_root(loss * 2**15)
    losses.note_root(scores().half().mean() + torch.inf)  # without DeepSpeed
    roots = losses.roots()
    assert roots is not None
    assert roots.tolist() == [2.5, 2.5, torch.inf]


@pytest.mark.parametrize("is_output", [False, True])
def test_hook_of_an_output_counts_for_losses_that_come_after_it(is_output: bool) -> None:
    losses = Losses()

    def divide(gradient: Tensor) -> Tensor:
        losses.pass_on(gradient, gradient / 4)
        return gradient / 4

    outputs = scores() + 1
    loss = outputs.square().mean()
    (loss if is_output else outputs).register_hook(divide)
    losses.hand(loss, 1)
    backward(losses, loss)
    assert rows(losses) == [[0.25, 1.0, 1.0]]


def test_stage_goes_on_with_what_an_engine_makes_of_a_gradient() -> None:
    losses = Losses()
    for factor in (1, 0.25):
        outputs, gradient = scores() + 1, torch.ones(4, 3)
        losses.backward(outputs, None, gradient)
        losses.pass_on(gradient, factor * gradient)
        outputs.backward(gradient)
    ratios = losses.ratios()
    assert ratios is not None
    assert ratios.tolist() == [1.0, 0.25]
    post = Post(0, 0, 1)
    losses.describe(post, batches=2)
    assert post.losses.goes_on
    assert losses.tensor() is None


def test_targets_of_means_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = Losses()
    backward(losses, cross_entropy(losses, scores(), TARGETS))
    assert losses.targets() is None

    losses.begin()
    monkeypatch.setitem(sys.modules, "transformers.trainer", sys)
    backward(losses, cross_entropy(losses, scores(), TARGETS))
    targets = losses.targets()
    assert targets is not None
    assert targets.tolist() == [3.0, 4.0]


Make = Callable[[Tensor], Tensor]


def slopes() -> Tensor:
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
    chain = chain_of(make(slopes()))
    assert (chain.factor if chain.is_mean else None) == number


def of_classes(x: Tensor) -> Tensor:
    return F.cross_entropy(x, TARGETS, reduction="sum")


COUNT = torch.tensor(7)


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
        (lambda x: 2 * (of_classes(x) / COUNT + 0.1 * x.mean()), 2.0),
        (lambda x: 2 * (of_classes(x) / 7 + 0.1 * x.mean() + x.square().mean()) * 3, 6.0),
        (lambda x: 2 * (of_classes(x) / COUNT + 0.1 * x.square().sum() / COUNT), 1.0),
        (lambda x: 2 * (of_classes(x) / 7 + 0.1 * x.square().sum() / 7), 1.0),
        (lambda x: 2 * of_classes(x) / COUNT, 1.0),
        (lambda x: 2 * of_classes(x) / COUNT + 0.1 * x.mean(), 1.0),
        (lambda x: 2 * (of_classes(x) + 0.1 * x.mean()), 1.0),
        (lambda x: 2 * (x.square().sum() / COUNT + 0.1 * x.mean()), 1.0),
        # Operations with other operands.
        (lambda x: F.cross_entropy(x, x.detach().softmax(-1)), 1.0),
        (lambda x: divided(2 * (of_classes(x) / 7 + 0.1 * x.mean()), 4), 0.5),
        (lambda x: 2 * (divided(of_classes(x), 7) + 0.1 * x.mean()), 2.0),
        (lambda x: 2 * (divided(of_classes(x), 7) + divided(0.1 * x.square().sum(), 7)), 1.0),
        (lambda x: Mul.apply(x.mean(), of_classes(x), x.sum()), 1.0),  # type: ignore[no-untyped-call]
    ],
)
def test_factor_of_terms_is_that_of_all_if_one_is_divided_alone(make: Make, factor: float) -> None:
    loss = make(slopes())
    assert not chain_of(loss).is_mean
    assert factor_of_terms(chain_of(loss)) == factor


def test_outputs_of_ddp_are_those_of_its_model() -> None:
    x = slopes()
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
    loss = make(slopes().mean())
    assert chain_of(loss).weight([str(tmp_path / "train.py")]) == pytest.approx(weight)


@pytest.mark.parametrize(
    "code", ["x = loss / 2", "total_loss *= 2", "y = 2 * nll.mean()", "z = F.mse_loss(a, b) / 2.0"]
)
def test_whole_number_in_the_code_of_a_loss_may_be_a_weight(code: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(code)
    assert chain_of(slopes().mean() / RANKS).weight([str(tmp_path / "train.py")]) == 0.5
