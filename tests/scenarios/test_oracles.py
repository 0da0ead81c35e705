"""The oracles, on made-up records."""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from harness.bugs.api.spec import Exercise, Records
from scenarios.accelerate import _coverage as coverage
from scenarios.common import (
    agree,
    applied,
    copies,
    epochs,
    orders,
    plain_torch,
    stops,
    usual_checks,
)
from scenarios.datasets.streaming_map_resume import stream
from scenarios.deepspeed import _schedule as schedule
from scenarios.transformers import _normaliser as normaliser


def ranks(*by_rank: list[dict[str, Any]], **params: Any) -> Records:
    return Records(
        {n: [{"rank": n, "step": None, **r} for r in each] for n, each in enumerate(by_rank)},
        SimpleNamespace(**params),
    )


sampled = partial(ranks, samples=4)


def epoch(number: int, *seen: int, seed: int = 0) -> dict[str, Any]:
    return {"kind": "epoch", "step": number, "seen": list(seen), "seed": seed}


def drawn(number: int, samples: list[int], order: list[int]) -> dict[str, Any]:
    return epoch(number, *samples) | {"order": order}


def test_a_rank_that_saw_its_share_of_each_order_is_no_finding() -> None:
    mine = [drawn(1, [3, 1], [3, 0, 1, 2]), drawn(2, [0, 1], [0, 2, 1, 3])]
    theirs = [drawn(1, [1, 2], [0, 1, 3, 2]), drawn(2, [3, 0], [1, 3, 2, 0])]
    assert coverage.misdrawn(sampled(mine, theirs), 1) is None, "different orders are the bug"
    again = [drawn(n, [3, 1], [3, 0, 1, 2]) for n in (1, 2)]
    assert coverage.misdrawn(sampled(again, []), 1) is None, "an insufficient check reports it"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (drawn(2, [0, 2], [0, 2, 1, 3]), "rank 0: 1 of the 2 samples are not those of its share"),
        (drawn(2, [0], [0, 2, 1, 3]), "rank 0: 1 of the 2 samples are not those of its share"),
        (drawn(2, [0, 1], [0, 2, 1, 2]), "its order of 4 does not have each of 4 samples once"),
    ],
)
def test_a_rank_that_sees_other_samples_than_its_share_is_never_documented(
    record: dict[str, Any], message: str
) -> None:
    finding = coverage.misdrawn(sampled([drawn(1, [3, 1], [3, 0, 1, 2]), record], []), 1)
    assert finding is not None
    assert (finding.step, finding.ranks, finding.documented) == (2, (0,), False)
    assert message in finding.message


def test_an_epoch_that_the_ranks_see_completely_is_no_finding() -> None:
    records = sampled([epoch(1, 3, 1), epoch(2, 0, 2)], [epoch(1, 0, 2), epoch(2, 3, 1)])
    assert coverage.incomplete(records) is None
    assert coverage.shuffled(ranks([epoch(1, 3, 1)])).met
    assert not coverage.shuffled(records).met, "rank 1 drew 0, 2 in the order of the dataset"


def test_samples_that_nobody_saw_are_found_by_epoch() -> None:
    records = sampled([epoch(1, 3, 1), epoch(2, 3, 1)], [epoch(1, 2, 0), epoch(2, 1, 0)])
    finding = coverage.incomplete(records)
    assert finding is not None
    assert (finding.step, finding.clock, finding.magnitude) == (2, "epoch", 0.25)
    assert finding.documented
    assert "epoch 2: 3 of 4 samples seen, in 4 draws: 1 never, 1 a second time" in finding.message
    shorter = coverage.incomplete(sampled([epoch(1, 3, 1)], [epoch(1, 2)]))
    assert shorter is not None
    assert not shorter.documented


def test_ranks_with_the_same_seed_do_not_trigger_the_bug_and_the_reason_names_the_seed() -> None:
    alike = coverage.states_apart(ranks([epoch(1, seed=7)], [epoch(1, seed=7)]))
    assert (alike.met, alike.text) == (False, "all ranks were seeded with 7")
    apart = coverage.states_apart(ranks([epoch(1, seed=7)], [epoch(1, seed=8)]))
    assert (apart.met, apart.text) == (True, "the ranks had different seeds, 7, 8")


def resumed(before: list[int], after: list[int], transform: str = "map", **changed: Any) -> Records:
    """Records of 5 rows in 2 tables."""
    orders = {"before": before, "after": after, "whole": list(range(5)), "marks": [1]}
    record = {"kind": "resume", **orders, **changed}
    return ranks([record], rows=5, shards=2, transform=transform)


@pytest.mark.parametrize(
    ("after", "documented", "message"),
    [
        ([1, 2, 3, 4], None, ""),
        ([3, 4], True, "2 rows are never seen (1 to 2), 0 are seen twice"),
        ([4], False, "3 rows are never seen"),
        ([4, 3], False, "2 rows are never seen"),
        ([0, 1, 2, 3, 4], False, "1 are seen twice, or out of order"),
        ([2, 1, 3, 4], False, "0 are seen twice, or out of order"),
        ([], True, "the next row is none"),
    ],
)
def test_a_resume_must_continue_with_the_next_row(
    after: list[int], documented: bool | None, message: str
) -> None:
    finding = stream.skipped(resumed([0], after))
    assert (finding.documented if finding else None) is documented
    assert message in (finding.message if finding else "")


def test_a_batch_of_rows_may_be_skipped_behind_the_end_of_a_table() -> None:
    finding = stream.skipped(resumed([0], [4], "batched"))
    assert finding is not None
    assert finding.documented


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"whole": [0, 1, 2, 4]}, "without a resume 4 of 5 rows came, in 4 draws"),
        ({"whole": [0, 2, 1, 3, 4]}, "without a resume 5 of 5 rows came, in 5 draws or out of"),
        ({"marks": [0]}, "the transform map was applied 0 times, not 1"),
        ({"marks": [1, 2]}, "the transform map was applied 1, 2 times, not 1"),
    ],
)
@pytest.mark.parametrize("after", [[1, 2, 3, 4], [3, 4]])
def test_a_stream_that_is_wrong_without_a_resume_is_never_documented(
    changed: dict[str, Any], message: str, after: list[int]
) -> None:
    finding = stream.skipped(resumed([0], after, **changed))
    assert finding is not None
    assert not finding.documented
    assert message in finding.message


def test_a_resume_at_either_end_does_not_trigger_the_bug() -> None:
    assert stream.resumed(resumed([0], [1, 2, 3, 4])).met
    for before in ([], [0, 1, 2, 3, 4]):
        assert "not in the middle" in stream.resumed(resumed(before, [])).text


def any_fault(faults: Any, records: Records) -> bool:
    return len(faults) == 1


def fault_names(oracle: epochs.Epochs, records: Records) -> list[str]:
    return sorted(fault.unit.name.lower() for fault in oracle.faults(records))


shuffled = epochs.Epochs(any_fault, (orders.unshuffled,))


@pytest.mark.parametrize(
    ("draws", "faults"),
    [
        ([([3, 1], [0, 2]), ([2, 1], [3, 0])], []),
        ([([3, 1], [2, 2])], ["never", "twice"]),
        ([([3, 1], [2])], ["never"]),
        ([([3, 1], [2, 7])], ["never"]),
        ([([3, 1, 2], [0])], ["uneven"]),
        ([([0, 2], [1, 3])], ["unshuffled"]),
        ([([3, 1], [0, 2]), ([3, 1], [0, 2])], ["repeated"]),
    ],
)
def test_an_epoch_must_have_each_row_once_in_an_order_of_its_own(
    draws: list[tuple[list[int], ...]], faults: list[str]
) -> None:
    by_rank = zip(*([epoch(n, *s) for s in draw] for n, draw in enumerate(draws, 1)), strict=True)
    assert fault_names(shuffled, ranks(*map(list, by_rank), rows=4)) == faults


def stop(before: list[int], *after: list[int]) -> Records:
    """Two epochs of 4 rows on one rank, without a stop and with one in the first."""
    whole = [epoch(1, 3, 0, 2, 1), epoch(2, 1, 2, 0, 3)]
    parts = [{"kind": "after", "step": n, "seen": seen} for n, seen in enumerate(after, 1)]
    return ranks([*whole, {"kind": "before", "step": 1, "seen": before}, *parts], rows=4)


def test_a_stopped_run_must_have_the_rows_of_one_without_a_stop() -> None:
    oracle = stops.Stopped(any_fault)
    assert oracle.detect(stop([3, 0], [2, 1], [1, 2, 0, 3])) is None
    assert fault_names(oracle, stop([3, 0], [1, 2], [1, 2, 0, 3])) == ["moved"]
    finding = oracle.detect(stop([3, 0], [2, 1], [0, 3]))
    assert finding is not None
    assert (finding.step, finding.magnitude, finding.documented) == (2, 0.5, True)
    assert "after the resume, epoch 2: 2 of 4 rows seen" in finding.message


def test_a_resume_on_another_number_of_ranks_must_have_each_row_once() -> None:
    records = ranks(
        [epoch(1, 3, 0), {"kind": "before", "step": 1, "seen": [3]}],
        [epoch(1, 2, 1), {"kind": "before", "step": 1, "seen": [2]}],
        [{"kind": "after", "step": 1, "seen": [1]}],
        rows=4,
    )
    oracle = stops.Stopped(any_fault)
    assert fault_names(oracle, records) == ["never"]
    records.by_rank[2][0]["seen"].append(0)
    assert fault_names(oracle, records) == []


def linear(weights: Any, rows: torch.Tensor) -> torch.Tensor:
    return (rows @ weights["w"]).square().mean()


def stepped(*scale: float) -> dict[str, Any]:
    """The record of a step that multiplied the gradients of four micro-batches by ``scale``."""
    numbers = torch.Generator().manual_seed(0)
    weights = {"w": torch.randn(6, dtype=torch.float64, generator=numbers)}
    rows = torch.randn(4, 5, 6, dtype=torch.float64, generator=numbers)
    plain = plain_torch.differentiate(linear, weights, rows)
    gradient = sum(s * g["w"] for s, g in zip(scale, plain.micro, strict=True)) / 4
    facts = plain_torch.facts(plain, weights, {"w": weights["w"] - 0.1 * gradient}, 0.1)
    return {"rank": 0, "step": 1, **facts}


def step_of(*scale: float, **changes: Any) -> applied.Step:
    return applied.Step.of({**stepped(*scale), **changes})


def test_the_applied_gradient_is_compared_with_plain_torchs() -> None:
    step, quarter, lost = step_of(1, 1, 1, 1), step_of(*[0.25] * 4), step_of(1, 0, 0, 1)
    assert step.times(1)
    assert step.micro == [1, 1, 1, 1]
    assert quarter.times(0.25)
    assert quarter.straight
    assert not lost.straight
    assert lost.has([1, 0, 0, 1])
    assert not lost.has([1, 0, 0])
    assert "each micro-batch has 1, 0, 0, 1 times its right weight" in str(lost)
    assert "in another direction" in str(lost)
    nothing = step_of(0, 0, 0, 0)
    assert (nothing.ratio, nothing.off) == (0.0, 0.0)
    assert not nothing.times(1)
    assert not step_of(1, 1, 1, 1, ratio=math.nan).times(1)
    assert not step_of(1, 1, 1, 1, off=math.nan).times(1)


def quartered(step: applied.Step, records: Records) -> bool:
    return step.times(records.params.share)


def trial(*steps: dict[str, Any]) -> Records:
    return ranks([{"kind": "step", **step} for step in steps], share=0.25)


QUARTER, WHOLE, TWICE = (stepped(*[share] * 4) for share in (0.25, 1.0, 2.0))


def test_an_oracle_finds_its_documented_steps_or_another_bug() -> None:
    oracle = applied.Applied(
        applied.Step,
        quartered,
        reason="{share} on {ranks}",
        instead={"other": lambda step, _: step.times(2)},
    )
    assert oracle.detect(trial(WHOLE)) is None
    cases = {"ours": [QUARTER] * 2, "mixed": [QUARTER, TWICE], "theirs": [TWICE] * 2}
    findings = {name: oracle.detect(trial(*steps)) for name, steps in cases.items()}
    assert {n: f and (f.documented, f.another) for n, f in findings.items()} == {
        "ours": (True, ""),
        "mixed": (False, ""),
        "theirs": (False, "other"),
    }
    assert findings["ours"] is not None
    assert findings["ours"].message.endswith("\n0.25 on 1")


def test_a_step_that_should_be_clipped_must_apply_less() -> None:
    clipped = applied.Applied(applied.Step, quartered, lambda step, records: 0.5)
    assert clipped.detect(trial(stepped(*[0.5] * 4))) is None
    assert clipped.detect(trial(WHOLE)) is not None


@pytest.mark.parametrize("step", [QUARTER, TWICE, WHOLE])
def test_a_finding_is_no_bug_of_the_catalogue_if_anything_else_is_wrong(
    step: dict[str, Any],
) -> None:
    oracle = applied.Applied(
        applied.Step, quartered, loss="whole", instead={"other": lambda step, _: step.times(2)}
    )
    finding = oracle.detect(trial({**step, "loss": 9.0}))
    assert finding is not None
    assert (finding.documented, finding.another) == (False, "")
    assert finding.message.startswith("the loss of step 1 is 9")


def test_a_loss_is_explained_by_its_divisor() -> None:
    means, tokens = [1.0, 4.0], [30, 10]
    assert normaliser.explains(1.75, means, tokens) == [normaliser.TOKENS]
    assert normaliser.explains(2.5, means, tokens) == [normaliser.MEANS]
    assert normaliser.explains(5.0, means, tokens) == ["the sum of the micro-batches' means"]
    assert normaliser.explains(1.25, means, tokens) == ["the mean, divided once more"]
    assert normaliser.explains(3.0, means, tokens) == []
    assert normaliser.explains(math.nan, [1.0], [3]) == []


def losses(*values: float) -> Records:
    return ranks([{"kind": "step", "step": n, "loss": v} for n, v in enumerate(values, 1)])


@pytest.mark.parametrize(
    ("fixed", "messages"),
    [
        ((1.0, 2.0), []),
        ((1.0, 2.5), ["fixed: loss 2.500000 at step 2, where one rank has 2.000000"]),
        ((1.0, math.nan), ["fixed: loss nan at step 2, where one rank has 2.000000"]),
        ((1.0,), ["fixed has 1 losses, and one rank has 2"]),
    ],
)
def test_fixed_must_train_as_the_reference(fixed: tuple[float, ...], messages: list[str]) -> None:
    trials = {"fixed": losses(*fixed), "reference": losses(1.0, 2.0)}
    assert list(agree.losses(trials, 0.1, "one rank")) == messages
    assert not list(agree.losses({"fixed": losses(9.0)}, 0.1, "one rank"))


def test_copies_part_at_the_first_step_with_a_difference() -> None:
    differing: list[dict[str, float]] = [{}, {"a": 0.5, "b": 0.1}, {"a": 0.7}]
    steps = [{"kind": "step", "step": n, "differing": d} for n, d in enumerate(differing, 1)]
    parting = copies.parting(ranks(steps), "differing")
    assert parting is not None
    assert (parting.step, parting.greatest, parting.last_step) == (2, 0.5, 3)
    finding = parting.finding(["apart"], (0, 1), documented=True)
    assert (finding.parameters, finding.unit) == (("a", "b"), copies.UNIT)
    assert copies.parting(ranks(steps[:1]), "differing") is None


def test_the_usual_checks_fire_on_what_they_check() -> None:
    assert usual_checks.loss_rises(losses(2.0, 1.0, 1.5)) == {"the loss rises": True}
    assert usual_checks.loss_rises(losses(2.0, 1.0)) == {"the loss rises": False}
    assert all(usual_checks.loss_ends_higher(losses(2.0, math.nan)).values())
    agreeing, differing = ([{"kind": "step", "step": 1, "grad_norm": n}] for n in (1.0, 2.0))
    assert not any(copies.norm_differs(ranks(agreeing, agreeing)).values())
    assert any(copies.norm_differs(ranks(agreeing, differing)).values())


def warm(**changes: Any) -> Records:
    """One step that moved the weights at a rate of 0.1; the rate that was logged next is 0.2."""
    step = {"kind": "step", "step": 1, "logged": [0.2], **stepped(*[0.1] * 4), **changes}
    return ranks([{"kind": "rate", "step": 1, "rates": [0.1]}, step])


def test_weights_must_move_by_the_rate_and_the_next_rate_must_be_logged() -> None:
    twice = {key: stepped(*[0.2] * 4)[key] for key in ("ratio", "applied")}
    assert not list(schedule.not_moved(warm()))
    assert "at a rate of [0.1]" in next(schedule.not_moved(warm(**twice)))
    assert not list(schedule.logged_wrong(warm(), lambda step: step / 10))
    assert "0.2 is next" in next(schedule.logged_wrong(warm(logged=[0.1]), lambda step: step / 10))


def test_rates_are_compared_with_a_formula() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    noted: list[dict[str, Any]] = []
    schedule.watch(
        lambda kind, step, **f: noted.append({"kind": kind, "step": step, **f}), optimizer
    )
    for _ in range(3):
        optimizer.step()
        optimizer.param_groups[0]["lr"] /= 2
    deviations = schedule.deviations(ranks(noted), lambda step: 0.1 / step)
    assert [each.step for each in deviations] == [3]
    finding = schedule.finding(deviations, documented=True)
    assert "step 3: the rate is 0.025, where the schedule has 0.03333" in finding.message
    assert schedule.deviations(ranks(noted), lambda step: 0.1 / 2 ** (step - 1)) == []


def test_the_first_exercise_that_failed_gives_the_reason() -> None:
    yes, second_yes, no = Exercise(True, "a"), Exercise(True, "b"), Exercise(False, "never")
    assert (yes & second_yes) == Exercise(True, "a; b")
    assert (yes & no) == (no & yes) == no
    assert (no & Exercise(False, "neither")) == no
