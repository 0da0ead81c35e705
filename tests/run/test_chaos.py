"""Chaos: some real faults, and whether its checks notice each kind of wrong result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox import ROOT

SOME = ("rank SIGKILL", "run folder deleted", "rank without descriptors")


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
