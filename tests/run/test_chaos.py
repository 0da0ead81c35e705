"""Chaos: some real faults, and whether its checks notice each kind of wrong result."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos import __main__ as chaos
from tests.chaos.case import Case, finish
from tests.chaos.kinds import KINDS
from tests.recording import Recording
from tests.sandbox import ROOT, Sandbox

SOME = ("rank SIGKILL", "records deleted", "overlay damaged")


@pytest.mark.launch
@pytest.mark.slow
def test_some_faults_end_as_documented(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = f"-m tests.chaos --faults {len(SOME)} --seed 7 --scenario sampler_shards --out {out}"
    kinds = [word for kind in SOME for word in ("--kind", kind)]
    command = [sys.executable, *words.split(), *kinds]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    faults = json.loads((out / "faults.json").read_text())
    assert sorted(one["kind"] for one in faults) == sorted(SOME)
    assert process.stdout.endswith("3 faults, 0 not as documented\n")


def test_the_same_seed_makes_the_same_faults_of_every_kind() -> None:
    faults, repeat, others = (list(chaos.draw(KINDS, len(KINDS), seed)) for seed in (1, 1, 2))
    assert faults == repeat != others
    assert {kind.name for _, kind, _, _ in faults} == {kind.name for kind in KINDS}


# Commands with each kind of wrong result


@pytest.fixture
def case(recording: Recording, tmp_path: Path) -> Case:
    """A case with a recorded run, which is reproduced."""
    (tmp_path / "case").mkdir()
    sandbox = Sandbox.under(tmp_path / "case", tmp_path / "cache")
    sandbox.runs.mkdir()
    recording.folder.rename(sandbox.runs / "20261121-033325-bf16_clip-ce3e10")
    return Case(0, "", "bf16_clip", sandbox, random.Random(0))


def ends(case: Case, *scripts: str) -> list[str]:
    """Run commands that should end with exit code 0; returns what is wrong."""
    for script in scripts or ("",):
        case.begin([sys.executable, "-c", script])
    return finish(case, frozenset({0})).wrong


@pytest.mark.slow
def test_an_undocumented_end_of_a_command_is_wrong(case: Case) -> None:
    expected = {
        "raise SystemExit(1)": "exit code 1, documented [0]",
        "import os; os.abort()": "exit code -6, documented [0]",
        "import subprocess; subprocess.Popen(['sleep', '100'])": "is left: sleep, sleep 100",
        "import sys; print('Traceback (most recent call last)', file=sys.stderr)": "stderr has",
    }
    for complaint, part in zip(ends(case, *expected), expected.values(), strict=True):
        assert part in complaint


def test_a_verdict_that_grades_differently_is_wrong(case: Case) -> None:
    next(case.sandbox.runs.rglob("rank_1.jsonl")).unlink()
    (complaint,) = ends(case)
    assert complaint.startswith("reproduced on disk, graded again inconclusive")


def test_reproduced_on_changed_evidence_is_wrong(case: Case) -> None:
    assert ends(case) == [], "nothing was changed"
    case.touched = -1.0  # before the recording, whose files have no time
    assert ends(case) == ["reproduced on evidence that was changed"]
    case.touched = time.time() + 1e6  # it came after the verdict
    assert ends(case) == []


def test_an_unfinished_file_is_wrong(case: Case) -> None:
    next(case.sandbox.runs.glob("*/buggy/exit.json")).write_text('{"code": ')
    assert any(wrong.startswith("unfinished: ") for wrong in ends(case))


def test_exit_code_0_without_a_verdict_is_wrong(case: Case) -> None:
    next(case.sandbox.runs.glob("*/verdict.json")).unlink()
    assert ends(case) == ["exit code 0 without a verdict on disk"]
