"""The scripts for maintainers: each shows its bug on a real release, with upstream alone."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import catalog
from harness.spec import BUGGY, FIXED
from harness.sweep.periods import alive
from harness.upstream.overlay import Overlay
from harness.upstream.pins import TORCH
from tests.overlays import lent, lent_release

UNKNOWN = [name for name in catalog.sound() if not catalog.scenario(name).known_upstream]


def script(name: str) -> Path:
    return catalog.folder(name) / catalog.REPORT_SCRIPT


def edited_or_another_release(name: str) -> bool:
    """Whether ``fixed`` has other code than ``buggy``, and not only other parameters."""
    scenario = catalog.scenario(name)
    fixed, buggy = ({**scenario.pins, **scenario.pins_of(each)} for each in (FIXED, BUGGY))
    return bool(scenario.variant(FIXED).defects) or fixed != buggy


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_script_needs_nothing_of_this_project(name: str) -> None:
    for node in ast.walk(ast.parse(script(name).read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        assert {each.partition(".")[0] for each in names}.isdisjoint({"harness", "scenarios"})


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_text_for_maintainers_has_all_parts(name: str) -> None:
    text = script(name).with_suffix(".md").read_text()
    parts = ("What happens", "What should happen", "Versions", "Cause", "Proposal", "Script")
    for part in parts:
        assert f"**{part}" in text


@pytest.mark.scenario
@pytest.mark.parametrize("name", UNKNOWN)
def test_a_script_shows_the_bug_of_a_buggy_release(name: str, tmp_path: Path) -> None:
    """The newest release, if that has the bug; of torch, the release that the scenario names."""
    found = alive(name)
    if found and catalog.scenario(name).subject != TORCH:
        with lent_release(name, found.release) as overlay:
            check(name, overlay, tmp_path, wrong=True)
    else:
        with lent(name, BUGGY) as overlays:
            check(name, overlays[BUGGY], tmp_path, wrong=True)


@pytest.mark.scenario
@pytest.mark.parametrize("name", [n for n in UNKNOWN if edited_or_another_release(n)])
def test_a_script_finds_nothing_in_fixed(name: str, tmp_path: Path) -> None:
    with lent(name, FIXED) as overlays:
        check(name, overlays[FIXED], tmp_path, wrong=False)


def check(name: str, overlay: Overlay, folder: Path, wrong: bool) -> None:
    """Run a script; the text for maintainers must have the line in which it says what it found."""
    settings = {
        "PYTHONPATH": str(overlay.site),
        "PYTHONDONTWRITEBYTECODE": "1",  # an overlay must not change
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [sys.executable, str(script(name))],
        cwd=folder,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == (1 if wrong else 0), done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("WRONG" if wrong else "right")
    assert f"\n{last}\n" in script(name).with_suffix(".md").read_text()
