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

from harness.python import probe_cache
from harness.python.probe_cache import ProbeCache
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
from harness.training.probe import probe_report
from harness.training.probe.answers import Answers
from harness.python import probe_cache
def fake(words):
    with open("runs.txt", "a") as file:
        file.write("run\\n")
    return {CONTENT!r}
probe_cache.content_of_probe = fake
"""
TEST = "def test_loop(probe): assert probe('train.py', '{rows}').right\n"


@pytest.mark.slow
def test_failure_prints_the_first_lines_and_unchanged_loop_is_not_run_again(
    session: Session,
) -> None:
    for name, text in {
        "conftest.py": FAKE,
        "test_a.py": TEST,
        "train.py": "",
        "model.py": "",
    }.items():
        session.write(name, text)
    for name in ("train.py", "model.py"):
        os.utime(session.folder / name, (0, 0))
    first, second = session.run(), session.run()
    for ending in (first, second):
        assert ending.returncode == 1
        assert "where False = <ProbeResult: train.py is not right: on 2 ranks" in ending.stdout
        assert "train.py is not right\n0\n1\n" in ending.stdout
        assert "\n13\n... 26 more lines\n" in ending.stdout
    assert "nothing has changed" not in first.stdout
    assert "nothing has changed. --cache-clear runs it" in second.stdout
    assert (session.folder / "runs.txt").read_text() == "run\n"


def test_mistake_is_one_line(session: Session) -> None:
    session.write("test_a.py", TEST)
    ending = session.run()
    assert "\nprobe: there is no script train.py\n" in ending.stdout
    assert "another exception" not in ending.stdout
    assert "Traceback" not in ending.stdout + ending.stderr
    assert "test_a.py:1" not in ending.stdout


class Memory(dict[str, Any]):
    """A cache."""

    def set(self, key: str, value: object) -> None:
        self[key] = value


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The probes that were run, in a folder with a script."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "site")
    (tmp_path / "site").mkdir()
    for name in ("train.py", "model.py", "config.json", "other.py"):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (0, 0))
    runs: list[Any] = []

    def fake(words: Sequence[str]) -> dict[str, Any]:
        runs.append(words)
        return CONTENT

    monkeypatch.setattr(probe_cache, "content_of_probe", fake)
    return runs


@pytest.mark.parametrize(
    ("change", "is_run"),
    [("train.py", True), ("model.py", True), ("config.json", True), ("other.py", False)],
)
def test_changed_file_that_the_loop_loads_or_that_a_word_names_is_probed_again(
    change: str, is_run: bool, runs: list[Any], tmp_path: Path
) -> None:
    cache = ProbeCache(Memory())
    words = ("train.py", "--config=config.json", "{rows}")
    assert cache.probe(words)[1] == ""
    assert cache.probe(words)[1] != ""
    (tmp_path / change).write_text("changed")
    assert (cache.probe(words)[1] == "") is is_run
    assert len(runs) == 1 + is_run


def test_other_words_and_other_releases_are_probed_again(runs: list[Any], tmp_path: Path) -> None:
    cache = ProbeCache(Memory())
    cache.probe(("train.py", "{rows}"))
    cache.probe(("train.py", "{rows}", "--lr", "1"))
    assert len(runs) == 2
    (tmp_path / "site/transformers-5.2.0.dist-info").mkdir()
    cache.probe(("train.py", "{rows}"))
    assert len(runs) == 3


def test_what_gives_no_answer_or_changes_meanwhile_is_not_kept(
    runs: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ProbeCache(Memory())
    monkeypatch.setitem(CONTENT, "exit_code", 3)
    cache.probe(("train.py",))
    monkeypatch.setitem(CONTENT, "exit_code", 1)
    (tmp_path / "model.py").write_text("saved while the probe runs")
    os.utime(tmp_path / "model.py", (2e9, 2e9))
    cache.probe(("train.py",))
    cache.probe(("train.py",))
    assert len(runs) == 3
