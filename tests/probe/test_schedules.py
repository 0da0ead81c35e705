"""How a schedule continues after the steps of a probe."""

from __future__ import annotations

import pytest
import torch

from harness.rank.probe.findings.schedules import HALF, LOWEST, Schedules

STEPS = 4


def lengths(make: object, calls: int = 1) -> dict[str, int]:
    """The lengths of a schedule that a loop calls ``calls`` times in each of its steps."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    watched = Schedules()
    watched._made.append(scheduler := make(optimizer))  # type: ignore[operator]
    rates = []
    for number in range(STEPS):
        for _ in range(calls if number else 0):
            scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        watched.step()  # a probe ends here, before the schedule goes on
    return watched.lengths(rates)


def linear(steps: int, warmup: int = 6) -> object:
    def factor(n: int) -> float:
        return min(n / warmup, max(0.0, (steps - n) / (steps - warmup)))

    return lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def test_the_end_of_a_schedule_is_found_behind_its_warmup() -> None:
    assert lengths(linear(30)) == {HALF: 19, LOWEST: 31}
    assert lengths(linear(60), calls=2) == {HALF: 18, LOWEST: 31}


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0),
        lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
    ],
)
def test_a_rate_that_does_not_fall_has_no_length(make: object) -> None:
    assert lengths(make, calls=0) == {}


def test_a_decay_without_an_end_has_a_half() -> None:
    spans = lengths(lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9))
    assert spans[HALF] == 8
