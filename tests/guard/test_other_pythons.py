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


UNREACHED = ": no Python of this command was reached"
PYTHON, IMPORT = sys.executable, ("-c", "import torch")
IN_ITS_RANKS = (
    "import os, subprocess, sys; os.environ['PYTHONPATH'] = '.'; "
    "subprocess.run([sys.executable, '-c', 'import torch'], check=True)"
)
LINE = "import distributed_bugs; distributed_bugs.guard()"
CONTAINER = f"A container needs PYTHONPATH, {VARIABLE}, and CACHE"


@pytest.mark.parametrize(
    ("words", "code", "reason", "parts"),
    [
        (("bash", "-c", 'PYTHONPATH=. exec "$0" -c "import torch"', PYTHON), 0, UNREACHED, []),
        (("env", "-u", "PYTHONPATH", PYTHON, *IMPORT), 0, UNREACHED, []),
        # Another sitecustomize comes first.
        (
            ("bash", "-c", 'PYTHONPATH=own:$PYTHONPATH exec "$0" "$@"', PYTHON, *IMPORT),
            0,
            UNREACHED,
            [],
        ),
        # Guard reaches the script, which trains nothing, but not its ranks.
        ((PYTHON, "-c", IN_ITS_RANKS), 0, "", ["PYTHONPATH", LINE]),
        *(
            (
                (PYTHON, flag, "-c", "raise SystemExit(4)"),
                4,
                f"{UNREACHED}: python -I, -S",
                [CONTAINER, LINE],
            )
            for flag in ("-I", "-S", "-E")
        ),
    ],
)
def test_a_python_that_is_not_reached_is_told_with_the_line_for_the_script(
    words: tuple[str, ...], code: int, reason: str, parts: list[str], sandbox: Sandbox, folder: Path
) -> None:
    (folder / "own").mkdir()
    (folder / "own" / "sitecustomize.py").write_text("")
    end = run(sandbox, folder, "env", "-C", str(folder), *words)
    assert end.code == code, end.err
    assert f"guard: no training was seen{reason}" in end.err
    for part in parts:
        assert part.replace("CACHE", str(sandbox.cache / "guard")) in end.err


@pytest.mark.parametrize(
    ("custom", "is_told"),
    [("import torch", False), ("raise ValueError('mine')", True), ("import absent", True)],
)
def test_a_sitecustomize_and_a_pythonpath_of_the_user_stay_whatever_they_do(
    custom: str, is_told: bool, sandbox: Sandbox, folder: Path
) -> None:
    (folder / "sitecustomize.py").write_text(f"import sys; sys.mine = 'custom'; {custom}")
    (folder / "my_module.py").write_text("import sys, watched; print(sys.mine)")
    end = run(sandbox, folder, sys.executable, "-c", "import my_module")
    assert (end.code, end.out[:9], end.out[-8:]) == (0, "watched 1", "\ncustom\n"), end.err
    assert ("another sitecustomize failed" in end.err) == is_told


def test_an_interpreter_without_torch_is_not_disturbed(sandbox: Sandbox) -> None:
    code = (
        "import importlib.util as u; print(u.find_spec('torch'), len(__import__('json').dumps(1)))"
    )
    python = sys.base_prefix + "/bin/python3"
    end = guard(sandbox, python, "-c", code)
    assert end.code == 0
    assert end.out == "None 1\n"
    assert end.err.count("\n") == 1 or "once" in end.err


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
