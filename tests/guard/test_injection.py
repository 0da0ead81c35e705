"""What guard injects into a command's processes, and what it knows of the catalogue's bugs."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.rank.guard.settings import VARIABLE, Settings
from harness.system.errors import Fault
from harness.system.files import locked
from harness.training.guard import injection
from harness.training.guard.injection import CODE, SETTINGS


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "guard"


@pytest.fixture
def injected() -> list[tuple[Path, ast.Module]]:
    """The injected files."""
    files = injection.code_folder().rglob("*.py")
    return [(file, ast.parse(file.read_text(encoding="utf-8"))) for file in files]


def _name_of(node: ast.AST) -> str:
    return getattr(node, "id", None) or getattr(node, "attr", None) or ""


def _unions(tree: ast.Module) -> list[str]:
    """Unions of types outside of annotations: in isinstance, in aliases, as arguments."""
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and _name_of(node.func) in ("isinstance", "issubclass", "cast")
        for argument in node.args[:2]
        if isinstance(argument, ast.BinOp) and isinstance(argument.op, ast.BitOr)
    ]


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""


def test_the_injected_folder_has_plain_read_only_files_and_is_written_once(cache: Path) -> None:
    folder = injection.code_folder()
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert folder / "sitecustomize.py" in files
    assert all(path.suffix == ".py" for path in files)
    assert not any(path.stat().st_mode & 0o222 for path in (folder, *folder.rglob("*")))
    before = folder.stat().st_mtime_ns
    assert injection.code_folder() == folder
    assert folder.stat().st_mtime_ns == before
    assert list(cache.glob(".*")) == []


def test_other_code_has_another_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = injection.code_folder()
    monkeypatch.setattr(injection, "PARTS", ())
    second = injection.code_folder()
    assert second != folder
    assert folder.is_dir()


def test_two_commands_may_write_it_at_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = injection.code_folder()
    monkeypatch.setattr(Path, "is_dir", lambda path: path.exists() and path != folder)
    with pytest.raises(Exception, match="cannot write"):  # it says so if the other one has failed
        injection.code_folder()
    assert [path.name for path in cache.iterdir()] == [folder.name]


def test_injected_code_imports_the_standard_library_and_torch_and_nothing_when_python_starts(
    injected: list[tuple[Path, ast.Module]],
) -> None:
    folder = injection.code_folder()
    for file, tree in injected:
        for module in _imports(tree):
            top = module.partition(".")[0]
            assert top in ("torch", CODE) or top in sys.stdlib_module_names, (file, module)
    environment = {**os.environ, "PYTHONPATH": str(folder), VARIABLE: "/nowhere/settings.json"}
    code = f"import sys; print([m for m in sys.modules if m.startswith(('torch', '{CODE}'))])"
    process = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (process.stdout, process.stderr) == ("[]\n", "")


def test_the_injected_folder_has_all_that_its_files_import(
    injected: list[tuple[Path, ast.Module]],
) -> None:
    for file, tree in injected:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                target = file.parents[node.level - 1].joinpath(*(node.module or "").split("."))
                names = [target / alias.name for alias in node.names]
                places = [target] if node.module else names
                have_all = all(p.is_dir() or p.with_suffix(".py").is_file() for p in places)
                assert have_all, (file, ast.unparse(node))


NEWER = {"pairwise", "batched", "bit_count", "ExceptionGroup", "BaseExceptionGroup", "aiter"}
"""Names that Python 3.9 lacks."""
NEWER_KEYWORDS = {"zip": {"strict"}, "dataclass": {"slots", "kw_only"}, "field": {"kw_only"}}


def test_injected_code_needs_nothing_newer_than_python_3_9() -> None:
    for file in injection.code_folder().rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        tree = ast.parse(text, feature_version=(3, 9))
        is_lazy = "from __future__ import annotations" in text
        for node in ast.walk(tree):
            name = _name_of(node)
            assert name not in NEWER, (file, name)
            if isinstance(node, ast.Call):
                used = {keyword.arg for keyword in node.keywords}
                assert not used & NEWER_KEYWORDS.get(_name_of(node.func), set()), (file, used)
            annotations = [getattr(node, key, None) for key in ("annotation", "returns")]
            assert is_lazy or not any(annotations), (file, "its annotations are evaluated")
        assert not _unions(tree), (file, "a union of types is evaluated")


COLLECTIVES = (
    *("all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "gather", "recv", "reduce"),
    *("reduce_scatter", "scatter", "full_tensor", "redistribute", "monitored_barrier"),
)


def test_injected_code_calls_no_collective(injected: list[tuple[Path, ast.Module]]) -> None:
    """A rank that takes another way, or ends, would make the others wait for ever."""
    for file, tree in injected:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                name = node.func.attr
                is_of_torch = "dist" in ast.unparse(node.func.value) or name.endswith("tensor")
                is_collective = name.startswith(COLLECTIVES) and not name.endswith("_hook")
                assert not (is_of_torch and is_collective), (file, ast.unparse(node))


def test_a_command_has_its_settings_while_it_runs(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    with injection.run_folder(Settings(budget=2.5)) as folder:
        environment = injection.environment(folder, Path("/code"))
        assert environment["PYTHONPATH"] == f"/code{os.pathsep}/mine"
        monkeypatch.setenv(VARIABLE, environment[VARIABLE])
        settings = Settings.of_environment()
        assert (settings.budget, settings.out) == (2.5, str(folder))
        with injection.run_folder(Settings()) as second:  # at the same time
            assert folder.is_dir()
            assert second != folder
    assert not list(cache.glob(".run.*"))


def test_a_report_has_the_settings(tmp_path: Path) -> None:
    with injection.run_folder(Settings(out=str(tmp_path), checks=["replicas"])):
        pass
    assert json.loads((tmp_path / SETTINGS).read_text())["checks"] == ["replicas"]


def test_a_report_that_cannot_be_written_is_refused_by_its_option(
    cache: Path, tmp_path: Path
) -> None:
    (tmp_path / SETTINGS).mkdir()  # as on a full disk
    with (
        pytest.raises(Fault, match="name another --out"),
        injection.run_folder(Settings(out=str(tmp_path))),
    ):
        pass
    assert list(cache.glob(".*")) == []


def test_a_cache_that_vanishes_while_a_command_runs_is_no_fault(cache: Path) -> None:
    with injection.run_folder(Settings()) as folder:
        shutil.rmtree(cache)
    assert not folder.exists()


def test_the_folder_of_a_killed_command_is_removed_by_the_next_one(cache: Path) -> None:
    (cache / ".run.killed").mkdir(parents=True)
    (cache / ".run.killed" / SETTINGS).write_text("{}")
    with locked(cache / ".run.lives" / "lock"), injection.run_folder(Settings()):
        assert not (cache / ".run.killed").exists()
        assert (cache / ".run.lives").is_dir()
