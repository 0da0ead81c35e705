"""What a shell gets when it completes a word."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "word", "mismatch"),
    [
        ("ch", "check", "run"),
        ("run sc", "scenario=", "sc"),
        ("run scenario=bf16_c", "scenario=bf16_clip", "scenario=fp16_overflow"),
        ("show bf16_c", "bf16_clip", "fp16_overflow"),
        ("check --js", "--json", "--strict"),
    ],
)
def test_a_word_is_completed(line: str, word: str, mismatch: str, tmp_path: Path) -> None:
    typed = f"distributed-bugs {line}"
    request = {"_ARGCOMPLETE": "1", "COMP_LINE": typed, "COMP_POINT": str(len(typed))}
    answer = {"_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "answer")}
    command = [sys.executable, "-m", "harness"]
    subprocess.run(command, env={**os.environ, **request, **answer}, timeout=60, check=True)
    completions = [each.strip() for each in (tmp_path / "answer").read_text().split("\013")]
    assert word in completions
    assert mismatch not in completions
