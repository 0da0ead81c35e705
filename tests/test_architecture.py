"""The plan of the house: its rooms are its folders, imports go down, and looking costs nothing."""

from __future__ import annotations

import ast
import resource
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = {"torch", "hydra", "omegaconf", "deepspeed", "megatron", "libcst", "uv", "pip"}
FLOORS = 9
"""A house of more floors than that nobody keeps in mind."""

FILES = [f for place in ("harness", "scenarios") for f in sorted((ROOT / place).rglob("*.py"))]


def room(module: str) -> str:
    """The room that a module is in: its folder, or itself right under harness/."""
    first, *rest = module.split(".")
    if first == "scenarios":
        return "scenarios.common" if rest[:1] == ["common"] else "scenarios"
    return f"harness.{rest[0]}" if rest else first


def module(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(file: Path) -> Iterator[str]:
    """What of ours a file imports, at the top or inside a function: whole module names."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.partition(".")[0] in ("harness", "scenarios"))


@cache
def below() -> dict[str, set[str]]:
    """Which rooms each room imports from."""
    found: dict[str, set[str]] = {}
    for file in FILES:
        own = room(module(file))
        found.setdefault(own, set()).update({room(name) for name in imported(file)} - {own})
    return found


@cache
def floor(name: str, above: tuple[str, ...] = ()) -> int:
    """A room stands above all that it imports from; the ground is floor 1. The scenarios with what
    they share are one wing, on whatever floor they need."""
    assert name not in above, f"a circle: {' -> '.join([*above, name])}"
    own = name.startswith("scenarios")
    rooms = {
        other for other in below().get(name, ()) if not (own and other.startswith("scenarios"))
    }
    return 1 + max((floor(other, (*above, name)) for other in rooms), default=0)


@pytest.mark.parametrize("name", sorted(below()))
def test_imports_go_down(name: str) -> None:
    assert floor(name) <= FLOORS


@pytest.mark.parametrize(
    ("name", "rooms"),
    [
        ("harness.spec", set()),
        ("harness.files", {"harness.text", "harness.spec"}),
        ("harness.knobs", set()),
        ("harness.detectors", set()),
        ("harness.upstream", {"harness.apex", "harness.files", "harness.text", "harness.spec"}),
        ("harness.apex", set()),
        ("harness.facts", set()),
        ("harness.pictures", set()),
        (
            "scenarios.common",
            {"harness.detectors", "harness.facts", "harness.pictures", "harness.spec"},
        ),
        (
            "scenarios",
            {
                "harness.apex",
                "harness.detectors",
                "harness.facts",
                "harness.knobs",
                "harness.pictures",
                "harness.spec",
                "scenarios.common",
            },
        ),
    ],
)
def test_the_lower_rooms_know_little(name: str, rooms: set[str]) -> None:
    assert below()[name] <= rooms


def test_only_the_config_imports_hydra() -> None:
    users = {
        module(f) for f in FILES if "import hydra" in f.read_text() or "from hydra" in f.read_text()
    }
    assert users == {"harness.config"}


def test_the_rooms_are_those_that_the_plan_names() -> None:
    plan = (ROOT / "CONTRIBUTING.md").read_text()
    folders = {name for name in below() if "." in name and (ROOT / name.replace(".", "/")).is_dir()}
    for folder in folders:
        assert f"{folder.rpartition('.')[2]}/" in plan, f"CONTRIBUTING.md does not tell of {folder}"


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
