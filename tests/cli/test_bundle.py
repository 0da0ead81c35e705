"""A bundle, made here and used without a network."""

from __future__ import annotations

import json
import lzma
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.bugs import catalog, pins
from harness.bugs.api.spec import Defect
from harness.cli import bundle
from harness.releases import archive, overlay, releases
from harness.releases.edits import DefectError
from harness.releases.overlay import Overlay

USE = """\
set -eu
python3() {{ "{python}" "$@"; }}
. {bundle}/activate
cd {elsewhere}
python3 -W ignore -m harness run scenario=tied_embedding_training lane=cpu runs={elsewhere}/runs
"""


def test_a_bundle_contains_the_defects_that_fit_a_release_of_pins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    overlays: list[tuple[str, tuple[Defect, ...]]] = []

    @contextmanager
    def borrowed(stack: pins.Stack, defects: tuple[Defect, ...], _: Path) -> Iterator[Overlay]:
        release = stack.pins["deepspeed"]
        if defects and release == "0.5.0":
            raise DefectError("it does not match")
        overlays.append((release, defects))
        yield Overlay(f"{release}-{len(defects)}", tmp_path, "", "")

    monkeypatch.setattr(overlay, "borrow", borrowed)
    monkeypatch.setattr(releases, "released", lambda *_: "2026-01-01")
    monkeypatch.setattr(bundle, "_fill", lambda *_: None)
    words = ["tied_grad_reduce", "--pins", "deepspeed=0.5.0", "--out", str(tmp_path / "box")]
    assert main(["bundle", *words]) == 0
    assert len(overlays) == len(set(overlays)), "variants share them"
    assert ("0.5.0", ()) in overlays, "as published, for a matrix without a network"
    assert ("0.19.8", catalog.scenario("tied_grad_reduce").defects) in overlays
    printed = capsys.readouterr().out
    assert "not included, a release of --pins: it does not match" in printed
    asked, made = re.findall(r"([0-9]+) overlays", printed)[-2:]
    assert int(asked) == int(made) + 1, "without the one that was not included"
    scenario = replace(catalog.scenario("tied_grad_reduce"), pins={"deepspeed": "0.5.0"})
    monkeypatch.setattr(catalog, "scenario", lambda _: scenario)
    assert main(["bundle", "tied_grad_reduce", "--out", str(tmp_path / "other")]) == 3


@contextmanager
def _without_files(stack: pins.Stack, *_: object) -> Iterator[Overlay]:
    yield Overlay(str(stack.pins), Path("none"), "", "")


def test_a_bundle_of_all_has_only_what_uses_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled: list[str] = []
    monkeypatch.setattr(catalog, "sound", lambda: ("split_then_skip", "tied_grad_reduce"))
    monkeypatch.setattr(overlay, "borrow", _without_files)
    monkeypatch.setattr(bundle, "_fill", lambda *words: bundled.extend(words[-1]["scenarios"]))
    assert main(["bundle", "--all", "--out", str(tmp_path / "box")]) == 0
    assert bundled == ["tied_grad_reduce"]


def test_parts_are_kept_by_a_further_call_and_too_large_scenarios_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[tuple[str, ...]] = []

    def fill(folder: Path, _: Path, __: object, contents: dict[str, object]) -> None:
        names = contents["scenarios"]
        assert isinstance(names, list)
        made.append(tuple(names))
        folder.joinpath("bundle.json").write_text(json.dumps(contents))
        folder.joinpath("data").write_bytes(bytes(2_000_000 * ("warmup_groups" in names)))

    monkeypatch.setattr(catalog, "sound", lambda: ("tied_grad_reduce", "warmup_groups"))
    monkeypatch.setattr(overlay, "borrow", _without_files)
    monkeypatch.setattr(bundle, "_fill", fill)
    words = ["bundle", "--all", "--parts", "1M", "--out", str(tmp_path / "parts")]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "not included: warmup_groups: warmup_groups alone needs 2 MB" in printed
    assert "part-01: 1 scenario," in printed
    assert ("tied_grad_reduce",) in made
    made.clear()
    assert main(words) == 0
    assert ("tied_grad_reduce",) not in made, "it is there"
    monkeypatch.setattr(catalog, "sound", lambda: ("warmup_groups",))
    assert main([*words[:-1], str(tmp_path / "none")]) == 2
    assert "--parts is too small: each scenario alone needs more" in capsys.readouterr().err


@pytest.mark.launch
@pytest.mark.slow
def test_a_bundle_is_enough_to_run_a_scenario(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = ({"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 0})
    monkeypatch.setattr(archive, "COMPRESSION", fast)  # otherwise half a minute on 2 cores
    bundle, elsewhere = tmp_path / "bundle", tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert main(["bundle", "tied_embedding_training", "--out", str(bundle)]) == 0
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("HARNESS", "PYTHON"))},
        "UV_OFFLINE": "1",
        "HARNESS_CACHE": str(tmp_path / "cache"),
    }
    script = USE.format(python=sys.executable, bundle=bundle, elsewhere=elsewhere)
    command = ["bash", "-c", script]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "tied_embedding_training: reproduced" in process.stdout
    assert not list(bundle.glob(".unpacked"))
    again = main(["bundle", "tied_embedding_training", "--out", str(bundle)])
    assert again == 2, "an existing bundle was overwritten"
