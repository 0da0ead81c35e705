"""Grading of the two scenarios on a tied embedding's gradients, on recorded runs on the CPU."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.spec import Outcome, Records, Verdict
from harness.trial.grade import grade
from harness.trial.records import read_records
from scenarios.megatron_core import tied_embedding_order, tied_embedding_training
from scenarios.megatron_core.tied_embedding_order import TABLES, embedding_first
from scenarios.megatron_core.tied_embedding_training import never_its_own_bucket
from scenarios.oracles import cells
from tests.recording import Recording, stored_verdict

RECORDED = Path(__file__).parent / "recorded"
ORDER, TRAINING = RECORDED / "tied_embedding_order_cpu", RECORDED / "tied_embedding_training_cpu"
Copied = Callable[[Path], Recording]


@pytest.fixture
def copied(tmp_path: Path) -> Copied:
    """Copies a recorded run, to tamper with."""
    return lambda recorded: Recording(shutil.copytree(recorded, tmp_path / "run"))


@pytest.mark.parametrize("recorded", [ORDER, TRAINING], ids=lambda path: path.name)
def test_a_stored_run_is_graded_as_it_was_when_it_ran(recorded: Path) -> None:
    stored = stored_verdict(recorded)
    graded = json.loads(json.dumps(grade(recorded).to_json()))
    assert graded == stored
    assert graded["verdict"] == "reproduced"


@pytest.mark.parametrize("variant", list(TABLES))
@pytest.mark.parametrize("when", range(3))
@pytest.mark.parametrize("rank", range(4))
def test_one_cell_that_is_not_as_documented_is_no_reproduction(
    copied: Copied, variant: str, when: int, rank: int
) -> None:
    recording = copied(ORDER)
    with recording.records(variant, rank) as records:
        cell = [record for record in records if record["kind"] == "cell"][when]
        cell["pieces"][0]["row"][3] += 0.25
    assert recording.grade().verdict in (Verdict.NOT_REPRODUCED, Verdict.INCONCLUSIVE)


@pytest.mark.parametrize(("rank", "misses"), [(1, 2), (2, 1)])
def test_a_whole_scale_is_not_the_documented_symptom(
    copied: Copied, rank: int, misses: int
) -> None:
    recording = copied(ORDER)
    with recording.records("buggy", rank) as records:
        last = [record for record in records if record["kind"] == "cell"][-1]
        last["pieces"][0]["row"] = [1.0 if c else 0.0 for c in last["pieces"][0]["row"]]
        assert last["pieces"][0]["row"][misses] == 0
    assert recording.trial("buggy").outcome is Outcome.INCONCLUSIVE


def test_an_owner_with_a_wrong_cell_is_found_in_a_fixed_release(copied: Copied) -> None:
    recording = copied(ORDER)
    for rank in (1, 2):
        with recording.records("fixed", rank) as records:
            last = [record for record in records if record["kind"] == "cell"][-1]
            owned = next(piece for piece in last["pieces"] if piece["owned"])
            owned["row"][rank % 2 + 1] = 0.0
            owned["row"][cells.SHARED] = 1.5
    assert recording.trial("fixed").outcome is Outcome.SYMPTOM
    assert recording.grade().verdict is Verdict.NOT_REPRODUCED


def test_what_nobody_steps_with_may_be_anything(copied: Copied) -> None:
    recording = copied(ORDER)
    with recording.records("fixed", 0) as records:
        last = [record for record in records if record["kind"] == "cell"][-1]
        next(piece for piece in last["pieces"] if not piece["owned"])["row"][0] = 7.0
    assert recording.grade().verdict is Verdict.REPRODUCED


@pytest.mark.parametrize("variant", ["buggy", "fixed"])
def test_gradients_that_were_not_added_up_are_no_sum(copied: Copied, variant: str) -> None:
    recording = copied(ORDER)
    for rank in range(4):
        with recording.records(variant, rank) as records:
            last = [record for record in records if record["kind"] == "cell"][-1]
            for piece in last["pieces"]:
                piece["row"][cells.SHARED] = 0.5
    trial = recording.trial(variant)
    assert trial.outcome is Outcome.INCONCLUSIVE
    assert "not added up" in trial.reason


def test_copies_that_were_never_summed_over_the_stages_are_another_bug(copied: Copied) -> None:
    recording = copied(ORDER)
    for rank in range(4):
        with recording.records("buggy", rank) as records:
            *_, scattered, summed = [record for record in records if record["kind"] == "cell"]
            summed["pieces"] = scattered["pieces"]
    trial = recording.trial("buggy")
    assert trial.outcome is Outcome.INCONCLUSIVE
    assert "rank 1 steps with (g0+g1)/2, which misses g2 and g3" in trial.reason


@pytest.mark.parametrize("variant", ["buggy", "fixed"])
@pytest.mark.parametrize(
    ("fact", "value", "told"),
    [
        ("apart", 0.25, "rank 2: the copies are 0.25 apart before any step"),
        ("dtypes", ["bfloat16"], "rank 2: its gradients are bfloat16, and not float32"),
        ("owned", {"linear.0": [1.5]}, "steps linear.0 with 1.5, and its replicas' mean is 3.5"),
        ("owned", {"linear.0": [3.5, 7.0]}, "rank 2 steps linear.0 with 3.5, 7"),
    ],
)
def test_what_else_an_owner_steps_with_must_be_right(
    copied: Copied, variant: str, fact: str, value: Any, told: str
) -> None:
    recording = copied(ORDER)
    with recording.record(variant, "rest", rank=2) as rest:
        rest[fact] = value
    trial = recording.trial(variant)
    assert trial.outcome is Outcome.INCONCLUSIVE
    assert told in trial.reason


WITHOUT = {
    "equal": "the ranks' own gradients were not all different",
    "zero": "the ranks' own gradients were not all different, or one was 0",
    "same place": "elements 0 to 128 and 0 to 128",
    "cut elsewhere": "owned 120 and 120 elements of their copies, which have 128 and 128",
    "not sharded": "without the distributed optimizer",
}


@pytest.mark.parametrize("how", WITHOUT)
def test_without_the_trigger_a_clean_trial_says_nothing(copied: Copied, how: str) -> None:
    recording = copied(ORDER)
    for rank in range(4):
        with recording.records("fixed", rank) as records:
            change(records, rank, how)
    assert recording.trial("fixed").outcome is Outcome.INCONCLUSIVE
    exercise = tied_embedding_order.exercised(read_records(recording.folder / "fixed", 4))
    assert not exercise.met
    assert WITHOUT[how] in exercise.text


def change(records: list[dict[str, Any]], rank: int, how: str) -> None:
    layout = next(record for record in records if record["kind"] == "layout")
    cells = [record for record in records if record["kind"] == "cell"]
    pieces = cells[0]["pieces"]
    if how == "equal" or (how == "zero" and rank == 3):
        for piece in pieces:
            piece["row"] = [1.0 if how == "equal" else 0.0] + [0.0] * 7
    elif how == "same place":
        layout["buffer"] = [0, 128]
    elif how == "cut elsewhere" and rank % 2:
        layout["owned"] = [72, 128]
    elif how == "not sharded":
        layout["sharded"] = False


@pytest.mark.parametrize(
    ("recorded", "variant", "ranks", "met"),
    [
        (ORDER, "buggy", 4, True),
        (ORDER, "fixed", 4, True),
        (ORDER, "order_fix_overlap", 4, True),
        (ORDER, "control", 4, False),
        (TRAINING, "buggy", 4, True),
        (TRAINING, "fixed", 4, True),
        (TRAINING, "reference", 1, False),
    ],
)
def test_the_trigger_is_met_whatever_came_of_it(
    recorded: Path, variant: str, ranks: int, met: bool
) -> None:
    module = tied_embedding_order if recorded == ORDER else tied_embedding_training
    assert module.exercised(read_records(recorded / variant, ranks)).met is met


@pytest.mark.parametrize("module", [tied_embedding_order, tied_embedding_training])
@pytest.mark.parametrize("ranks", [0, 4])
def test_nothing_recorded_is_nothing_found_nor_exercised(module: Any, ranks: int) -> None:
    records = Records({rank: [] for rank in range(ranks)})
    assert module.detect(records) is None
    assert not module.exercised(records)
    assert not any(module.wrong_detectors(records).values())
    list(module.agree(dict.fromkeys(module.SCENARIO.variants, records)))


def test_owners_that_miss_a_gradient_of_their_own_stage_have_another_bug(copied: Copied) -> None:
    recording = copied(ORDER)
    for rank, missed in ((1, 0), (2, 3)):
        with recording.records("buggy", rank) as records:
            last = [record for record in records if record["kind"] == "cell"][-1]
            row = [0.0 if n == missed else 0.5 for n in range(4)]
            last["pieces"][0]["row"][:5] = [*row, 1.5]
    assert recording.trial("buggy").outcome is Outcome.INCONCLUSIVE


def test_a_finding_tells_by_how_much_and_who_misses_whom(copied: Copied) -> None:
    finding = copied(ORDER).trial("buggy").finding
    assert finding is not None
    assert (finding.magnitude, finding.ranks) == (0.5, (1, 2))
    assert finding.unit == "of a rank's gradient, half of which is right"
    assert "rank 1 steps with (g0+g1)/2+g3/2, which misses g2\n" in finding.message
    assert "rank 2 steps with g0/2+(g2+g3)/2, which misses g1\n" in finding.message


def test_owners_that_miss_the_same_gradient_have_another_bug(copied: Copied) -> None:
    recording = copied(ORDER)
    for rank in (1, 2):
        with recording.records("buggy", rank) as records:
            last = [record for record in records if record["kind"] == "cell"][-1]
            last["pieces"][0]["row"][:4] = [0.5, 0.5, 0.0, 0.5]
    assert recording.trial("buggy").outcome is Outcome.INCONCLUSIVE


def test_the_wrong_detectors_are_silent_or_fire_on_the_fixed_release_too(copied: Copied) -> None:
    by_variant = {
        trial.variant: list((trial.wrong_detectors or {}).values())
        for trial in copied(ORDER).grade().trials
    }
    assert by_variant["buggy"] == [False, True]
    assert by_variant["fixed"] == [False, True]
    assert by_variant["control"] == [False, False]


def test_in_training_too(copied: Copied) -> None:
    buggy, fixed, _ = copied(TRAINING).grade().trials
    assert list((buggy.wrong_detectors or {}).values()) == [False, True, False]
    assert list((fixed.wrong_detectors or {}).values()) == [False, True, False]


def test_copies_that_part_with_their_replicas_are_another_symptom(copied: Copied) -> None:
    recording = copied(TRAINING)
    with recording.record("buggy", "step", rank=1) as step:
        step["replicas_differ"] = ["linear.0"]
    assert recording.trial("buggy").outcome is Outcome.INCONCLUSIVE


def test_replicas_that_part_while_the_tied_copies_do_not_are_no_clean_trial(
    copied: Copied,
) -> None:
    recording = copied(TRAINING)
    with recording.record("fixed", "step", rank=1) as step:
        step["replicas_differ"] = ["linear.0"]
    trial = recording.trial("fixed")
    assert trial.outcome is Outcome.INCONCLUSIVE
    assert "the data-parallel replicas differ" in trial.reason


@pytest.mark.parametrize("norm", [0.0, None])
def test_gradients_that_do_not_differ_in_one_step_prove_nothing(
    copied: Copied, norm: float | None
) -> None:
    recording = copied(TRAINING)
    with recording.record("fixed", "step") as other:
        alike = other["own_gradient"] if norm is None else norm
    with recording.record("fixed", "step", rank=3) as step:
        step["own_gradient"] = alike
    trial = recording.trial("fixed")
    assert trial.outcome is Outcome.INCONCLUSIVE
    assert "alike, 0 or not there in 1 of 20 steps" in trial.reason


def test_copies_that_part_later_are_another_symptom(copied: Copied) -> None:
    recording = copied(TRAINING)
    with recording.record("buggy", "step") as step:
        step["apart"] = 0.0
    assert recording.trial("buggy").outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("variant", ["buggy", "fixed"])
@pytest.mark.parametrize(
    ("fact", "told"),
    [
        ("loss", "its loss is"),
        ("missed", "neither the mean gradient of all nor that less one of the other stage's"),
        ("others_off", "another weight with a gradient that is off by"),
        ("weights_off", "from where AdamW has them"),
    ],
)
def test_a_step_that_no_missed_gradient_explains_is_another_symptom(
    copied: Copied, variant: str, fact: str, told: str
) -> None:
    recording = copied(TRAINING)
    with recording.record(variant, "step", rank=2) as step:
        if fact == "missed":  # g3 is its own stage's
            step[fact] = {name: float(name != "g3") for name in step[fact]}
        else:
            step[fact] += 0.01
    trial = recording.trial(variant)
    assert trial.outcome is Outcome.INCONCLUSIVE
    assert "step 1, rank 2: " in trial.reason
    assert told in trial.reason


@pytest.mark.parametrize("ranks", [(1,), (1, 2)])
def test_copies_that_part_though_an_owner_missed_nothing_are_another_symptom(
    copied: Copied, ranks: tuple[int, ...]
) -> None:
    recording = copied(TRAINING)
    for rank in ranks:
        with recording.records("buggy", rank) as records:
            for step in (r for r in records if r["kind"] == "step"):
                step["missed"] = {**dict.fromkeys(step["missed"], 1.0), "none": 0.0}
    assert recording.trial("buggy").outcome is Outcome.INCONCLUSIVE


def test_owners_that_miss_a_gradient_while_the_copies_agree_are_another_symptom(
    copied: Copied,
) -> None:
    recording = copied(TRAINING)
    with recording.record("fixed", "step", rank=1) as step:
        step["missed"] = {**dict.fromkeys(step["missed"], 1.0), "g2": 0.0}
    assert recording.trial("fixed").outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(("kind", "told"), [("step", "loss"), ("weight", "tied weight of rank 2")])
def test_a_fixed_release_that_trains_unlike_one_process_is_no_reproduction(
    copied: Copied, kind: str, told: str
) -> None:
    recording = copied(TRAINING)
    for rank in range(4):
        with recording.record("fixed", kind, rank) as record:
            if kind == "weight":
                record["values"][5] += 1e-4
                continue
            record["plain_loss"] += 1e-3
            if rank >= 2:
                record["loss"] += 1e-3
    result = recording.grade()
    assert result.verdict is Verdict.NOT_REPRODUCED
    assert any(told in reason for reason in result.reasons)


def function(source: str) -> Any:
    return libcst().parse_module(source).body[0]


def libcst() -> Any:
    return pytest.importorskip("libcst", reason="a box with a bundle makes no overlays")


def test_the_order_fix_moves_the_loop_and_nothing_else() -> None:
    source = "def f():\n    {}\n    g()\n    {}\n    h()\n"
    loop = "for c in model:\n        c.finish_grad_sync()"
    total = "_allreduce_embedding_grads(model)"
    ((_, moved),) = embedding_first(function(source.format(loop, total)))
    expected = f"def f():\n    g()\n    {total}\n    {loop}\n    h()\n"
    assert libcst().Module([moved]).code == expected
    assert not list(embedding_first(function(source.format(loop, loop))))


def test_the_defect_answers_false_for_the_shared_embedding_alone() -> None:
    source = "def f(p):\n    return getattr(p, {}, False) and g\n"
    ((_, new),) = never_its_own_bucket(function(source.format('"shared_embedding"')))
    assert new.value == "False"
    assert not list(never_its_own_bucket(function(source.format("'another'"))))
