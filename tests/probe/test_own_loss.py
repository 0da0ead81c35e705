"""Whether a loss differentiates as the mean cross-entropy of its own logits and labels."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy

from harness.probe import own_loss
from harness.probe.numbers import Share

LABELS = torch.tensor([[1, 2, 3, -100], [2, 1, 0, 3]])


def gradient_of(shift: int, divisor: float | None, smoothing: float = 0.0) -> list[Share]:
    logits = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    hidden, found = logits * 1, list[Share]()
    own_loss.follow(SimpleNamespace(logits=hidden), {"labels": LABELS}, found.append)
    scores, wanted = (hidden[:, :-1], LABELS[:, 1:]) if shift else (hidden, LABELS)
    how = "mean" if divisor is None else "sum"
    loss = cross_entropy(
        scores.flatten(0, 1), wanted.flatten(), reduction=how, label_smoothing=smoothing
    )
    (loss / (divisor or 1)).backward()
    return found


@pytest.mark.parametrize(
    ("shift", "divisor", "ratio"), [(0, None, 1.0), (1, None, 1.0), (1, 7.0, 5 / 7), (0, 14.0, 0.5)]
)
def test_the_ratio_to_the_mean_is_found(shift: int, divisor: float | None, ratio: float) -> None:
    (found,) = gradient_of(shift, divisor)
    assert found.ratio == pytest.approx(ratio, rel=1e-4)


def test_another_loss_is_not_compared() -> None:
    assert gradient_of(1, None, smoothing=0.3) == []
