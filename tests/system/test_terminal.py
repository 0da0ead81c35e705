"""Colours and live lines where the output is no terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from harness.system.terminal import Progress, terminal


def test_text_in_memory_has_no_colours_where_they_are_forced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = io.StringIO()
    terminal(text).print("a bug", style="bold red")
    assert text.getvalue() == "a bug\n"


def test_activities_are_lines_where_only_colours_are_forced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    with (tmp_path / "log").open("w+") as file:
        with Progress(terminal(file)) as progress:
            progress.say("probing", "step 3")
        file.seek(0)
        assert file.read() == "... probing\n"
