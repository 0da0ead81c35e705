"""Defects match exactly once or stop. The sources here are made up; upstream's are in overlays."""

from __future__ import annotations

import os
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from harness.bugs import catalog, pins
from harness.bugs.api.spec import Defect
from harness.releases import edits, overlay, resolution
from harness.releases.edits import DefectError
from harness.system.machine import cache_folder

pytest.importorskip("libcst", reason="a box with a bundle makes no overlays")

(DEFECT,) = catalog.scenario("bf16_clip").defects
RELEASE = "deepspeed==9.9"
GUARD = """\
            if not for_clipping:
                if gradient.shared_by_stages:
                    continue

                # a copy counts once
                if not (self.rank == 0 or gradient.split):
                    continue
"""
SOURCE = f'''\
"""Two purposes, one loop."""


class Another_Optimizer:
    def get_grads_for_norm(self, for_clipping=False):
        for gradient in self.gradients:
{GUARD}

class BF16_Optimizer:
    def __init__(self, rank, gradients):
        self.rank, self.gradients = rank, gradients

    def get_grads_for_norm(self, for_clipping=False):
        kept = []
        for gradient in self.gradients:
{GUARD}
            kept.append(gradient.name)
        return kept
'''


def site(tmp_path: Path, source: str = SOURCE) -> Path:
    file = tmp_path / DEFECT.file
    file.parent.mkdir(parents=True)
    file.write_text(source)
    return tmp_path


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (SOURCE.replace("if not for_clipping", "if for_clipping"), "matches 0 times in BF16_"),
        (SOURCE.replace(GUARD, GUARD + GUARD), "matches 2 times in BF16_Optimizer"),
        (SOURCE.replace("get_grads_for_norm", "get"), "0 definitions of BF16_Optimizer.get_grads"),
        (SOURCE + SOURCE, "2 definitions of BF16_Optimizer.get_grads_for_norm"),
        (SOURCE.replace("class BF16_", "class FP16_"), "0 definitions of BF16_Optimizer"),
        (SOURCE.replace(GUARD, GUARD + " " * 12 + "else:\n" + " " * 16 + "x = 1\n"), "matches 0"),
    ],
)
def test_another_source_stops_it_with_the_release_the_file_and_the_reason(
    tmp_path: Path, source: str, reason: str
) -> None:
    with pytest.raises(DefectError, match=f"^{DEFECT.name}: {RELEASE} has no file {DEFECT.file}$"):
        edits.apply_defect(DEFECT, tmp_path, RELEASE)
    folder = site(tmp_path, source)
    with pytest.raises(DefectError) as caught:
        edits.apply_defect(DEFECT, folder, RELEASE)
    assert str(caught.value).startswith(f"{DEFECT.name}: {RELEASE}, {DEFECT.file}: ")
    assert reason in str(caught.value)
    assert (folder / DEFECT.file).read_text() == source


def test_an_edit_that_changes_nothing_stops_it() -> None:
    idle: Defect = replace(DEFECT, edit=lambda function: [(function, function)])
    with pytest.raises(DefectError, match="changes nothing"):
        edits.edited(idle, SOURCE, RELEASE)


def test_a_linked_file_keeps_its_text_and_the_old_bytecode_is_deleted(tmp_path: Path) -> None:
    file = site(tmp_path) / DEFECT.file
    os.link(file, tmp_path / "pristine.py")
    compiled = file.parent / "__pycache__"
    compiled.mkdir()
    for name in ("bf16_optimizer.cpython-311.pyc", "bf16_optimizer_too.cpython-311.pyc"):
        (compiled / name).write_bytes(b"released")
    diff, edited = edits.apply_defect(DEFECT, tmp_path, RELEASE), file.read_text()
    assert (tmp_path / "pristine.py").read_text() == SOURCE
    assert edited == edits.edited(DEFECT, SOURCE, RELEASE)
    assert diff == edits.diff(DEFECT.file, SOURCE, edited)
    assert os.listdir(compiled) == ["bf16_optimizer_too.cpython-311.pyc"]


def check_moved_block(diff: str) -> None:
    """Check that a diff only dedents one ``if not (...)`` block."""
    lines = [line for line in diff.splitlines() if not line.startswith(("---", "+++"))]
    assert sum(line.startswith("@@") for line in lines) == 1
    changed = [index for index, line in enumerate(lines) if line.startswith(("-", "+"))]
    between = lines[changed[0] : changed[-1]]
    assert not [line for line in between if line.startswith(" ") and line.strip()], "code between"
    removed, added = (
        [line[1:] for line in lines if line.startswith(sign) and line[1:].strip()] for sign in "-+"
    )
    assert textwrap.dedent("\n".join(removed)) == textwrap.dedent("\n".join(added))
    code = [line.strip() for line in removed if not line.strip().startswith("#")]
    assert code[0].startswith("if not (")
    assert code[-1] == "continue"
    assert sum(line.startswith("if ") for line in code) == 1
    assert len(removed[-1]) - len(added[-1]) == 4


@pytest.mark.scenario
@pytest.mark.parametrize("release", ["0.6.3", "0.7.7", "0.13.3", "0.15.4", "0.19.8"])
def test_in_a_release_the_edit_moves_exactly_one_block(release: str) -> None:
    pytest.importorskip("uv", reason="a box with a bundle makes no overlays")
    scenario, cache = catalog.scenario("bf16_clip"), cache_folder()
    stack = resolution.stack(scenario, pins.complete(scenario, {"deepspeed": release}), cache)
    with overlay.borrow(stack, (DEFECT,), cache) as edited_overlay:
        check_moved_block(edited_overlay.diff)
