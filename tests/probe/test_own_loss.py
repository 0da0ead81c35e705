"""Whether a loss has the gradient of the mean cross-entropy of its own logits and labels, and
whether its value alone is wrong."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy

from harness.detectors.arithmetic import Projection
from harness.rank.probe.recording import losses
from harness.training.probe.compare.comparison import OTHER_LOSS, uneven
from harness.training.probe.layouts import RANKS, Settings
from tests.probe.probing import Probing, layout

LABELS = torch.tensor([[1, 2, 3, -100], [2, 1, 0, 3]])


def gradient_of(
    shift: int, divisor: float | None, smoothing: float = 0.0, ids: torch.Tensor | None = None
) -> list[tuple[Projection, bool]]:
    logits = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    hidden, shares = logits * 1, list[tuple[Projection, bool]]()
    inputs = {"labels": LABELS, "input_ids": ids}
    losses.follow(SimpleNamespace(logits=hidden), inputs, lambda *share: shares.append(share))
    scores, labels = (hidden[:, :-1], LABELS[:, 1:]) if shift else (hidden, LABELS)
    how = "mean" if divisor is None else "sum"
    loss = cross_entropy(
        scores.flatten(0, 1), labels.flatten(), reduction=how, label_smoothing=smoothing
    )
    (loss / (divisor or 1)).backward()
    return shares


@pytest.mark.parametrize(
    ("shift", "divisor", "ratio"), [(0, None, 1.0), (1, None, 1.0), (1, 7.0, 5 / 7), (0, 14.0, 0.5)]
)
def test_the_ratio_to_the_mean_is_found(shift: int, divisor: float | None, ratio: float) -> None:
    ((share, shifted),) = gradient_of(shift, divisor)
    assert share.ratio == pytest.approx(ratio, rel=1e-4)
    assert not shifted


NEXT = torch.tensor([[4, 1, 2, 3], [4, 2, 1, 0]])
"""Each label, except for the last ones, is the token at the next place."""


@pytest.mark.parametrize(
    ("shift", "ids", "twice"),
    [(1, NEXT, True), (0, NEXT, False), (1, LABELS, False), (1, NEXT[:, :3], False)],
)
def test_labels_that_are_shifted_twice_are_seen(shift: int, ids: torch.Tensor, twice: bool) -> None:
    ((_, shifted),) = gradient_of(shift, None, ids=ids)
    assert shifted is twice


@pytest.mark.parametrize("shift", [False, True])
def test_the_gradient_of_the_mean_is_that_of_autograd(shift: bool) -> None:
    logits = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    scores, labels = (logits[:, :-1], LABELS[:, 1:]) if shift else (logits, LABELS)
    cross_entropy(scores.flatten(0, 1), labels.flatten()).backward()
    assert logits.grad is not None
    places, gradient = losses.gradient_of_mean(logits.detach(), LABELS, shift)
    rows = logits.grad.reshape(-1, 5)
    torch.testing.assert_close(gradient, rows[places])
    rows[places] = 0
    assert not rows.any()  # all others have no gradient


def test_a_batch_without_labels_is_not_compared() -> None:
    logits = torch.randn(1, 2, 3, requires_grad=True)
    hidden, shares = logits * 1, list[Projection]()
    inputs = {"labels": torch.full((1, 2), -100)}
    losses.follow(SimpleNamespace(logits=hidden), inputs, lambda share, _: shares.append(share))
    (hidden * 0).sum().backward()
    assert shares == []


def test_another_loss_is_not_compared() -> None:
    assert gradient_of(1, None, smoothing=0.3) == []


@pytest.mark.parametrize(
    ("labels", "masked"),
    [
        ([[4, 5, -100, -100], [6, 7, 8, -100]], True),  # the end is masked as padding is
        ([[4, 5, 2, -100], [6, 7, 8, 2]], False),
        ([[-100, 5, -100, -100], [-100, 7, 8, -100]], False),  # prompts are masked on purpose
        ([[-100] * 4] * 2, False),
    ],
)
def test_ends_without_a_label_are_told_from_masked_prompts(
    labels: list[list[int]], masked: bool
) -> None:
    rows = {
        "input_ids": torch.tensor([[4, 5, 2, 2], [6, 7, 8, 2]]),
        "attention_mask": torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]),
        "labels": torch.tensor(labels),
    }
    assert losses.ends_masked(rows) is masked
    assert not losses.ends_masked({"labels": rows["labels"]})


@pytest.mark.parametrize(
    ("factors", "noted"),
    [
        ([], False),
        ([1.0], False),
        ([1.0, 1.0, 1.0], False),
        ([0.5, 0.5], False),  # the loop's own scale
        ([1.0, 1.00001], False),  # rounding
        ([1.0, 1.02], True),
        ([0.5, 0.5, 0.6], True),
        ([-1.0, 1.0], True),
    ],
)
def test_only_a_loss_with_unlike_factors_is_noted(factors: list[float], noted: bool) -> None:
    assert bool(list(uneven([(factor - 1e-4, factor + 1e-4) for factor in factors]))) is noted


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize("classes", ["", "--classes"])
def test_a_loss_whose_value_alone_is_wrong_is_noted(probing: Probing, classes: str) -> None:
    arguments = f"--batch-size {{rows}} --accum {{k}} --loss cross_entropy {classes}"
    answers = probing("dtensor_rows.py", arguments, Settings(same_rows=True, layouts=(RANKS,)))
    comparison = layout(answers, RANKS)
    assert comparison.as_reference
    assert [note.startswith(OTHER_LOSS) for note in comparison.notes] == [True] * bool(classes)
