"""A check of a large model looks at a part of its parameters, and all come in turn."""

from __future__ import annotations

import pytest

from harness.rank.guard.sampling.samples import MOST, chosen, turns
from tests.guard.test_trainings import assert_silent
from tests.guard.trainer import Trainer
from tests.guard.word_models import FAULT_STEP

NAMES = [f"layers.{layer}.{name}" for layer in range(80) for name in ("up", "down", "norm")]


def test_first_check_looks_at_all_parameters_and_later_ones_at_a_part() -> None:
    assert chosen(NAMES, 1) == list(range(len(NAMES)))
    assert all(0 < len(chosen(NAMES, check)) < 2 * MOST for check in range(2, 40))


@pytest.mark.parametrize("start", [2, 3, 17])
def test_each_parameter_comes_once_in_the_turns(start: int) -> None:
    looked_at = [
        n for check in range(start, start + turns(len(NAMES))) for n in chosen(NAMES, check)
    ]
    assert sorted(looked_at) == list(range(len(NAMES)))


def test_ranks_with_other_parameters_look_at_the_same_ones() -> None:
    """A stage of a pipeline has fewer: what it looks at, and has in common, the others look at."""
    stage = NAMES[-90:]
    for check in range(2, 40):
        others = {NAMES[number] for number in chosen(NAMES, check)}
        mine = {stage[number] for number in chosen(stage, check)}
        assert mine >= others & set(stage)


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize("training", ["ddp deep flipped", "hsdp deep flipped"])
def test_flipped_bit_in_a_deep_model_is_found_after_a_turn(
    under_guard: Trainer, training: str
) -> None:
    run = under_guard(training, steps=40)

    (alarm,) = run.alarms
    checked = [step for step in run.summary["checked"] if step >= FAULT_STEP]
    assert alarm["parameters"] == ["out.weight"]
    assert alarm["step"] in checked[: turns(32 * 6)]
    assert run.codes == [0, 0]


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize(
    "training", ["ddp deep accumulate clip", "ddp deep fp16", "fsdp2 deep mixed", "hsdp deep"]
)
def test_right_training_of_a_deep_model_is_silent(under_guard: Trainer, training: str) -> None:
    assert_silent(under_guard, training, steps=40)
