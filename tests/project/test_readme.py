"""The commands of the README and of pages in docs/ work, unchanged and in their order."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from harness.system.files import ROOT
from tests.project.test_action import TOOL

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


def questions(text: str) -> list[tuple[str, str]]:
    """The commands of the table of questions, and a line of what each prints, without numbers."""
    rows = re.findall(
        r"^\| .* \| `(distributed-bugs .*?)` \| `(.*?)` \|$", text, flags=re.MULTILINE
    )
    return [(command, without_numbers(line)) for command, line in rows]


def without_numbers(line: str) -> str:
    """A line without its numbers, which differ from machine to machine, and day to day."""
    return re.sub(r"\d+(\.\d+)?", "N", " ".join(line.split()))


def output_lines(text: str) -> Iterator[str]:
    """The lines of output in the fenced blocks, without times, which differ."""
    for block in re.findall(r"^```\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line != "...":
                yield re.sub(r"\(\d+\.\d s\)", "", line).strip()


def printed_by(lines: Iterable[str], folder: Path, path: str = os.environ["PATH"]) -> list[str]:
    """What the commands print in a folder, without times; each ends with 0 or 1."""
    ended = "code=$?; [ $code -le 1 ] || { echo the command before ended with $code; exit 1; }\n"
    script = "".join(f"{line}\n{ended}" for line in lines)
    process = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-3000:]
    return [re.sub(r"\(\d+\.\d s\)", "", line).strip() for line in process.stdout.splitlines()]


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
    answers = {without_numbers(line) for line in printed}
    missing += [answer for _, answer in table if answer not in answers]
    assert not missing, missing
    assert not list(clone.glob("uv.lock")), "a command has left a file"


def test_the_readme_names_the_two_commands_that_do_everything() -> None:
    lines = commands((ROOT / "README.md").read_text(encoding="utf-8"))
    assert lines.count("make run") == lines.count(TESTS) == 1


PROJECT = """
[project]
name = "mine"
version = "1"
dependencies = ["accelerate==1.13.0"]
optional-dependencies.train = ["transformers>=4.40"]
"""
LOCK = """
version = 1
[[package]]
name = "deepspeed"
version = "0.13.2"
source = { registry = "ours" }
"""


@pytest.mark.slow
def test_every_command_of_the_page_of_check_works_with_the_files_that_it_names(
    tmp_path: Path, tool: str
) -> None:
    """Those with ``--run`` take minutes, and tests/check/test_live.py has them."""
    page = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    folder = tmp_path / "a project"
    folder.mkdir()
    (folder / ".venv").symlink_to(sys.prefix)
    (settings,) = re.findall(r"^```json\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    for name, text in {
        "requirements.txt": "transformers==5.2.0\n",
        "args.json": '{"gradient_accumulation_steps": 4}',
        "ds_config.json": settings,
        "default_config.yaml": "distributed_type: MULTI_GPU\nmixed_precision: bf16\n",
        "pyproject.toml": PROJECT,
        "uv.lock": LOCK,
    }.items():
        (folder / name).write_text(text)
    lines = [
        line
        for line in commands(page)
        if line.startswith(("distributed-bugs", "pip freeze")) and " --run" not in line
    ]
    assert len(lines) == 12
    printed_by(lines, folder, tool)
    assert (folder / "check.sarif").is_file()
    (command,) = re.findall(r"^`(distributed-bugs check [^`]*)` prints:$", page, re.MULTILINE)
    printed = printed_by([command], folder, tool)
    (output,) = re.findall(r"` prints:\n\n```\n(.*?)```", page, flags=re.DOTALL)
    shown = [line.strip() for line in output.splitlines() if line.strip() != "..."]
    assert [line for line in shown if line not in printed] == []


@pytest.mark.launch
@pytest.mark.slow
def test_the_commands_of_the_page_of_guard_work_with_the_loops_of_this_project(
    tmp_path: Path, tool: str
) -> None:
    """The others need a user's script, or a cluster."""
    page = (ROOT / "docs" / "guard.md").read_text(encoding="utf-8")
    (tmp_path / "loops").symlink_to(ROOT / "loops")
    lines = [line for line in commands(page) if " loops/" in line or "guard-report" in line]
    assert len(lines) == 4
    printed = printed_by(lines, tmp_path, tool)
    assert [line for line in output_lines(page) if line not in printed] == []
    assert (tmp_path / "report.html").is_file()


@pytest.fixture
def tool(tmp_path: Path) -> str:
    """The PATH of a user who has installed this checkout."""
    program = tmp_path / "bin" / "distributed-bugs"
    program.parent.mkdir()
    program.write_text(TOOL.format(python=shlex.quote(sys.executable), root=ROOT))
    program.chmod(0o755)
    return f"{program.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
