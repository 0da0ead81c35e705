"""The plan of the house: imports go down, and looking at the catalogue costs next to nothing."""

from __future__ import annotations

import ast
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = [
    {"spec", "files"},
    {"catalog", "records", "defect", "pins", "machine", "shims"},
    {"config", "overlay", "launch", "rank", "grade", "releases", "report"},
    {"run"},
    {"suite", "bundle", "clean", "show", "evidence", "cells", "admit", "new"},
    {"affected"},
    {"matrix"},
    {"bisect", "check"},
    {"__main__", "bench", "detector_table"},
]
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}
HEAVY = {"torch", "hydra", "omegaconf", "deepspeed", "megatron", "libcst", "uv", "pip"}


FILES = sorted(set((ROOT / "harness").rglob("*.py")) - {ROOT / "harness" / "__init__.py"})
UNITS = [(f.relative_to(ROOT / "harness").parts[0].removesuffix(".py"), f) for f in FILES]
"""Every file with the module or package right under harness/ that it is part of."""


def imported(file: Path) -> set[str]:
    """What of the harness a file imports, at the top or inside a function."""
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}: a relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("harness.")}


def test_every_module_has_a_floor() -> None:
    assert {unit for unit, _ in UNITS} <= set(FLOOR) | {"detectors"}


@pytest.mark.parametrize(("unit", "file"), UNITS, ids=lambda part: Path(part).stem)
def test_imports_go_down(unit: str, file: Path) -> None:
    if unit == "detectors":
        assert imported(file) <= {"detectors"}
        return
    up = {n for n in imported(file) - {unit} if FLOOR.get(n, -1) >= FLOOR[unit]}
    assert not up, f"{file.name} imports {up}, which is no floor below"


PROBE = """
import sys
from harness.__main__ import main
sys.argv = ["harness", *sys.argv[1:]]
code = main()
print("\\n".join(sys.modules), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize("words", [["list"], ["list", "--json"], ["--help"]], ids=" ".join)
def test_looking_imports_nothing_heavy_and_costs_little(words: list[str]) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    loaded = {name.partition(".")[0] for name in done.stderr.splitlines()}
    assert "harness" in loaded
    assert not loaded & HEAVY
    assert after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime < 1.0
