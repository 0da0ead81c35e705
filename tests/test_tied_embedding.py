"""Grading of the two scenarios on a tied embedding's gradients, on recorded runs on the CPU."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.grade import grade
from harness.records import VERDICT_FILE
from harness.spec import Outcome, Verdict
from scenarios.tied_embedding_order import TABLES, embedding_first
from scenarios.tied_embedding_training import never_its_own_bucket
from tests.recording import Recording

RECORDED = Path(__file__).parent / "recorded"
ORDER, TRAINING = RECORDED / "tied_embedding_order_cpu", RECORDED / "tied_embedding_training_cpu"
Copied = Callable[[Path], Recording]


@pytest.fixture
def copied(tmp_path: Path) -> Copied:
    """Copies a recorded run, to tamper with."""
    return lambda recorded: Recording(shutil.copytree(recorded, tmp_path / "run"))


@pytest.mark.parametrize("recorded", [ORDER, TRAINING], ids=lambda path: path.name)
def test_a_stored_run_is_graded_as_it_was_when_it_ran(recorded: Path) -> None:
    stored = json.loads((recorded / VERDICT_FILE).read_text())
    del stored["seconds"]
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
    assert recording.trial("fixed").outcome is Outcome.SYMPTOM
    assert recording.grade().verdict is Verdict.NOT_REPRODUCED


def test_what_nobody_steps_with_may_be_anything(copied: Copied) -> None:
    recording = copied(ORDER)
    with recording.records("fixed", 0) as records:
        last = [record for record in records if record["kind"] == "cell"][-1]
        next(piece for piece in last["pieces"] if not piece["owned"])["row"][0] = 7.0
    assert recording.grade().verdict is Verdict.REPRODUCED


@pytest.mark.parametrize("how", ["equal", "zero", "same place", "not sharded"])
def test_without_the_trigger_a_clean_trial_says_nothing(copied: Copied, how: str) -> None:
    recording = copied(ORDER)
    for rank in range(4):
        with recording.records("fixed", rank) as records:
            for record in records:
                if record["kind"] == "cell" and record["when"] == "before":
                    for piece in record["pieces"]:
                        piece["row"] = {
                            "equal": [1.0] + [0.0] * 7,
                            "zero": [0.0] * 8 if rank == 3 else piece["row"],
                        }.get(how, piece["row"])
                if record["kind"] == "layout" and how == "same place":
                    record["buffer"] = [0, 128]
                if record["kind"] == "layout" and how == "not sharded":
                    record["sharded"] = False
    trial = recording.trial("fixed")
    assert trial.outcome is Outcome.INCONCLUSIVE
    assert "not exercised" in trial.reason


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


def test_copies_that_part_later_are_another_symptom(copied: Copied) -> None:
    recording = copied(TRAINING)
    with recording.record("buggy", "step") as step:
        step["apart"] = 0.0
    assert recording.trial("buggy").outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(("kind", "told"), [("step", "loss"), ("weight", "tied weight of rank 2")])
def test_a_fixed_release_that_trains_unlike_one_process_is_no_reproduction(
    copied: Copied, kind: str, told: str
) -> None:
    recording = copied(TRAINING)
    with recording.record("fixed", kind, rank=2) as record:
        if kind == "step":
            record["loss"] += 1e-3
        else:
            record["values"][5] += 1e-4
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
