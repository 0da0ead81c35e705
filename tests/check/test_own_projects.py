"""The user's own project, as a requirements file names it, is read; its code is not run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.check import environment
from harness.check.installed import Unknown
from tests.check.requirement_files import check_refused, content_of, file, known, required, selected
from tests.index import served

__all__ = ["file", "known", "served"]


@pytest.mark.parametrize(
    "line", ["-e .", ".", "./[extra]", "./up; python_version < '3'", "-c bounds.txt", "pytorch"]
)
def test_the_users_own_project_and_what_does_not_apply_are_ignored(
    tmp_path: Path, line: str
) -> None:
    folder = tmp_path / "up"
    folder.mkdir()
    (folder / "requirements.txt").write_text(line)
    (folder / "bounds.txt").write_text("up @ git+https://host/up")
    assert selected(folder / "requirements.txt") is None


OURS = """\
[project]
name = "mine"
dependencies = ["up==4.37.2"]
[project.optional-dependencies]
train = ["down==1.0"]
"""
DYNAMIC = '[project]\nname = "mine"\ndynamic = ["dependencies"]\n'


@pytest.mark.parametrize(
    ("line", "releases"),
    [
        ("-e .", {"up": "4.37.2"}),
        ("-e ./", {"up": "4.37.2"}),
        (".", {"up": "4.37.2"}),
        ("file:.", {"up": "4.37.2"}),
        ("-e .[train]", {"up": "4.37.2", "down": "1.0"}),
        ('-e ".[train, nope]"', {"up": "4.37.2", "down": "1.0"}),
        (".[train]", {"up": "4.37.2", "down": "1.0"}),
        ("-e .\n-e .[train]", {"up": "4.37.2", "down": "1.0"}),
        ("-e . ; python_version > '3'", {"up": "4.37.2"}),
        ("-e . ; python_version < '3'", {}),
    ],
)
def test_what_the_users_own_project_needs_is_read(
    file: Path, line: str, releases: dict[str, str]
) -> None:
    (file.parent / "pyproject.toml").write_text(OURS)
    (file.parent / "setup.py").write_text("raise RuntimeError")
    file.write_text(f"numpy\n{line}\n")
    assert required(file, ["up", "down"]) == releases
    notes = content_of(file).notes
    assert [note.rpartition(" ")[2] for note in notes] == ["[nope]"] * ("nope" in line)


def test_a_folder_says_truly_which_files_were_not_read(file: Path) -> None:
    (file.parent / "pyproject.toml").write_text(OURS)
    (file.parent / "setup.cfg").write_text("[options]\ninstall_requires = up\n")
    for line, others in (("up==4", "pyproject.toml, setup.cfg"), ("-e .", "setup.cfg")):
        file.write_text(f"--no-index\n{line}\n")
        notes = environment.of_files([str(file.parent)], ["up"]).notes
        assert f"{file.parent}: requirements.txt was read; {others} not read" in notes
    (file.parent / "setup.cfg").unlink()
    assert (
        f"{file.parent}: requirements.txt was read"
        in environment.of_files([str(file.parent)], ["up"]).notes
    )


def test_a_project_is_found_from_the_folder_of_its_requirements(file: Path) -> None:
    """pip reads a path relative to where it runs."""
    inner = file.parent / "requirements" / "dev.txt"
    inner.parent.mkdir()
    (file.parent / "pyproject.toml").write_text(OURS)
    for line in ("-e .", "-e .."):
        inner.write_text(f"{line}\n")
        assert required(inner, ["up"]) == {"up": "4.37.2"}


def test_a_package_in_the_project_is_read_as_well(file: Path) -> None:
    (file.parent / "sub").mkdir()
    (file.parent / "sub" / "pyproject.toml").write_text(OURS)
    (file.parent / ".git").mkdir()
    file.write_text("-e ./sub\n")
    content = content_of(file)
    assert required(file, ["up"]) == {"up": "4.37.2"}
    assert content.projects == {"sub"}
    assert content.direct["sub"].origin == "an editable install"


def test_a_checkout_of_a_package_is_no_release_of_it(file: Path) -> None:
    (file.parent / "pyproject.toml").write_text('[project]\nname = "Up"\nversion = "4.37.2"\n')
    file.write_text("-e .\n")
    package = selected(file)
    assert package == Unknown("an editable install")


@pytest.mark.parametrize(
    ("files", "releases", "note"),
    [
        ({}, {}, "no file there declares them"),
        ({"setup.py": "raise RuntimeError"}, {}, "setup.py is code, and is not run"),
        ({"setup.py": "", "pyproject.toml": "[tool.ruff]\n"}, {}, "setup.py is code"),
        ({"setup.py": "", "setup.cfg": "[metadata]\nname = mine\n"}, {}, "setup.py is code"),
        ({"pyproject.toml": DYNAMIC}, {}, "no file there declares them"),
        ({"pyproject.toml": '[project]\nname = "mine"\n', "setup.py": ""}, {}, ""),
        (
            {
                "pyproject.toml": "[tool.ruff]\n",
                "setup.cfg": "[options]\ninstall_requires = up==4\n",
            },
            {"up": "4"},
            "",
        ),
        (
            {
                "pyproject.toml": DYNAMIC
                + '[tool.setuptools.dynamic]\ndependencies = {file = ["base.txt"]}\n',
                "base.txt": "-e .\nup==4\n",
            },
            {"up": "4"},
            "",
        ),
        (
            {"pyproject.toml": '[tool.poetry.dependencies]\npython = "^3.10"\nup = "4"\n'},
            {"up": "4"},
            "",
        ),
    ],
)
def test_what_a_project_needs_is_read_or_a_note_says_that_it_was_not(
    file: Path, files: dict[str, str], releases: dict[str, str], note: str
) -> None:
    for name, text in files.items():
        (file.parent / name).write_text(text)
    file.write_text("numpy\n-e .\n")
    content = content_of(file)
    notes = " ".join(content.notes)
    assert required(file, ["up"]) == releases
    assert note in notes
    assert bool(note) == (f"{file}, line 2: its dependencies were not read" in notes)


@pytest.mark.parametrize(
    "text",
    [
        "[project\n",
        "[project]\ndependencies = 3\ndynamic = 3\n",
        '[project]\ndependencies = ["?"]\n',
    ],
)
def test_a_damaged_pyproject_of_the_users_own_is_refused(file: Path, text: str) -> None:
    (file.parent / "pyproject.toml").write_text(text)
    check_refused(file, "-e .\nup==4\n", r"pyproject\.toml")


def test_the_output_of_pip_freeze_has_what_the_own_project_needs(file: Path) -> None:
    (file.parent / "pyproject.toml").write_text(OURS)
    file.write_text(f"# Editable Git install with no remote (mine==0.1)\n-e {file.parent}\nup==4\n")
    content = content_of(file)
    assert content.frozen
    assert str(content.versions["up"]) == "==4"


def test_a_strangers_source_distribution_is_not_built(file: Path, tmp_path: Path) -> None:
    """Its setup.py would write a file, as it did when uv read the line."""
    source, trace = tmp_path / "up", tmp_path / "ran"
    source.mkdir()
    setup = "from setuptools import setup\nsetup(name='up', version='4.37.2')\n"
    (source / "setup.py").write_text(f"open({str(trace)!r}, 'w').close()\n{setup}")
    command = [sys.executable, "setup.py", "-q", "sdist"]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    assert trace.exists(), "this would prove nothing"
    (packed,) = (source / "dist").iterdir()
    trace.unlink()
    for text in (f"up @ file://{packed}", f"up @ file://{source}", f"up>=4 \n-e {source}"):
        file.write_text(text)
        package = selected(file)
        assert package
        assert package.origin
        assert not trace.exists()
    index = f"--find-links {packed.parent}\n--no-index\n--no-binary :all:\nup>=99"
    check_refused(file, f"{index}\n", "no-index")
    assert not trace.exists()
