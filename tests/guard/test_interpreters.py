"""guard reaches the interpreter of a training, whatever it is, or says that it does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.rank.guard.settings import VARIABLE
from tests.guard.commands import TRAIN, guard
from tests.sandbox import ROOT, Sandbox, ended

pytestmark = pytest.mark.slow


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
    summary = json.loads(((given if through else out) / "summary.json").read_text())
    assert summary["steps"] == 8
