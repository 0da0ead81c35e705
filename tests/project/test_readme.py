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


def forget_everything(folder: Path, environment: pytest.MonkeyPatch) -> None:
    """As on a machine that is new: an empty home, empty caches, and no environment of ours."""
    places = {"HOME": "home", "XDG_CACHE_HOME": "cache", "UV_CACHE_DIR": "cache/uv"}
    places |= {"PIP_CACHE_DIR": "cache/pip", "HARNESS_CACHE": "cache/distributed-bugs"}
    for name, place in places.items():
        environment.setenv(name, str(folder / place))
    (folder / "home").mkdir()
    for name in ("XDG_CONFIG_HOME", "HARNESS_RUNS", "VIRTUAL_ENV", "PYTHONPATH"):
        environment.delenv(name, raising=False)
    paths = os.environ["PATH"].split(os.pathsep)
    environment.setenv("PATH", os.pathsep.join(p for p in paths if p != f"{sys.prefix}/bin"))


@pytest.mark.launch
@pytest.mark.slow
@pytest.mark.parametrize("fresh", [False, pytest.param(True, marks=pytest.mark.cold)])
def test_every_command_of_the_readme_works_in_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: bool
) -> None:
    clone = tmp_path / "a clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (clone / "README.md").write_text(readme)
    if fresh:
        forget_everything(tmp_path, monkeypatch)
    else:
        (clone / ".venv").symlink_to(sys.prefix)  # make run need not set it up
        os.utime(clone / "pyproject.toml", (0, 0))
    table = questions(readme)
    assert len(table) == 7
    lines = [line for line in commands(readme) if line != TESTS] + [line for line, _ in table]
    assert lines[0] == "make run"
    printed = printed_by(lines, clone, os.environ["PATH"])
    missing = [line for line in output_lines(readme) if line not in printed]
    printed = [" ".join(line.split()) for line in printed]  # an answer is a row of a table
    answers = {*printed, *map(without_numbers, printed)}
    of_catalogue = "check --python"  # its counts change with each new bug
    missing += [
        answer
        for command, answer in table
        if (without_numbers(answer) if of_catalogue in command else answer) not in answers
    ]
    assert not missing, missing
    assert not list(clone.glob("uv.lock")), "a command has left a file"
