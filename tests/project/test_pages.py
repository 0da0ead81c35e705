"""The commands of the pages in docs/ work as they stand, and print what the pages show."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from harness.system.files import ROOT
from tests import slurm_cluster
from tests.overlays import lent_packages
from tests.project.pages import commands, output_lines, printed_by, without_numbers
from tests.project.test_action import TOOL
from tests.slurm_cluster import free_ports

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
    """The next test has those with ``--run``."""
    pages = (ROOT / "docs" / name for name in ("check.md", "check_ci.md"))
    page = "".join(page.read_text(encoding="utf-8") for page in pages)
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
    example = [line.strip() for line in output.splitlines() if line.strip() != "..."]
    example += [line for line in commands(page) if line.startswith("transformers ")]
    patterns = [re.escape(line).replace(r"\.\.\.", ".*") for line in example]
    assert [p for p in patterns if not any(re.fullmatch(p, line) for line in printed)] == []


@pytest.mark.launch
@pytest.mark.slow
def test_the_commands_of_the_page_of_check_that_run_bugs_work(tmp_path: Path, tool: str) -> None:
    page = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "requirements.txt").write_text("accelerate==0.29.3\n")
    lines = [line for line in commands(page) if " --run" in line]
    assert len(lines) == 6
    lines = [line.replace("NAME", "ddp_converted") for line in lines]
    printed = printed_by(lines, tmp_path, tool)
    assert sum(line.startswith("... checked ") for line in printed) >= 40
    assert sum(line.startswith("seen:") for line in printed) >= 1


@pytest.mark.launch
@pytest.mark.slow
def test_the_commands_of_the_page_of_guard_work(tmp_path: Path, tool: str) -> None:
    """The next test has srun, and tests/docker_nightly has docker."""
    page = (ROOT / "docs" / "guard.md").read_text(encoding="utf-8")
    (tmp_path / "loops").symlink_to(ROOT / "loops")
    (tmp_path / "train.py").write_text(script_without_options())
    words = ("srun", "docker", "HARNESS_CACHE")
    lines = [line for line in commands(page) if not any(word in line for word in words)]
    assert len(lines) == 8
    with lent_packages("2026-11-20", accelerate="1.15.0") as overlay:  # the user's own
        add_program(tmp_path, "accelerate", ACCELERATE)
        at = next(n for n, line in enumerate(lines) if "accelerate" in line)
        lines[at] = f"PYTHONPATH={shlex.quote(str(overlay.site))} {lines[at]}"
        printed = printed_by(lines, tmp_path, tool)
    assert [line for line in output_lines(page) if line not in printed] == []
    assert (tmp_path / "report.html").is_file()


@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.skipif(bool(slurm_cluster.missing()), reason="Slurm is not installed")
def test_the_command_of_the_page_of_guard_with_srun_works(tmp_path: Path, tool: str) -> None:
    page = (ROOT / "docs" / "guard_details.md").read_text(encoding="utf-8")
    (line,) = [line for line in commands(page) if "srun" in line]
    (port,) = free_ports(1)
    (tmp_path / "train.py").write_text(RANK_OF_SLURM.format(port=port) + script_without_options())
    with slurm_cluster.cluster(cores=8, lines=OVERCOMMITTED) as slurm:
        printed = printed_by([line], tmp_path, tool, SLURM_CONF=str(slurm.conf))
    assert any(", 8 ranks" in line for line in printed), printed
    assert any(line.endswith("; no alarm") for line in printed), printed


@pytest.mark.launch
@pytest.mark.slow
def test_the_commands_of_the_page_of_probe_print_what_it_shows(tmp_path: Path, tool: str) -> None:
    page = (ROOT / "docs" / "probe.md").read_text(encoding="utf-8")
    script = (ROOT / "loops" / "ddp.py").read_text(encoding="utf-8")
    bug = 'add_argument("--bug", default="{}")'
    faulty_script = script.replace(bug.format(""), bug.format("divided by k twice"))
    assert faulty_script != script
    (tmp_path / "train.py").write_text(faulty_script)
    (tmp_path / "trainer.py").symlink_to(ROOT / "loops" / "trainer.py")
    (tmp_path / ".venv-new").symlink_to(sys.prefix)
    lines = [line for line in commands(page) if line.startswith("distributed-bugs")]
    assert len(lines) == 4
    packages = {"transformers": "5.24.0", "accelerate": "1.15.0", "datasets": "5.2.0"}
    with lent_packages("2026-11-20", **packages) as overlay:  # the user's own
        lines[1] = f"PYTHONPATH={shlex.quote(str(overlay.site))} {lines[1]}"
        printed = printed_by(lines, tmp_path, tool)
    assert any(line.startswith("trainer.py trains the same ") for line in printed)
    assert any(line.startswith("stop and resume ") for line in printed)
    assert [line for line in output_lines(page) if line not in printed] == []


@pytest.mark.launch
@pytest.mark.slow
def test_the_commands_of_the_page_of_models_print_what_it_shows(tmp_path: Path, tool: str) -> None:
    """The next test has those about all models."""
    pages = (ROOT / "docs" / name for name in ("models.md", "models_own.md"))
    page = "".join(page.read_text(encoding="utf-8") for page in pages)
    (model,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "my_model.py").write_text(model)
    config = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "requirements.txt").write_text("transformers==5.23.0\n")
    lines = [line for line in commands(page) if not of_all_models(line)]
    assert len(lines) == 8
    printed = printed_by(lines, tmp_path, tool)
    assert [line for line in output_lines(page) if line not in printed] == []


@pytest.mark.launch
@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_commands_of_the_page_of_models_about_all_models_work(
    tmp_path: Path, tool: str
) -> None:
    """They take an hour."""
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    lines = [line for line in commands(page) if of_all_models(line)]
    assert len(lines) == 5
    printed = printed_by(lines, tmp_path, tool)
    assert sum(bool(re.match(r"\d+ models, \d+ cells: ", line)) for line in printed) >= 3
    assert (tmp_path / "models.json").is_file()


@pytest.mark.launch
@pytest.mark.slow
def test_the_commands_of_the_page_of_detectors_print_what_it_shows(
    tmp_path: Path, tool: str
) -> None:
    """One scenario stands for all of them; the next test has all."""
    page = (ROOT / "docs" / "detectors.md").read_text(encoding="utf-8")
    classes = re.findall(r"^```python\n(class Detector.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "my_detector.py").write_text(classes[0])
    lines = [
        line if "scenario=" in line else f"{line} scenario=ddp_converted"
        for line in commands(page)
        if line.startswith("distributed-bugs score")
    ]
    (example,) = re.findall(r"`(distributed-bugs score guard usual/nan [^`]*)`", page)
    assert len(lines) == 5
    lines = [line.replace("scenario=torch seed=0,1,2", "scenario=ddp_converted") for line in lines]
    printed = printed_by([*lines, example], tmp_path, tool)
    assert (tmp_path / "scores.json").is_file()
    answers = set(map(without_numbers, printed))
    assert [line for line in output_lines(page) if without_numbers(line) not in answers] == []


@pytest.mark.launch
@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_first_command_of_the_page_of_detectors_works_with_all_scenarios(
    tmp_path: Path, tool: str
) -> None:
    """It takes an hour. The others differ from it by the detector and the seeds."""
    page = (ROOT / "docs" / "detectors.md").read_text(encoding="utf-8")
    classes = re.findall(r"^```python\n(class Detector.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "my_detector.py").write_text(classes[0])
    printed = printed_by(commands(page)[:1], tmp_path, tool)
    assert sum("my_detector.py:Detector: detected" in line for line in printed) >= 5


def script_without_options() -> str:
    """A script that may be called without options, and ignores those that it does not know."""
    script = (ROOT / "loops" / "ddp.py").read_text(encoding="utf-8")
    for before, after in (
        ("required=True", "default=2"),
        ("parse_args()", "parse_known_args()[0]"),
    ):
        assert before in script
        script = script.replace(before, after, 1)
    return script


PYTHON = shlex.quote(sys.executable)
ACCELERATE = f'#!/bin/sh\nexec {PYTHON} -m accelerate.commands.accelerate_cli "$@"\n'
OVERCOMMITTED = "SlurmdParameters=config_overrides"
"""A node may have more cores than this machine."""
RANK_OF_SLURM = """\
import os
os.environ |= {{"RANK": os.environ["SLURM_PROCID"], "WORLD_SIZE": os.environ["SLURM_NTASKS"]}}
os.environ |= {{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}"}}
"""


def of_all_models(line: str) -> bool:
    """Whether a command of ``models`` names no model."""
    words = line.split()
    named = {"--pins", "--json", "--head", "--newest", "--changes"}
    return words[1] == "models" and (len(words) == 2 or words[2] in named)


@pytest.fixture
def tool(tmp_path: Path) -> str:
    """The PATH of a user who has installed this checkout."""
    folder = add_program(tmp_path, "distributed-bugs", TOOL.format(python=PYTHON, root=ROOT))
    return f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"


def add_program(user: Path, name: str, text: str) -> Path:
    """Add a program to the folder of the user's programs, which is returned."""
    program = user / "bin" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(text)
    program.chmod(0o755)
    return program.parent
