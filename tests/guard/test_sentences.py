"""What guard says of a run: what it is, and what is not seen."""

from __future__ import annotations

import re
from typing import Any

import pytest

from harness.rank.guard.reporting.account import blind
from tests.guard.trainer import Trainer

SETTINGS: dict[str, Any] = {
    "ranks": 2,
    "gradient_accumulation_steps": 1,
    "precision": "fp32",
    "trainer": False,
    "optimizer": "AdamW",
    "gpu": False,
}
ALL = {"replicas": 22, "gradients": 22, "updates": 22, "accumulation": 1, "samples": 1}


def blind_checks(compared: dict[str, int], has_rows: bool = True, **settings: Any) -> set[str]:
    return set(blind(compared, {"settings": {**SETTINGS, **settings}}, has_rows))


def test_checks_that_compare_nothing_are_named() -> None:
    assert blind_checks(ALL) == set()
    assert blind_checks(ALL, has_rows=False) == {"samples"}
    assert blind_checks(ALL, ranks=1) == {"replicas"}
    assert blind_checks({**ALL, "replicas": 0}) == {"replicas"}
    assert blind_checks(ALL, optimizer="Lion") == {"updates"}
    for check in ("accumulation", "samples"):
        assert blind_checks({name: ALL[name] for name in ALL if name != check}) == {check}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("ddp other_terms", "they have other terms"),
        ("ddp two_losses", "each is made of several"),
        ("ddp log_probabilities", "they come from other functions than torch's"),
    ],
)
@pytest.mark.slow
@pytest.mark.launch
def test_reason_why_losses_are_not_counted_is_said(
    words: str, reason: str, under_guard: Trainer
) -> None:
    run = under_guard(words, steps=2)
    (sentence,) = run.summary["not_seen"]
    assert sentence.startswith(f"losses are not counted: {reason}")


@pytest.mark.slow
@pytest.mark.launch
def test_checks_that_every_asks_for_in_vain_are_in_the_summary(under_guard: Trainer) -> None:
    run = under_guard("ddp", steps=40, every=1)
    (sentence,) = run.summary["not_seen"]
    assert re.fullmatch(
        r"\d+ checks of --every 1: ranks agree on the next one, which takes them "
        r"4 steps and 0\.08 s",
        sentence,
    )
    run = under_guard("ddp", steps=12, every=100)  # it is seen whole
    assert run.summary["not_seen"] == []
    assert "not seen" not in run.logs[0]


@pytest.mark.slow
@pytest.mark.launch
def test_start_says_what_is_not_seen(under_guard: Trainer) -> None:
    run = under_guard("ddp other_terms rmsprop", steps=2)
    first, *others = [line for line in run.logs[0].splitlines() if line.startswith("guard: ")]
    assert first.startswith("guard: watches torch ")
    checks = [line.split()[3] for line in others if line.startswith("guard: not seen: ")]
    assert sorted(checks) == ["how", "losses"]  # each once, also at the end
    assert len(run.summary["not_seen"]) == 2


TRAINS = """\
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(6):
    loss = model(torch.randn(3, 4)).square().mean()
    GRADIENTS
    optimizer.step()
    optimizer.zero_grad()
"""
BY_HAND = """\
gradients = torch.autograd.grad(loss, list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), gradients):
        parameter.grad = gradient
"""
ALONE = "whether it is meant that each of 2 ranks trains a mod"
NO_BACKWARD = "all steps: no backward, such as loss.backward(), made the gradients"


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize(
    ("gradients", "ranks", "sentence"), [("loss.backward()", 2, ALONE), (BY_HAND, 1, NO_BACKWARD)]
)
def test_ranks_that_train_alone_and_steps_without_a_backward_are_said_and_no_fault(
    under_guard: Trainer, gradients: str, ranks: int, sentence: str
) -> None:
    script = under_guard.folder / "train.py"
    script.write_text(TRAINS.replace("GRADIENTS", gradients))
    run = under_guard.script(script, ranks=ranks)
    assert (run.told, run.codes) == ([], [0] * ranks)
    assert run.logs[0].count(f"guard: not seen: {sentence}") == 1
    assert not any("guard" in log for log in run.logs[1:])
    if sentence is NO_BACKWARD:
        assert (run.summary["checked"], run.summary["not_seen"]) == ([], [sentence])
