"""The commands of the README work, unchanged and in their order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.system.files import ROOT
from tests.project.pages import commands, output_lines, printed_by, without_numbers

TESTS = "make test"
"""A command of the README that runs this test."""


def questions(text: str) -> list[tuple[str, str]]:
    """The commands of the table of questions, and a line of what each prints."""
    return re.findall(
        r"^\| .* \| `(distributed-bugs .*?)` \| `(.*?)` \|$", text, flags=re.MULTILINE
    )


@pytest.mark.launch
@pytest.mark.slow
def test_every_command_of_the_readme_works_in_a_clone(tmp_path: Path) -> None:
    clone = tmp_path / "a clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (clone / "README.md").write_text(readme)
    (clone / ".venv").symlink_to(sys.prefix)  # make run need not set it up
    os.utime(clone / "pyproject.toml", (0, 0))
    table = questions(readme)
    assert len(table) == 7
    lines = [line for line in commands(readme) if line != TESTS] + [line for line, _ in table]
    assert lines[0] == "make run"
    printed = printed_by(lines, clone)
    missing = [line for line in output_lines(readme) if line not in printed]
    answers = {*printed, *map(without_numbers, printed)}
    of_catalogue = "check --python"  # its counts change with each new bug
    missing += [
        answer
        for command, answer in table
        if (without_numbers(answer) if of_catalogue in command else answer) not in answers
    ]
    assert not missing, missing
    assert not list(clone.glob("uv.lock")), "a command has left a file"


def test_the_readme_names_the_two_commands_that_do_everything() -> None:
    lines = commands((ROOT / "README.md").read_text(encoding="utf-8"))
    assert lines.count("make run") == lines.count(TESTS) == 1
