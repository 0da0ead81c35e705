"""Packages are folders, imports point down, and listing is quick."""

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
LAYERS = 10
"""More layers than that are hard to remember."""

FILES = [f for place in ("harness", "scenarios") for f in sorted((ROOT / place).rglob("*.py"))]


def package(module: str) -> str:
    """The package of a module: its folder, or the module itself if it is directly in harness/."""
    first, *rest = module.split(".")
    if first == "scenarios":
        return "scenarios.common" if rest[:1] == ["common"] else "scenarios"
    return f"harness.{rest[0]}" if rest else first


def module(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(file: Path) -> Iterator[str]:
    """The modules of ours that a file imports, at its top or inside a function."""
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
    """The packages that each package imports from."""
    found: dict[str, set[str]] = {}
    for file in FILES:
        own = package(module(file))
        found.setdefault(own, set()).update({package(name) for name in imported(file)} - {own})
    return found


@cache
def layer(name: str, above: tuple[str, ...] = ()) -> int:
    """The layer of a package: one above everything that it imports; the lowest layer is 1.

    All packages of scenarios count as one.
    """
    assert name not in above, f"an import cycle: {' -> '.join([*above, name])}"
    own = name.startswith("scenarios")
    others = {
        other for other in below().get(name, ()) if not (own and other.startswith("scenarios"))
    }
    return 1 + max((layer(other, (*above, name)) for other in others), default=0)


@pytest.mark.parametrize("name", sorted(below()))
def test_imports_point_down(name: str) -> None:
    assert layer(name) <= LAYERS


SPEC = ("harness.spec", "harness.settings", "harness.errors")


@pytest.mark.parametrize(
    ("name", "packages"),
    [
        ("harness.errors", set()),
        ("harness.spec", {"harness.errors", "harness.settings"}),
        ("harness.settings", set()),
        ("harness.files", {"harness.text", "harness.errors"}),
        ("harness.knobs", set()),
        ("harness.detectors", set()),
        ("harness.facts", set()),
        ("harness.pictures", set()),
        ("harness.apex", set()),
        (
            "harness.upstream",
            {"harness.apex", "harness.files", "harness.installation", "harness.text", *SPEC},
        ),
        ("harness.stacks", {"harness.upstream", "harness.errors", "harness.text"}),
        ("scenarios.common", {"harness.detectors", "harness.facts", "harness.pictures", *SPEC}),
        (
            "scenarios",
            {"scenarios.common", "harness.apex", "harness.detectors", "harness.facts"}
            | {"harness.knobs", "harness.pictures", *SPEC},
        ),
    ],
)
def test_the_lower_packages_import_little(name: str, packages: set[str]) -> None:
    assert below()[name] <= packages


def test_only_config_imports_hydra() -> None:
    users = {
        module(f) for f in FILES if "import hydra" in f.read_text() or "from hydra" in f.read_text()
    }
    assert users == {"harness.config"}


def test_contributing_names_every_package() -> None:
    plan = (ROOT / "CONTRIBUTING.md").read_text()
    folders = {name for name in below() if "." in name and (ROOT / name.replace(".", "/")).is_dir()}
    for folder in folders:
        assert f"{folder.rpartition('.')[2]}/" in plan, f"CONTRIBUTING.md does not name {folder}"


PROBE = """
import sys
from harness.__main__ import main
sys.argv = ["harness", *sys.argv[1:]]
code = main()
print("\\n".join(sys.modules), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize("words", [["list"], ["list", "--json"], ["--help"]], ids=" ".join)
def test_listing_imports_nothing_heavy_and_is_quick(words: list[str]) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    loaded = {name.partition(".")[0] for name in done.stderr.splitlines()}
    assert "harness" in loaded
    assert not loaded & HEAVY
    assert after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime < 1.0
