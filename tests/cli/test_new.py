"""``new`` writes a scenario that runs and says that it is unfinished."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import scenarios
from harness.__main__ import main
from harness.bugs import catalog
from harness.bugs.api.spec import Records, Verdict
from harness.cli import _demands as demands
from harness.cli import new, pages
from harness.releases import releases
from harness.system.errors import UserError
from harness.system.files import ROOT
from tests.sandbox import refused

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def scenario_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of scenarios. Every release exists."""
    monkeypatch.setattr(scenarios, "__path__", [*scenarios.__path__, str(tmp_path / "scenarios")])
    monkeypatch.setattr(pages, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(releases, "released", lambda *_: "2026-01-01")
    (tmp_path / "scenarios").mkdir()
    monkeypatch.setattr(new, "parent_folder", lambda: tmp_path / "scenarios")
    yield tmp_path / "scenarios"
    catalog.forget()
    for name in [name for name in sys.modules if name.startswith("scenarios.made_up")]:
        del sys.modules[name]


def written(*words: str) -> ModuleType:
    assert main(["new", "my_bug", *words]) == 0
    return catalog.load("my_bug")


def test_a_new_scenario_is_complete_and_says_that_it_is_unfinished(scenario_folder: Path) -> None:
    module = written("--buggy", "made-up==0.19.8")
    folder = scenario_folder / "made_up" / "my_bug"
    assert "UNFINISHED" in (folder / "README.md").read_text()
    lines = dict(zip(map(demands.text, demands.DEMANDS), demands.checked("my_bug"), strict=True))
    for demand, file in ((demands.mutations, "mutations.py"), (demands.report, "report.py")):
        assert lines[demands.text(demand)][1:] == (False, f"{file} is not written yet")
    bug = catalog.scenario("my_bug")
    assert bug.pins == {"made-up": "0.19.8"}
    assert list(bug.variants) == ["buggy", "fixed", "control"]
    finding = module.detect(Records({0: []}))
    assert not finding.documented
    assert "UNFINISHED" in finding.message
    assert not module.exercised(Records({0: []})).met


def test_two_releases_make_the_variants(scenario_folder: Path) -> None:
    written("--buggy", "made-up==1.0", "--fixed", "1.1", "--pin", "other==3")
    scenario = catalog.scenario("my_bug")
    assert scenario.pins == {"made-up": "1.0", "other": "3"}
    assert scenario.pins_of("fixed") == {"made-up": "1.1"}
    folder = scenario_folder / "made_up" / "my_bug"
    for check in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *check, "--config", str(ROOT / "pyproject.toml")]
        assert subprocess.run([*ruff, str(folder)]).returncode == 0
    assert not (folder / "mutations.py").exists(), "no edit puts the bug back"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bf16_clip"], "the scenario 'bf16_clip' exists already"),
        (["all"], "'all' means every scenario"),
        (["torch"], "'torch' is a package: choose another name"),
        (["megatron_core"], "'megatron_core' is a package: choose another name"),
        (["made_up", "--buggy", "made-up==1.0"], "'made_up' is a package"),
        (["my_bug", "--buggy", "made-up==1.0", "--fixed", "1.0"], "--fixed 1.0 is the release of"),
        (["my_bug", "--buggy", "made-up==1.0", "--fixed", "1.0.0"], "--fixed 1.0.0 is the release"),
        (
            ["my_bug", "--buggy", "made-up==1.0", "--pin", "Made_Up==1.1"],
            "made-up is pinned twice, made-up==1.0 and Made_Up==1.1: leave one out",
        ),
        (["My-Bug"], "'My-Bug' is no name for a scenario: write one like bf16_clip"),
        (["class"], "'class' is no name"),
        (["my_bug", "--buggy", "deepspeed"], "'deepspeed' is no pin"),
        (["my_bug", "--buggy", "-e evil==1"], "no pin: write one like deepspeed==0.19.8"),
        (["my_bug", "--buggy", "evil @ ./evil #==1"], "no pin: write one like deepspeed"),
        (["my_bug", "--pin", "./evil #==1"], "no pin: write one like deepspeed==0.19.8"),
        (["my_bug", "--buggy", "deepspeed==1 ./evil"], "no pin"),
        (["my_bug", "--buggy", "deepspeed==1.0", "--fixed", "./evil"], "like --fixed 0.19.8"),
        (["my_bug", "--fixed", "1.1"], "--fixed needs --buggy"),
        (["my_bug", "--buggy", "acelerate==1.0"], "no package 'acelerate' in the index"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(
    scenario_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    words: list[str],
    message: str,
) -> None:
    def refuse(name: str, *_: object) -> None:
        raise UserError(f"no package '{name}' in the index")

    monkeypatch.setattr(releases, "released", refuse)
    assert message in refused(capsys, ["new", *words])
    assert not list(scenario_folder.iterdir())


@pytest.mark.slow
@pytest.mark.launch
def test_a_new_scenario_runs_and_is_inconclusive(tmp_path: Path) -> None:
    for part in ("harness", "scenarios", "configs"):
        shutil.copytree(ROOT / part, tmp_path / part)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "HARNESS_CACHE": str(tmp_path / "c")}

    def typed(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "harness", *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    assert typed("new", "my_bug").returncode == 0
    process = typed("run", "scenario=my_bug", "lane=cpu")
    assert process.returncode == 3, process.stdout + process.stderr
    assert process.stdout.count("UNFINISHED: detect() does not look") >= 2
    assert str(Verdict.INCONCLUSIVE) in process.stdout
