"""A BROKEN layout has a place: the stage of the step in which it parts from the reference."""

from __future__ import annotations

import pytest

from harness.probe.layouts import ACCUMULATION, RANKS, Settings
from harness.probe.where import place
from tests.probe.probing import Probing

pytestmark = pytest.mark.launch

GIVEN = "--batch-size {rows} --accum {k}"
SHORT = Settings(steps=2, at=1, where=True)


def stage(probing: Probing, bug: str, options: str, kind: str) -> str:
    settings = Settings(steps=2, at=1, where=True, layouts=(kind,))
    answers = probing("ddp.py", [*f"{GIVEN} {options} --bug".split(), bug], settings)
    assert answers.where is not None
    return answers.where.stage


@pytest.mark.parametrize(
    ("bug", "options", "kind", "expected"),
    [
        ("no all-reduce", "", RANKS, place.REDUCTION),
        ("zero_grad in each micro-batch", "", ACCUMULATION, place.ACCUMULATION),
        ("summed over ranks", "", RANKS, place.LOSS),
        pytest.param(
            *("never divided by k", "--clip 0.1", ACCUMULATION, place.LOSS), marks=pytest.mark.slow
        ),
        pytest.param(
            *("clips each micro-batch", "--clip 0.1", ACCUMULATION, place.CLIPPING),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("schedule by micro-batch", "", ACCUMULATION, place.SCHEDULE), marks=pytest.mark.slow
        ),
        pytest.param("no sampler", "", RANKS, place.LOADER, marks=pytest.mark.slow),
        pytest.param(
            *("shrinks on several ranks", "", RANKS, place.WEIGHTS), marks=pytest.mark.slow
        ),
    ],
)
def test_a_mistake_is_placed_in_its_stage(
    probing: Probing, bug: str, options: str, kind: str, expected: str
) -> None:
    assert stage(probing, bug, options, kind) == expected


@pytest.mark.slow
def test_a_right_loop_has_no_place(probing: Probing) -> None:
    assert probing("ddp.py", GIVEN, SHORT).where is None
