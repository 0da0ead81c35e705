"""Grading of rope_zero_init, on a recorded run of all its variants on the CPU."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.grade import grade
from harness.records import VERDICT_FILE
from harness.spec import Lane, Outcome, Verdict
from scenarios import rope_zero_init
from scenarios.rope_zero_init import DOCUMENTED, Figures
from tests.recording import Recording

RECORDED = Path(__file__).parent / "recorded" / "rope_zero_init_cpu"
CLEAN = [name for name in rope_zero_init.SCENARIO.variants if name != "buggy"]


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    """A copy of the recorded run, to tamper with."""
    return Recording(shutil.copytree(RECORDED, tmp_path / "run"))


def test_a_stored_run_is_graded_as_it_was_when_it_ran() -> None:
    stored = json.loads((RECORDED / VERDICT_FILE).read_text())
    del stored["seconds"]
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
    assert "where the documented figures are" in trial.reason
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
    gpu = {key: figures.mismatched for key, figures in DOCUMENTED[Lane.GPU].items()}
    assert gpu["bf16", "cos_cached"] == 329332
    assert gpu["bf16", "sin_cached"] == 324808
    assert gpu["fp32", "cos_cached"] == 88
    assert Figures(88)[1:] == (None,) * 4


def rounding(of: float, dtype: str = "torch.bfloat16") -> dict[str, Any]:
    return {"greatest": of, "dtype": dtype, "expected_dtype": "torch.bfloat16"}


def test_a_gpus_own_rounding_is_no_finding_and_nan_is() -> None:
    assert not rope_zero_init.beyond(rounding(2**-8), 2**-7)
    assert rope_zero_init.beyond(rounding(2**-8), 0.0)
    assert rope_zero_init.beyond(rounding(float("nan")), 2**-7)
    assert rope_zero_init.beyond(rounding(0.0, "torch.float16"), 2**-7)


@pytest.mark.parametrize("variant", [name for name in CLEAN if name != "control"])
@pytest.mark.parametrize(
    ("fact", "value"), [("sharded", 20), ("casts", {"arange": "float32"}), ("compared", {})]
)
def test_a_clean_trial_without_zero_init_at_work_is_not_exercised(
    recording: Recording, variant: str, fact: str, value: Any
) -> None:
    with recording.record(variant, "buffers", rank=1) as record:
        record[fact] = value
    trial = recording.trial(variant)
    assert trial.outcome is Outcome.INCONCLUSIVE
    assert "not exercised" in trial.reason


def test_both_wrong_detectors_are_silent_while_the_symptom_shows(recording: Recording) -> None:
    assert list((recording.trial("buggy").wrong_detectors or {}).values()) == [False, False]


def test_a_wrong_buffer_of_the_fixed_release_is_no_reproduction(recording: Recording) -> None:
    for rank in (0, 1):
        source = recording.rank_file("buggy", rank).read_text().splitlines()
        seen = [json.loads(line) for line in source]
        with recording.records("fixed", rank) as records:
            own = [r for r in records if r["kind"] not in ("buffers", "logits")]
            shown = [r for r in seen if r["kind"] in ("buffers", "logits")]
            records[:] = [own[0], *shown, *own[1:]]
    result = recording.grade()
    assert result.verdict is Verdict.NOT_REPRODUCED
    assert "fixed: symptom, expected clean" in result.reasons
