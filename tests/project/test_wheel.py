"""The installed package: what the wheel contains, and its command outside a checkout."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from harness.__main__ import EXTRAS
from harness.releases import uv
from harness.system.files import ROOT

pytestmark = pytest.mark.slow

PLACES = ("configs", "harness", "loops", "scenarios")
LEFT_OUT = {"__pycache__", "recorded.tar.xz"}
THEIRS = ("harness.py", "configs/__init__.py", "scenarios/__init__.py")
"""A user's modules, which are even on the path."""


def run_uv(*words: str | Path) -> None:
    process = subprocess.run([uv.binary(), *words], capture_output=True, text=True, check=False)
    assert not process.returncode, process.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout; needs the package index for the build backend."""
    folder = tmp_path_factory.mktemp("wheel")
    run_uv("build", "--wheel", "--out-dir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


@dataclass
class Tool:
    """An environment with the wheel and without torch, and an empty folder of a user."""

    venv: Path
    cwd: Path

    @property
    def package(self) -> Path:
        (folder,) = self.venv.glob("lib/python*/site-packages/distributed_bugs")
        return folder

    def run(self, words: str) -> tuple[int, str, str]:
        """The exit code, output and errors of ``distributed-bugs WORDS``."""
        ours = {"HARNESS_CACHE": str(self.cwd / "cache"), "UV_OFFLINE": "1", "PYTHONPATH": "."}
        process = subprocess.run(
            [str(self.venv / "bin" / "distributed-bugs"), *shlex.split(words)],
            cwd=self.cwd,
            env=os.environ | ours,
            capture_output=True,
            text=True,
            check=False,
        )
        return process.returncode, process.stdout, process.stderr


@pytest.fixture(scope="module")
def tool(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Tool:
    folder = tmp_path_factory.mktemp("tool")
    venv, cwd = folder / "venv", folder / "cwd"
    run_uv("venv", "--quiet", venv)
    run_uv("pip", "install", "--quiet", "--python", venv / "bin" / "python", wheel)
    cwd.mkdir()
    return Tool(venv, cwd)


def files(folder: Path) -> Iterator[str]:
    """The files of a folder that the wheel contains."""
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        members = (name for name in names if name not in LEFT_OUT)
        yield from (str(Path(root, name).relative_to(folder)) for name in members)


def test_the_wheel_is_one_package_with_every_file_of_ours(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [Path(name) for name in archive.namelist()]
    info = {str(name) for name in names if name.parts[0].endswith(".dist-info")}
    ours = {f"distributed_bugs/{p}/{file}" for p in PLACES for file in files(ROOT / p)}
    renamed = {"harness/console_script.py": "__init__.py", "harness/python/py.typed": "py.typed"}
    for before, after in renamed.items():
        ours ^= {f"distributed_bugs/{before}", f"distributed_bugs/{after}"}
    assert {str(name) for name in names} - info == ours
    assert len(info) == 5


def test_torch_is_only_in_extras_and_the_packages_that_a_message_names_are_those_of_site(
    wheel: Path,
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (file,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(file).decode().splitlines()
    required = [Requirement(line.partition(": ")[2]) for line in lines if "Requires-Dist" in line]
    extras: dict[str, set[str]] = {}
    for requirement in required:
        extra = re.search(r'extra == "(.*)"', str(requirement.marker or ""))
        extras.setdefault(extra[1] if extra else "", set()).add(requirement.name)
    assert not {"torch", "hydra-core"} & extras[""]
    assert extras["run"] == set(EXTRAS["run"])
    assert extras["site"] == set(EXTRAS["site"])


def test_the_source_archive_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    run_uv("build", "--out-dir", tmp_path, ROOT)  # the wheel is built from the source archive
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_an_editable_install_copies_the_script_and_uses_the_checkout(tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    run_uv("venv", "--quiet", tmp_path / "venv")
    run_uv("pip", "install", "--quiet", "--no-deps", "--python", python, "--editable", ROOT)
    (copied,) = tmp_path.glob("venv/lib/python*/site-packages/distributed_bugs")
    assert sorted(files(copied)) == ["__init__.py", "py.typed"]
    code = "import harness, scenarios; print(*harness.__path__, *scenarios.__path__, sep='|')"
    process = subprocess.run([python, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert process.stdout.strip().split("|") == [str(ROOT / "harness"), str(ROOT / "scenarios")]
    assert (tmp_path / "venv" / "bin" / "distributed-bugs").is_file()


RUN = [" needs the package ", ", which is not installed: ", " install torch numpy hydra-core\n"]
COMMANDS = [
    ("list", 0, ["sampler_shards "]),
    ("check --help", 0, ["usage: distributed-bugs check ", "\n    distributed-bugs check -r"]),
    ("show device_math", 0, ["A GPU divides by a plain number"]),
    ("run --cfg job scenario=sampler_shards", 3, RUN),
    ("run scenario=sampler_shards lane=cpu", 3, RUN),
    ("models llama", 3, ["models needs torch", " install torch\n"]),
    ("site --out site", 3, ["site needs the package altair, ", " install altair vl-"]),
    ("matrix scenario=sampler_shards pins.accelerate=0.29.3", 3, RUN),
    ("new my_bug", 2, ["new needs a checkout"]),
    ("guard", 2, ["the command of the training is missing"]),
    ("guard-report --help", 0, ["usage: distributed-bugs guard-report "]),
    ("check", 2, ["has none of the ", "requirements with -r"]),
]


@pytest.mark.parametrize(
    ("words", "code", "parts"), COMMANDS, ids=[words for words, *_ in COMMANDS]
)
def test_its_commands_work_beside_modules_of_the_same_names(
    tool: Tool, words: str, code: int, parts: list[str]
) -> None:
    for name in THEIRS:
        (tool.cwd / name).parent.mkdir(exist_ok=True)
        (tool.cwd / name).write_text("raise SystemExit('theirs')\n")
    before = sorted(files(tool.package)), sorted(files(tool.cwd))
    returned, out, err = tool.run(words)
    assert returned == code, err
    assert all(part in (err if code else out) for part in parts), out + err
    assert err.count("\n") == bool(code)
    assert "theirs" not in out + err
    assert (sorted(files(tool.package)), sorted(files(tool.cwd))) == before


TRAIN = """\
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
"""


def test_guard_watches_trainings_of_another_interpreter(tool: Tool) -> None:
    """That has torch, and the tool has none."""
    script = tool.cwd / "my_training.py"
    script.write_text(TRAIN)
    code, _, err = tool.run(f"guard {sys.executable} {script}")
    assert code == 0, err
    assert "guard: 3 steps, 3 checked" in err
    script.write_text(f"import distributed_bugs\ndistributed_bugs.guard()\n{TRAIN}")
    process = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(tool.package.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert "guard: 3 steps, 3 checked" in process.stderr


TYPED = """\
import distributed_bugs
for bug in distributed_bugs.check({"transformers": "5.2.0"}).affected:
    reveal_type(bug.remedy)
reveal_type(distributed_bugs.probe("train.py", "{rows}").layouts[0].broken[0].ratio)
"""


def test_results_have_types_and_can_be_used_beside_a_users_modules(tool: Tool) -> None:
    (tool.cwd / "typed.py").write_text(TYPED)
    python = tool.venv / "bin" / "python"
    words = [sys.executable, "-m", "mypy", "--strict", f"--python-executable={python}", "typed.py"]
    process = subprocess.run(words, cwd=tool.cwd, capture_output=True, text=True, check=False)
    assert re.search(r'Revealed type is "(builtins\.)?str"', process.stdout), process.stdout
    assert "float" in process.stdout
    assert "error" not in process.stdout
    (tool.cwd / "harness.py").write_text("raise SystemExit('theirs')\n")
    code = "import distributed_bugs; print(distributed_bugs.check({'transformers': '5.2.0'}))"
    process = subprocess.run(
        [python, "-c", code], cwd=tool.cwd, capture_output=True, text=True, check=False
    )
    assert process.stdout.startswith("the mapping: transformers 5.2.0\n"), process.stderr


def test_a_script_that_imports_the_package_imports_nothing_else(tool: Tool) -> None:
    show = "print(*{*sys.modules} - before)"
    code = f"import sys; before = {{*sys.modules}}; import distributed_bugs; {show}"
    python = tool.venv / "bin" / "python"
    process = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    assert set(process.stdout.split()) <= {"distributed_bugs", "__future__"}, process.stderr
