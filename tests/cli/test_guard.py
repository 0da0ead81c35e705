"""The command guard: what it refuses. tests/guard has what it runs and reports."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.training.guard import known
from tests.sandbox import refused

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("", ["the command of the training is missing", "torchrun --nproc-per-node 8 train.py"]),
        ("--quiet", ["the command of the training is missing"]),
        ("--", ["the command of the training is missing"]),
        ("no_such_command", ["no command 'no_such_command': write one like torchrun"]),
        ("train.py", ["no command 'train.py': write python train.py"]),
        ("--budgets 1 true", ["unrecognized arguments: --budgets", "--help"]),
        ("--budget 0 true", ["--budget: 0: write a number from 0.01 to 100"]),
        ("--budget much true", ["--budget: much: write a number from"]),
        ("--budget nan true", ["--budget: nan: write a number from"]),
        ("--every 0 true", ["--every: 0: write a whole number from 1"]),
        ("--checks replica true", ["no check 'replica': did you mean replicas?", "checkpoints."]),
        ("--on-alarm shout true", ["no action 'shout'", "warn, stop, command:WORDS"]),
        ("--on-alarm command: true", ["no action 'command:'"]),
        ("--out file true", ["--out: file is not a folder"]),
        ("--out file/in true", ["cannot write ", "file/in"]),
    ],
)
def test_a_mistake_is_one_line_that_names_the_choices_and_leaves_nothing(
    words: str, parts: list[str], capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(subprocess, "Popen", None)
    Path("file").write_text("")
    Path("train.py").write_text("")
    complaint = refused(capsys, ["guard", *words.split()])
    assert all(part in complaint for part in parts), complaint
    assert {path.name for path in tmp_path.iterdir()} == {"file", "train.py"}


@pytest.mark.parametrize(
    ("text", "mode", "part"),
    [
        ("echo\n", 0o755, "cannot start './start': Exec format error; name its interpreter"),
        ("#!/no/such/sh\n", 0o755, "cannot start './start': No such file or directory"),
        ("#!/bin/sh\n", 0o644, "no command './start': it is a file, but not executable"),
    ],
)
def test_what_the_kernel_does_not_start_is_a_mistake(
    text: str,
    mode: int,
    part: str,
    capsys: Capture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(known, "bugs", list)
    Path("start").write_text(text)
    Path("start").chmod(mode)
    assert part in refused(capsys, ["guard", "./start"])
