"""The commands of the README work in a clone, unchanged and in their order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.system.files import ROOT

TESTS = "make test"
"""A command of the README that runs this test."""


def commands(text: str) -> list[str]:
    """The lines of the indented blocks, without comments, in their order."""
    blocks = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [
        re.sub(r"\s{2,}#.*", "", line).strip()
        for line in blocks.splitlines()
        if line.startswith("    ")
    ]


def output_lines(text: str) -> Iterator[str]:
    """The lines of output in the fenced blocks, without times, which differ."""
    for block in re.findall(r"^```\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line != "...":
                yield re.sub(r"\(\d+\.\d s\)", "", line).strip()


@pytest.mark.launch
@pytest.mark.slow
def test_every_command_of_the_readme_works_in_a_clone(tmp_path: Path) -> None:
    clone = tmp_path / "a clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (clone / "README.md").write_text(readme)
    (clone / ".venv").symlink_to(sys.prefix)  # make run need not set it up
    os.utime(clone / "pyproject.toml", (0, 0))
    lines = [line for line in commands(readme) if line != TESTS]
    assert lines[0] == "make run"
    ended = "code=$?; [ $code -le 1 ] || { echo the command before ended with $code; exit 1; }\n"
    script = "".join(f"{line}\n{ended}" for line in lines)
    process = subprocess.run(
        ["bash", "-c", script], cwd=clone, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    printed = [re.sub(r"\(\d+\.\d s\)", "", line).strip() for line in process.stdout.splitlines()]
    missing = [line for line in output_lines(readme) if line not in printed]
    assert not missing, missing
    assert not list(clone.glob("uv.lock")), "a command has left a file"


def test_the_readme_names_the_two_commands_that_do_everything() -> None:
    lines = commands((ROOT / "README.md").read_text(encoding="utf-8"))
    assert lines.count("make run") == lines.count(TESTS) == 1
