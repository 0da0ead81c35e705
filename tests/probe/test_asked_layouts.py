"""The layouts that run only on request: another seed, and a resume on several ranks."""

from __future__ import annotations

import pytest

from harness.system.errors import UserError
from harness.training.probe.layouts import ACCUMULATION, RANKS, RANKS_RESUME, SEED, Settings
from tests.probe.probing import RESUMED, SAVE, Probing, first_broken, layout, refused

GIVEN = "--batch-size {rows} --accum {k}"


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
    answers = probing("ddp.py", [*f"{GIVEN} --bug".split(), bug], settings)
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
    answers = probing("ddp.py", [*f"{GIVEN} --bug".split(), bug], settings)
    assert not refused(answers)
    assert answers.reference == "2 ranks"
    summed = {RANKS: ("gradient", "summed over the ranks, not averaged")}
    assert first_broken(answers) == (summed if bug else {})


@pytest.mark.launch
def test_a_schedule_of_another_length_is_found_behind_its_warmup(probing: Probing) -> None:
    settings = Settings(layouts=(ACCUMULATION,))
    bug = [*f"{GIVEN} --decay-over 30 --bug".split(), "schedule counts micro-batches"]
    assert first_broken(probing("ddp.py", bug, settings)) == {ACCUMULATION: ("schedule", "")}
    assert first_broken(probing("ddp.py", f"{GIVEN} --decay-over 30", settings)) == {}
