"""Right trainings are silent under guard; wrong ones raise an alarm, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from tests.guard.trainer import Trainer
from tests.guard.word_models import FAULT_STEP

pytestmark = pytest.mark.launch

RIGHT = ["ddp accumulate clip bf16"]
RIGHT_SLOW = [
    "fsdp2 mixed accumulate",
    "ddp", "by_hand clip",
    "ddp sgd", "ddp adam", "ddp fused", "ddp rmsprop", "ddp groups", "ddp lbfgs", "ddp closure",
    "ddp dropout", "ddp clip_values", "ddp frozen", "ddp unused", "ddp skips_block", "ddp tied",
    "ddp evaluates", "ddp moving_average", "ddp static_graph", "ddp bucket_view",
    "ddp logs", "by_hand scattered", "by_hand scattered draws",
    "by_hand divided draws", "ddp half_loss", "by_hand half_loss", "ddp half_loss accumulate",
    "ddp one_longer", "by_hand row_sums summed", "ddp row_sums", "ddp keeps_zeros",
    "ddp accumulate_reduced", "ddp sum_loss accumulate", "ddp other_terms",
    "ddp own_loss accumulate",
    "ddp fp16 clip", "ddp fp16 overflows", "ddp fp16 overflows fused", "ddp bf16_weights",
    "ddp checkpoints", "ddp penalty", "ddp batch_norm", "ddp two_optimizers", "ddp gan",
    "ddp gan clears_modules", "ddp skips_steps clears_modules", "ddp stream", "ddp workers",
    "ddp saves", "ddp warm_up", "ddp skips_steps", "ddp epochs", "ddp compile accumulate",
    "ddp early", "ddp masks", "ddp draws", "ddp draws same_batch", "ddp reads_ahead",
    "by_hand accumulate", "fsdp2", "fsdp2 accumulate_reduced clip", "fsdp2 frozen",
    "fsdp2 tied", "fsdp2 sgd", "fsdp2 checkpoints", "hsdp", "hsdp mixed clip", "fsdp1",
    "fsdp1 accumulate", "tensor_parallel",
]  # fmt: skip


def by_day(cases: Sequence[Any]) -> list[ParameterSet]:
    """Slow cases, of which CI runs an eighth each day."""
    marks = (pytest.mark.slow, pytest.mark.by_day(8))
    return [pytest.param(case, marks=marks) for case in cases]


def assert_silent(under_guard: Trainer, training: str, **settings: Any) -> None:
    run = under_guard(training, **settings)

    assert run.alarms == []
    assert set(run.codes) == {0}
    assert run.summary["error"] == ""
    assert run.summary["compared"].get("replicas") or "fsdp" in training
    assert len(run.summary["checked"]) > 5


@pytest.mark.parametrize("training", [*RIGHT, *by_day(RIGHT_SLOW)])
def test_right_training_is_silent(under_guard: Trainer, training: str) -> None:
    assert_silent(under_guard, training)


@pytest.mark.parametrize("training", by_day([*RIGHT, *RIGHT_SLOW[-10:]]))
def test_right_training_is_silent_if_each_third_step_is_checked(
    under_guard: Trainer, training: str
) -> None:
    assert_silent(under_guard, training, every=1, steps=40)


@dataclass
class Fault:
    """A wrong training, and what guard says of it."""

    training: str
    check: str
    kind: str
    ranks: list[int]
    parameter: str = ""
    step: int = 1
    also: tuple[tuple[str, str], ...] = ()
    """Other alarms that the fault may cause."""


OUT = "out.weight"
GRADIENTS, COPIES = ("gradients", "mean"), ("replicas", "differ")
WRONG = [Fault("ddp never_reduced", *COPIES, [1], OUT, also=(GRADIENTS,))]
WRONG_SLOW = [
    Fault("ddp accumulate undivided", "accumulation", "weight", [0, 1]),
    Fault("hsdp flipped", *COPIES, [1], OUT, FAULT_STEP),
    Fault("ddp flipped", *COPIES, [1], OUT, FAULT_STEP),
    Fault("ddp same_rows", "samples", "shared", [0, 1]),
    Fault("fsdp2 never_reduced", "gradients", "none", [0, 1], OUT),
    Fault("ddp never_cleared", "gradients", "stale", [0, 1], "", 2),
    Fault("by_hand never_reduced", *COPIES, [1], OUT, also=(GRADIENTS,)),
    Fault("by_hand summed", "gradients", "longer", [0, 1]),
    Fault("ddp perturbed", *COPIES, [1], "words.weight", FAULT_STEP),
    Fault("ddp own_loss accumulate undivided", "accumulation", "weight", [0, 1]),
    Fault("ddp accumulate divided_twice", "accumulation", "weight", [0, 1]),
    Fault("ddp accumulate_reduced last_only", *GRADIENTS, [0, 1], OUT, 4),
    Fault("ddp accumulate last_only", *GRADIENTS, [0, 1], OUT, 2),
    Fault("ddp copies_trained", "updates", "unheld", [0, 1], OUT, 3),
    Fault("ddp stream same_rows", "samples", "shared", [0, 1]),
    Fault("ddp epochs same_order", "samples", "order", [0, 1], "", 12),
    Fault("ddp rate_lost", "schedule", "resume", [0, 1], "", FAULT_STEP),
    Fault("ddp accumulate fewer", "accumulation", "early", [0, 1], "", FAULT_STEP + 3),
    Fault("ddp compile never_reduced", *COPIES, [1], OUT, also=(GRADIENTS,)),
    Fault("ddp bf16 never_reduced", *COPIES, [1], OUT, also=(GRADIENTS,)),
    Fault("ddp fp16 never_reduced", *COPIES, [1], OUT, also=(GRADIENTS,)),
    Fault("ddp fp16 clip clip_scaled", "gradients", "scale", [0, 1]),
    Fault("ddp fp16 clip clip_scaled fused", "gradients", "scale", [0, 1]),
    Fault("ddp accumulate clip never_reduced", *COPIES, [1], OUT, also=(GRADIENTS,)),
    Fault("fsdp2 never_cleared accumulate", "gradients", "stale", [0, 1], "", 2),
    Fault("by_hand never_cleared clip", "gradients", "stale", [0, 1], "", 2),
    Fault("ddp never_cleared bf16", "gradients", "stale", [0, 1], "", 2),
    Fault("ddp never_cleared bucket_view", "gradients", "stale", [0, 1], "", 2),
    Fault("fsdp2 same_rows", "samples", "shared", [0, 1]),
    Fault("fsdp2 accumulate undivided", "accumulation", "weight", [0, 1]),
    Fault("ddp draws same_rows", "samples", "shared", [0, 1], "", 4),
    Fault("ddp draws same_rows logs", "samples", "shared", [0, 1], "", 4),
    Fault("ddp draws same_rows own_loss", "samples", "shared", [0, 1], "", 4),
    Fault("by_hand draws same_rows", "samples", "shared", [0, 1], "", 4),
    Fault("by_hand draws same_rows scattered", "samples", "shared", [0, 1], "", 4),
    Fault("by_hand draws same_rows divided logs", "samples", "shared", [0, 1], "", 4),
    Fault("by_hand other_seeds", "replicas", "beginning", [0, 1], OUT),
    Fault("by_hand other_seeds clip", "replicas", "beginning", [0, 1], OUT),
    Fault("ddp divided_by_ranks", "accumulation", "weight", [0, 1], "", 3),
    Fault("fsdp2 accumulate reads_ahead same_rows", "samples", "shared", [0, 1], "", 4),
]


def assert_told(under_guard: Trainer, fault: Fault, **settings: Any) -> None:
    run = under_guard(fault.training, steps=30, **settings)

    alarms = [alarm for alarm in run.alarms if alarm["check"] == fault.check]
    assert [(one["check"], one["kind"]) for one in alarms] == [(fault.check, fault.kind)]
    assert set(run.told) <= {(fault.check, fault.kind), *fault.also}
    (alarm,) = alarms
    assert alarm["ranks"] == fault.ranks
    assert alarm["step"] == run.first_check_from(fault.step)
    assert not fault.parameter or fault.parameter in alarm["parameters"]
    line = f"guard: ALARM: step {alarm['step']}, "
    assert run.logs[0].count(line) == len([a for a in run.alarms if a["step"] == alarm["step"]])
    assert "guard: " not in run.logs[1]
    assert set(run.codes) == {0}


@pytest.mark.parametrize("fault", [*WRONG, *by_day(WRONG_SLOW)], ids=lambda fault: fault.training)
def test_wrong_training_is_told_once(under_guard: Trainer, fault: Fault) -> None:
    assert_told(under_guard, fault)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("training", "alarms"),
    [("ddp perturbed", [COPIES]), ("ddp", []), ("ddp half_loss", []), ("ddp batch_norm", [])],
)
def test_weights_are_compared_after_the_last_step(
    training: str, alarms: list[Any], under_guard: Trainer
) -> None:
    run = under_guard(training, steps=14, every=1000)
    assert run.summary["checked"] == [1, 2, 3, 4, 5]
    assert run.told == alarms
    assert {alarm["step"] for alarm in run.alarms} <= {14}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("training", "alarms"),
    [("ddp asks_state sgd", []), ("ddp asks_state", [("updates", "counted")])],
)
def test_step_that_makes_a_state_is_no_step(
    training: str, alarms: list[Any], under_guard: Trainer
) -> None:
    """Torch takes one, without gradients, when somebody asks for the state before the first step.
    Adam counts it, which is a bug of torch."""
    run = under_guard(training, steps=4)
    assert run.told == alarms
    assert run.summary["steps"] == 4
    assert run.summary["checked"] == [1, 2, 3, 4]
