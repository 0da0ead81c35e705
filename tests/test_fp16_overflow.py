"""Grading fp16_overflow: a recorded run, tampered with, and the loss scaler's arithmetic.

Made with ``run scenario=fp16_overflow variant=all launch=cpu``; only paths and the environment were
made neutral. Its first nan is at step 92, the exception at step 105.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness import spec
from harness.spec import Finding, Outcome, Verdict
from harness.trial.grade import grade
from harness.trial.records import read_records
from scenarios.deepspeed import fp16_overflow, fp16_overflow_stage0
from scenarios.oracles import loss_scale
from scenarios.oracles.loss_scale import LIMIT, expected_skips, overflowed
from tests.recording import Recording, stored_verdict

RECORDED = Path(__file__).parent / "recorded" / "fp16_overflow_cpu"
Records = list[dict[str, Any]]


@pytest.fixture
def overflow(tmp_path: Path) -> Recording:
    """A copy of the recorded run, to tamper with."""
    return Recording(shutil.copytree(RECORDED, tmp_path / "run"))


def test_the_recorded_run_is_graded_as_it_was_when_it_ran() -> None:
    stored = stored_verdict(RECORDED)
    graded = json.loads(json.dumps(grade(RECORDED).to_json()))
    assert graded == stored
    assert graded["verdict"] == "reproduced"


def told(
    run: Recording, variant: str = "buggy", module: ModuleType = fp16_overflow
) -> Finding | None:
    """What a scenario's detector says of the records as such, whatever was promised of them."""
    finding: Finding | None = module.detect(read_records(run.folder / variant, 2))
    return finding


def doubted(
    run: Recording, doubt: str, variant: str = "buggy", module: ModuleType = fp16_overflow
) -> bool:
    """Whether it finds something undocumented, and says this of it."""
    finding = told(run, variant, module)
    return finding is not None and not finding.documented and doubt in finding.message


def steps(records: Records) -> Records:
    return [record for record in records if record["kind"] == "step"]


def raised(records: Records) -> dict[str, Any]:
    return next(record for record in records if record["kind"] == "exception")


def another_skip_count(records: Records) -> None:
    steps(records)[-1]["skipped"] += 1


def another_text(records: Records) -> None:
    raised(records)["text"] = "Current loss scale already at minimum"


def another_class(records: Records) -> None:
    raised(records)["type"] = "RuntimeError"


def another_step(records: Records) -> None:
    raised(records)["step"] -= 1


def no_exception(records: Records) -> None:
    records[:] = [record for record in records if record["kind"] != "exception"]


def another_minimum(records: Records) -> None:
    next(r for r in records if r["kind"] == "setup")["scaler"]["minimum"] = 2.0


def no_setup(records: Records) -> None:
    records[:] = [record for record in records if record["kind"] != "setup"]


TAMPERINGS: dict[Callable[[Records], None], str] = {
    another_skip_count: "rank 1: 14 skipped steps, where the loss scaler allows 13",
    another_text: "rank 1: not the documented exception",
    another_class: "rank 1: not the documented exception but RuntimeError",
    another_step: "the ranks do not agree",
    no_exception: "raised on ranks [0] alone",
    another_minimum: "rank 1: 13 skipped steps, where the loss scaler allows 12",
    no_setup: "rank 1 told of no dynamic loss scaler",
}


@pytest.mark.parametrize("tamper", TAMPERINGS, ids=lambda tamper: tamper.__name__)
def test_one_rank_with_this_is_inconclusive(
    tamper: Callable[[Records], None], overflow: Recording
) -> None:
    with overflow.records("buggy", rank=1) as records:
        tamper(records)
    assert doubted(overflow, TAMPERINGS[tamper])
    assert overflow.grade().verdict is Verdict.INCONCLUSIVE


def on_both_ranks(run: Recording, variant: str, tamper: Callable[[Records], None]) -> None:
    for rank in (0, 1):
        with run.records(variant, rank) as records:
            tamper(records)


def test_a_nan_without_the_exception_is_not_the_documented_symptom(overflow: Recording) -> None:
    on_both_ranks(overflow, "buggy", no_exception)
    assert doubted(overflow, "13 steps were skipped, but nothing was raised")
    assert overflow.trial("buggy").outcome is Outcome.INCONCLUSIVE


def test_an_exception_while_the_loss_is_finite_is_not_the_documented_symptom(
    overflow: Recording,
) -> None:
    def finite(records: Records) -> None:
        for step in steps(records):
            step["loss"] = 3.0

    on_both_ranks(overflow, "buggy", finite)
    assert overflow.trial("buggy").outcome is Outcome.INCONCLUSIVE
    assert "no loss before that was other than finite" in overflow.trial("buggy").reason


def leave(step: dict[str, Any], **bits: float) -> None:
    """Have the tensors of a step leave so much headroom: by name, or ``all`` of them."""
    for name in step["headroom"]:
        told = bits.get(name.replace(" ", "_"), bits.get("all"))
        if told is not None:
            step["headroom"][name], step["largest"][name] = told, LIMIT / 2**told


def roomy(records: Records) -> None:
    """No watched tensor came near the limit."""
    for step in steps(records):
        leave(step, all=5.0)


def test_a_nan_from_elsewhere_is_not_the_documented_symptom(overflow: Recording) -> None:
    on_both_ranks(overflow, "buggy", roomy)
    assert overflow.trial("buggy").outcome is Outcome.INCONCLUSIVE
    assert "none of the watched tensors had overflowed" in overflow.trial("buggy").reason


def test_a_nan_in_bf16_is_inconclusive(overflow: Recording) -> None:
    with overflow.records("fixed", rank=1) as records:
        steps(records)[-1]["loss"] = "nan"
    trial = overflow.trial("fixed")
    assert trial.outcome is Outcome.INCONCLUSIVE
    assert "0 steps were skipped, but nothing was raised" in trial.reason


def test_bf16_that_never_passed_the_limit_proves_nothing(overflow: Recording) -> None:
    def near(records: Records) -> None:
        for step in steps(records):
            leave(step, all=max(0.1, *step["headroom"].values()))

    on_both_ranks(overflow, "fixed", near)
    assert "not exercised" in overflow.trial("fixed").reason


def stopped(records: Records) -> None:
    records.remove(steps(records)[-1])


def skipped_once(records: Records) -> None:
    before, last = steps(records)[-2:]
    last.update(skipped=1, weights=before["weights"], lr=before["lr"])


UNWELL: dict[Callable[[Records], None], str] = {
    stopped: "rank 1 did not take all of its steps, but 169",
    skipped_once: "1 steps were skipped, though every loss was finite",
}


@pytest.mark.parametrize("module", [fp16_overflow, fp16_overflow_stage0])
@pytest.mark.parametrize("tamper", UNWELL, ids=lambda tamper: tamper.__name__)
def test_bf16_that_did_not_live_through_the_overflow_proves_nothing(
    tamper: Callable[[Records], None], module: ModuleType, overflow: Recording
) -> None:
    with overflow.records("fixed", rank=1) as records:
        tamper(records)
    assert doubted(overflow, UNWELL[tamper], "fixed", module)


def test_a_skipped_step_where_nothing_overflowed_is_what_loss_scaling_is_for(
    overflow: Recording,
) -> None:
    on_both_ranks(overflow, "control", skipped_once)
    assert overflow.trial("control").outcome is Outcome.CLEAN


@pytest.mark.parametrize(("variant", "met"), [("buggy", True), ("fixed", True), ("control", False)])
def test_the_trigger_is_met_whatever_came_of_it(
    variant: str, met: bool, overflow: Recording
) -> None:
    exercise = overflowed(read_records(overflow.folder / variant, 2))
    assert exercise.met is met
    assert ("passed 65504 at step" in exercise.text) is met
    assert "nan" not in exercise.text


def test_nothing_recorded_is_nothing_exercised() -> None:
    exercise = overflowed(spec.Records({}))
    assert not exercise
    assert exercise.text == "no step was recorded"


def test_a_control_that_came_near_spoils_the_reproduction(overflow: Recording) -> None:
    with overflow.records("control", rank=1) as records:
        leave(steps(records)[-1], layer_0_scores=2.9)
    result = overflow.grade()
    assert result.verdict is Verdict.NOT_REPRODUCED
    assert result.reasons == ("control: the headroom went below the threshold at step 170",)


def test_variants_on_different_texts_are_no_reproduction(overflow: Recording) -> None:
    for rank in (0, 1):
        with overflow.record("fixed", "setup", rank) as setup:
            setup["corpus"]["sha256"] = "0" * 64
    result = overflow.grade()
    assert result.verdict is Verdict.NOT_REPRODUCED
    assert result.reasons == ("the variants did not train on the same text",)


def test_variants_that_begin_with_other_losses_are_no_reproduction(overflow: Recording) -> None:
    for kind in ("begun", "step"):
        with overflow.record("fixed", kind) as first:
            first.update({n: first[n] + 0.1 for n in ("loss", "reference_loss") if n in first})
    result = overflow.grade()
    assert result.verdict is Verdict.NOT_REPRODUCED
    assert "did not begin alike" in result.reasons[0]


def rises(records: Records) -> None:
    """The loss is a nat higher in the ten steps before the first nan."""
    for step in steps(records)[81:91]:
        step["loss"] = float(step["loss"]) + 1.0


def doubles(records: Records) -> None:
    """The gradient norm is three times as high in those steps."""
    for step in steps(records)[81:91]:
        step["grad_norm"] *= 3.0


def jumps(records: Records) -> None:
    """One gradient norm is high."""
    steps(records)[90]["grad_norm"] = 100.0


@pytest.mark.parametrize(
    ("tamper", "fires"),
    [
        (rises, "the loss rises by 0.5 (mean of ten steps)"),
        (doubles, "the gradient norm doubles (median of ten steps)"),
        (jumps, "one gradient norm is twice the last twenty"),
    ],
    ids=["rises", "doubles", "jumps"],
)
def test_a_wrong_detector_is_silent_because_there_is_nothing_and_not_because_it_cannot_fire(
    tamper: Callable[[Records], None], fires: str, overflow: Recording
) -> None:
    blind = overflow.trial("buggy").wrong_detectors
    assert blind is not None
    assert blind[fires] is False
    on_both_ranks(overflow, "buggy", tamper)
    seeing = overflow.trial("buggy").wrong_detectors
    assert seeing is not None
    assert seeing[fires] is True


def test_the_warning_comes_long_before_the_nan(overflow: Recording) -> None:
    assert "43 steps before the first nan" in overflow.trial("buggy").reason

    def sudden(records: Records) -> None:
        for step in steps(records)[:91]:
            leave(step, all=3.0)

    on_both_ranks(overflow, "buggy", sudden)
    assert ", 0 steps before the first nan" in overflow.trial("buggy").reason


def test_to_the_silent_sibling_the_exception_is_the_cure(overflow: Recording) -> None:
    assert told(overflow, module=fp16_overflow_stage0) is None
    records = read_records(overflow.folder / "buggy", 2)
    assert "layer 0 scores passed 65504 at step 89" in fp16_overflow_stage0.exercised(records).text
    assert fp16_overflow_stage0.wrong_detectors(records)["the run ends with an exception"]


def test_to_the_silent_sibling_a_nan_alone_is_not_enough(overflow: Recording) -> None:
    on_both_ranks(overflow, "buggy", no_exception)
    doubt = "only 0 steps were skipped at the minimum"
    assert doubted(overflow, doubt, module=fp16_overflow_stage0)


def going_on(records: Records, pattern: str) -> None:
    """Go on as stage 0 does, at the minimum, with steps that are skipped (x) and taken (.)."""
    no_exception(records)
    last = steps(records)[-1]
    place = records.index(last) + 1
    last["skipped"] += 1  # what raised
    made = []
    for n in range(1, len(pattern) + 1):
        skipped, taken = (pattern[:n].count(mark) for mark in "x.")
        rate = (fp16_overflow.Params.lr - fp16_overflow.Params.first_lr) / fp16_overflow.Params.ramp
        changes = {"skipped": last["skipped"] + skipped, "weights": last["weights"] + taken,
                   "lr": last["lr"] + rate * taken}  # fmt: skip
        made.append({**last, "step": last["step"] + n, **changes})
    records[place:place] = made
    next(r for r in records if r["kind"] == "setup")["steps"] = last["step"] + len(pattern)


def silent(records: Records) -> None:
    going_on(records, "x" * 9 + "." + "x" * 9)


def test_steps_skipped_at_the_minimum_for_ever_are_the_siblings_symptom(
    overflow: Recording,
) -> None:
    on_both_ranks(overflow, "buggy", silent)
    finding = told(overflow, module=fp16_overflow_stage0)
    assert finding is not None
    assert finding.documented, finding.message
    assert "nothing was raised" in finding.message
    assert finding.magnitude == 19
    assert finding.unit == "steps skipped with the loss scale at its minimum"
    fired = fp16_overflow_stage0.wrong_detectors(read_records(overflow.folder / "buggy", 2))
    assert not fired["the run ends with an exception"]


@pytest.mark.parametrize(
    ("pattern", "doubt"),
    [
        ("x" * 8, "only 9 steps were skipped at the minimum"),
        ("xx." * 10, "of the steps since 105, only 21 were skipped"),
    ],
)
def test_a_run_that_goes_on_but_not_by_skipping_is_not_the_siblings_symptom(
    pattern: str, doubt: str, overflow: Recording
) -> None:
    on_both_ranks(overflow, "buggy", lambda records: going_on(records, pattern))
    assert doubted(overflow, doubt, module=fp16_overflow_stage0)


def test_a_silent_run_that_stopped_early_is_not_the_siblings_symptom(overflow: Recording) -> None:
    on_both_ranks(overflow, "buggy", silent)
    with overflow.records("buggy", rank=1) as records:
        records.remove(steps(records)[-1])
    doubt = "rank 1 did not take all of its steps"
    assert doubted(overflow, doubt, module=fp16_overflow_stage0)


def test_silent_skips_with_a_nan_from_elsewhere_are_not_the_siblings_symptom(
    overflow: Recording,
) -> None:
    on_both_ranks(overflow, "buggy", silent)
    on_both_ranks(overflow, "buggy", roomy)
    doubt = "none of the watched tensors had overflowed"
    assert doubted(overflow, doubt, module=fp16_overflow_stage0)


def test_to_the_silent_sibling_another_exception_is_no_cure(overflow: Recording) -> None:
    on_both_ranks(overflow, "buggy", another_text)
    assert doubted(overflow, "not the documented exception", module=fp16_overflow_stage0)


def test_ranks_that_skip_differently_are_not_the_siblings_symptom(overflow: Recording) -> None:
    with overflow.records("buggy", rank=0) as records:
        silent(records)
    with overflow.records("buggy", rank=1) as records:
        going_on(records, "x" * 19)
    assert doubted(overflow, "the ranks do not agree", module=fp16_overflow_stage0)


def scaler(initial: float, minimum: float, hysteresis: int, consecutive: bool = False) -> Any:
    return {
        "initial": initial, "minimum": minimum, "hysteresis": hysteresis,
        "consecutive": consecutive,
    }  # fmt: skip


def history(pattern: str, scale: float) -> Records:
    """Steps that overflow (x), are taken (.) or are taken and double the scale (+)."""
    made: Records = []
    skipped = 0
    for mark in pattern:
        skipped += mark == "x"
        scale *= 2 if mark == "+" else 1
        made.append({"skipped": skipped, "loss_scale": scale})
    return made


@pytest.mark.parametrize(
    ("knobs", "pattern", "skips"),
    [
        (scaler(4096, 1, 2), "x" * 13, 13),
        (scaler(2.0**16, 1, 1), "x" * 16, 16),
        (scaler(256, 16, 2), "x" * 5, 5),
        (scaler(4096, 1, 2), ".x.x" + "x" * 11, 13),
        (scaler(4096, 1, 2, consecutive=True), "x.x" + "x" * 12, 14),
        (scaler(4096, 1, 2), "x+x" + "x" * 13, 15),
        (scaler(100, 3, 1), "x" * 6, 6),
    ],
)
def test_the_skips_are_halvings_plus_what_hysteresis_lets_pass(
    knobs: Any, pattern: str, skips: int
) -> None:
    assert expected_skips(history(pattern, knobs["initial"]), knobs) == skips


@pytest.mark.parametrize(
    ("norms", "told"),
    [((None, None, 1.0, 1.0), []), ((None, None, 1.0, None), ["is told of some steps"])],
)
def test_steps_before_the_first_that_is_taken_need_not_have_a_gradient_norm(
    norms: tuple[float | None, ...], told: list[str]
) -> None:
    steps = [
        {"kind": "step", "rank": 0, "step": n, "skipped": min(n, 2), "grad_norm": norm}
        for n, norm in enumerate(norms, 1)
    ]
    found = list(loss_scale._norms_wrong(spec.Records({0: steps})))
    assert [line.partition("norm ")[2].partition(",")[0] for line in found] == told


@pytest.mark.parametrize("module", [fp16_overflow, fp16_overflow_stage0])
@pytest.mark.parametrize(
    "knobs",
    [
        {"precision": "fp8"}, {"zero_stage": 3}, {"lr": 0.0}, {"lr": 1e-5}, {"steps": 0},
        {"sequences": 3}, {"min_loss_scale": 8192.0}, {"gradient_clipping": -1.0},
    ],
    ids=str,
)  # fmt: skip
def test_knobs_that_make_no_sense_are_refused(module: Any, knobs: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"scenario\."):
        module.Params(**knobs)
