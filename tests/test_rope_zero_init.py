"""Grading of rope_zero_init, on a recorded run of all its variants on the CPU, and of its sibling
on records that are made up."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.detectors.buffers import difference
from harness.spec import Lane, Outcome, Records, Verdict
from harness.trial.grade import grade
from harness.trial.records import read_records
from scenarios.oracles import buffers
from scenarios.transformers import rope_zero_init, rope_zero_init_v5
from scenarios.transformers.rope_zero_init import DOCUMENTED
from tests.recording import Recording, stored_verdict

RECORDED = Path(__file__).parent / "recorded" / "rope_zero_init_cpu"
CLEAN = [name for name in rope_zero_init.SCENARIO.variants if name != "buggy"]


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    """A copy of the recorded run, to tamper with."""
    return Recording(shutil.copytree(RECORDED, tmp_path / "run"))


def test_a_stored_run_is_graded_as_it_was_when_it_ran() -> None:
    stored = stored_verdict(RECORDED)
    graded = json.loads(json.dumps(grade(RECORDED).to_json()))
    assert graded == stored
    assert graded["verdict"] == "reproduced"
    assert [trial["variant"] for trial in graded["trials"]] == ["buggy", *CLEAN]


@pytest.mark.parametrize("name", ["cos_cached", "sin_cached"])
@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("mismatched", 329319),
        ("greatest", 1.9921875),
        ("place", [1148, 3]),
        ("relative", 8319.0),
        ("relative_place", [3657, 12]),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_other_figures_than_the_documented_are_inconclusive(
    recording: Recording, name: str, fact: str, value: Any, rank: int
) -> None:
    with recording.record("buggy", "buffers", rank) as record:
        next(d for d in record["differing"] if d["name"].endswith(name))[fact] = value
    trial = recording.trial("buggy")
    assert trial.outcome is Outcome.INCONCLUSIVE
    assert f"{fact.replace('_', ' ')} is " in trial.reason
    assert "is documented" in trial.reason
    assert recording.grade().exit_code == 3


def without_one_difference(records: list[dict[str, Any]]) -> None:
    next(r for r in records if r["kind"] == "buffers")["differing"].pop()


def with_one_too_many(records: list[dict[str, Any]]) -> None:
    bf16, fp32, _ = (r for r in records if r["kind"] == "buffers")
    fp32["differing"].append(bf16["differing"][0])


def diverging_at(position: int | None) -> Callable[[list[dict[str, Any]]], None]:
    def tamper(records: list[dict[str, Any]]) -> None:
        next(r for r in records if r["kind"] == "logits")["first"] = position

    return tamper


def equal_again(records: list[dict[str, Any]]) -> None:
    next(r for r in records if r["kind"] == "logits")["differing"] -= 1


def other_weights(records: list[dict[str, Any]]) -> None:
    next(r for r in records if r["kind"] == "logits")["unequal_parameters"] = ["lm_head.weight"]


def no_logits(records: list[dict[str, Any]]) -> None:
    records[:] = [record for record in records if record["kind"] != "logits"]


@pytest.mark.parametrize(
    "tamper",
    [
        without_one_difference,
        with_one_too_many,
        diverging_at(256),
        diverging_at(258),
        diverging_at(None),
        equal_again,
        other_weights,
    ],
)
def test_half_of_the_symptom_is_inconclusive(
    recording: Recording, tamper: Callable[[list[dict[str, Any]]], None]
) -> None:
    with recording.records("buggy") as records:
        tamper(records)
    assert recording.trial("buggy").outcome is Outcome.INCONCLUSIVE


def test_buffers_without_logits_are_inconclusive(recording: Recording) -> None:
    for rank in (0, 1):
        with recording.records("buggy", rank) as records:
            no_logits(records)
    assert recording.trial("buggy").outcome is Outcome.INCONCLUSIVE


def test_a_gpus_figures_are_not_those_of_a_cpu(recording: Recording) -> None:
    for rank in (0, 1):
        with recording.records("buggy", rank) as records:
            for record in records:
                record.update({"lane": "gpu"} if record["kind"] == "buffers" else {})
    assert recording.trial("buggy").outcome is Outcome.INCONCLUSIVE


def test_the_figures_of_a_gpu_are_those_of_the_report() -> None:
    gpu = {key: told.mismatched for key, told in DOCUMENTED.figures[Lane.GPU].items()}
    assert gpu["bf16", "cos_cached"] == 329332
    assert gpu["bf16", "sin_cached"] == 324808
    assert gpu["fp32", "cos_cached"] == 88


def rounding(of: float, dtype: str = "torch.bfloat16") -> dict[str, Any]:
    return {"greatest": of, "dtype": dtype, "expected_dtype": "torch.bfloat16"}


def test_a_gpus_own_rounding_is_no_finding_and_nan_is() -> None:
    assert not buffers.beyond(rounding(2**-8), 2**-7)
    assert buffers.beyond(rounding(2**-8), 0.0)
    assert buffers.beyond(rounding(float("nan")), 2**-7)
    assert buffers.beyond(rounding(0.0, "torch.float16"), 2**-7)


NOT_AT_WORK: list[tuple[str, Any, str]] = [
    ("sharded", 20, "rank 1, bf16: zero.Init sharded 20 of 21 parameters"),
    (
        "casts", {"arange": "float32", "ones": "bfloat16"},
        "rank 1, bf16: torch.arange, asked for float32, gave float32",
    ),
    ("compared", {}, "rank 1, bf16: the model has no buffer"),
]  # fmt: skip


@pytest.mark.parametrize("variant", [name for name in CLEAN if name != "control"])
@pytest.mark.parametrize(("fact", "value", "why"), NOT_AT_WORK, ids=str)
def test_a_clean_trial_without_zero_init_at_work_is_not_exercised(
    recording: Recording, variant: str, fact: str, value: Any, why: str
) -> None:
    with recording.record(variant, "buffers", rank=1) as record:
        record[fact] = value
    assert recording.trial(variant).outcome is Outcome.INCONCLUSIVE
    exercise = rope_zero_init.exercised(read_records(recording.folder / variant, 2))
    assert (exercise.met, exercise.text) == (False, why)


def test_positions_that_bf16_can_hold_exercise_nothing(recording: Recording) -> None:
    for rank in (0, 1):
        with recording.record("fixed", "logits", rank) as logits:
            logits["tokens"] = 257
    assert "tokens is 257, and not 320" in recording.trial("fixed").reason
    exercise = rope_zero_init.exercised(read_records(recording.folder / "fixed", 2))
    assert (exercise.met, exercise.text) == (False, "the logits of 257 tokens were compared")


def test_equal_logits_of_other_weights_prove_nothing(recording: Recording) -> None:
    with recording.records("fixed", rank=1) as records:
        other_weights(records)
    trial = recording.trial("fixed")
    assert trial.outcome is Outcome.INCONCLUSIVE
    assert "the weights are not the reference's: lm_head.weight" in trial.reason


@pytest.mark.parametrize("variant", rope_zero_init.SCENARIO.variants)
def test_the_trigger_is_met_whatever_came_of_it(recording: Recording, variant: str) -> None:
    exercise = rope_zero_init.exercised(read_records(recording.folder / variant, 2))
    assert exercise.met is (variant != "control")
    assert "zero.Init sharded" in exercise.text


@pytest.mark.parametrize("scenario", [rope_zero_init, rope_zero_init_v5])
def test_nothing_recorded_is_nothing_found_and_nothing_exercised(scenario: Any) -> None:
    assert scenario.detect(Records({})) is None
    assert scenario.exercised(Records({})).text == "no model was built"


def test_the_finding_tells_each_buffer_once(recording: Recording) -> None:
    finding = recording.trial("buggy").finding
    assert finding is not None
    assert (finding.magnitude, finding.unit) == (2.0, "from the reference")
    assert finding.message.splitlines()[0] == (
        "bf16 model.layers.0.self_attn.rotary_emb.cos_cached: 329320 of 524288 elements (62.8%) "
        "differ, by up to 2 at (1148, 2), relatively by up to 8320 at (3657, 11)"
    )
    assert len(finding.message.splitlines()) == 5  # cosines, sines in bf16 and fp16, and the logits


def test_both_wrong_detectors_are_silent_while_the_symptom_shows(recording: Recording) -> None:
    assert list((recording.trial("buggy").wrong_detectors or {}).values()) == [False, False]


def test_a_wrong_buffer_of_the_fixed_release_is_no_reproduction(recording: Recording) -> None:
    for rank in (0, 1):
        source = recording.rank_file("buggy", rank).read_text().splitlines()
        seen = [json.loads(line) for line in source]
        with recording.records("fixed", rank) as records:
            own = [r for r in records if r["kind"] not in ("buffers", "logits")]
            shown = [r for r in seen if r["kind"] in ("buffers", "logits")]
            records[:] = [*own[:2], *shown, *own[2:]]
    result = recording.grade()
    assert result.verdict is Verdict.NOT_REPRODUCED
    assert "fixed: symptom, expected clean" in result.reasons


def turned(name: str, mismatched: int, elements: int, dtypes: tuple[str, str]) -> dict[str, Any]:
    place = [1, 2] if name in ("cos", "sin") else [1]
    return {
        "name": name, "dtype": f"torch.{dtypes[0]}", "expected_dtype": f"torch.{dtypes[1]}",
        "elements": elements, "mismatched": mismatched, "greatest": 0.5, "place": place,
        "relative": 0.25, "relative_place": place,
    }  # fmt: skip


def v5(**changed: Any) -> Records:
    """Records of transformers 5.23.0 under zero.Init, as a CPU has them."""
    both = ("bfloat16", "bfloat16")
    built = {
        "kind": "buffers", "rank": 0, "step": None, "lane": "cpu",
        "casts": {"arange": "bfloat16", "ones": "bfloat16"}, "sharded": 21, "parameters": 21,
        "compared": {name: [64] for name in rope_zero_init_v5.FREQUENCIES}, "parted": [],
        "reference_off": dict.fromkeys(rope_zero_init_v5.FREQUENCIES, 1e-4),
        "turned_off": {"cos": 2**-9, "sin": 2**-9},
        "differing": [turned(name, 63, 64, ("bfloat16", "float32"))
                      for name in rope_zero_init_v5.FREQUENCIES],
        "turned": [turned("cos", 396216, 524288, both), turned("sin", 405154, 524288, both)],
    }  # fmt: skip
    answered = {
        "kind": "logits", "rank": 0, "step": None, "tokens": 320, "parameters": 21,
        "unequal_parameters": [], "reference": "cpu", "first": 1, "after": 319, "differing": 319,
        "greatest": {"257": 1.5, "320": 1.57}, "reference_off": 0.01,
        "apart": [0.0] + [1.5] * 318 + [1.57],
    }  # fmt: skip
    of_logits = {k: v for k, v in changed.items() if k not in built}
    of_buffers = {k: v for k, v in changed.items() if k in built}
    return Records({0: [built | of_buffers, answered | of_logits]})


def test_the_frequencies_of_transformers_5_are_the_documented_symptom() -> None:
    found = rope_zero_init_v5.detect(v5())
    assert found is not None
    assert found.documented
    assert found.parameters == rope_zero_init_v5.FREQUENCIES
    assert "torch.bfloat16, where the reference is torch.float32; 63 of 64" in found.message
    assert "differ from position 1 on, by up to 1.57" in found.message
    assert rope_zero_init_v5.exercised(v5()).met


@pytest.mark.parametrize("lane", list(Lane))
def test_other_figures_of_the_frequencies_are_not_the_documented_symptom(lane: Lane) -> None:
    names = rope_zero_init_v5.FREQUENCIES
    odd: list[dict[str, Any]] = [
        {"differing": [turned(names[0], 63, 64, ("bfloat16", "float32"))]},
        {"differing": [turned(name, 62, 64, ("bfloat16", "float32")) for name in names]},
        {"differing": [turned(name, 63, 64, ("float32", "float32")) for name in names]},
        {"first": 2},
        {"first": None},
        {"differing": [], "turned": []},
        {"unequal_parameters": ["lm_head.weight"]},
        {"differing": [], "turned": [], "first": None, "unequal_parameters": ["lm_head.weight"]},
    ]
    for changed in odd:
        found = rope_zero_init_v5.detect(v5(lane=lane, **changed))
        assert found is not None
        assert not found.documented, changed
    fewer = v5(lane=lane, turned=[turned("cos", 1, 524288, ("bfloat16", "bfloat16"))])
    found = rope_zero_init_v5.detect(fewer)
    assert found is not None
    assert found.documented is (lane is Lane.GPU), "of the cosines only those of a CPU are known"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (
            {"compared": {"model.rotary_emb.inv_freq": [64]}},
            "no model.rotary_emb.original_inv_freq",
        ),
        (
            {"casts": {"arange": "bfloat16", "ones": "float32"}},
            "torch.ones, asked for float32, gave float32",
        ),
        ({"sharded": 0}, "zero.Init sharded 0 of 21 parameters"),
        ({"sharded": 0, "parameters": 0}, "zero.Init sharded 0 of 0 parameters"),
    ],
)
def test_transformers_5_without_zero_init_at_work_is_not_exercised(
    changed: dict[str, Any], why: str
) -> None:
    exercise = rope_zero_init_v5.exercised(v5(**changed))
    assert not exercise
    assert why in exercise.text


@pytest.mark.parametrize(
    ("kind", "fact", "value", "told"),
    [
        ("buffers", "reference_off", {"model.rotary_emb.inv_freq": 0.1}, "inv_freq is 0.1 off"),
        ("buffers", "turned_off", {"cos": 0.1}, "the reference's cos is 0.1 off plain torch's"),
        ("logits", "reference_off", 0.1, "the reference's logits are off by 0.1 of plain torch's"),
    ],
)
@pytest.mark.parametrize("healthy", [True, False])
def test_a_reference_that_is_no_llama_proves_nothing(
    kind: str, fact: str, value: Any, told: str, healthy: bool
) -> None:
    records = v5(differing=[], turned=[], first=None) if healthy else v5()
    records.of(kind)[0][fact] = value
    found = rope_zero_init_v5.detect(records)
    assert found is not None
    assert not found.documented
    assert told in found.message


def test_a_guarded_arange_is_exercised_all_the_same() -> None:
    guarded = v5(casts={"arange": "float32", "ones": "bfloat16"}, differing=[], turned=[])
    assert rope_zero_init_v5.exercised(guarded).met


def test_logits_are_compared_with_the_reference_that_agrees_for_longest() -> None:
    ours = torch.zeros(1, 6, 3)
    early, late, nan = ours.clone(), ours.clone(), ours.clone()
    early[0, 1, 2], late[0, 3:, 0], nan[0, 2, 1] = 9.0, 0.5, math.nan
    told = buffers.diverging(ours, {"early": early, "late": late}, (3, 4, 100))
    assert told == {
        "tokens": 6, "reference": "late", "first": 3, "after": 3, "differing": 3,
        "greatest": {"3": 0.0, "4": 0.5, "6": 0.5}, "apart": [0.0, 0.0, 0.0, 0.5, 0.5, 0.5],
    }  # fmt: skip
    assert buffers.diverging(ours, {"same": ours}, ())["first"] is None
    assert buffers.diverging(ours, {"nan": nan}, ())["first"] == 2


def test_a_difference_is_recorded_as_json_can_hold_it() -> None:
    ours, theirs = torch.tensor([1.0, 2.0], dtype=torch.bfloat16), torch.tensor([1.0, 2.5])
    found = difference("inv_freq", ours, theirs)
    (told,) = json.loads(json.dumps(buffers.facts(filter(None, [found]))))
    assert (told["dtype"], told["expected_dtype"]) == ("torch.bfloat16", "torch.float32")
    assert (told["mismatched"], told["greatest"], told["place"]) == (1, 0.5, [1])
