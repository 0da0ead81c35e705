"""A loss that differs from the reference's, although the gradients agree: perhaps only its value is
wrong. A loop may scale its loss, but by the same number in each step."""

from __future__ import annotations

import pytest

from harness.training.probe.compare.comparison import OTHER_LOSS, uneven
from harness.training.probe.layouts import RANKS, Settings
from tests.probe.probing import Probing, layout


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
