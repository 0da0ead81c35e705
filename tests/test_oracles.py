"""What several scenarios judge by, on records that are made up."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from harness.spec import Exercise, Records
from scenarios.accelerate.sampler_shards import coverage
from scenarios.common import agree, applied, blind, copies
from scenarios.datasets.streaming_map_resume import stream
from scenarios.deepspeed.warmup_first_step import rates, schedule
from scenarios.transformers.trainer_gas_twice import normaliser


def ranks(*by_rank: list[dict[str, Any]]) -> Records:
    return Records(
        {n: [{"rank": n, "step": None, **r} for r in each] for n, each in enumerate(by_rank)}
    )


def epoch(number: int, *seen: int, samples: int = 4, seed: int = 0) -> dict[str, Any]:
    return {"kind": "epoch", "step": number, "seen": list(seen), "samples": samples, "seed": seed}


def drawn(number: int, seen: list[int], order: list[int]) -> dict[str, Any]:
    """An epoch of batches of one."""
    return epoch(number, *seen, samples=len(order)) | {"batch": 1, "order": order}


def test_a_rank_that_saw_its_share_of_each_order_is_no_finding() -> None:
    mine = [drawn(1, [3, 1], [3, 0, 1, 2]), drawn(2, [0, 1], [0, 2, 1, 3])]
    other = [drawn(1, [1, 2], [0, 1, 3, 2]), drawn(2, [3, 0], [1, 3, 2, 0])]
    assert coverage.misdrawn(ranks(mine, other)) is None, "that the orders are unlike is the bug"
    again = [drawn(n, [3, 1], [3, 0, 1, 2]) for n in (1, 2)]
    assert coverage.misdrawn(ranks(again, [])) is None, "it is in the wrong detectors"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (drawn(2, [0, 2], [0, 2, 1, 3]), "rank 0: 1 of the 2 samples of its share are others"),
        (drawn(2, [0], [0, 2, 1, 3]), "rank 0: 1 of the 2 samples of its share are others"),
        (drawn(2, [0, 1], [0, 2, 1, 2]), "its order of 4 is not one of all 4 samples"),
    ],
)
def test_what_a_rank_draws_otherwise_is_never_documented(wrong: dict[str, Any], told: str) -> None:
    found = coverage.misdrawn(ranks([drawn(1, [3, 1], [3, 0, 1, 2]), wrong], []))
    assert found is not None
    assert (found.step, found.ranks, found.documented) == (2, (0,), False)
    assert told in found.message


def test_watching_a_loader_notes_the_order_that_its_sampler_drew() -> None:
    samples: Any = range(8)
    shuffled: Any = torch.utils.data.DataLoader(samples, batch_size=2, shuffle=True)
    sampler = shuffled.sampler
    order = coverage._noted(sampler)
    first = [int(sample) for batch in shuffled for sample in batch]
    assert order == first
    assert [int(sample) for batch in shuffled for sample in batch] == order != first
    assert isinstance(sampler, torch.utils.data.RandomSampler)


def test_an_epoch_that_the_ranks_share_out_whole_is_no_finding() -> None:
    records = ranks([epoch(1, 3, 1), epoch(2, 0, 2)], [epoch(1, 0, 2), epoch(2, 3, 1)])
    assert coverage.incomplete(records) is None
    assert coverage.shuffled(ranks([epoch(1, 3, 1)])).met
    assert not coverage.shuffled(records).met, "rank 1 drew 0, 2 in the order of the dataset"


def test_samples_that_nobody_saw_are_found_by_epoch() -> None:
    records = ranks([epoch(1, 3, 1), epoch(2, 3, 1)], [epoch(1, 2, 0), epoch(2, 1, 0)])
    found = coverage.incomplete(records)
    assert found is not None
    assert (found.step, found.clock, found.magnitude) == (2, "epoch", 0.25)
    assert found.documented
    assert "epoch 2: 3 of 4 samples seen, in 4 draws: 1 never, 1 a second time" in found.message


def test_an_epoch_of_another_size_is_not_the_documented_symptom() -> None:
    found = coverage.incomplete(ranks([epoch(1, 3, 1)], [epoch(1, 2)]))
    assert found is not None
    assert not found.documented


def test_ranks_that_were_seeded_alike_did_not_exercise_it_and_the_reason_names_the_seed() -> None:
    alike = coverage.states_apart(ranks([epoch(1, seed=7)], [epoch(1, seed=7)]))
    assert (alike.met, alike.text) == (False, "all ranks were seeded with 7")
    apart = coverage.states_apart(ranks([epoch(1, seed=7)], [epoch(1, seed=8)]))
    assert (apart.met, apart.text) == (True, "the ranks were seeded unlike, with 7, 8")


def resumed(before: list[int], after: list[int], **more: Any) -> Records:
    """Of 5 rows in tables of 3 and 2."""
    told = {"transform": "map", "rows": 5, "tables": [3, 5], "batch": 0, "marks": [1], "mark": 1}
    seen = {"kind": "resume", "before": before, "after": after, "whole": list(range(5))}
    return ranks([{**seen, **told, **more}])


@pytest.mark.parametrize(
    ("after", "documented", "told"),
    [
        ([1, 2, 3, 4], None, ""),
        ([3, 4], True, "2 rows are never seen (1 to 2), 0 are seen twice"),
        ([2, 3, 4], False, "1 rows are never seen (1 to 1)"),
        ([4], False, "3 rows are never seen"),
        ([4, 3], False, "2 rows are never seen"),
        ([0, 1, 2, 3, 4], False, "1 are seen twice, or out of order"),
        ([2, 1, 3, 4], False, "0 are seen twice, or out of order"),
        ([], True, "the next row that came is none"),
    ],
)
def test_a_resume_goes_on_with_the_next_row(
    after: list[int], documented: bool | None, told: str
) -> None:
    found = stream.skipped(resumed([0], after))
    assert (found.documented if found else None) is documented
    assert told in (found.message if found else "")


def test_a_batch_of_rows_may_be_skipped_behind_the_end_of_a_table() -> None:
    found = stream.skipped(resumed([0], [4], batch=2))
    assert found is not None
    assert found.documented


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"whole": [0, 1, 2, 4]}, "without a resume 4 of 5 rows came, in 4 draws"),
        ({"whole": [0, 2, 1, 3, 4]}, "without a resume 5 of 5 rows came, in 5 draws or out of"),
        ({"marks": [0]}, "the transform map was applied 0 times, not 1"),
        ({"marks": [1, 2]}, "the transform map was applied 1, 2 times, not 1"),
    ],
)
@pytest.mark.parametrize("after", [[1, 2, 3, 4], [3, 4]])
def test_a_stream_that_is_wrong_in_itself_is_never_documented(
    more: dict[str, Any], told: str, after: list[int]
) -> None:
    found = stream.skipped(resumed([0], after, **more))
    assert found is not None
    assert not found.documented
    assert told in found.message


def test_a_resume_at_an_end_exercises_nothing() -> None:
    assert stream.resumed(resumed([0], [1, 2, 3, 4])).met
    for before in ([], [0, 1, 2, 3, 4]):
        assert "not in the middle" in stream.resumed(resumed(before, [])).text


def linear(weights: Any, rows: torch.Tensor) -> torch.Tensor:
    return (rows @ weights["w"]).square().mean()


def stepped(scale: list[float]) -> dict[str, Any]:
    """What is recorded of a step that applied these multiples of four micro-batches' gradients."""
    weights = {"w": torch.randn(6, dtype=torch.float64)}
    plain = applied.plainly(linear, weights, torch.randn(4, 5, 6, dtype=torch.float64))
    moved = sum(s * g["w"] for s, g in zip(scale, plain.micro, strict=True)) / 4
    facts = applied.facts(plain, weights, {"w": weights["w"] - 0.1 * moved}, 0.1)
    return {"rank": 0, "step": 1, **facts}


def test_the_right_gradient_is_once_and_of_each_micro_batch_once() -> None:
    step = stepped([1.0, 1.0, 1.0, 1.0])
    assert applied.times(step, 1)
    assert step["micro"] == [1, 1, 1, 1]


def test_a_factor_and_a_lost_micro_batch_are_told_apart() -> None:
    quarter, lost = stepped([0.25] * 4), stepped([1.0, 0.0, 0.0, 1.0])
    assert applied.times(quarter, 0.25)
    assert applied.straight(quarter)
    assert not applied.straight(lost)
    assert lost["micro"] == pytest.approx([1, 0, 0, 1])
    assert "of each micro-batch's 1, 0, 0, 1" in applied.told(lost)
    assert "in another direction" in applied.told(lost)


def test_nan_is_never_near_anything() -> None:
    assert not applied.times({**stepped([1.0] * 4), "ratio": math.nan}, 1)
    assert not applied.times({**stepped([1.0] * 4), "off": math.nan}, 1)
    assert normaliser.explains(math.nan, [1.0], [3]) == []


def test_a_step_that_applied_nothing_has_no_direction() -> None:
    step = stepped([0.0] * 4)
    assert (step["ratio"], step["off"]) == (0.0, 0.0)
    assert not applied.times(step, 1)


def test_a_loss_is_explained_by_what_it_was_divided_by() -> None:
    means, tokens = [1.0, 4.0], [30, 10]
    assert normaliser.explains(1.75, means, tokens) == [normaliser.TOKENS]
    assert normaliser.explains(2.5, means, tokens) == [normaliser.MEANS]
    assert normaliser.explains(5.0, means, tokens) == ["the sum of the micro-batches' means"]
    assert normaliser.explains(1.25, means, tokens) == ["the mean, divided once more"]
    assert normaliser.explains(3.0, means, tokens) == []


def losses(*values: float) -> Records:
    return ranks([{"kind": "step", "step": n, "loss": v} for n, v in enumerate(values, 1)])


@pytest.mark.parametrize(
    ("fixed", "told"),
    [
        ((1.0, 2.0), []),
        ((1.0, 2.5), ["fixed: loss 2.500000 at step 2, where one rank has 2.000000"]),
        ((1.0, math.nan), ["fixed: loss nan at step 2, where one rank has 2.000000"]),
        ((1.0,), ["fixed took 1 steps, and one rank 2"]),
    ],
)
def test_fixed_trains_as_the_reference_does(fixed: tuple[float, ...], told: list[str]) -> None:
    trials = {"fixed": losses(*fixed), "reference": losses(1.0, 2.0)}
    assert list(agree.losses(trials, 0.1, "one rank")) == told
    assert not list(agree.losses({"fixed": losses(9.0)}, 0.1, "one rank"))


def test_copies_part_at_the_first_step_that_says_so() -> None:
    steps = [
        {"kind": "step", "step": 1, "differing": {}},
        {"kind": "step", "step": 2, "differing": {"a": 0.5, "b": 0.1}},
        {"kind": "step", "step": 3, "differing": {"a": 0.7}},
    ]
    parting = copies.parting(ranks(steps), "differing")
    assert parting is not None
    assert (parting.step, parting.greatest, parting.last_step) == (2, 0.5, 3)
    found = parting.finding(["apart"], (0, 1), documented=True)
    assert (found.parameters, found.unit) == (("a", "b"), copies.UNIT)
    assert copies.parting(ranks(steps[:1]), "differing") is None


def test_the_usual_checks_fire_where_they_would() -> None:
    assert blind.loss_rises(losses(2.0, 1.0, 1.5)) == {"the loss rises": True}
    assert blind.loss_rises(losses(2.0, 1.0)) == {"the loss rises": False}
    assert blind.loss_not_finite(losses(2.0, math.nan)) == {"a loss is not finite": True}
    assert all(blind.loss_ends_higher(losses(2.0, math.nan)).values())
    agreeing, differing = ([{"kind": "step", "step": 1, "grad_norm": n}] for n in (1.0, 2.0))
    assert not any(blind.norm(ranks(agreeing, agreeing)).values())
    assert any(blind.norm(ranks(agreeing, differing)).values())


def warm(**changes: Any) -> Records:
    """One step at a rate of 0.1, which moved the weights by it, and after which 0.2 was logged."""
    step = {"kind": "step", "step": 1, "logged": [0.2], **stepped([0.1] * 4), **changes}
    return ranks([{"kind": "rate", "step": 1, "rates": [0.1]}, step])


def test_weights_move_by_the_rate_and_the_next_one_is_logged() -> None:
    twice = {key: stepped([0.2] * 4)[key] for key in ("ratio", "applied")}
    assert not list(schedule.not_moved(warm()))
    assert "at a rate of [0.1]" in next(schedule.not_moved(warm(**twice)))
    assert not list(schedule.logged_wrong(warm(), lambda step: step / 10))
    assert "0.2 is next" in next(schedule.logged_wrong(warm(logged=[0.1]), lambda step: step / 10))


def test_rates_are_held_against_a_formula() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    noted: list[dict[str, Any]] = []
    rates.watch(
        lambda kind, step, **facts: noted.append({"kind": kind, "step": step, **facts}), optimizer
    )
    for _ in range(3):
        optimizer.step()
        optimizer.param_groups[0]["lr"] /= 2
    wrong = schedule.deviations(ranks(noted), lambda step: 0.1 / step)
    assert [each.step for each in wrong] == [3]
    found = schedule.finding(wrong, documented=True)
    assert "step 3: the rate is 0.025, where the schedule says 0.03333" in found.message
    assert schedule.deviations(ranks(noted), lambda step: 0.1 / 2 ** (step - 1)) == []


def test_two_exercises_are_joined_and_the_first_that_failed_answers() -> None:
    yes, other, no = Exercise(True, "a"), Exercise(True, "b"), Exercise(False, "never")
    assert (yes & other) == Exercise(True, "a; b")
    assert (yes & no) == (no & yes) == no
    assert not (no & Exercise(False, "neither")).met
    assert (no & Exercise(False, "neither")).text == "never"
