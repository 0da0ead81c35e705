"""Without torch, and without a checkout: what still works, and one line for what does not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import pytest

from harness import cli
from harness.__main__ import main
from harness.bugs import pins
from harness.releases import index, index_pages, overlay
from harness.system import installation, machine
from harness.system.errors import Fault
from harness.system.text import SCRIPT
from tests.sandbox import refused

Capture = pytest.CaptureFixture[str]
MonkeyPatch = pytest.MonkeyPatch
BUG = "scenario=sampler_shards"
RANGE = [BUG, "pins.accelerate=0.29:0.31"]


def lacks(monkeypatch: MonkeyPatch, *names: str) -> None:
    """Pretend that only these packages are missing."""
    monkeypatch.setattr(installation, "find_spec", lambda name: None if name in names else name)


@pytest.mark.parametrize(
    "words",
    [
        ["run", BUG],
        ["run", "scenario=all"],
        ["run", "--multirun", BUG, "seed=1,2"],
        ["matrix", *RANGE],
        ["bisect", *RANGE],
        ["watch", "--history", "history.jsonl"],
        ["admit", BUG],
    ],
    ids=" ".join,
)
def test_without_torch_a_run_is_refused_in_one_line_before_anything_starts(
    words: list[str],
    tmp_path: Path,
    cache: Path,
    runs: Path,
    monkeypatch: MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.chdir(tmp_path)
    lacks(monkeypatch, "torch")
    monkeypatch.setattr(index, "releases", None)  # the index is not read either
    err = refused(capsys, words, code=3)
    assert err.endswith(f" needs torch, which is not installed: {installation.install('torch')}\n")
    assert not list(tmp_path.iterdir())


def test_without_torch_a_mistake_is_still_reported_first(
    monkeypatch: MonkeyPatch, capsys: Capture
) -> None:
    lacks(monkeypatch, "torch")
    assert "did you mean sampler_shards?" in refused(capsys, ["run", "scenario=sampler_shard"])


def no_index(*_: object) -> NoReturn:
    raise index_pages.NoNetwork("the index does not answer")


def test_without_torch_check_keeps_what_was_recorded(
    tmp_path: Path, cache: Path, monkeypatch: MonkeyPatch, capsys: Capture
) -> None:
    lacks(monkeypatch, "torch")
    monkeypatch.setattr(machine, "release_of", lambda _: None)
    monkeypatch.setattr(index, "releases", no_index)
    file = tmp_path / "requirements.txt"
    file.write_text("accelerate==0.28.0\ntorch==2.5.1\n")
    assert main(["check", BUG, "--run", "lane=cpu", "-r", str(file)]) == 1
    assert "; the run gave no certain status: a run needs torch" in capsys.readouterr().out
    assert not (cache / "overlays").exists()


def test_deepspeed_is_not_built_without_torch(
    tmp_path: Path, cache: Path, monkeypatch: MonkeyPatch
) -> None:
    """Its build notes torch's version, by which its pipeline chooses how to send."""
    lacks(monkeypatch, "torch")
    stack = pins.Stack(
        {"deepspeed": "0.19.8"}, "2026-09-01", *pins.here(), lock="deepspeed==0.19.8"
    )
    with pytest.raises(Fault, match=r"^building deepspeed 0\.19\.8 needs torch"):
        overlay.build(stack, (), cache)
    assert not list(cache.glob("overlays/*/"))


@pytest.mark.parametrize(
    "words",
    [
        *([name, "x"] for name in ("admit", "evidence", "lock", "new", "pages")),
        ["matrix", *RANGE, "--record"],
        ["bisect", *RANGE, "--record"],
    ],
    ids=" ".join,
)
def test_an_installed_package_refuses_to_write_into_itself(
    words: list[str], tmp_path: Path, monkeypatch: MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "__init__.py").touch()
    monkeypatch.setattr(installation, "ROOT", tmp_path)
    err = refused(capsys, words)
    assert err.endswith(" needs a checkout of the project; this is an installed package\n")


def test_the_source_of_an_installed_package_is_its_release(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    (tmp_path / "__init__.py").touch()
    monkeypatch.setattr(installation, "ROOT", tmp_path)
    source = machine.source()
    assert source["commit"] is None
    assert source["unknown"].startswith("no checkout: distributed-bugs ")


def test_the_script_is_named_where_it_was_started(
    monkeypatch: MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(installation, "PROGRAM", SCRIPT)
    monkeypatch.setattr(cli, "PROGRAM", SCRIPT)
    assert main(["--help"]) == 0
    assert main(["check", "--help"]) == 0
    assert main(["grade"]) == 2
    out, err = capsys.readouterr()
    assert "\n    distributed-bugs run scenario=" in out
    assert "\nusage: distributed-bugs check " in out
    assert "see distributed-bugs grade --help" in err
    assert installation.MODULE not in out + err


@pytest.mark.parametrize(("missing", "pip"), [((), "pip"), (("pip",), "uv pip")])
def test_an_environment_without_pip_is_extended_by_uv(
    missing: tuple[str, ...], pip: str, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/a tool/bin/python")
    lacks(monkeypatch, *missing)
    assert installation.install("torch") == f"'/a tool/bin/python' -m {pip} install torch"
