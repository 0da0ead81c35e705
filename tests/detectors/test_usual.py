"""The checks that most loops have give an alarm when a value is far from the usual one, or not
finite, with a closure, too."""

from __future__ import annotations

import pytest
import torch

from harness.detectors import usual

FAR = 7
"""The step with a target that is far from the others."""


class Line(torch.nn.Module):
    """Returns its loss, as the models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(4, 1)

    def forward(self, rows: torch.Tensor, target: float) -> torch.Tensor:
        loss: torch.Tensor = (self.line(rows) - target).square().mean()
        return loss


def alarms(
    detector: usual.GradientNorm | usual.LossSpike, target: float, closure: bool
) -> set[int]:
    torch.manual_seed(0)
    model, rows = Line(), torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    detector.attach(model, optimizer)
    numbers = set[int]()
    for number in range(1, 9):

        def backward(number: int = number) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(rows, target if number == FAR else 1.0)
            loss.backward()
            return loss

        if closure:
            optimizer.step(backward)
        else:
            backward()
            optimizer.step()
        if detector.step(number):
            numbers.add(number)
    return numbers


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("detector", [usual.GradientNorm, usual.LossSpike])
@pytest.mark.parametrize(("target", "numbers"), [(100.0, {FAR}), (1.0, set()), (1e30, {FAR, 8})])
def test_a_value_far_from_the_usual_one(
    detector: type[usual.GradientNorm | usual.LossSpike],
    target: float,
    numbers: set[int],
    closure: bool,
) -> None:
    assert alarms(detector(), target, closure) == numbers
