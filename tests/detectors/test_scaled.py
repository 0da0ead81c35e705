"""The detectors with a GradScaler: silent if a loop is right, also if it skips steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from harness.detectors import accumulation, gradients, precision, updates, usual

DETECTORS: dict[str, Callable[[], Any]] = {
    "accumulation": accumulation.Detector,
    "gradients": gradients.Detector,
    "precision": precision.Detector,
    "updates": updates.Detector,
    "usual/GradientNorm": usual.GradientNorm,
}

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": lambda weights, fused: torch.optim.Adam(weights, 1e-3, fused=fused, weight_decay=0.1),
    "adamw": lambda weights, fused: torch.optim.AdamW(weights, 1e-3, fused=fused),
    "sgd": lambda weights, fused: torch.optim.SGD(weights, 0.1, fused=fused),
    "momentum": lambda weights, fused: torch.optim.SGD(weights, 0.1, momentum=0.9, fused=fused),
}


@dataclass
class Output:
    logits: torch.Tensor


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> Output:
        return Output(self.head(self.table(ids)))


def alarms(
    name: str,
    optimizer: str,
    fused: bool,
    *,
    hooked: bool = False,
    overflows: tuple[int, ...] = (2, 3, 6),
    scale: float = 2.0**16,
    unscales: bool = False,
    divides: bool = True,
) -> list[Any]:
    """The alarms of a loop with a scaler, two micro-batches a step, and steps that overflow."""
    torch.manual_seed(0)
    model = Model()
    torch_optimizer = OPTIMIZERS[optimizer](model.parameters(), fused)
    scaler = torch.amp.GradScaler("cpu", scale, growth_interval=2)
    detector, steps = DETECTORS[name](), [0]
    reports: list[Any] = []
    attached = detector.attach(model, torch_optimizer)

    def step(*_: Any) -> None:
        steps[0] += 1
        alarm = detector.step(steps[0])
        reports.extend([alarm] if isinstance(alarm, str) else alarm or [])

    if hooked:
        torch_optimizer.register_step_post_hook(step)
    for number in range(9):
        for _ in range(2):
            ids = torch.randint(0, 20, (4, 6))
            logits = model(ids, labels=ids).logits
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
            loss = loss / 2 if divides else loss
            scaler.scale(loss).backward()
        if number in overflows:  # as if the sum over a large batch were too large for fp16
            torch.as_tensor(model.head.bias.grad)[3] = float("inf")
        if unscales:
            scaler.unscale_(torch_optimizer)
        scaler.step(torch_optimizer)
        scaler.update()
        if not hooked:
            step()
        torch_optimizer.zero_grad()
    return [*([attached] if attached else []), *reports]


@pytest.mark.parametrize("hooked", [False, True], ids=["loop", "hook"])
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", DETECTORS)
@pytest.mark.parametrize("overflows", [(), (2, 3, 6)], ids=["taken", "skipped"])
def test_a_right_loop_with_a_scaler_has_no_alarm(
    name: str, optimizer: str, fused: bool, hooked: bool, overflows: tuple[int, ...]
) -> None:
    assert not alarms(name, optimizer, fused, hooked=hooked, overflows=overflows)


@pytest.mark.parametrize("name", DETECTORS)
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("unscales", [False, True])
@pytest.mark.parametrize("scale", [128.0, 2.0**16])
def test_neither_a_small_scale_nor_unscale_matters(
    name: str, fused: bool, unscales: bool, scale: float
) -> None:
    assert not alarms(name, "adamw", fused, scale=scale, unscales=unscales, overflows=(0, 4))


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_a_loss_that_counts_twice_is_found_beside_a_scaler(fused: bool) -> None:
    reports = alarms("accumulation", "adamw", fused, divides=False, hooked=True)
    assert any("counts the loss 2 times" in alarm for alarm in reports)


def test_a_buffer_that_a_skipped_step_has_left_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.13.0: if SGD's fused step is skipped, its momentum is uninitialised memory."""
    empty = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda like, **named: empty(like, **named).fill_(3e29))
    reports = alarms("updates", "momentum", True, overflows=(0,))
    assert "times as far as the optimizer's formula says" in reports[0]
    assert not alarms("updates", "momentum", False, overflows=(0,))
