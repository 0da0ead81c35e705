"""The fixture ``probe`` in sessions of pytest, with the package as an installation has it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from harness.system.documents import toml_of
from harness.system.files import ROOT
from harness.training.probe import probe_report
from harness.training.probe.answers import Answers

OURS = {"distributed_bugs", "harness", "harness.python", "harness.python.pytest_plugin"}
STANDARD = {"__future__", "importlib.util"}
CONTENT: dict[str, Any] = {
    **probe_report.as_json(Answers("4 steps"), 1.0),
    "exit_code": 1,
    "headline": "train.py is not right: on 2 ranks, it has another gradient",
    "text": "train.py is not right\n" + "\n".join(map(str, range(40))),
    "loaded": ["train.py", "model.py"],
}


class Session:
    """A user's folder, and pytest there."""

    def __init__(self, folder: Path, path: Sequence[Path]) -> None:
        self.folder, self._path = folder, os.pathsep.join(map(str, path))

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *words],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": self._path, "PYTEST_ADDOPTS": "-p no:xdist"},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def session(tmp_path: Path) -> Session:
    installed, folder = tmp_path / "site", tmp_path / "project"
    info = installed / "distributed_bugs-0.dist-info"
    for new in (installed / "distributed_bugs", info, folder):
        new.mkdir(parents=True)
    init = installed / "distributed_bugs/__init__.py"
    init.write_text((ROOT / "harness/console_script.py").read_text())
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: distributed_bugs\nVersion: 0\n")
    project = toml_of((ROOT / "pyproject.toml").read_text())["project"]
    plugins = project["entry-points"]["pytest11"].items()
    lines = ["[pytest11]", *(f"{name} = {place}" for name, place in plugins)]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return Session(folder, [installed, ROOT])


def test_no_package_that_is_installed_with_this_one_brings_a_plugin() -> None:
    """Hydra does, of 70 ms and more: only the extra ``run`` needs it."""
    project = toml_of((ROOT / "pyproject.toml").read_text())["project"]
    plugins, packages = [], [Requirement(line) for line in project["dependencies"]]
    for package in packages:  # grows
        if package.marker is None or package.marker.evaluate({"extra": ""}):
            distribution = metadata.distribution(package.name)
            plugins += [entry for entry in distribution.entry_points if entry.group == "pytest11"]
            packages += [
                needed
                for needed in map(Requirement, distribution.requires or ())
                if needed.name not in {other.name for other in packages}
            ]
    assert plugins == []


SHOW = "import sys\ndef pytest_unconfigure(): print('MODULES', *sys.modules)\n"


@pytest.mark.slow
def test_session_that_does_not_use_the_plugin_imports_small_modules_only(session: Session) -> None:
    session.write("conftest.py", SHOW)
    session.write("test_a.py", "def test_a(): pass\n")
    with_it, without = (
        set(session.run(*words).stdout.partition("MODULES ")[2].split())
        for words in ([], ["-p", "no:distributed_bugs"])
    )
    assert with_it - without <= OURS | STANDARD
    assert with_it >= OURS


FAKE = f"""\
from harness.python import commands
commands._run = lambda words: ({CONTENT!r}, 1)
"""
TEST = "def test_loop(probe): assert probe('train.py', '{rows}').right\n"


def test_failure_prints_the_first_lines(session: Session) -> None:
    session.write("conftest.py", FAKE)
    session.write("test_a.py", TEST)
    ending = session.run()
    assert ending.returncode == 1
    assert "where False = <ProbeResult: train.py is not right: on 2 ranks" in ending.stdout
    assert "train.py is not right\n0\n1\n" in ending.stdout
    assert "\n13\n... 26 more lines\n" in ending.stdout


def test_mistake_is_one_line(session: Session) -> None:
    session.write("test_a.py", TEST)
    ending = session.run()
    assert "\nprobe: there is no script train.py\n" in ending.stdout
    assert "another exception" not in ending.stdout
    assert "Traceback" not in ending.stdout + ending.stderr
    assert "test_a.py:1" not in ending.stdout
