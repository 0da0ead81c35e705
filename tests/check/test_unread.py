"""What is not read gets one line that says what to give instead; folders below are named."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from harness.check.environment import of_files
from harness.system.errors import UserError
from tests.check.published import published, starts
from tests.check.requirement_files import content_of
from tests.index import Handler, served

__all__ = ["published", "served", "starts"]
pytestmark = pytest.mark.usefixtures("offline", "working_folder")

PIP_LIST = "Package    Version Editable project location\n---------- ------- ------\nup  1.0\n"
CONDA_LIST = (
    "# packages in environment at /opt/conda:\n#\n# Name  Version  Build  Channel\nup  1.0  py_0\n"
)
EXPLICIT = "# platform: linux-64\n@EXPLICIT\nhttps://conda.example.org/linux-64/up-1.0-py_0.conda\n"
EXPORT = (
    "# This file may be used to create an environment using:\n# platform: linux-64\nup=1.0=py_0\n"
)
SCRIPT = "#!/usr/bin/env python\n# /// script\n# dependencies = ['up==1.0']\n# ///\nimport up\n"
WORKFLOW = "name: CI\non: [push]\njobs:\n  test:\n    runs-on: ubuntu-latest\n"


@pytest.mark.parametrize(
    ("name", "text", "way"),
    [
        ("pixi.toml", "[project]\n", "--python .pixi/envs/default"),
        ("setup.py", "import os\n", "pip freeze"),
        ("packages.txt", PIP_LIST, "give the output of 'pip freeze'"),
        ("packages.txt", CONDA_LIST, "give the output of 'conda list --json'"),
        ("spec-file.txt", EXPLICIT, "'conda list --json'"),
        ("spec-file.txt", EXPORT, "'conda list --json'"),
        ("Dockerfile.gpu", "FROM python\n", "docker run IMAGE pip freeze"),
        ("Containerfile", "FROM python\n", "docker run IMAGE pip freeze"),
        ("gpu.Dockerfile", "FROM python\n", "docker run IMAGE pip freeze"),
        ("train.py", SCRIPT, "'uv export --script FILE | distributed-bugs check -r -'"),
        ("train", SCRIPT.partition("\n")[2], "'uv export --script FILE"),
        ("train.ipynb", json.dumps({"cells": []}), "run 'pip freeze | "),
        ("package.json", '{"name": "x", "version": "1.0.0"}', "of JavaScript"),
        ("ci.yml", WORKFLOW, "name the file of requirements that they install"),
        ("docker-compose.yaml", "services:\n  a: {}\n", "name the file of requirements"),
        ("install.sh", "pip install torch\n", "name the file of requirements"),
        ("Makefile", "setup:\n\tpip install torch\n", "name the file of requirements"),
        ("setup", "#!/bin/sh\npip install torch\n", "name the file of requirements"),
        ("r.zip", "x\n", "unpack it, and name a file"),
        ("r.tar.gz", "x\n", "unpack it, and name a file"),
        ("up-1.0-py3-none-any.whl", "x\n", "install it into an environment"),
    ],
)
def test_a_file_that_is_not_read_has_a_way_out(name: str, text: str, way: str) -> None:
    Path(name).write_text(text)
    Path("all.txt").write_text(f"-r {name}\n")
    in_folder = "." if name in ("pixi.toml", "setup.py", "Containerfile") else name
    for word in (name, "all.txt", in_folder):
        with pytest.raises(UserError, match=re.escape(way)) as error:
            of_files([word], ["up"])
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "address",
    ["git+https://github.com/me/project", "git@github.com:me/project", "ssh://git@host/project"],
)
def test_a_repository_is_to_be_cloned(address: str) -> None:
    with pytest.raises(UserError, match="clone it, and name its folder"):
        of_files([address], ["up"])


@pytest.mark.parametrize("name", ["conda.yaml", "conda.yml", "env.yml", "env.yaml"])
def test_a_folder_with_condas_file_alone_is_read(name: str) -> None:
    Path("conda").mkdir()
    Path("conda", name).write_text("dependencies: [torch=2.6.0]\n")
    assert of_files(["conda"], []).packages["torch"].version == "2.6.0"


def test_a_file_of_another_tool_with_condas_name_is_not_read() -> None:
    Path("env.yml").write_text("stages: [a]\n")
    Path("pyproject.toml").write_text("[project]\ndependencies = ['up==1.0']\n")
    assert of_files(["."], ["up"]).packages["up"].version == "1.0"
    Path("pyproject.toml").unlink()
    with pytest.raises(UserError, match=r"\. has none of uv\.lock"):
        of_files(["."], ["up"])


LOCK = '[[package]]\nname = "up"\nversion = "1.0"\n[metadata]\nlock-version = "2.0"\n'


def put(file: str, text: str = LOCK) -> None:
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_text(text)


def test_folders_below_are_named_if_the_folder_has_no_file() -> None:
    put("backend/uv.lock")
    put("services/train/requirements.txt", "up==1.0\n")
    for other in (".venv", "node_modules", "a/b/c"):
        put(f"{other}/uv.lock")
    with pytest.raises(UserError) as error:
        of_files(["."], ["up"])
    ending = "; backend has uv.lock, services/train has requirements.txt: -r backend"
    assert str(error.value).endswith(ending)


def test_locks_of_folders_below_that_were_not_read_are_named_once() -> None:
    put("poetry.lock")
    put("backend/uv.lock")
    put("docs/requirements.txt", "sphinx\n")
    (note,) = [note for note in of_files(["."], ["up"]).notes if "backend" in note]
    assert note == ".: lock files of other folders were not read: backend has uv.lock: -r backend"


def test_a_search_in_folders_ends(tmp_path: Path) -> None:
    put("poetry.lock")
    for n in range(40):
        for m in range(60):
            (tmp_path / f"a{n:02}" / f"b{m}").mkdir(parents=True)
    put("z/uv.lock")
    assert not [note for note in of_files(["."], ["up"]).notes if "z has" in note]


def test_what_a_package_from_git_needs_has_the_true_reason(published: type[Handler]) -> None:
    Path("requirements.txt").write_text("apex @ git+https://github.com/NVIDIA/apex\nup==1.0\n")
    notes = " ".join(of_files(["requirements.txt"], ["up"]).notes)
    assert "what these need was not looked up, as they do not come from an index: apex" in notes


def test_a_comment_at_the_beginning_is_no_command() -> None:
    Path("requirements.txt").write_text("#!pinned\nup==1.0\n")
    assert "up" in content_of(Path("requirements.txt")).versions
