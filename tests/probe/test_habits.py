"""Habits of right scripts that are no fault, and mistakes that look like them."""

from __future__ import annotations

import pytest

from harness.training.probe.layouts import ACCUMULATION, BOTH, RANKS, Settings
from tests.probe.probing import GIVEN, Probing, first_broken, layout, require_right, with_bug

pytestmark = pytest.mark.launch


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        "--rehearse loader",
        "--rehearse zeros --optimizer sgd",
        "--rehearse nothing",
        "--rehearse forward",
        "--of-all-ranks --batch-size {rows*ranks}",
        "--snapshot snapshot.pt",
        "--rows 24",
        "--rows 24 --sampler",
        "--noise of-row",
        "--rows 36 --rehearse loader",
        "--fp16 --rehearse loader",
        "--fp16 --optimizer sgd --rows 48",  # a bias has one value, which no perturbed run moves
        "--fp16 --rehearse zeros --overflow",
        "--fp16 --rehearse forward --snapshot snapshot.pt",
        "--compile --rehearse loader --snapshot snapshot.pt",
        pytest.param(
            "--compile --rehearse forward --fp16", marks=(pytest.mark.slow, pytest.mark.exhaustive)
        ),
    ],
)
def test_a_habit_is_no_fault(probing: Probing, options: str) -> None:
    answers = probing("habits.py", f"{GIVEN} {options}", Settings())
    require_right(answers)
    assert answers.about.startswith("4 steps of 12 rows")


@pytest.mark.slow
def test_noise_at_random_has_no_answer_that_names_it(probing: Probing) -> None:
    answers = probing("habits.py", f"{GIVEN} --noise at-random", Settings(layouts=(RANKS,)))
    why = layout(answers, RANKS).no_answer
    assert "changes them at random" in why
    assert "make it depend on the row" in why


@pytest.mark.slow
def test_gradients_that_are_cleared_in_each_micro_batch_are_no_rehearsal(probing: Probing) -> None:
    arguments = with_bug("zero_grad in each micro-batch", "--rehearse loader")
    answers = probing("habits.py", arguments, Settings(layouts=(RANKS, ACCUMULATION, BOTH)))
    assert first_broken(answers).keys() == {ACCUMULATION, BOTH}
    assert layout(answers, ACCUMULATION).step == 1


def test_epochs_of_several_ranks_in_one_order_are_found(probing: Probing) -> None:
    arguments = with_bug("no set_epoch", "--rows 24")
    answers = probing("habits.py", arguments, Settings(layouts=(RANKS, ACCUMULATION)))
    assert first_broken(answers) == {RANKS: ("samples", "")}
    assert "is set_epoch missing?" in layout(answers, RANKS).broken[0].details[0]


@pytest.mark.slow
def test_a_rehearsal_is_no_part_of_an_epoch(probing: Probing) -> None:
    settings = Settings(layouts=(RANKS,), epoch=True)
    answers = probing("habits.py", f"{GIVEN} --rows 96 --rehearse loader", settings)
    assert first_broken(answers) == {}


@pytest.mark.slow
def test_a_script_that_divides_its_batch_size_by_the_ranks_is_given_a_hint(
    probing: Probing,
) -> None:
    answers = probing("habits.py", f"{GIVEN} --of-all-ranks", Settings(layouts=(RANKS,)))
    (hint,) = layout(answers, RANKS).broken[0].details
    assert "1/2 of the rows" in hint
    assert "{rows*ranks} instead of {rows}" in hint
