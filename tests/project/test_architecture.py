"""Only one module imports Hydra; listing imports little; contracts of imports: pyproject.toml."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# All that listing needs: another package costs more than the list itself.
LIGHT = {"harness", "scenarios", "packaging", "rich", "tomli"}
FILES = [f for place in ("harness", "scenarios") for f in sorted((ROOT / place).rglob("*.py"))]


def module(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_only_config_imports_hydra() -> None:
    users = {
        module(f) for f in FILES if "import hydra" in f.read_text() or "from hydra" in f.read_text()
    }
    assert users == {"harness.run.command_line"}


def test_the_page_for_developers_names_every_package() -> None:
    plan = (ROOT / "docs/developers.md").read_text()
    for folder in (file.parent for file in (ROOT / "harness").glob("*/__init__.py")):
        assert f"| `{folder.name}` |" in plan, f"docs/developers.md does not name {folder.name}"


def test_a_page_names_each_file_that_its_detector_needs() -> None:
    """Users copy these files, and detectors import other detectors."""
    pages = sorted((ROOT / "scenarios").glob("*/*/README.md"))
    paragraphs = [p for page in pages for p in page.read_text().split("\n\n") if "to copy" in p]
    assert paragraphs
    for paragraph in paragraphs:
        files = set(re.findall(r"(\w+)\.py`", paragraph))
        texts = [(ROOT / f"harness/detectors/{file}.py").read_text() for file in files]
        imports = {i for text in texts for i in re.findall(r"from harness\.detectors\.(\w+)", text)}
        assert imports <= files, paragraph


PROBE = """
import sys
before = set(sys.modules)
from harness.__main__ import main
sys.argv = ["harness", *sys.argv[1:]]
code = main()
print("\\n".join(set(sys.modules) - before), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize("words", [["list"], ["list", "--json"], ["--help"]], ids=" ".join)
def test_listing_imports_little(words: list[str]) -> None:
    process = subprocess.run(
        [sys.executable, "-c", PROBE, *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in process.stderr.splitlines()}
    loaded = {name for name in loaded if not name.endswith("__mypyc")}  # of a compiled package
    assert "harness" in loaded
    assert loaded <= LIGHT | sys.stdlib_module_names
