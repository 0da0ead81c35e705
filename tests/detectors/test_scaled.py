"""A usual norm of right gradients is no alarm with a GradScaler, also if steps are skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from harness.detectors import usual

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": lambda weights, fused: torch.optim.Adam(weights, 1e-3, fused=fused, weight_decay=0.1),
    "adamw": lambda weights, fused: torch.optim.AdamW(weights, 1e-3, fused=fused),
    "sgd": lambda weights, fused: torch.optim.SGD(weights, 0.1, fused=fused),
    "momentum": lambda weights, fused: torch.optim.SGD(weights, 0.1, momentum=0.9, fused=fused),
}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)

    def forward(self, ids: torch.Tensor) -> Any:
        return self.head(self.table(ids))


def alarms(
    optimizer: str,
    fused: bool,
    *,
    hooked: bool = False,
    overflows: tuple[int, ...] = (2, 3, 6),
    scale: float = 2.0**16,
    unscales: bool = False,
) -> list[Any]:
    """The alarms of a loop with a scaler, two micro-batches a step, and steps that overflow."""
    torch.manual_seed(0)
    model = Model()
    torch_optimizer = OPTIMIZERS[optimizer](model.parameters(), fused)
    scaler = torch.amp.GradScaler("cpu", scale, growth_interval=2)
    detector, steps = usual.GradientNorm(), [0]
    reports: list[Any] = []
    detector.attach(model, torch_optimizer)

    def step(*_: Any) -> None:
        steps[0] += 1
        alarm = detector.step(steps[0])
        reports.extend([alarm] if alarm else [])

    if hooked:
        torch_optimizer.register_step_post_hook(step)
    for number in range(9):
        for _ in range(2):
            ids = torch.randint(0, 20, (4, 6))
            loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
            scaler.scale(loss / 2).backward()
        if number in overflows:  # as if the sum over a large batch were too large for fp16
            torch.as_tensor(model.head.bias.grad)[3] = float("inf")
        if unscales:
            scaler.unscale_(torch_optimizer)
        scaler.step(torch_optimizer)
        scaler.update()
        if not hooked:
            step()
        torch_optimizer.zero_grad()
    return reports


@pytest.mark.parametrize("hooked", [False, True], ids=["loop", "hook"])
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("overflows", [(), (2, 3, 6)], ids=["taken", "skipped"])
def test_a_right_loop_with_a_scaler_has_no_alarm(
    optimizer: str, fused: bool, hooked: bool, overflows: tuple[int, ...]
) -> None:
    assert not alarms(optimizer, fused, hooked=hooked, overflows=overflows)


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("unscales", [False, True])
@pytest.mark.parametrize("scale", [128.0, 2.0**16])
def test_neither_a_small_scale_nor_unscale_matters(
    fused: bool, unscales: bool, scale: float
) -> None:
    assert not alarms("adamw", fused, scale=scale, unscales=unscales, overflows=(0, 4))
