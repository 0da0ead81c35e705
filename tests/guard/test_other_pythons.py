"""Guard reaches the interpreter of a training, whatever it is, from Python 3.9 on, or says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.rank.guard.settings import VARIABLE
from tests.guard.commands import TRAIN, guard
from tests.guard.trainer import summary_of
from tests.pythons import interpreters
from tests.sandbox import ROOT, Ended, Sandbox, ended

pytestmark = pytest.mark.slow

TORCH = """\
import importlib.machinery
import sys
import types

class Anything(type):
    def __getattr__(cls, name):
        return anything(cls, name)

def nothing(*_, **__):
    return None

def anything(owner, name):
    if name.startswith("__"):
        raise AttributeError(name)
    methods = {"__init__": nothing, "__call__": nothing, "__next__": nothing}
    setattr(owner, name, Anything(name, (), methods))
    return getattr(owner, name)

class Module(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        return anything(self, name)

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("torch."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        pass

sys.meta_path.append(Finder())
sys.modules[__name__].__class__ = Module
import torch.utils.data.dataloader
"""
"""Has whatever is asked for."""

WATCHED = """\
import sys, torch
guards = sys.modules["distributed_bugs_guard.rank.guard"]._guards
print("watched", len(guards), *sys.version_info[:2])
"""

VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder with that torch."""
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "watched.py").write_text(WATCHED)
    return tmp_path


def run(sandbox: Sandbox, folder: Path, *words: str) -> Ended:
    path = os.pathsep.join([str(folder), str(ROOT)])
    return guard(sandbox, *words, PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1")


def test_each_python_of_this_machine_is_reached(sandbox: Sandbox, folder: Path) -> None:
    """Whichever has this package: guard is injected into that of the training."""
    pythons = interpreters(VERSIONS)
    for version, python in pythons.items():
        end = run(sandbox, folder, str(python), "-W", "error", str(folder / "watched.py"))
        numbers = " ".join(version.split(".")[:2])
        assert (end.code, end.out) == (0, f"watched 1 {numbers}\n"), end.err
        assert "not watched" not in end.err
    assert pythons


@pytest.mark.parametrize("flag", ["-E", "-I", "-S"])
def test_a_launcher_that_ignores_the_path_starts_pythons_that_do_not(
    flag: str, sandbox: Sandbox, folder: Path
) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, 'watched.py'], check=True)"
    end = run(sandbox, folder, "env", "-C", str(folder), sys.executable, flag, "-c", code)
    assert (end.code, end.out[:9]) == (0, "watched 1"), end.err
    assert "no Python" not in end.err


CHANGED_PATHS = {
    "in the shell": ("bash", "-c", 'PYTHONPATH=. exec "$0" -c "import torch"'),
    "unset": ("env", "-u", "PYTHONPATH"),
    "with another sitecustomize": ("bash", "-c", 'PYTHONPATH=own:$PYTHONPATH exec "$0" "$@"'),
}


@pytest.mark.parametrize("through", CHANGED_PATHS.values(), ids=CHANGED_PATHS)
def test_a_path_that_leaves_guard_out_is_told(
    through: tuple[str, ...], sandbox: Sandbox, folder: Path
) -> None:
    (folder / "own").mkdir()
    (folder / "own" / "sitecustomize.py").write_text("")
    words = ("env", "-C", str(folder), *through, sys.executable, "-c", "import torch")
    end = run(sandbox, folder, *words)
    assert end.code == 0, end.err
    assert "guard: no training was seen: no Python of this command was reached" in end.err


def test_a_script_that_sets_the_path_for_its_ranks_is_told(sandbox: Sandbox, folder: Path) -> None:
    """Guard reaches the script, which trains nothing, but not its ranks."""
    code = (
        "import os, subprocess, sys; os.environ['PYTHONPATH'] = '.'; "
        "subprocess.run([sys.executable, '-c', 'import torch'], check=True)"
    )
    end = run(sandbox, folder, "env", "-C", str(folder), sys.executable, "-c", code)
    assert end.code == 0, end.err
    assert "guard: no training was seen" in end.err
    assert "PYTHONPATH" in end.err
    assert "import distributed_bugs; distributed_bugs.guard()" in end.err


@pytest.mark.parametrize(
    ("custom", "is_told"),
    [("import torch", False), ("raise ValueError('mine')", True), ("import absent", True)],
)
def test_a_sitecustomize_of_the_user_runs_whatever_it_does(
    custom: str, is_told: bool, sandbox: Sandbox, folder: Path
) -> None:
    (folder / "sitecustomize.py").write_text(custom)
    end = run(sandbox, folder, sys.executable, str(folder / "watched.py"))
    assert (end.code, end.out[:9]) == (0, "watched 1"), end.err
    assert ("another sitecustomize failed" in end.err) == is_told


@pytest.mark.parametrize("flag", ["-I", "-S", "-E"])
def test_a_python_that_ignores_the_path_is_told_with_the_line_for_the_script(
    flag: str, sandbox: Sandbox
) -> None:
    end = guard(sandbox, sys.executable, flag, "-c", "raise SystemExit(4)")
    assert end.code == 4
    assert (
        "guard: no training was seen: no Python of this command was reached: python -I, -S"
        in end.err
    )
    assert f"A container needs PYTHONPATH, {VARIABLE}, and {sandbox.cache / 'guard'}" in end.err
    assert "import distributed_bugs; distributed_bugs.guard()" in end.err


def test_an_interpreter_without_torch_is_not_disturbed(sandbox: Sandbox) -> None:
    code = (
        "import importlib.util as u; print(u.find_spec('torch'), len(__import__('json').dumps(1)))"
    )
    python = sys.base_prefix + "/bin/python3"
    end = guard(sandbox, python, "-c", code)
    assert end.code == 0
    assert end.out == "None 1\n"
    assert end.err.count("\n") == 1 or "once" in end.err


def test_a_sitecustomize_and_a_pythonpath_of_the_user_stay(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.mine = 'custom'\n")
    (tmp_path / "my_module.py").write_text("import sys; print(sys.mine)\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    end = guard(sandbox, sys.executable, "-c", "import my_module", PYTHONPATH=path)
    assert (end.code, end.out) == (0, "custom\n")


@pytest.mark.parametrize("through", [(), ("guard", "--out", "GIVEN")], ids=["alone", "command"])
def test_a_line_in_the_script_does_the_same(
    through: tuple[str, ...], sandbox: Sandbox, tmp_path: Path
) -> None:
    """Under the command, in an interpreter that leaves its files out, its options hold."""
    out, given = tmp_path / "out", tmp_path / "given"
    call = f"import sys; sys.path[:0] = [{str(ROOT)!r}]; from harness.console_script import guard"
    script = tmp_path / "train.py"
    script.write_text(f"{call}; guard(out={str(out)!r})\n{TRAIN}")
    words = [sys.executable, "-I", str(script)]
    if through:
        end = guard(
            sandbox, *[str(given) if word == "GIVEN" else word for word in through[1:]], *words
        )
        assert "no Python" not in end.err
    else:
        end = ended(subprocess.Popen(words, stdout=-1, stderr=-1, text=True))
    assert end.code == 0, end.err
    assert "guard: 8 steps, " in end.err
    assert summary_of(given if through else out)["steps"] == 8
