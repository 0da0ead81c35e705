"""A cloned repository is read, and nothing of it is run: whatever could be executed in it leaves no
mark, and its configuration of other programs changes no answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.system.files import ROOT
from tests.index import Handler, page, served
from tests.index import file as file_of
from tests.slow import slow

__all__ = ["served"]

MODULES = (
    *("pip.py", "uv.py", "sitecustomize.py", "usercustomize.py", "conftest.py", "setup.py"),
    *("packaging.py", "requests.py", "json.py", "torch.py", "runpy.py", "hydra_plugins/evil.py"),
    *("harness/__init__.py", "scenarios/__init__.py", "configs/__init__.py", "evil/setup.py"),
    *("-e evil/setup.py", "two words/setup.py", "evil/build.py", "-r x/setup.py"),
)
PROGRAMS = (".venv/bin/python", ".venv/bin/python3", "venv/bin/python", "bin/python", "bin/uv")

BACKEND = """
[build-system]
requires = []
build-backend = "build"
backend-path = ["."]
"""
"""With it, whoever builds needs no index."""

MARK = "import os; open(os.path.join({marks!r}, {name!r}), 'w').close()\n"
SCRIPT = '#!/bin/sh\ntouch {marks}/{name}\nexec {python} "$@"\n'

UV = """
override-dependencies = ["transformers==5.2.0"]
index-url = "http://127.0.0.1:9/simple"
[pip]
python = "{folder}/bin/python"
"""
REQUIREMENTS = (
    *("./-e evil", "./evil", "-e ./evil", "./two words", "two @ file://{folder}/two%20words"),
    *("evil @ file://{folder}/evil", "./-r x", "{folder}/-e evil", "./evil#egg=-e%20evil"),
)


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """The folder in which everything that is executed leaves a file."""
    (tmp_path / "marks").mkdir()
    return tmp_path / "marks"


@pytest.fixture
def folder(tmp_path: Path, marks: Path) -> Path:
    """A repository in which everything that could be executed leaves a mark."""
    top = tmp_path / "repository"
    for name in MODULES:
        file = top / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(MARK.format(marks=str(marks), name=name.replace("/", "_")))
    for name in PROGRAMS:
        file = top / name
        file.parent.mkdir(parents=True, exist_ok=True)
        mark = name.replace("/", "_")
        file.write_text(SCRIPT.format(marks=marks, name=mark, python=sys.executable))
        file.chmod(0o755)
    site = top / ".venv" / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages"
    site.mkdir(parents=True)
    (site / "evil.pth").write_text(MARK.format(marks=str(marks), name="pth"))
    (top / ".venv" / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\n")
    (top / "evil" / "pyproject.toml").write_text(BACKEND)
    (top / ".python-version").write_text(f"{top}/.venv/bin/python\n")
    (top / "pip.conf").write_text("[global]\nindex-url = http://127.0.0.1:9/simple\n")
    return top


@pytest.fixture(autouse=True)
def index(served: type[Handler], tmp_path: Path) -> None:
    """The user's index, which uv and pip read from their configuration in a new home."""
    address = os.environ["UV_DEFAULT_INDEX"]
    for name, text in (("uv/uv.toml", f'index-url = "{address}"'), ("pip/pip.conf", PIP)):
        file = tmp_path / "home" / ".config" / name
        file.parent.mkdir(parents=True)
        file.write_text(text.format(address=address))
    for name, version in (
        ("transformers", "5.2.0"),
        ("transformers", "5.5.4"),
        ("up", "2.0"),
        NEEDY,
    ):
        wheel = f"{name}-{version}-py3-none-any.whl"
        files = served.pages.get(name, page())["files"]
        entry = file_of(wheel, "2026-01-01T00:00:00") | {"core-metadata": True}
        served.pages[name] = page(*files, entry) | {"name": name}
        needs = "Requires-Dist: deepspeed\n" if (name, version) == NEEDY else ""
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}\n"
        served.pages[f"{name}/{wheel}.metadata"] = text


NEEDY = ("needy", "1.0")
PIP = "[global]\nindex-url = {address}\n"
NAMED = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL", "UV_PYTHON", "XDG_CONFIG_HOME")


def harness(folder: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command in the folder, as a user whose active environment is there."""
    active = str(folder / ".venv")
    environment = {
        **{name: value for name, value in os.environ.items() if name not in NAMED},
        "HOME": str(folder.parent / "home"),
        "PYTHONPATH": str(ROOT),
        "VIRTUAL_ENV": active,
        "CONDA_PREFIX": active,
        "UV_CACHE_DIR": str(folder.parent / "uv"),
        "HARNESS_CACHE": str(folder.parent / "cache"),
    }
    start = (
        "import sys; sys.path[:] = filter(None, sys.path); sys.argv[0] = 'distributed-bugs'; "
        "import runpy; runpy.run_module('harness', run_name='__main__')"
    )
    return subprocess.run(
        [sys.executable, "-c", start, *words],
        cwd=folder,
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )


def executed(marks: Path) -> list[str]:
    return sorted(path.name for path in marks.iterdir())


@pytest.mark.parametrize("line", [REQUIREMENTS[0], *slow(*REQUIREMENTS[1:])])
def test_a_requirement_runs_no_code_of_the_folder(folder: Path, marks: Path, line: str) -> None:
    text = line.format(folder=folder)
    (folder / "requirements.txt").write_text(f"{text}\ntransformers\n")
    check = harness(folder, "check", "-r", "requirements.txt")
    assert executed(marks) == []
    assert "transformers 5.5.4*" in check.stdout, check.stdout + check.stderr


@pytest.mark.parametrize(
    "requirement",
    ["./-e evil", *slow("-e ./evil", "evil @ file://{folder}/evil", "up\\n-e ./evil", "--x")],
)
def test_a_project_runs_no_code_of_the_folder(folder: Path, marks: Path, requirement: str) -> None:
    text = requirement.format(folder=folder)
    project = (
        f'[project]\nname = "ours"\nversion = "1"\ndependencies = ["transformers", "{text}"]\n'
    )
    tools = (
        '[tool.uv]\nexclude-newer = "2026-06-01T00:00:00Z"\n'
        '[[tool.uv.index]]\nurl = "http://127.0.0.1:9/"\ndefault = true\n'
    )
    (folder / "pyproject.toml").write_text(project + tools)
    check = harness(folder, "check", "-r", ".")
    assert executed(marks) == []
    answered = "transformers 5.5.4*" in check.stdout
    assert answered or (check.returncode == 2 and len(check.stderr.splitlines()) == 1), check.stderr


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("override-dependencies", "{0}@file://{1}/evil"),
        *slow(
            ("override-dependencies", "{0}@{1}/evil"),
            ("constraint-dependencies", "{0}@file://{1}/evil"),
        ),
    ],
)
def test_an_address_of_a_package_that_pip_would_build_is_not_built(
    folder: Path, marks: Path, key: str, line: str
) -> None:
    """uv may choose some packages without a wheel, and reads nothing of them."""
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "ours"\nversion = "1"\ndependencies = ["needy", "transformers"]\n'
        f'[tool.uv]\n{key} = ["{line.format("deepspeed", folder)}"]\n'
    )
    check = harness(folder, "check", "-r", ".")
    assert executed(marks) == []
    assert "transformers 5.5.4*" in check.stdout or check.returncode == 2, check.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["check"],
        ["list"],
        *slow(
            ["show", "clip_max_for_min", "pins.deepspeed=99.0.0"],
            ["check", "-r", "-"],
            ["check", "-r", ".[evil]"],
            ["check", "--deepspeed", "setup.py"],
        ),
    ],
    ids=" ".join,
)
def test_a_command_in_the_folder_runs_nothing_of_it(
    folder: Path, marks: Path, words: list[str]
) -> None:
    (folder / "requirements.txt").write_text("transformers\n")
    harness(folder, *words, stdin="transformers==5.2.0\n./-e evil\n")
    assert executed(marks) == []


def test_the_configuration_of_uv_in_the_folder_changes_no_answer(
    folder: Path, marks: Path, served: type[Handler]
) -> None:
    (folder / "uv.toml").write_text(UV.format(folder=folder))
    (folder / "requirements.txt").write_text("up\ntransformers\n")
    check = harness(folder, "check", "-r", "requirements.txt", "--json")
    assert executed(marks) == []
    assert '"version": "5.5.4"' in check.stdout, check.stderr
    assert "/simple/up/" in served.requests, "the user's own index is asked"
