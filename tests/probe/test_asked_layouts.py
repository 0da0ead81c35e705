"""The layouts that run only on request: another seed, and a resume on several ranks; and schedules
that go on after the steps of a probe."""

from __future__ import annotations

import pytest
import torch

from harness.rank.probe.findings.schedules import HALF, LOWEST, Schedules
from harness.system.errors import UserError
from harness.training.probe.layouts import ACCUMULATION, RANKS, RANKS_RESUME, SEED, Settings
from tests.probe.probing import (
    GIVEN,
    RESUMED,
    SAVE,
    SUMMED,
    Probing,
    first_broken,
    layout,
    refused,
    with_bug,
)


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize(
    ("option", "broken"), [("--seed 7", {}), ("--seed 0", {SEED: ("order of samples", "")})]
)
def test_another_seed_must_give_another_order(
    probing: Probing, option: str, broken: dict[str, tuple[str, str]]
) -> None:
    settings = Settings(layouts=(SEED,), other_seed=option)
    answers = probing("ddp.py", GIVEN, settings)
    assert not refused(answers)
    assert first_broken(answers) == broken


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize(("bug", "relation"), [("", ""), ("resume without optimizer", "optimizer")])
def test_a_resume_on_several_ranks_is_compared_rank_by_rank(
    probing: Probing, bug: str, relation: str
) -> None:
    settings = Settings(save=SAVE, resume=RESUMED, layouts=(RANKS_RESUME,))
    answers = probing("ddp.py", with_bug(bug), settings)
    assert not refused(answers)
    assert first_broken(answers) == ({RANKS_RESUME: (relation, "")} if relation else {})
    assert not relation or layout(answers, RANKS_RESUME).step == 3


def test_a_layout_that_needs_arguments_is_refused_without_them() -> None:
    with pytest.raises(UserError, match="needs --other-seed"):
        Settings(layouts=(SEED,))
    with pytest.raises(UserError, match="ranks-resume needs --save and --resume"):
        Settings(layouts=(RANKS_RESUME,))
    with pytest.raises(UserError, match="must be a multiple of --reference-ranks 2"):
        Settings(ranks=3, reference_ranks=2, k=2)


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize("bug", ["", "summed over ranks"])
def test_a_script_that_needs_two_ranks_is_compared_with_two(probing: Probing, bug: str) -> None:
    settings = Settings(ranks=4, reference_ranks=2, layouts=(RANKS, ACCUMULATION))
    answers = probing("ddp.py", with_bug(bug), settings)
    assert not refused(answers)
    assert answers.reference == "2 ranks"
    assert first_broken(answers) == ({RANKS: ("gradient", SUMMED)} if bug else {})


@pytest.mark.launch
def test_a_schedule_of_another_length_is_found_behind_its_warmup(probing: Probing) -> None:
    settings = Settings(layouts=(ACCUMULATION,))
    bug = with_bug("schedule counts micro-batches", "--decay-over 30")
    assert first_broken(probing("ddp.py", bug, settings)) == {ACCUMULATION: ("schedule", "")}
    assert first_broken(probing("ddp.py", f"{GIVEN} --decay-over 30", settings)) == {}


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
